"""A look at every key of a store, for what needs all of it: exports, check-ups. Never on a request's path."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple
from uuid import UUID

from breadcrumbs.runtime.store.keys import SCHEMAS
from breadcrumbs.runtime.store.store import Store


class FoundKey(NamedTuple):
    lane: int
    kind: bytes
    name: bytes
    key: bytes


async def node_lanes(store: Store) -> list[int]:
    """One lane for each node that holds any: what is asked there is asked of every node once."""
    groups = store.connection.reader_groups()
    if len(groups) == 1:
        return [groups[0][0]]
    first_on: dict[bytes, int] = {}
    for lane in (group[0] for group in groups):
        node = await store.connection.call(lane, b"CLUSTER", b"MYID")
        first_on.setdefault(node, lane)
    return sorted(first_on.values())


async def scan(store: Store, *, most: int | None = None) -> AsyncIterator[FoundKey]:
    """Keys in no order, each at least once; what is written meanwhile may or may not be among them.

    `most` bounds how many keys are looked at on each node.
    """
    # The namespace holds no glob characters (see settings): the pattern means exactly its prefix.
    pattern = store.keys.prefix(0).partition(b"{")[0] + b"{L*"
    for lane in await node_lanes(store):
        cursor, looked_at = b"0", 0
        while True:
            cursor, keys = await store.connection.call(
                lane, b"SCAN", cursor, b"MATCH", pattern, b"COUNT", 1_000
            )
            for key in keys:
                if (parsed := store.keys.parse(key)) is not None:
                    yield FoundKey(*parsed, key)
            looked_at += 1_000
            if cursor == b"0" or (most is not None and looked_at >= most):
                break


async def owners(store: Store) -> list[UUID]:
    """Everybody who has breadcrumbs here."""
    return sorted({UUID(bytes=key.name) async for key in scan(store) if key.kind == SCHEMAS})
