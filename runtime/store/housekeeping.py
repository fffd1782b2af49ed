"""Removal of old events, and counters of hygiene runs. `expiry.py` removes expired breadcrumbs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_records import has_living_worker, read_worker_kinds

_TRIM: Final = Script("trim")


@dataclass(frozen=True, slots=True)
class RunCounts:
    """Results of one hygiene run."""

    purged: int
    """Expired breadcrumbs removed."""
    trimmed: int
    """Events removed."""
    duration_ms: float
    errors: int


@dataclass(frozen=True, slots=True)
class RunTotals:
    """Counters of the hygiene runs of all processes on a store."""

    runs: int
    purged: int
    trimmed: int
    last_duration_ms: float
    last_errors: int
    last_run: int | None
    """Time of the last run. None: it never ran."""


def housekeeping_lanes(store: Store) -> Sequence[int]:
    """Return the lanes to clean. Lanes are independent: an error in one does not stop the others."""
    return range(store.lanes)


async def trim_events(store: Store, lane: int, window: int) -> int:
    """Delete old events that every kind of worker has finished, and return their number.

    `window`: age in microseconds above which an event is old.
    """
    keys = store.keys
    done = await store.connection.call_all(
        [(lane, (b"GET", keys.low(lane, kind))) for kind in await required_kinds(store)]
    )
    below = min([store.now() - window, *(int(low or 0) + 1 for low in done)])
    if below <= 0:  # the window is longer than the time since 1970
        return 0
    return int(
        await store.connection.run(lane, _TRIM, [keys.events(lane), keys.trimmed(lane)], [b"%d" % below])
    )


async def required_kinds(store: Store) -> list[str]:
    """Return the kinds of workers that events are kept for.

    A kind with a slash is an agent that a program runs itself. It counts only while a worker is alive. Otherwise a
    script that ran once would keep all events forever.
    """
    return [
        kind
        for kind in await read_worker_kinds(store)
        if "/" not in kind or await has_living_worker(store, kind)
    ]


async def count_run(store: Store, counts: RunCounts) -> None:
    """Add the results of a run to the counters."""
    key = store.keys.hygiene()
    await store.connection.call_all(
        [
            (0, (b"HINCRBY", key, "runs", 1)),
            (0, (b"HINCRBY", key, "purged", counts.purged)),
            (0, (b"HINCRBY", key, "trimmed", counts.trimmed)),
            (0, (b"HSET", key, "duration_ms", counts.duration_ms, "errors", counts.errors)),
            (0, (b"HSET", key, "at", store.now())),
        ]
    )


async def read_totals(store: Store) -> RunTotals:
    """Return the counters of all runs."""
    flat = await store.connection.call(0, b"HGETALL", store.keys.hygiene())
    stored = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
    return RunTotals(
        int(stored.get("runs", 0)),
        int(stored.get("purged", 0)),
        int(stored.get("trimmed", 0)),
        float(stored.get("duration_ms", 0)),
        int(stored.get("errors", 0)),
        int(stored["at"]) if "at" in stored else None,
    )
