"""Finds the breadcrumbs that were written into a session while it was paused."""

from __future__ import annotations

from collections.abc import AsyncIterator

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.schema_names import STATE_CHANGE
from breadcrumbs.runtime.store.state import PAUSED, RESUMED
from breadcrumbs.runtime.store.store import Store


async def written_while_paused(store: Store, resumed: Breadcrumb) -> AsyncIterator[Breadcrumb]:
    """Yield the breadcrumbs of a pause, oldest first.

    `resumed` is the state change that ended the pause.
    """
    session = resumed.session_id
    since = None if session is None else await _paused_since(store, session, resumed)
    if since is None:
        return
    query = Query(session_id=session, created_since=since, sort="created_at")
    async for crumb in store.walk(resumed.owner_id, query):
        if crumb.created >= resumed.created:
            return
        yield crumb


async def _paused_since(store: Store, session: str, resumed: Breadcrumb) -> int | None:
    """Return the start of the pause that `resumed` ended, or None.

    If the pause was requested several times, the first request counts.
    """
    began = None
    changes = Query(session_id=session, schema_name=STATE_CHANGE, limit=50)
    async for earlier in store.walk(resumed.owner_id, changes):
        if earlier.created >= resumed.created:
            continue
        if RESUMED in earlier.tags:
            break
        # Clients that post the state change themselves may omit the tag.
        if PAUSED in earlier.tags or earlier.context.get("active") is False:
            began = earlier.created
    return began
