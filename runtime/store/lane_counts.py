"""Reads of the counts of each lane, and of the INFO of each server.

One script per lane reads the counts. Its cost is bounded by `MAX_COUNTED`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import anyio

from breadcrumbs.runtime.backend.connection import Script, ScriptCall
from breadcrumbs.runtime.backend.servers import server_info
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.store.store import Store

_OVERVIEW = Script("overview")

NO_OWNER: Final = UUID(int=0)
"""No owner has this id. Counts for it contain only numbers of the whole store."""
MAX_COUNTED: Final = 500
"""Maximum number of waiting events, and of schemas, that are counted in each lane."""


@dataclass(frozen=True, slots=True)
class KindCounts:
    """The progress of one kind of worker in a lane. Times are in microseconds."""

    lease: bytes
    """The stored lease. Empty: no worker holds the lane."""
    lease_ms: int
    """Milliseconds until the lease ends."""
    low: int
    """The low-water mark: every event up to this time is done."""
    dead_letters: int
    first_waiting: int | None
    """The time of the oldest waiting event. None: no event is waiting."""
    waiting: int
    more_waiting: bool
    """True: `MAX_COUNTED` was reached, so more events can be waiting."""


@dataclass(frozen=True, slots=True)
class LaneCounts:
    """The counts of one lane. Sessions and schemas are those of one owner."""

    newest: int
    """The time of the newest event. 0: there was none."""
    events: int
    """Number of stored events."""
    events_ever: int
    """Number of events ever written."""
    sessions: int
    uncounted_schemas: int
    """Number of schemas above `MAX_COUNTED`."""
    schemas: list[tuple[str, int, int]]
    """Name, count and recent count of each schema."""
    kinds: list[KindCounts]


def oldest_wait(counts: Iterable[KindCounts], now: int) -> int:
    """Return the age of the oldest waiting event in microseconds, over all lanes. 0 if no event is waiting."""
    firsts = (count.first_waiting for count in counts if count.first_waiting is not None)
    return max(0, now - min(firsts, default=now))


async def count_lanes(store: Store, owner: UUID, kinds: Sequence[str], since: int) -> list[LaneCounts]:
    """Return the counts of all lanes in one round trip. Breadcrumbs created since `since` count as recent."""
    calls = [(lane, _count_call(store, owner, lane, kinds, since)) for lane in range(store.lanes)]
    return [_decode_counts(*reply) for reply in await store.connection.call_all(calls)]


async def read_server_infos(store: Store) -> list[dict[str, str]]:
    """Return the INFO of each server. Servers that do not permit the command are missing."""
    infos: dict[int, dict[str, str]] = {}

    async def read(lane: int) -> None:
        try:
            infos[lane] = await server_info(store.connection, lane)
        except StoreError:
            pass  # not permitted; a server that is down fails every other read too

    lanes = store.connection.node_lanes()
    async with anyio.create_task_group() as tasks:
        for lane in lanes:
            tasks.start_soon(read, lane)
    return [infos[lane] for lane in lanes if infos.get(lane)]


def _count_call(store: Store, owner: UUID, lane: int, kinds: Sequence[str], since: int) -> ScriptCall:
    keys = store.keys
    names = [keys.events(lane), keys.clock(lane), keys.sessions(lane, owner), keys.schemas(lane, owner)]
    for kind in kinds:
        names += [
            keys.lease(lane, kind),
            keys.low(lane, kind),
            keys.done(lane, kind),
            keys.dead_letters(lane, kind),
        ]
    return ScriptCall(_OVERVIEW, names, [keys.by_schema(lane, owner, ""), since, MAX_COUNTED])


def _decode_counts(
    newest: bytes, events: bytes, ever: bytes, sessions: bytes, uncounted: bytes, *rest: list[bytes]
) -> LaneCounts:
    schemas, *kinds = rest
    triples = zip(schemas[::3], schemas[1::3], schemas[2::3], strict=True)
    return LaneCounts(
        int(newest),
        int(events),
        int(ever),
        int(sessions),
        int(uncounted),
        [(name.decode(), int(count), int(recent)) for name, count, recent in triples],
        [_decode_kind(*kind) for kind in kinds],
    )


def _decode_kind(lease: bytes, left_ms: bytes, low: bytes, letters: bytes, *waiting: bytes) -> KindCounts:
    first, count, more = (int(number) for number in waiting)
    return KindCounts(lease, int(left_ms), int(low), int(letters), first or None, count, bool(more))
