"""Counts of a store and its workers, in a few round trips and at a bounded cost.

Lanes, workers and servers are shared by all owners: of them there are only numbers and names. Schemas and sessions
are those of one owner.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.backend.servers import server_info
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.store.store import Store

_OVERVIEW = Script("overview")

RECENT_SECONDS: Final = 60
MAX_COUNTED: Final = 500
"""Waiting events, and schemas, that are counted in each lane."""
_MAX_WORKERS: Final = 1_000


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The worker that holds a lane, with times in microseconds."""

    worker: str
    until: int
    since: int | None = None
    """None: an older version took the lease and did not store the time."""


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """The progress of one kind of worker in a lane."""

    kind: str
    holder: LeaseHolder | None
    done_until: int
    """Every event up to this time is done."""
    waiting: int
    """How many events after it are not done."""
    more_waiting: bool
    """Whether there are more than were counted."""
    first_waiting: int | None
    """The time of the oldest waiting event."""
    dead_letters: int


@dataclass(frozen=True, slots=True)
class LaneView:
    number: int
    newest: int
    """The time of the newest event; 0: there was none."""
    events: int
    """How many are kept."""
    events_ever: int
    progress: list[LaneProgress]


@dataclass(frozen=True, slots=True)
class WorkerView:
    kind: str
    name: str
    until: int
    """The worker counts as alive until then. It sends its next heartbeat long before."""


@dataclass(frozen=True, slots=True)
class SchemaCount:
    name: str
    """Empty: breadcrumbs without a schema."""
    count: int
    recent: int
    """How many of them were created in the last `RECENT_SECONDS`."""


@dataclass(frozen=True, slots=True)
class Overview:
    now: int
    """The time of the server's clock."""
    kinds: list[str]
    lanes: list[LaneView]
    workers: list[WorkerView]
    sessions: int
    schemas: list[SchemaCount]
    """The most frequent first."""
    uncounted_schemas: int
    """How many schemas were not counted, in the lane with the most of them."""
    servers: list[dict[str, str]]
    """The INFO of each server. Servers that do not permit the command are missing."""


class _LaneReply(NamedTuple):
    """The reply of overview.lua for one lane."""

    newest: bytes
    events: bytes
    events_ever: bytes
    sessions: bytes
    uncounted_schemas: bytes
    schemas: list[bytes]
    """Name, count and recent count of each schema, in one flat list."""
    kinds: list[list[bytes]]
    """The progress of each kind of worker."""


async def overview(store: Store, owner: UUID) -> Overview:
    """Count everything once."""
    raw_kinds = await store.connection.call(0, b"SMEMBERS", store.keys.worker_kinds())
    kinds = sorted(kind.decode() for kind in raw_kinds)
    now = store.now()
    since = now - RECENT_SECONDS * 1_000_000
    # Sent together, in one write per server.
    lanes, workers, servers = await asyncio.gather(
        asyncio.gather(*(_read_lane(store, owner, lane, kinds, since) for lane in range(store.lanes))),
        _workers(store, kinds),
        asyncio.gather(*(_server(store, lane) for lane in store.connection.node_lanes())),
    )
    return Overview(
        now,
        kinds,
        [_lane_view(number, kinds, now, reply) for number, reply in enumerate(lanes)],
        workers,
        sum(int(reply.sessions) for reply in lanes),
        _count_schemas(lanes),
        max(int(reply.uncounted_schemas) for reply in lanes),
        [server for server in servers if server],
    )


async def _read_lane(store: Store, owner: UUID, lane: int, kinds: Sequence[str], since: int) -> _LaneReply:
    keys = store.keys
    names = [keys.events(lane), keys.clock(lane), keys.sessions(lane, owner), keys.schemas(lane, owner)]
    for kind in kinds:
        names += [
            keys.lease(lane, kind),
            keys.low(lane, kind),
            keys.done(lane, kind),
            keys.dead_letters(lane, kind),
        ]
    newest, events, ever, sessions, uncounted, schemas, *progress = await store.connection.run(
        lane, _OVERVIEW, names, [keys.by_schema(lane, owner, ""), since, MAX_COUNTED]
    )
    return _LaneReply(newest, events, ever, sessions, uncounted, schemas, progress)


def _count_schemas(lanes: Sequence[_LaneReply]) -> list[SchemaCount]:
    """Add up the schemas of all lanes, the most frequent first."""
    counts: Counter[str] = Counter()
    recent: Counter[str] = Counter()
    for reply in lanes:
        for name, count, new in zip(*[iter(reply.schemas)] * 3, strict=True):
            counts[name.decode()] += int(count)
            recent[name.decode()] += int(new)
    return [SchemaCount(name, count, recent[name]) for name, count in counts.most_common() if count]


def _lane_view(number: int, kinds: Sequence[str], now: int, reply: _LaneReply) -> LaneView:
    progress = [_progress(kind, now, found) for kind, found in zip(kinds, reply.kinds, strict=True)]
    return LaneView(number, int(reply.newest), int(reply.events), int(reply.events_ever), progress)


def _progress(kind: str, now: int, found: list[bytes]) -> LaneProgress:
    lease, left_ms, low, letters, first, waiting, more = found
    return LaneProgress(
        kind,
        _lease_holder(lease, now + int(left_ms) * 1000),
        int(low),
        int(waiting),
        bool(int(more)),
        int(first) or None,
        int(letters),
    )


def _lease_holder(lease: bytes, until: int) -> LeaseHolder | None:
    if not lease:
        return None
    _, since, *worker = lease.decode(errors="replace").split(" ", 2)
    if not worker or not since.isdigit():  # an older version took it and did not store the time
        return LeaseHolder(" ".join((since, *worker)), until)
    return LeaseHolder(worker[0], until, int(since))


async def _workers(store: Store, kinds: Sequence[str]) -> list[WorkerView]:
    replies = await store.connection.call_all(
        [(0, (b"ZRANGE", store.keys.workers(kind), 0, _MAX_WORKERS - 1, b"WITHSCORES")) for kind in kinds]
    )
    return [
        WorkerView(kind, name.decode(errors="replace"), int(float(until)))
        for kind, flat in zip(kinds, replies, strict=True)
        for name, until in sorted(zip(flat[::2], flat[1::2], strict=True))
    ]


async def _server(store: Store, lane: int) -> dict[str, str]:
    try:
        return await server_info(store.connection, lane)
    except StoreError:
        return {}  # not permitted; a server that is down shows in every other read
