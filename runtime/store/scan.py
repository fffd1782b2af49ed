"""Scans of all keys of a store, for exports and checks. Too slow for the path of a request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple
from uuid import UUID

from breadcrumbs.runtime.backend.servers import scan_keys
from breadcrumbs.runtime.store.keys import OWNER_RECORDS, SCHEMAS
from breadcrumbs.runtime.store.store import Store


class FoundKey(NamedTuple):
    """A key and its parts (see keys.py)."""

    lane: int
    kind: bytes
    name: bytes
    key: bytes


async def scan(store: Store, *, max_keys: int | None = None) -> AsyncIterator[FoundKey]:
    """Yield the keys of the store, with the guarantees of `scan_keys`. `max_keys`: limit per server."""
    # The namespace has no glob characters (see settings), so the pattern matches exactly its prefix.
    pattern = store.keys.prefix(0).partition(b"{")[0] + b"{L*"
    async for key in scan_keys(store.connection, pattern, max_keys=max_keys):
        if (parsed := store.keys.parse(key)) is not None:
            yield FoundKey(*parsed, key)


async def owners(store: Store) -> list[UUID]:
    """Return the owners that have breadcrumbs in the store."""
    return sorted({UUID(bytes=key.name) async for key in scan(store) if key.kind == SCHEMAS})


async def owners_with_records(store: Store) -> list[UUID]:
    """Return the owners that have breadcrumbs, agents, selectors, an archive or a name."""
    kinds = OWNER_RECORDS | {SCHEMAS}
    found = {UUID(bytes=key.name[:16]) async for key in scan(store) if key.kind in kinds}
    named = await store.connection.call(0, b"HKEYS", store.keys.tenants())
    return sorted(found | {UUID(id.decode()) for id in named})
