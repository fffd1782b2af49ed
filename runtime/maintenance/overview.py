"""Overview of a store and its workers.

It takes a few round trips and has a limited cost.

Lanes, workers and servers are shared by all owners, so only numbers and names are returned for them. Schemas and
sessions are those of one owner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.store.lane_counts import KindCounts, LaneCounts, count_lanes, read_server_infos
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_records import read_worker_kinds
from breadcrumbs.runtime.store.worker_reports import ListedWorker, list_workers

RECENT_SECONDS: Final = 60
"""Maximum age of a recent breadcrumb."""


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """Worker that holds a lane. Times are in microseconds."""

    worker: str
    until: int
    since: int | None = None
    """None: an older version of Breadcrumbs acquired the lease and did not store the time."""


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """Progress of one kind of worker in a lane."""

    kind: str
    holder: LeaseHolder | None
    done_until: int
    """Every event up to this time is done."""
    waiting: int
    """Number of later events that are not done."""
    more_waiting: bool
    """True: the count reached its limit, so more events can be waiting."""
    first_waiting: int | None
    """Time of the oldest waiting event."""
    dead_letters: int


@dataclass(frozen=True, slots=True)
class LaneView:
    """Events of a lane, and the progress of the workers in it."""

    number: int
    newest: int
    """Time of the newest event. 0 if there was none."""
    events: int
    """Number of events in the log."""
    events_ever: int
    """Total number of events ever written."""
    progress: list[LaneProgress]


@dataclass(frozen=True, slots=True)
class SchemaCount:
    """Number of breadcrumbs with one schema."""

    name: str
    """Schema name. Empty for breadcrumbs without a schema."""
    count: int
    recent: int
    """Number of breadcrumbs created in the last `RECENT_SECONDS`."""


@dataclass(frozen=True, slots=True)
class Overview:
    """Overview of a store."""

    now: int
    """Time of the server's clock, in microseconds."""
    kinds: list[str]
    lanes: list[LaneView]
    workers: list[ListedWorker]
    sessions: int
    schemas: list[SchemaCount]
    """Most frequent first."""
    uncounted_schemas: int
    """Number of schemas that were not counted, in the lane with the most of them."""
    servers: list[dict[str, str]]
    """INFO of each server. Servers that do not allow the command are missing."""


async def overview(store: Store, owner: UUID) -> Overview:
    """Return the overview of a store for an owner."""
    kinds = await read_worker_kinds(store)
    now = store.now()
    since = now - RECENT_SECONDS * 1_000_000
    # The reads are sent together, in one write per server.
    lanes, workers, servers = await gather(
        count_lanes(store, owner, kinds, since), list_workers(store, kinds), read_server_infos(store)
    )
    return Overview(
        now,
        kinds,
        [_lane_view(number, kinds, now, counts) for number, counts in enumerate(lanes)],
        workers,
        sum(counts.sessions for counts in lanes),
        _count_schemas(lanes),
        max(counts.uncounted_schemas for counts in lanes),
        servers,
    )


def _count_schemas(lanes: Sequence[LaneCounts]) -> list[SchemaCount]:
    """Add up the schemas of all lanes, most frequent first."""
    counts: Counter[str] = Counter()
    recent: Counter[str] = Counter()
    for lane in lanes:
        for name, count, new in lane.schemas:
            counts[name] += count
            recent[name] += new
    return [SchemaCount(name, count, recent[name]) for name, count in counts.most_common() if count]


def _lane_view(number: int, kinds: Sequence[str], now: int, counts: LaneCounts) -> LaneView:
    progress = [_progress(kind, now, found) for kind, found in zip(kinds, counts.kinds, strict=True)]
    return LaneView(number, counts.newest, counts.events, counts.events_ever, progress)


def _progress(kind: str, now: int, counts: KindCounts) -> LaneProgress:
    return LaneProgress(
        kind,
        _lease_holder(counts.lease, now + counts.lease_ms * 1000),
        counts.low,
        counts.waiting,
        counts.more_waiting,
        counts.first_waiting,
        counts.dead_letters,
    )


def _lease_holder(lease: bytes, until: int) -> LeaseHolder | None:
    if not lease:
        return None
    _, since, *worker = lease.decode(errors="replace").split(" ", 2)
    if not worker or not since.isdigit():  # acquired by an older version, which did not store the time
        return LeaseHolder(" ".join((since, *worker)), until)
    return LeaseHolder(worker[0], until, int(since))
