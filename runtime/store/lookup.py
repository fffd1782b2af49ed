"""Reads of single breadcrumbs by id. Lists and batched reads build on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar
from uuid import UUID

import anyio

from breadcrumbs.runtime.backend.connection import Connection, Script
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.ids import home_lane
from breadcrumbs.runtime.errors import NotFound, StoreFull, StoreUnavailable
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.clock import ServerClock
from breadcrumbs.runtime.store.keys import Keys
from breadcrumbs.runtime.store.shared_cache import SharedCache
from breadcrumbs.runtime.store.write_cache import WriteCache

WALK_BYTES: Final = 4 << 20
"""Maximum size of the stored bodies that a walk or a history reads at once."""

_RETRY_SECONDS: Final = 0.05

_READ = Script("read")

_T = TypeVar("_T")


class ReadContext(Protocol):
    """The parts of a store that reads need. Modules that read use this type instead of importing `Store`."""

    @property
    def connection(self) -> Connection: ...

    @property
    def keys(self) -> Keys: ...

    @property
    def clock(self) -> ServerClock: ...

    @property
    def write_cache(self) -> WriteCache: ...

    @property
    def shared_cache(self) -> SharedCache: ...

    @property
    def group_of(self) -> Mapping[int, int]: ...

    @property
    def is_one_server(self) -> bool: ...

    @property
    def secret(self) -> bytes: ...

    @property
    def max_content_bytes(self) -> int: ...


async def retry_once(action: Callable[[], Awaitable[_T]]) -> _T:
    """Run an idempotent action, and retry it once after a lost connection.

    A restarted server is the usual cause. `StoreFull` is not retried.
    """
    try:
        return await action()
    except StoreFull:
        raise
    except StoreUnavailable:
        await anyio.sleep(_RETRY_SECONDS)
        return await action()


async def look_up(context: ReadContext, owner: UUID, id: UUID) -> tuple[int, bytes | None]:
    """Return the lane of a breadcrumb and its body, expired or not."""
    call, keys = context.connection.call, context.keys
    lane = home_lane(id, keys.lanes)
    body: bytes | None = await call(lane, b"GET", keys.body(lane, owner, id.bytes))
    if body is None:
        signpost = await call(lane, b"GET", keys.signpost(lane, owner, id.bytes))
        if signpost is not None:
            lane = int(signpost)
            body = await call(lane, b"GET", keys.body(lane, owner, id.bytes))
    return lane, body


async def find(context: ReadContext, owner: UUID, id: UUID) -> tuple[int, Breadcrumb]:
    """Return the lane and the newest version of a breadcrumb. Raises `NotFound` if it has expired."""
    lane, body = await retry_once(lambda: look_up(context, owner, id))
    if body is not None:
        crumb = record.decode(owner, id, body)
        if not record.is_gone(crumb, context.clock.now()):
            return lane, crumb
    raise NotFound("breadcrumb not found")


async def get(context: ReadContext, owner: UUID, id: UUID, *, count_read: bool) -> Breadcrumb:
    """See `Store.get`."""
    lane, crumb = await find(context, owner, id)
    if not (crumb.max_reads and count_read):
        return crumb
    keys = [context.keys.body(lane, owner, id.bytes), context.keys.expiries(lane)]
    body = await context.connection.run(lane, _READ, keys, [id.bytes, owner.bytes])
    if body is None:
        raise NotFound("breadcrumb not found")
    return record.decode(owner, id, body)


async def get_version(context: ReadContext, owner: UUID, id: UUID, version: int) -> Breadcrumb:
    """Return one version of a breadcrumb, the newest or an earlier one.

    An event refers to a version that can have been overwritten since.
    """
    lane, crumb = await find(context, owner, id)
    if crumb.version == version:
        return crumb
    older = await get_older(context, lane, crumb, version)
    if older is None:
        raise NotFound(f"breadcrumb {id} has no version {version}")
    return older


async def get_older(context: ReadContext, lane: int, crumb: Breadcrumb, version: int) -> Breadcrumb | None:
    """Return an earlier version from the history, or None if it is not there."""
    history = context.keys.history(lane, crumb.owner_id, crumb.id.bytes)
    body = await context.connection.call(lane, b"HGET", history, version)
    return None if body is None else record.decode(crumb.owner_id, crumb.id, body)


async def list_schemas(context: ReadContext, owner: UUID, lanes: Sequence[int]) -> dict[int, list[str]]:
    """Return the schema names of an owner's breadcrumbs, by lane."""
    replies = await context.connection.call_all(
        [(lane, (b"SMEMBERS", context.keys.schemas(lane, owner))) for lane in lanes]
    )
    return {lane: sorted(name.decode() for name in names) for lane, names in zip(lanes, replies, strict=True)}
