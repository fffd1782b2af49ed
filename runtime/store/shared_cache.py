"""Cache of breadcrumbs without a session. They are distributed over all lanes, so a read of them asks every lane.

Each owner has a version key. Every write of a breadcrumb without a session replaces its value after the write, and
before the writer gets the result. A cached result is used while the key has the value that was read before the
result. The read checks that, or on a single server the commit of the turn. So a client that has written a breadcrumb
finds it in its next request, in any process.

A process can die between the write and the change of the key, and processes of older versions do not change it. The
TTL limits how long such a write stays unnoticed.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from breadcrumbs.runtime.backend.connection import Connection
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.store.keys import Keys
from breadcrumbs.runtime.telemetry import metrics

_TTL_SECONDS: Final = 1.0
_KEPT_SECONDS: Final = 60
"""Expiry of the version key. It is longer than the TTL: nothing that was cached before the last write is used then."""
_MAX_ENTRIES: Final = 1_024
_MAX_JSON_BYTES: Final = 65_536  # larger results are not cached, as in write_cache.py

_HITS: Final = metrics.CACHE_HITS.labels("shared")
_MISSES: Final = metrics.CACHE_MISSES.labels("shared")

SharedKey: TypeAlias = tuple[UUID, str, int]
"""Owner, schema, and number of breadcrumbs per lane."""
Heads: TypeAlias = Sequence[Sequence[Breadcrumb]]
"""The newest breadcrumbs of each lane, without a filter. Lanes without any can be missing."""


@dataclass(frozen=True, slots=True)
class CachedHeads:
    """Cached breadcrumbs of one owner and schema."""

    version: bytes | None
    expires_at: float
    """`time.monotonic`"""
    heads: Heads


class SharedCache:
    """Caches the newest breadcrumbs without a session, by owner and schema."""

    def __init__(self) -> None:
        self._entries: OrderedDict[SharedKey, CachedHeads] = OrderedDict()

    def has(self, key: SharedKey) -> bool:
        """Return whether breadcrumbs are cached. They can be outdated."""
        entry = self._entries.get(key)
        return entry is not None and entry.expires_at > time.monotonic()

    def get(self, key: SharedKey, version: bytes | None) -> Heads | None:
        """Return cached breadcrumbs, or None if they can be outdated. `version`: the value of the owner's key."""
        entry = self._entries.get(key)
        if entry is None or entry.version != version or entry.expires_at <= time.monotonic():
            _MISSES.inc()
            return None
        _HITS.inc()
        return entry.heads

    def get_unchecked(self, key: SharedKey) -> CachedHeads | None:
        """Return cached breadcrumbs. The caller must check their version."""
        entry = self._entries.get(key)
        if entry is None or entry.expires_at <= time.monotonic():
            return None
        _HITS.inc()
        return entry

    def put(self, key: SharedKey, version: bytes | None, heads: Heads) -> None:
        """Cache breadcrumbs. `version` was read before them."""
        self._entries.pop(key, None)
        crumbs = [crumb for head in heads for crumb in head]
        # Reads of a breadcrumb with a read limit can end it without a write.
        if any(crumb.max_reads for crumb in crumbs) or sum(len(c.json) for c in crumbs) > _MAX_JSON_BYTES:
            return
        # Most lanes have no breadcrumb of a schema. Each turn merges the heads.
        filled = [head for head in heads if head]
        self._entries[key] = CachedHeads(version, time.monotonic() + _TTL_SECONDS, filled)
        if len(self._entries) > _MAX_ENTRIES:
            self._entries.popitem(last=False)


async def note_shared_write(connection: Connection, keys: Keys, owner: UUID) -> None:
    """Change the version key of an owner after a write of a breadcrumb without a session.

    The write has succeeded, so an error is not raised. The TTL of the cache limits its effect.
    """
    lane = keys.shared_lane(owner)
    try:
        key, version = keys.shared(lane, owner), secrets.token_bytes(8)
        await connection.call(lane, b"SET", key, version, b"EX", _KEPT_SECONDS)
    except StoreError:
        pass
