"""Reads of the versions of a breadcrumb, in pages limited in number and bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from uuid import UUID

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import MAX_LIMIT
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.lookup import WALK_BYTES, ReadContext, find

_BODIES = Script("bodies")

_BATCH_SIZE: Final = 256
"""Maximum number of versions per script call."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class VersionPage:
    """Some versions of a breadcrumb, the newest first."""

    newest: Breadcrumb
    """The newest version in the store. It is not necessarily on this page."""
    versions: list[Breadcrumb]
    next_before: int | None
    """The `before` of the next page (see `read_page`). None: this is the last page."""


async def read_page(
    context: ReadContext,
    owner: UUID,
    id: UUID,
    *,
    before: int | None = None,
    limit: int = MAX_LIMIT,
    max_bytes: int = WALK_BYTES,
) -> VersionPage:
    """Return versions before `before`, the newest first: at least one, regardless of its size."""
    lane, newest = await find(context, owner, id)
    history = context.keys.history(lane, owner, id.bytes)
    found: list[Breadcrumb] = []
    if before is None or newest.version < before:
        found, before = [newest], newest.version
    left = await _numbers_before(context, lane, history, newest.version, before)
    size = sum(len(version.json) for version in found)
    while left and len(found) < limit and (size < max_bytes or not found):
        requested = left[: min(limit - len(found), _BATCH_SIZE)]
        bodies = await context.connection.run(lane, _BODIES, [history], [max_bytes - size, *requested])
        older = [record.decode(owner, id, body) for body in bodies if body is not None]
        added = sum(len(version.json) for version in older)
        if found and size + added > max_bytes:
            break  # the script returns at least one version; this one does not fit and begins the next page
        found += older
        size += added
        left = left[len(bodies) :]
        if len(bodies) < len(requested):
            break
    return VersionPage(newest, found, left[0] + 1 if left else None)


async def _numbers_before(
    context: ReadContext, lane: int, history: bytes, newest: int, before: int
) -> Sequence[int]:
    """Return the numbers of the existing versions before `before`, the newest first."""
    if await context.connection.call(lane, b"HLEN", history) == newest - 1:
        return range(before - 1, 0, -1)
    # Versions are missing after an import, or the breadcrumb was just updated.
    numbers = (int(number) for number in await context.connection.call(lane, b"HKEYS", history))
    return sorted((number for number in numbers if number < before), reverse=True)


async def iterate_versions(context: ReadContext, owner: UUID, id: UUID) -> AsyncIterator[Breadcrumb]:
    """Yield all versions, the newest first, with at most `WALK_BYTES` in memory."""
    before = None
    while True:
        page = await read_page(context, owner, id, before=before)
        for version in page.versions:
            yield version
        before = page.next_before
        if before is None:
            return


async def last_usable(
    context: ReadContext, crumb: Breadcrumb, parse: Callable[[Breadcrumb], _T | None]
) -> _T | None:
    """See `Store.last_usable`."""
    if crumb.version == 1:
        return None
    try:
        async for version in iterate_versions(context, crumb.owner_id, crumb.id):
            if version.version < crumb.version and (found := parse(version)) is not None:
                return found
    except NotFound:
        pass
    return None
