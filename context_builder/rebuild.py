"""Renders a stored context again from its references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from breadcrumbs.context_builder.assembly import ItemPlace, checksum, group_parts, render_item
from breadcrumbs.context_builder.referenced import (
    ReferencedBreadcrumbs,
    group_references,
    load_context,
    load_version,
)
from breadcrumbs.context_builder.references import ContextRecord, ItemReference, Reference
from breadcrumbs.runtime.breadcrumb.session_rule import users_of
from breadcrumbs.runtime.store.store import Store


@dataclass(frozen=True, slots=True)
class RebuiltContext:
    """A version of a context, rendered again."""

    context_id: UUID
    version: int
    parts: list[dict[str, Any]]
    same: bool | None
    """Whether the parts are byte for byte those that the model was shown. None if only some items were rendered."""
    gone: tuple[Reference, ...]
    """Items that cannot be rendered, because they or the schema definition with their hints were deleted."""

    @property
    def json(self) -> bytes:
        return orjson.dumps(self.parts)


async def rebuild(
    store: Store,
    owner: UUID,
    context_id: UUID,
    version: int | None = None,
    *,
    only: slice = slice(None),
) -> RebuiltContext:
    """Render a version of a context again, or only a range of its items.

    Without a version, use the newest. A version that still contains its parts is returned in full.
    """
    context, record = await load_context(store, owner, context_id, version)
    if "parts" in context.context:
        parts = context.context["parts"]
        return RebuiltContext(context.id, context.version, parts, checksum(parts) == record.checksum, ())
    wanted = record.items[only]
    parts, gone = await _render(store, owner, record, wanted)
    same = checksum(parts) == record.checksum if len(wanted) == len(record.items) else None
    return RebuiltContext(context.id, context.version, parts, same, gone)


async def rebuild_gathered(
    store: Store, owner: UUID, record: ContextRecord
) -> tuple[list[dict[str, Any]], tuple[Reference, ...]]:
    """Render the parts of an agent with its own sources again. Also return the items that cannot be rendered."""
    return await _render(store, owner, record, record.items)


async def _render(
    store: Store, owner: UUID, record: ContextRecord, wanted: Sequence[ItemReference]
) -> tuple[list[dict[str, Any]], tuple[Reference, ...]]:
    trigger = await load_version(store, owner, record.trigger_id, record.trigger_version)
    trigger_users = [] if trigger is None else users_of(trigger.then.tags)
    rendered: list[tuple[ItemPlace, str, dict[str, Any]]] = []
    gone: list[Reference] = []
    for group in group_references(wanted):
        loaded = await ReferencedBreadcrumbs.load(store, owner, record, group)
        for reference in group:
            crumb = loaded.get(reference)
            content = None if crumb is None else loaded.content(crumb, reference.cut)
            if crumb is None or content is None:
                gone.append(reference)
            else:
                item = render_item(crumb, reference.place, content, trigger_users)
                rendered.append((reference.place, reference.source, item))
    return group_parts(rendered), tuple(gone)
