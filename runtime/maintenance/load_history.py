"""Samples the load once a minute for the history of the operations page. One process at a time does this."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import anyio
import structlog

from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.store.lane_counts import NO_OWNER, count_lanes, oldest_wait
from breadcrumbs.runtime.store.load_history import (
    MAX_SAMPLED_KINDS,
    MINUTE_MICROSECONDS,
    KindLoad,
    LoadSample,
    claim_minute,
    read_samples,
    read_turn_counters,
    write_sample,
)
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_records import read_worker_kinds
from breadcrumbs.runtime.store.worker_reports import list_workers

_log = structlog.get_logger("breadcrumbs.history")


@dataclass(frozen=True, slots=True)
class KindMinute:
    """One minute of one kind of worker."""

    kind: str
    answered: int | None
    """Turns answered in this minute. None: unknown, because the sample before is missing."""
    failed: int | None
    lag_ms: float
    waiting: int
    workers: int


@dataclass(frozen=True, slots=True)
class Minute:
    """One minute of the history."""

    end: int
    """Time in microseconds."""
    events: int | None
    """Events written in this minute."""
    kinds: list[KindMinute]


async def sample_forever(store: Store) -> None:
    """Write a sample at the end of each minute, unless another process does."""
    while True:
        await anyio.sleep((MINUTE_MICROSECONDS - store.now() % MINUTE_MICROSECONDS) / 1_000_000 + 0.05)
        try:
            await sample_minute(store)
        except StoreError as error:
            _log.debug("sampling the load failed", error=str(error))


async def sample_minute(store: Store) -> bool:
    """Write the sample of the last full minute. Return False if another process has done this."""
    minute = store.now() // MINUTE_MICROSECONDS - 1
    if not await claim_minute(store, minute):
        return False
    # Kinds without a slash are those of the installation. Kinds of user programs come after them.
    kinds = sorted(await read_worker_kinds(store), key=lambda kind: ("/" in kind, kind))[:MAX_SAMPLED_KINDS]
    now = store.now()
    lanes, counters, workers = await gather(
        count_lanes(store, NO_OWNER, kinds, now),
        read_turn_counters(store, kinds),
        list_workers(store, kinds),
    )
    alive = Counter(worker.kind for worker in workers if not worker.ended)
    loads: dict[str, KindLoad] = {}
    for place, kind in enumerate(kinds):
        progress = [lane.kinds[place] for lane in lanes]
        loads[kind] = KindLoad(
            *counters[place],
            lag_ms=round(oldest_wait(progress, now) / 1000, 1),
            waiting=sum(one.waiting for one in progress),
            workers=alive[kind],
        )
    await write_sample(store, LoadSample(minute, sum(lane.events_ever for lane in lanes), loads))
    return True


async def read_history(store: Store) -> list[Minute]:
    """Return the minutes of the history, oldest first, with the turns and events of each minute."""
    minutes: list[Minute] = []
    before: LoadSample | None = None
    for sample in await read_samples(store):
        known = before if before is not None and before.minute == sample.minute - 1 else None
        minutes.append(
            Minute(
                (sample.minute + 1) * MINUTE_MICROSECONDS,
                None if known is None else max(0, sample.events - known.events),
                [
                    _kind_minute(kind, load, None if known is None else known.kinds.get(kind))
                    for kind, load in sample.kinds.items()
                ],
            )
        )
        before = sample
    return minutes


def _kind_minute(kind: str, load: KindLoad, before: KindLoad | None) -> KindMinute:
    return KindMinute(
        kind,
        None if before is None else max(0, load.answered - before.answered),
        None if before is None else max(0, load.failed - before.failed),
        load.lag_ms,
        load.waiting,
        load.workers,
    )
