"""Reports how much of a stored context repeats the beginning of the previous one, and which item ended the repetition.

The system prompt and the tools of the agent come before the context. They are not counted here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from breadcrumbs.context_builder.referenced import (
    Reader,
    ReferencedBreadcrumbs,
    group_references,
    load_context,
)
from breadcrumbs.context_builder.references import ContextRecord, ItemReference
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.store.store import Store

_MAX_LOOKBACK: Final = 8  # versions: retries, pauses and late answers write several for one message
_BYTES_PER_TOKEN: Final = 4  # estimate for items that are deleted or hidden


@dataclass(frozen=True, slots=True)
class StoredContext:
    """A version of a context, its record and its reader."""

    context: Breadcrumb
    record: ContextRecord
    reader: Reader


async def report_reuse(
    store: Store, stored: StoredContext, sizes: Mapping[int, int]
) -> dict[str, Any] | None:
    """Return the part of a context that repeats the previous one. None if there is no previous one.

    `sizes` are the bytes of the items that are already known, by their index.
    """
    found = await _find_previous(store, stored)
    if found is None:
        return None
    previous, before = found
    now = stored.record.items
    shared = _count_equal(before.items, now)
    known = dict(sizes) | await _load_sizes(store, stored, sizes)
    in_bytes, of_bytes = (sum(known[index] for index in range(end)) for end in (shared, len(now)))
    report: dict[str, Any] = {
        "previous_version": previous.version,
        "items": shared,
        "bytes": in_bytes,
        "of_bytes": of_bytes,
        "percent": round(100 * in_bytes / max(1, of_bytes), 1),
    }
    if shared < len(before.items):
        report["broken"] = {
            "item": await _describe(store, stored, stored.record, now[shared : shared + 1]),
            "before": await _describe(store, stored, before, before.items[shared : shared + 1]),
        }
    return report


def item_bytes(content: Mapping[str, Any] | None, reference: ItemReference) -> int:
    """Return the size of an item in a prompt. It is estimated if the reader cannot see the content."""
    if content is None:
        return _BYTES_PER_TOKEN * reference.tokens
    return len(plain_text(content).encode("utf-8", "replace"))


async def _find_previous(store: Store, stored: StoredContext) -> tuple[Breadcrumb, ContextRecord] | None:
    """Return the newest earlier version that was built for another message."""
    context, trigger_id = stored.context, stored.record.trigger_id
    for version in range(context.version - 1, max(0, context.version - 1 - _MAX_LOOKBACK), -1):
        try:
            earlier, record = await load_context(store, context.owner_id, context.id, version)
        except NotFound:
            continue
        if record.trigger_id != trigger_id:
            return (earlier, record) if stored.reader.sees(earlier) else None
    return None


def _count_equal(before: Sequence[ItemReference], now: Sequence[ItemReference]) -> int:
    """Return the number of equal items at the beginning."""
    for index, (old, new) in enumerate(zip(before, now, strict=False)):
        if _identity(old) != _identity(new):
            return index
    return min(len(before), len(now))


def _identity(item: ItemReference) -> tuple[Any, ...]:
    return item.id, item.version, item.place, "" if item.place == "conversation" else item.source, item.cut


async def _load_sizes(store: Store, stored: StoredContext, known: Mapping[int, int]) -> dict[int, int]:
    """Return the sizes of the items that are not known, by their index."""
    record = stored.record
    missing = [index for index in range(len(record.items)) if index not in known]
    sizes: list[int] = []
    for group in group_references([record.items[index] for index in missing]):
        loaded = await ReferencedBreadcrumbs.load(
            store, stored.context.owner_id, record, group, stored.reader
        )
        sizes += [item_bytes(visible_content(loaded, reference), reference) for reference in group]
    return dict(zip(missing, sizes, strict=True))


def visible_content(loaded: ReferencedBreadcrumbs, reference: ItemReference) -> dict[str, Any] | None:
    """Return the content of an item, or None if it is gone or the reader may not see it."""
    crumb = None if loaded.is_hidden(reference) else loaded.get(reference)
    return None if crumb is None else loaded.content(crumb, reference.cut)


async def _describe(
    store: Store, stored: StoredContext, record: ContextRecord, references: Sequence[ItemReference]
) -> dict[str, Any]:
    """Describe the item at which two prompts differ. Empty if one of them ends there."""
    if not references:
        return {}
    (reference,) = references
    owner: UUID = stored.context.owner_id
    loaded = await ReferencedBreadcrumbs.load(store, owner, record, references, stored.reader)
    described: dict[str, Any] = {"source": reference.source, "place": reference.place}
    if loaded.is_hidden(reference):
        return described | {"hidden": True}
    described |= {"id": str(reference.id), "version": reference.version}
    crumb = loaded.get(reference)
    if crumb is None:
        return described | {"gone": True}
    return described | {"schema_name": crumb.schema_name or "", "title": crumb.title}
