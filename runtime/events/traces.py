"""Finds the trace that an earlier write belonged to."""

from __future__ import annotations

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.events.log import EventLog
from breadcrumbs.runtime.store.placement import lane_beside
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry.trace_context import TraceContext, decode


async def trace_of_write(store: Store, crumb: Breadcrumb) -> TraceContext | None:
    """Return the trace in which a version of a breadcrumb was written.

    The event of the write has the time of the version. None: it carries no trace, or it is no longer stored. A store
    that is unavailable is no error here, because traces must not make a turn fail.
    """
    return await trace_at(store, lane_beside(store, crumb), crumb.updated)


async def trace_at(store: Store, lane: int, at: int) -> TraceContext | None:
    """Return the trace that the event at this time carries."""
    try:
        found = await EventLog(store.connection, store.keys).newest(lane, at - 1, at, count=1)
    except StoreError:
        return None
    return decode(found[0].trace) if found else None
