"""Indexes of a breadcrumb: its schema, its session and its tags."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.store import tag_index
from breadcrumbs.runtime.store.keys import Keys


class Indexes(NamedTuple):
    """Indexes that a write adds a breadcrumb to."""

    keys: list[bytes]
    """Keys of the indexes. See `Keys.indexes` for their order."""
    unindexed: list[int | bytes]
    """Score and member for each tag without an index, for the sorted set of unindexed tags."""


def indexes_of(keys: Keys, lane: int, crumb: Breadcrumb) -> list[bytes]:
    """Return the keys of all indexes that can contain a breadcrumb. See `Keys.indexes` for their order.

    Whether the indexes of the tags contain it depends on the declaration that its writer used: see tag_index.py.
    """
    tags = dict.fromkeys(tag for tag in crumb.tags if not tag.startswith(SESSION))
    return keys.indexes(lane, crumb.owner_id, crumb.schema_name or "", crumb.session_id, tags)


class IndexPlanner:
    """Chooses the indexes of new and changed breadcrumbs."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.omits_tags = False
        """Whether entries of declared tags are left out. False until no process of an older version uses the store."""

    def plan(
        self, lane: int, owner: UUID, schema: str, session: str | None, tags: tuple[str, ...]
    ) -> Indexes:
        """Return the indexes of a breadcrumb with this schema, session and tags."""
        omitted = tag_index.unindexed(schema, tags) if self.omits_tags else []
        indexed = dict.fromkeys(tag for tag in tags if tag not in omitted and not tag.startswith(SESSION))
        return Indexes(
            self._keys.indexes(lane, owner, schema, session, indexed),
            [part for tag in omitted for part in (0, tag_index.unindexed_member(schema, tag))],
        )

    def plan_crumb(self, lane: int, crumb: Breadcrumb) -> Indexes:
        """Return the indexes of an existing breadcrumb."""
        return self.plan(lane, crumb.owner_id, crumb.schema_name or "", crumb.session_id, tuple(crumb.tags))
