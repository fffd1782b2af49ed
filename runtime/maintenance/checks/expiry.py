"""Check that expired breadcrumbs are removed."""

from __future__ import annotations

from breadcrumbs.runtime.maintenance.checks.finding import Finding
from breadcrumbs.runtime.store.expiry import purge_expired
from breadcrumbs.runtime.store.store import Store

OVERDUE = 10 * 60 * 1_000_000
"""Microseconds after which an expired breadcrumb should have been removed."""


async def check_expired(store: Store, *, served: bool, fix: bool = False) -> Finding:
    """Check for expired breadcrumbs that are not removed, and with `fix` remove them.

    `served`: a process that should remove them is running.
    """
    keys, lanes = store.keys, range(store.lanes)
    now = store.now()
    planned = sum(
        await store.connection.call_all([(lane, (b"ZCARD", keys.expiries(lane))) for lane in lanes])
    )
    due = b"%d" % now
    expired = sum(
        await store.connection.call_all(
            [(lane, (b"ZCOUNT", keys.expiries(lane), b"0", due)) for lane in lanes]
        )
    )
    late = b"%d" % (now - OVERDUE)
    overdue = sum(
        await store.connection.call_all(
            [(lane, (b"ZCOUNT", keys.expiries(lane), b"0", late)) for lane in lanes]
        )
    )
    details = {"planned": planned, "expired": expired, "overdue": overdue}
    if fix and expired:
        removed = 0
        for lane in lanes:
            while purged := await purge_expired(store, lane):
                removed += purged
        return Finding(
            "expiry", "ok", f"removed {removed:,} expired breadcrumbs", details=details | {"removed": removed}
        )
    shown = f"{planned:,} breadcrumbs with a TTL, {expired:,} of them expired and not yet removed"
    if overdue and served:
        return Finding(
            "expiry",
            "wrong",
            f"{overdue:,} breadcrumbs expired more than 10 minutes ago and are still in the indexes",
            "check the log for errors of the hygiene task; crumb doctor --fix removes the breadcrumbs now",
            details,
        )
    return Finding("expiry", "ok", shown, details=details)
