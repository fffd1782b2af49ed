"""Which indexes a breadcrumb stands in: those of its schema, of its session and of each of its tags."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.store.keys import Keys


def indexes(
    keys: Keys, lane: int, owner: UUID, schema: str, session: str | None, tags: Iterable[str]
) -> list[bytes]:
    """The schema's comes first: the scripts rely on that."""
    found = [keys.by_schema(lane, owner, schema), keys.by_session(lane, owner, session or "", schema)]
    return found + keys.by_tags(lane, owner, tags)


def indexes_of(keys: Keys, lane: int, crumb: Breadcrumb) -> list[bytes]:
    tags = {tag for tag in crumb.tags if not tag.startswith(SESSION)}
    return indexes(keys, lane, crumb.owner_id, crumb.schema_name or "", crumb.session_id, tags)
