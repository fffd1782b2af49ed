"""Values of the store for metrics: lag, dead letters and the length of the event logs.

Anyone who can reach `/metrics` can request it at any rate. So the values are read at most every few seconds, with one
bounded script per lane, and a store that does not reply delays a scrape by two seconds at most. Values that are not
current are left out: an old lag is worse than none.
"""

from __future__ import annotations

import time
from typing import Final

import anyio

from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.store.lane_counts import NO_OWNER, KindCounts, count_lanes, oldest_wait
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_records import WorkerRecord, read_worker_kinds, read_workers
from breadcrumbs.runtime.telemetry import metrics

MAX_AGE_SECONDS: Final = 5.0
"""Values are read again when they are older than this. A failed read is repeated after the same time."""
_READ_TIMEOUT_SECONDS: Final = 2.0
_MAX_KINDS: Final = 100

_BY_KIND: Final = (
    metrics.WORKER_LAG_EVENTS,
    metrics.WORKER_LAG_SECONDS,
    metrics.WORKERS,
    metrics.LANES_WITHOUT_WORKER,
    metrics.DEAD_LETTERS,
)


class StoreValues:
    """Reads the values of a store into the metrics."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read_at = float("-inf")
        self._current = False
        self._reading = anyio.Lock()

    async def render(self) -> bytes:
        """Return the values in the Prometheus text format. Empty if the store is unavailable."""
        async with self._reading:  # concurrent scrapes share one read
            if time.monotonic() - self._read_at > MAX_AGE_SECONDS:
                self._current = await self._read()
                self._read_at = time.monotonic()
        return metrics.render_store_values() if self._current else b""

    async def _read(self) -> bool:
        """Read the values. Return False if the store does not reply in time."""
        store = self._store
        try:
            with anyio.fail_after(_READ_TIMEOUT_SECONDS):
                kinds = (await read_worker_kinds(store))[:_MAX_KINDS]
                now = store.now()
                lanes, workers = await gather(
                    count_lanes(store, NO_OWNER, kinds, now), read_workers(store, kinds)
                )
        except (StoreError, TimeoutError):
            return False
        for gauge in _BY_KIND:
            gauge.clear()  # a kind can have been removed
        for index, kind in enumerate(kinds):
            _set_kind(kind, [lane.kinds[index] for lane in lanes], workers, now)
        metrics.EVENT_BACKLOG.set(sum(lane.events for lane in lanes))
        return True


def _set_kind(kind: str, lanes: list[KindCounts], workers: list[WorkerRecord], now: int) -> None:
    metrics.WORKER_LAG_EVENTS.labels(kind).set(sum(lane.waiting for lane in lanes))
    metrics.WORKER_LAG_SECONDS.labels(kind).set(oldest_wait(lanes, now) / 1_000_000)
    metrics.WORKERS.labels(kind).set(sum(one.kind == kind and one.until > now for one in workers))
    metrics.LANES_WITHOUT_WORKER.labels(kind).set(sum(not lane.lease for lane in lanes))
    metrics.DEAD_LETTERS.labels(kind).set(sum(lane.dead_letters for lane in lanes))
