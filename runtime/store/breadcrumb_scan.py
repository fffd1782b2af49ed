"""Scans of all stored breadcrumbs, and checks of their lanes and indexes. Too slow for the path of a request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.keys import BODY
from breadcrumbs.runtime.store.scan import FoundKey, scan
from breadcrumbs.runtime.store.store import Store

_BATCH_SIZE: Final = 200


class StoredBreadcrumb(NamedTuple):
    """A breadcrumb and its lane."""

    lane: int
    crumb: Breadcrumb


async def scan_breadcrumbs(store: Store, owner: UUID | None = None) -> AsyncIterator[list[StoredBreadcrumb]]:
    """Yield all breadcrumbs of an owner, or of all owners, in batches. Expired ones are omitted."""
    seen: set[int] = set()  # a scan can return a key twice
    batch: list[FoundKey] = []
    async for found in scan(store):
        if found.kind != BODY or (owner is not None and found.name[:16] != owner.bytes):
            continue
        if hash(found.key) in seen:
            continue
        seen.add(hash(found.key))
        batch.append(found)
        if len(batch) == _BATCH_SIZE:
            yield await _load_batch(store, batch)
            batch = []
    if batch:
        yield await _load_batch(store, batch)


async def get_stored(store: Store, owner: UUID, id: UUID) -> Breadcrumb | None:
    """Return the newest version of a breadcrumb, even if it has expired, or None."""
    _, body = await store.look_up(owner, id)
    return None if body is None else record.decode(owner, id, body)


def tagged_sessions(crumb: Breadcrumb) -> list[str]:
    """Return the sessions in the tags. A valid breadcrumb has at most one."""
    return sorted({tag[len(SESSION) :] for tag in crumb.tags if tag.startswith(SESSION)})


def describe_wrong_lane(store: Store, stored: StoredBreadcrumb, session: str) -> str | None:
    """Return a message if a breadcrumb is in the wrong lane, else None."""
    lane = store.keys.session_lane(stored.crumb.owner_id, session)
    if lane == stored.lane:
        return None
    return f"it belongs to session {session!r} in lane {lane}, but is stored in lane {stored.lane}"


async def find_unindexed(store: Store, stored: Sequence[StoredBreadcrumb]) -> list[Breadcrumb]:
    """Return the breadcrumbs that are missing from the index of their session.

    A breadcrumb can be changed or deleted between two reads, so missing ones are checked again.
    """
    missing = await _not_indexed(store, stored)
    again = [(lane, await get_stored(store, crumb.owner_id, crumb.id)) for lane, crumb in missing]
    still = [StoredBreadcrumb(lane, crumb) for lane, crumb in again if crumb is not None]
    return [crumb for _, crumb in await _not_indexed(store, still)]


async def _load_batch(store: Store, keys: Sequence[FoundKey]) -> list[StoredBreadcrumb]:
    raw = await store.connection.call_all([(found.lane, (b"GET", found.key)) for found in keys])
    now = store.now()
    loaded = [
        StoredBreadcrumb(
            found.lane, record.decode(UUID(bytes=found.name[:16]), UUID(bytes=found.name[16:]), body)
        )
        for found, body in zip(keys, raw, strict=True)
        if body is not None
    ]
    return [stored for stored in loaded if not record.is_gone(stored.crumb, now)]


async def _not_indexed(store: Store, stored: Sequence[StoredBreadcrumb]) -> list[StoredBreadcrumb]:
    indexes = [
        store.keys.by_session(
            lane, crumb.owner_id, "".join(tagged_sessions(crumb)[:1]), crumb.schema_name or ""
        )
        for lane, crumb in stored
    ]
    scores = await store.connection.call_all(
        [
            (lane, (b"ZSCORE", index, crumb.id.bytes))
            for (lane, crumb), index in zip(stored, indexes, strict=True)
        ]
    )
    return [entry for entry, score in zip(stored, scores, strict=True) if score is None]
