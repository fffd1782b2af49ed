"""Check of the event logs, and of consumers that are behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from breadcrumbs.runtime.maintenance.checks.durations import duration_text
from breadcrumbs.runtime.maintenance.checks.finding import Finding
from breadcrumbs.runtime.maintenance.checks.hygiene_state import HygieneSchedule, read_hygiene
from breadcrumbs.runtime.store.housekeeping import required_kinds
from breadcrumbs.runtime.store.store import Store


async def check_events(store: Store, schedule: HygieneSchedule, *, window: int) -> list[Finding]:
    """Check that events are trimmed and that no consumer is behind.

    Events older than `window` (in microseconds) should not be needed any more. Old events are no problem before hygiene
    had the time to remove them.
    """
    call_all, keys, lanes = store.connection.call_all, store.keys, range(store.lanes)
    lengths = await call_all([(lane, (b"XLEN", keys.events(lane))) for lane in lanes])
    marks = [
        int(mark or 0) for mark in await call_all([(lane, (b"GET", keys.trimmed(lane))) for lane in lanes])
    ]
    oldest = await call_all(
        [(lane, (b"XRANGE", keys.events(lane), b"-", b"+", b"COUNT", 1)) for lane in lanes]
    )
    ages = [store.now() - _stream_time(entry[0][0]) for entry in oldest if entry]
    total, age = sum(lengths), max(ages, default=0)
    details = {
        "events": total,
        "longest_lane": max(lengths),
        "oldest_seconds": age // 1_000_000,
        "trimmed_below": max(marks),
    }
    shown = f"{total:,} events, the oldest is {duration_text(age)} old" if total else "no events"
    behind = await _find_laggards(store, store.now() - window, [bool(length) for length in lengths])
    if behind:
        worst = max(behind, key=lambda one: one.lag)
        return [
            Finding(
                "events",
                "warning",
                f"{worst.name} has not handled events of lane {worst.lane} that are {duration_text(worst.lag)} old; "
                f"the window is {duration_text(window)}. No events are lost, but the event log cannot be trimmed",
                "start the worker again; if it is no longer needed, remove it: " + worst.removal,
                details | {"behind": sorted({one.name for one in behind})},
            )
        ]
    # Hygiene runs at an interval, so events can be somewhat older than the window.
    hygiene = await read_hygiene(store, schedule)
    if age > 2 * window and (hygiene.active or hygiene.overdue):
        return [
            Finding(
                "events",
                "warning",
                f"{shown}, but the window is {duration_text(window)}: hygiene does not remove them",
                "read the API's log for errors of hygiene, and restart the API",
                details,
            )
        ]
    return [Finding("events", "ok", shown, details=details)]


@dataclass(frozen=True, slots=True)
class _Laggard:
    """Consumer of events that is behind."""

    name: str
    lane: int
    lag: int
    """Age of the oldest event that it needs, in microseconds."""
    removal: str
    """Redis command that removes the consumer."""


async def _find_laggards(store: Store, floor: int, has_stream: Sequence[bool]) -> list[_Laggard]:
    """Return the consumers that still need an event from before `floor`.

    Consumers are kinds of workers, and consumer groups of the Redis stream.
    """
    call, keys, now = store.connection.call, store.keys, store.now()
    found = []
    kinds = await required_kinds(store)
    for lane in (lane for lane in range(store.lanes) if has_stream[lane]):
        stream = keys.events(lane)
        for kind in kinds:
            low = int(await call(lane, b"GET", keys.low(lane, kind)) or 0)
            if (needed := await _first_after(store, lane, b"%d-0" % low)) is not None and needed < floor:
                removal = f"SREM {keys.worker_kinds().decode()} {kind}"
                found.append(_Laggard(f"worker kind {kind}", lane, now - needed, removal))
        for flat in await call(lane, b"XINFO", b"GROUPS", stream):
            group = dict(zip(flat[::2], flat[1::2], strict=True))
            _, lowest, _, _ = await call(lane, b"XPENDING", stream, group[b"name"])
            first = (
                _stream_time(lowest)
                if lowest
                else await _first_after(store, lane, group[b"last-delivered-id"])
            )
            if first is not None and first < floor:
                name = group[b"name"].decode(errors="replace")
                removal = f"XGROUP DESTROY {stream.decode()} {name}"
                found.append(_Laggard(f"consumer group {name}", lane, now - first, removal))
    return found


async def _first_after(store: Store, lane: int, id: bytes) -> int | None:
    entries = await store.connection.call(
        lane, b"XRANGE", store.keys.events(lane), b"(" + id, b"+", b"COUNT", 1
    )
    return _stream_time(entries[0][0]) if entries else None


def _stream_time(id: bytes) -> int:
    return int(id.partition(b"-")[0])
