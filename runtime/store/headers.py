"""Reads of the headers of all breadcrumbs of an owner, without their bodies. For incremental exports.

A header and the size of a body show every change: an update has another version, a read changes the number of reads
that are left, and a reduced context (reduction.py) is smaller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from breadcrumbs.runtime.backend.connection import Connection
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.ids import home_lane
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.lookup import list_schemas
from breadcrumbs.runtime.store.store import Store

_BATCH_SIZE: Final = 500
_MAX_HEADER: Final = 128
"""Maximum size of a header in bytes, with its newline."""
_AGENTS_SIZE: Final = 32
"""Size of the two agents between the header and the JSON."""


class Header(NamedTuple):
    """The header of a stored breadcrumb. All times are in microseconds."""

    id: bytes
    version: int
    created: int
    updated: int
    expires: int
    reads: int
    size: int
    """Bytes of the JSON."""
    older: int
    """Number of older versions."""

    @classmethod
    def of(cls, crumb: Breadcrumb, older: int) -> Header:
        """Return the header of a breadcrumb that was read, with the number of its older versions."""
        return cls(
            crumb.id.bytes,
            crumb.version,
            crumb.created,
            crumb.updated,
            crumb.expires,
            crumb.max_reads,
            len(crumb.json),
            older,
        )

    def is_gone(self, now: int) -> bool:
        """Return whether the breadcrumb has expired, as `record.is_gone` does."""
        return self.expires != 0 and self.reads >= 0 and self.expires <= now


def lane_count(store: Store) -> int:
    """Return the number of lanes of a store, for the manifest of an export."""
    return store.keys.lanes


async def latest_write(store: Store) -> int:
    """Return a time in microseconds that no finished write is after, on any node.

    The clock of a lane can be ahead of its node after the clock of the node was set back.
    """
    connection, keys = store.connection, store.keys
    nodes = await connection.call_all([(lane, (b"TIME",)) for lane in connection.node_lanes()])
    clocks = await connection.call_all([(lane, (b"GET", keys.clock(lane))) for lane in range(keys.lanes)])
    times = [int(seconds) * 1_000_000 + int(microseconds) for seconds, microseconds in nodes]
    return max(*times, *(int(clock or 0) for clock in clocks), 0)


async def scan_headers(store: Store, owner: UUID, *, until: int) -> AsyncIterator[list[Header]]:
    """Yield the headers of an owner's breadcrumbs that were created until a time, in batches.

    A breadcrumb whose schema changes during the scan can be missing or occur twice. `read_headers` reads a single one.
    """
    lanes = list(range(store.keys.lanes))
    for lane, schemas in (await list_schemas(store, owner, lanes)).items():
        for schema in schemas:
            index = store.keys.by_schema(lane, owner, schema)
            async for ids in _scan_index(store.connection, lane, index, until):
                yield await _read(store, owner, [(lane, id) for id in ids])


async def read_headers(store: Store, owner: UUID, ids: Sequence[bytes]) -> list[Header]:
    """Return the headers of breadcrumbs, without those that do not exist."""
    found = []
    for start in range(0, len(ids), _BATCH_SIZE):
        places = [
            (home_lane(UUID(bytes=id), store.keys.lanes), id) for id in ids[start : start + _BATCH_SIZE]
        ]
        signposts = await store.connection.call_all(
            [(lane, (b"GET", store.keys.signpost(lane, owner, id))) for lane, id in places]
        )
        found += await _read(
            store,
            owner,
            [
                (lane if signpost is None else int(signpost), id)
                for (lane, id), signpost in zip(places, signposts, strict=True)
            ],
        )
    return found


async def _scan_index(
    connection: Connection, lane: int, index: bytes, until: int
) -> AsyncIterator[list[bytes]]:
    """Yield the members of an index, in batches. Several members can have the same time."""
    lowest, skip = 0, 0
    while True:
        flat = await connection.call(
            lane, b"ZRANGEBYSCORE", index, lowest, until, b"WITHSCORES", b"LIMIT", skip, _BATCH_SIZE
        )
        if not flat:
            return
        yield flat[::2]
        scores = [int(float(score)) for score in flat[1::2]]
        same = sum(score == scores[-1] for score in scores)
        skip = skip + same if scores[-1] == lowest else same
        lowest = scores[-1]


async def _read(store: Store, owner: UUID, places: Sequence[tuple[int, bytes]]) -> list[Header]:
    keys = store.keys
    commands = []
    for lane, id in places:
        body = keys.body(lane, owner, id)
        commands += [
            (lane, (b"GETRANGE", body, 0, _MAX_HEADER - 1)),
            (lane, (b"STRLEN", body)),
            (lane, (b"HLEN", keys.history(lane, owner, id))),
        ]
    replies = await store.connection.call_all(commands)
    found = []
    for (_, id), start, size, older in zip(places, replies[::3], replies[1::3], replies[2::3], strict=True):
        if start:
            header, _, _ = start.partition(b"\n")
            version, created, updated, expires, reads = map(int, header.split(b" "))
            rest = size - len(header) - 1 - _AGENTS_SIZE
            found.append(Header(id, version, created, updated, expires, reads, rest, older))
    return found


async def read_stored(store: Store, owner: UUID, id: bytes) -> Breadcrumb | None:
    """Return the newest version of a breadcrumb, or None if it does not exist or has expired."""
    _, body = await store.look_up(owner, UUID(bytes=id))
    crumb = None if body is None else record.decode_raw(owner, id, body)
    return None if crumb is None or record.is_gone(crumb, store.now()) else crumb
