"""Indexes of a stored breadcrumb: its schema, its session and its tags."""

from __future__ import annotations

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.store.keys import Keys


def indexes_of(keys: Keys, lane: int, crumb: Breadcrumb) -> list[bytes]:
    """Return the keys of the indexes that contain a breadcrumb. See `Keys.indexes` for their order."""
    tags = {tag for tag in crumb.tags if not tag.startswith(SESSION)}
    return keys.indexes(lane, crumb.owner_id, crumb.schema_name or "", crumb.session_id, tags)
