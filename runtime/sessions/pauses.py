"""Finds what was written into a session while it was paused."""

from __future__ import annotations

from collections.abc import AsyncIterator

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.schema_names import STATE_CHANGE
from breadcrumbs.runtime.store.state import PAUSED, RESUMED
from breadcrumbs.runtime.store.store import Store


async def written_while_paused(store: Store, resumed: Breadcrumb) -> AsyncIterator[Breadcrumb]:
    """Yield the breadcrumbs of the pause that a state change ended, the oldest first."""
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
    """Return when the pause began that a state change ended. It may have been requested more than once."""
    began = None
    changes = Query(session_id=session, schema_name=STATE_CHANGE, limit=50)
    async for earlier in store.walk(resumed.owner_id, changes):
        if earlier.created >= resumed.created:
            continue
        if RESUMED in earlier.tags:
            break
        # A client that posts the state change itself need not set the tag.
        if PAUSED in earlier.tags or earlier.context.get("active") is False:
            began = earlier.created
    return began
