"""Removal of expired breadcrumbs."""

from __future__ import annotations

from uuid import UUID

from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.store import Store


async def purge_expired(store: Store, lane: int, *, limit: int = 500) -> int:
    """Remove up to `limit` expired breadcrumbs from a lane and return their number.

    Several processes can run it at once.
    """
    await store.clock.synchronize()
    call, expiries = store.connection.call, store.keys.expiries(lane)
    members = await call(lane, b"ZRANGEBYSCORE", expiries, 0, store.now(), b"LIMIT", 0, limit)
    purged = 0
    for member in members:
        owner, id = UUID(bytes=member[:16]), UUID(bytes=member[16:])
        body = await call(lane, b"GET", store.keys.body(lane, owner, id.bytes))
        if body is None:
            await call(lane, b"ZREM", expiries, member)
        elif await store.delete_expired(lane, record.decode(owner, id, body)):
            purged += 1
    return purged
