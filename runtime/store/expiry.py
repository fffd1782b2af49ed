"""Expiry: removal of expired breadcrumbs, reduction of contexts, end of sessions without messages.

A session with nothing but reduced contexts has nothing left that they could explain, so it ends. `reduce.lua` and
`delete.lua` put small sessions with a reduced context into the expiry queue, and this module checks them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.reduction import is_reduced, is_reducible
from breadcrumbs.runtime.store.script_calls import MAX_CHECKED_SESSION
from breadcrumbs.runtime.store.store import Store

_BREADCRUMB_MEMBER: Final = 32
"""Bytes of a member of the expiry queue that is a breadcrumb. Members of sessions have another length."""


async def purge_expired(store: Store, lane: int, *, limit: int = 500) -> int:
    """Remove up to `limit` expired breadcrumbs from a lane, or reduce them if they are contexts.

    Return the number of both. Several processes can run it at once.
    """
    await store.clock.synchronize()
    expiries = store.keys.expiries(lane)
    members = await store.connection.call(
        lane, b"ZRANGEBYSCORE", expiries, 0, store.now(), b"LIMIT", 0, limit
    )
    purged = 0
    for member in members:
        if len(member) != _BREADCRUMB_MEMBER:
            purged += await _end_if_empty(store, lane, member)
        elif await _purge(store, lane, member):
            purged += 1
    return purged


async def _purge(store: Store, lane: int, member: bytes) -> bool:
    """Remove or reduce a breadcrumb. Return whether it was changed."""
    owner, id = UUID(bytes=member[:16]), UUID(bytes=member[16:])
    body = await store.connection.call(lane, b"GET", store.keys.body(lane, owner, id.bytes))
    if body is None:
        await store.connection.call(lane, b"ZREM", store.keys.expiries(lane), member)
        return False
    crumb = record.decode(owner, id, body)
    if is_reducible(crumb):
        return await store.reduce(lane, crumb)
    return await store.delete_expired(lane, crumb)


async def _end_if_empty(store: Store, lane: int, member: bytes) -> int:
    """Remove the contexts of a session that has only reduced contexts. Return their number."""
    owner, session = UUID(bytes=member[:16]), member[16:].rstrip(b"\0").decode()
    # Removed first: a deletion in the meantime adds the session again.
    await store.connection.call(lane, b"ZREM", store.keys.expiries(lane), member)
    key = store.keys.session(lane, owner, session)
    version = await store.connection.call(lane, b"HGET", key, b"version")
    # The version is read first: a message that is written after it prevents the removal.
    query = Query(session_id=session, sort="created_at", limit=MAX_CHECKED_SESSION + 1)
    removed = 0
    if await _has_only_reduced(store, owner, query):
        for crumb in (await store.list(owner, query)).items:
            if is_reduced(crumb):
                removed += await store.delete_leftover(lane, crumb, (version or b"").decode())
    return removed


async def _has_only_reduced(store: Store, owner: UUID, query: Query) -> bool:
    # The oldest breadcrumb of a session is usually a message. Then one small read is enough.
    for limit in (1, query.limit):
        crumbs = (await store.list(owner, replace(query, limit=limit))).items
        if not crumbs or not all(is_reduced(crumb) for crumb in crumbs):
            return False
    return len(crumbs) < query.limit
