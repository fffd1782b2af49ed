"""Entries of a framework's history as values, without I/O."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from breadcrumbs.client.requests import json_of


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a framework's history."""

    document: Any
    id: str | None = None
    """An id that the framework never reuses. An entry with an id is stored only once."""
    title: str = ""


def entry_digest(entry: Entry) -> str | None:
    """Return a digest of id and content, or None without an id.

    The content is included, so that an entry with a reused id and other content is stored too.
    """
    if entry.id is None:
        return None
    return sha256(json_of([entry.id, entry.document], option=orjson.OPT_SORT_KEYS)).hexdigest()
