"""How a store and its workers are doing, in a few round trips and at a bounded cost.

Lanes, workers and servers belong to everybody who shares the store: of them there are numbers and names only.
What is counted by schema and session is one owner's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.backend.servers import server_info
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.store.store import Store

_OVERVIEW = Script("overview")

RECENT_SECONDS: Final = 60
MOST_LOOKED_AT: Final = 500
"""Events that wait, and schemas, in each lane."""
_MOST_WORKERS: Final = 1_000
_FACTS_PER_LANE: Final = 6


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a lane, in microseconds since when and until when."""

    worker: str
    until: int
    since: int | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """How one kind of worker is doing in a lane."""

    kind: str
    holder: Holder | None
    done_until: int
    """Every event up to this time is done."""
    waiting: int
    """How many events after it are not."""
    more_waiting: bool
    """True: only so many were counted."""
    first_waiting: int | None
    """The time of the oldest of them."""
    dead_letters: int


@dataclass(frozen=True, slots=True)
class LaneView:
    number: int
    newest: int
    """The time of the newest event; 0: there never was one."""
    events: int
    """How many are kept."""
    events_ever: int
    shares: list[Share]


@dataclass(frozen=True, slots=True)
class WorkerView:
    kind: str
    name: str
    until: int
    """It counts as living until then, and is heard of again long before that."""


@dataclass(frozen=True, slots=True)
class SchemaCount:
    name: str
    """Empty: those without a schema."""
    count: int
    recent: int
    """How many of them were created in the last `RECENT_SECONDS`."""


@dataclass(frozen=True, slots=True)
class Overview:
    now: int
    """By the server's clock."""
    kinds: list[str]
    lanes: list[LaneView]
    workers: list[WorkerView]
    sessions: int
    schemas: list[SchemaCount]
    """The most frequent first."""
    uncounted_schemas: int
    """How many schemas were left out, in the lane where it is the most."""
    servers: list[dict[str, str]]
    """What each server says about itself (INFO); one that may not be asked is not among them."""


async def overview(store: Store, owner: UUID) -> Overview:
    """Look at everything once."""
    raw_kinds = await store.connection.call(0, b"SMEMBERS", store.keys.worker_kinds())
    kinds = sorted(kind.decode() for kind in raw_kinds)
    now = store.now()
    since = now - RECENT_SECONDS * 1_000_000
    # Issued in one go, so that they leave in one write per server.
    lanes, workers, servers = await asyncio.gather(
        asyncio.gather(*(_look(store, owner, lane, kinds, since) for lane in range(store.lanes))),
        _workers(store, kinds),
        asyncio.gather(*(_server(store, lane) for lane in store.connection.node_lanes())),
    )
    counts: Counter[str] = Counter()
    recent: Counter[str] = Counter()
    for reply in lanes:
        for name, count, new in zip(*[iter(reply[5])] * 3, strict=True):
            counts[name.decode()] += int(count)
            recent[name.decode()] += int(new)
    return Overview(
        now,
        kinds,
        [_lane(number, kinds, now, reply) for number, reply in enumerate(lanes)],
        workers,
        sum(int(reply[3]) for reply in lanes),
        [SchemaCount(name, count, recent[name]) for name, count in counts.most_common() if count],
        max(int(reply[4]) for reply in lanes),
        [server for server in servers if server],
    )


async def _look(store: Store, owner: UUID, lane: int, kinds: Sequence[str], since: int) -> list[Any]:
    keys = store.keys
    names = [keys.events(lane), keys.clock(lane), keys.sessions(lane, owner), keys.schemas(lane, owner)]
    for kind in kinds:
        names += [
            keys.lease(lane, kind),
            keys.low(lane, kind),
            keys.done(lane, kind),
            keys.dead_letters(lane, kind),
        ]
    reply: list[Any] = await store.connection.run(
        lane, _OVERVIEW, names, [keys.by_schema(lane, owner, ""), since, MOST_LOOKED_AT]
    )
    return reply


def _lane(number: int, kinds: Sequence[str], now: int, reply: list[Any]) -> LaneView:
    shares = []
    for kind, found in zip(kinds, reply[_FACTS_PER_LANE:], strict=True):
        lease, left_ms, low, letters, first, waiting, more = found
        shares.append(
            Share(
                kind,
                _holder(lease, now + int(left_ms) * 1000),
                int(low),
                int(waiting),
                bool(int(more)),
                int(first) or None,
                int(letters),
            )
        )
    return LaneView(number, int(reply[0]), int(reply[1]), int(reply[2]), shares)


def _holder(lease: bytes, until: int) -> Holder | None:
    if not lease:
        return None
    _, since, *worker = lease.decode(errors="replace").split(" ", 2)
    if not worker or not since.isdigit():  # taken by a version that did not say since when
        return Holder(" ".join((since, *worker)), until)
    return Holder(worker[0], until, int(since))


async def _workers(store: Store, kinds: Sequence[str]) -> list[WorkerView]:
    replies = await store.connection.call_all(
        [(0, (b"ZRANGE", store.keys.workers(kind), 0, _MOST_WORKERS - 1, b"WITHSCORES")) for kind in kinds]
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
        return {}  # some do not let everybody ask; and one that is away is noticed by everything else
