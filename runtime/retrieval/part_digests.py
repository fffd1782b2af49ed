"""Digest of the parts of a context. A context stores the beginning of it, and the receipt of an answer all of it."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import Any, Final

import orjson

_MAX_KEPT: Final = 64

_kept: OrderedDict[int, tuple[Any, bytes]] = OrderedDict()
"""Parts and their digests, by the identity of the parts. An entry keeps its parts, so the identity stays unique."""


def parts_digest(parts: Any) -> bytes:
    """Return the SHA-256 digest of the parts of a context."""
    return sha256(orjson.dumps(parts)).digest()


def new_parts_digest(parts: Any) -> bytes:
    """Like `parts_digest`, for the parts of a new context or answer. They must not be modified.

    In one process, the context builder and the agent use the same list. So the last digests are kept.
    """
    kept = _kept.get(id(parts))
    if kept is not None and kept[0] is parts:
        return kept[1]
    digest = parts_digest(parts)
    _kept[id(parts)] = (parts, digest)
    if len(_kept) > _MAX_KEPT:
        _kept.popitem(last=False)
    return digest
