"""Explains a stored context from its references. Nothing is written.

For a breadcrumb that the reader may not see, only its source and its tokens are shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from breadcrumbs.context_builder.config import CONSUMER
from breadcrumbs.context_builder.explanation import (
    ExplainedItem,
    ExplainedLeftOut,
    Explanation,
    describe_breadcrumb,
    make_excerpt,
)
from breadcrumbs.context_builder.not_fetched import ContextFacts, NotFetched, find_not_fetched
from breadcrumbs.context_builder.referenced import (
    UNRESTRICTED,
    Reader,
    ReferencedBreadcrumbs,
    cost_of,
    group_references,
    load_context,
)
from breadcrumbs.context_builder.references import (
    ContextRecord,
    ItemReference,
    LeftOutReference,
    Reference,
)
from breadcrumbs.context_builder.reuse_report import (
    StoredContext,
    item_bytes,
    report_reuse,
    visible_content,
)
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT
from breadcrumbs.runtime.store.store import Store


@dataclass(frozen=True, slots=True)
class PageLimits:
    """The part of an explanation to return."""

    start: int = 0
    """Index of the first reference. Items are counted first, then left-out breadcrumbs."""
    max_bytes: int | None = None
    """The page ends after about this many bytes of breadcrumbs were read. None for no limit."""


WHOLE: Final = PageLimits()


async def explain(
    store: Store,
    owner: UUID,
    context_id: UUID,
    version: int | None = None,
    *,
    reader: Reader = UNRESTRICTED,
    page: PageLimits = WHOLE,
) -> Explanation:
    """Explain a version of a context. Without a version, explain the newest."""
    context, record = await load_context(store, owner, context_id, version)
    references: list[ItemReference | LeftOutReference] = [*record.items, *record.left_out]
    items: list[ExplainedItem] = []
    left_out: list[ExplainedLeftOut] = []
    start, bytes_read = page.start, 0
    sizes: dict[int, int] = {}
    for group in group_references(references[start:]):
        if page.max_bytes is not None and bytes_read >= page.max_bytes:
            break
        start += len(group)
        loaded = await ReferencedBreadcrumbs.load(store, owner, record, group, reader)
        bytes_read += cost_of(group, loaded)
        for reference in group:
            if isinstance(reference, ItemReference):
                sizes[len(items)] = item_bytes(visible_content(loaded, reference), reference)
                items.append(_explain_item(loaded, reference, context, record))
            else:
                left_out.append(_explain_left_out(loaded, reference))
    not_fetched, reuse = NotFetched(record.sources, []), None
    if page.start == 0:
        not_fetched = await find_not_fetched(store, _facts(context, record, reader))
        reuse = await report_reuse(store, StoredContext(context, record, reader), sizes)
    return Explanation(
        consumer_id=record.consumer_id,
        session_id=context.session_id,
        context_id=str(context.id),
        version=context.version,
        made_at=context.updated_at,
        trigger_id=str(record.trigger_id),
        trigger_version=record.trigger_version,
        as_of=times.to_text(record.as_of),
        config=record.config,
        tokens=record.tokens,
        budget=record.budget,
        counted_by=record.counted_by,
        sources=not_fetched.sources,
        items=items,
        left_out=left_out,
        left_out_besides=record.left_out_besides,
        unread_schemas=not_fetched.unread_schemas,
        notes=record.notes,
        reuse=reuse,
        next_start=start if start < len(references) else None,
    )


def _facts(context: Breadcrumb, record: ContextRecord, reader: Reader) -> ContextFacts:
    known: dict[int, set[UUID]] = {}
    for reference in (*record.items, *record.left_out):
        if reference.number is not None:
            known.setdefault(reference.number, set()).add(reference.id)
    return ContextFacts(
        context.owner_id,
        context.session_id,
        record.as_of,
        record.sources,
        {number: frozenset(ids) for number, ids in known.items()},
        reader.sees,
    )


def _explain_item(
    loaded: ReferencedBreadcrumbs, reference: ItemReference, context: Breadcrumb, record: ContextRecord
) -> ExplainedItem:
    described = _describe_reference(loaded, reference)
    crumb = None if loaded.is_hidden(reference) else loaded.get(reference)
    if crumb is not None:
        described["excerpt"] = make_excerpt(loaded.content(crumb, reference.cut))
        if crumb.session_id != context.session_id:
            described["session_id"] = crumb.session_id
        described["matched"] = reference.matched
    return ExplainedItem(
        source=reference.source,
        number=reference.number,
        place=reference.place,
        rank=reference.rank,
        tokens=reference.tokens,
        is_trigger=reference.id == record.trigger_id,
        cut=reference.cut,
        **described,
    )


def _explain_left_out(loaded: ReferencedBreadcrumbs, reference: LeftOutReference) -> ExplainedLeftOut:
    return ExplainedLeftOut(
        source=reference.source,
        number=reference.number,
        reason=reference.reason,
        tokens=reference.tokens,
        **_describe_reference(loaded, reference),
    )


def _describe_reference(loaded: ReferencedBreadcrumbs, reference: Reference) -> dict[str, Any]:
    if loaded.is_hidden(reference):
        return {"hidden": True}
    crumb = loaded.get(reference)
    if crumb is None:
        return {"id": str(reference.id), "version": reference.version, "gone": True}
    return describe_breadcrumb(crumb)


async def contexts_of(store: Store, owner: UUID, session_id: str) -> list[Breadcrumb]:
    """Return the contexts of a session, the most recently updated first.

    Contexts with another schema than `agent.context.v1` are returned only if there is none with this schema.
    """
    for schema in (AGENT_CONTEXT, None):
        query = Query(session_id=session_id, schema_name=schema, sort="-updated_at", keep=is_context)
        if found := (await store.list(owner, query)).items:
            return found
    return []


def is_context(crumb: Breadcrumb) -> bool:
    """Return whether a breadcrumb looks like a context that the context builder wrote."""
    return "explain" in crumb.context and any(tag.startswith(CONSUMER) for tag in crumb.tags)
