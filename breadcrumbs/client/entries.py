"""Entries of a framework's history, as values. No I/O here."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from breadcrumbs.client.requests import json_of


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry that a framework stores, as JSON."""

    document: Any
    id: str | None = None
    """An id that the framework never uses again. The same entry twice is stored once."""
    title: str = ""


def entry_digest(entry: Entry) -> str | None:
    """Return a digest of id and content, or None without an id. A reused id with other content differs."""
    if entry.id is None:
        return None
    return sha256(json_of([entry.id, entry.document], option=orjson.OPT_SORT_KEYS)).hexdigest()
