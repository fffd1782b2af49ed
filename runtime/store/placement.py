"""Ids and write times in the lane of a session or of a breadcrumb.

A worker can commit only in the lane of its event. So the ids of its results are derived for that lane.
"""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.ids import derived_id, home_lane
from breadcrumbs.runtime.store.batched_reads import LastWriteRead
from breadcrumbs.runtime.store.store import Store


class Placed(Protocol):
    """A breadcrumb, or an event about one."""

    @property
    def owner_id(self) -> UUID: ...

    @property
    def session_id(self) -> str | None: ...

    @property
    def id(self) -> UUID: ...


def derive_id_in_session(store: Store, owner: UUID, session: str, *parts: str) -> UUID:
    """Return an id in the lane of a session. The same parts give the same id."""
    return derived_id(store.keys.session_lane(owner, session), *parts)


def derive_id_beside(store: Store, beside: Placed, *parts: str) -> UUID:
    """Return an id in the lane of a breadcrumb. The same parts give the same id."""
    return derived_id(lane_beside(store, beside), *parts)


def last_write_beside(store: Store, beside: Placed) -> LastWriteRead:
    """Read the time of the last write in the lane of a breadcrumb. 0: there was none."""
    return LastWriteRead(lane_beside(store, beside))


def lane_beside(store: Store, placed: Placed) -> int:
    """Return the lane of a breadcrumb and its events."""
    if placed.session_id is None:
        return home_lane(placed.id, store.lanes)
    return store.keys.session_lane(placed.owner_id, placed.session_id)
