"""Check that expired breadcrumbs are removed."""

from __future__ import annotations

from typing import Final

from breadcrumbs.runtime.maintenance.checks.durations import duration_text
from breadcrumbs.runtime.maintenance.checks.finding import Finding
from breadcrumbs.runtime.maintenance.checks.hygiene_state import HygieneSchedule, HygieneState, read_hygiene
from breadcrumbs.runtime.store.expiry import purge_expired
from breadcrumbs.runtime.store.store import Store

OVERDUE: Final = 10 * 60 * 1_000_000
"""Microseconds after which an expired breadcrumb should have been removed."""


async def check_expired(store: Store, schedule: HygieneSchedule, *, fix: bool = False) -> Finding:
    """Check for expired breadcrumbs that are not removed, and with `fix` remove them.

    Only breadcrumbs that hygiene had the time to remove are a problem.
    """
    now = store.now()
    hygiene = await read_hygiene(store, schedule)
    due = [now, now - OVERDUE, min(now - OVERDUE, hygiene.began or 0)]
    planned, expired, overdue, left = await _count_until(store, [1 << 60, *due])
    details = {"planned": planned, "expired": expired, "overdue": overdue, "left_by_hygiene": left}
    if fix and expired:
        removed = 0
        for lane in range(store.lanes):
            while purged := await purge_expired(store, lane):
                removed += purged
        return Finding(
            "expiry", "ok", f"removed {removed:,} expired breadcrumbs", details=details | {"removed": removed}
        )
    if left:
        return Finding(
            "expiry",
            "warning",
            f"{left:,} breadcrumbs expired more than 10 minutes ago, and hygiene has run without removing them",
            "read the API's log for errors of hygiene; crumb doctor --fix removes the breadcrumbs now",
            details,
        )
    if overdue and hygiene.overdue:
        return Finding(
            "expiry",
            "warning",
            f"{overdue:,} breadcrumbs expired more than 10 minutes ago, and hygiene {_last_run(hygiene, now)}",
            "restart the API, which runs hygiene; crumb doctor --fix removes the breadcrumbs now",
            details,
        )
    waiting = f", {expired:,} of them expired: hygiene removes them" if expired else ""
    return Finding("expiry", "ok", f"{planned:,} breadcrumbs with a TTL{waiting}", details=details)


async def _count_until(store: Store, moments: list[int]) -> list[int]:
    """Return for each moment how many breadcrumbs expire until then."""
    keys, lanes = store.keys, range(store.lanes)
    return [
        sum(
            await store.connection.call_all(
                [(lane, (b"ZCOUNT", keys.expiries(lane), b"0", b"%d" % moment)) for lane in lanes]
            )
        )
        for moment in moments
    ]


def _last_run(hygiene: HygieneState, now: int) -> str:
    if hygiene.totals.last_run is None:
        return "never ran"
    return f"ran {duration_text(now - hygiene.totals.last_run)} ago"
