"""Previews the context that a config would build for a message, without writing it.

Breadcrumbs that the reader may not see are treated as missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from breadcrumbs.context_builder.assembly import Assembled, ContextItem, LeftOut, TriggerWithheld
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.context_breadcrumb import context_id
from breadcrumbs.context_builder.explanation import (
    ExplainedItem,
    ExplainedLeftOut,
    Explanation,
    describe_breadcrumb,
    make_excerpt,
)
from breadcrumbs.context_builder.not_fetched import ContextFacts, find_not_fetched
from breadcrumbs.context_builder.past import PastTurn, load_turn, reassemble_turn
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.selectors import Selector
from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.errors import InvalidInput, NotFound
from breadcrumbs.runtime.retrieval.histories import HistoryReader
from breadcrumbs.runtime.retrieval.past import Moment
from breadcrumbs.runtime.store.store import Store


@dataclass(frozen=True, slots=True)
class PreviewInput:
    """Session, config and reader of a preview."""

    owner_id: UUID
    session_id: str
    config: ContextConfig
    trigger_id: UUID | None = None
    """The message. None for the newest breadcrumb of the session that the config reacts to."""
    may_see: Callable[[Breadcrumb], bool] | None = None
    """Returns whether the reader may see a breadcrumb. None if the reader may see all of them."""
    conceals_gone: bool = False
    """Do not name deleted breadcrumbs, because a client could have invented the reference to test for an id."""

    def sees(self, crumb: Breadcrumb) -> bool:
        return self.may_see is None or self.may_see(crumb)


@dataclass(frozen=True, slots=True)
class Preview:
    """A context that was not stored."""

    explanation: Explanation
    parts: list[dict[str, Any]]


async def preview(store: Store, wanted: PreviewInput) -> Preview:
    """Build the context for a message without storing it.

    Use the breadcrumbs that existed when the stored context for the same message was built, in the versions of that
    time. So all differences from the stored context come from the config. Notes name breadcrumbs of the stored context
    that no longer exist.
    """
    config = wanted.config
    reader = HistoryReader(store, wanted.owner_id)
    turn = await _find_turn(reader, config, await _load_trigger(store, wanted))
    trigger, as_of = turn.trigger, turn.moment.time
    if not wanted.sees(trigger):
        raise NotFound(f"breadcrumb {trigger.id} not found in session {wanted.session_id!r}")
    try:
        built = await reassemble_turn(reader, config, turn, sees=wanted.sees)
    except TriggerWithheld as error:
        raise InvalidInput(error.reason, where="trigger_id") from None
    assembled = built.assembled
    assembled.notes += [*built.notes, *_name_gone(turn, wanted)]
    if not config.reacts_to(trigger):
        assembled.notes.append("the update_triggers of this config do not match this breadcrumb")
    explained = _explain_assembled(config, trigger, assembled, as_of)
    facts = ContextFacts(
        trigger.owner_id,
        trigger.session_id,
        as_of,
        assembled.sources,
        _found_by_source(assembled),
        wanted.sees,
    )
    not_fetched = await find_not_fetched(store, facts)
    explained = replace(explained, sources=not_fetched.sources, unread_schemas=not_fetched.unread_schemas)
    return Preview(explained, assembled.parts())


def _found_by_source(assembled: Assembled) -> dict[int, frozenset[UUID]]:
    found: dict[int, set[UUID]] = {}
    entries = [(item.number, item.crumb) for item in assembled.items]
    entries += [(out.number, out.crumb) for out in assembled.left_out]
    for number, crumb in entries:
        if number is not None:
            found.setdefault(number, set()).add(crumb.id)
    return {number: frozenset(ids) for number, ids in found.items()}


async def _load_trigger(store: Store, wanted: PreviewInput) -> Breadcrumb:
    if wanted.trigger_id is None:
        return await _newest_trigger(store, wanted)
    try:
        trigger = await store.get(wanted.owner_id, wanted.trigger_id, count_read=False)
    except NotFound:
        trigger = None
    if trigger is None or trigger.session_id != wanted.session_id or not wanted.sees(trigger):
        raise NotFound(f"breadcrumb {wanted.trigger_id} not found in session {wanted.session_id!r}")
    return trigger


async def _newest_trigger(store: Store, wanted: PreviewInput) -> Breadcrumb:
    """Return the newest breadcrumb of the session that the config reacts to."""

    def newest(selector: Selector) -> Query:
        def keep(crumb: Breadcrumb) -> bool:
            return selector.matches(crumb) and wanted.sees(crumb)

        return Query(session_id=wanted.session_id, schema_name=selector.schema_name, limit=1, keep=keep)

    pages = await gather(
        *(store.list(wanted.owner_id, newest(selector)) for selector in wanted.config.update_triggers)
    )
    found = [crumb for page in pages for crumb in page.items]
    if not found:
        raise NotFound(
            "this session has no breadcrumb that matches the update_triggers of this config: send a message in it, or "
            "choose another session"
        )
    return max(found, key=lambda crumb: crumb.created)


async def _find_turn(reader: HistoryReader, config: ContextConfig, trigger: Breadcrumb) -> PastTurn:
    """Return the turn of a trigger.

    If there is no stored context for the trigger, its time is the time when the trigger was posted.
    """
    try:
        async for version in reader.store.versions(
            trigger.owner_id, context_id(reader.store, config, trigger)
        ):
            if version.context.get("trigger_id") == str(trigger.id):
                return await load_turn(reader, version)
    except NotFound:
        pass  # there is no context, or a client wrote a breadcrumb of another form
    return PastTurn(trigger, Moment(trigger.created))


def _name_gone(turn: PastTurn, wanted: PreviewInput) -> list[str]:
    """Return a note for each breadcrumb of the stored context that no longer exists."""
    gone = turn.gone_items
    if not wanted.conceals_gone or not gone:
        return [str(entry) for entry in gone]
    return [f"{len(gone)} breadcrumbs of the stored context no longer exist"]


def _explain_assembled(
    config: ContextConfig, trigger: Breadcrumb, assembled: Assembled, as_of: int
) -> Explanation:
    return Explanation(
        consumer_id=config.consumer_id,
        session_id=trigger.session_id,
        trigger_id=str(trigger.id),
        trigger_version=trigger.version,
        as_of=times.to_text(as_of),
        config=config.digest,
        tokens=assembled.tokens,
        budget=assembled.budget,
        counted_by=assembled.method,
        sources=assembled.sources,
        items=[_explain_item(item, trigger) for item in assembled.items],
        left_out=[_explain_left_out(out) for out in assembled.left_out],
        notes=assembled.notes,
    )


def _explain_item(item: ContextItem, trigger: Breadcrumb) -> ExplainedItem:
    return ExplainedItem(
        source=item.source,
        number=item.number,
        place=item.place,
        rank=item.rank,
        tokens=item.tokens,
        session_id=item.crumb.session_id if item.place == "elsewhere" else None,
        excerpt=make_excerpt(item.content),
        matched=item.matched,
        is_trigger=item.crumb.id == trigger.id,
        cut=item.cut,
        **describe_breadcrumb(item.crumb),
    )


def _explain_left_out(out: LeftOut) -> ExplainedLeftOut:
    return ExplainedLeftOut(
        source=out.source,
        number=out.number,
        reason=out.reason,
        tokens=out.tokens,
        **describe_breadcrumb(out.crumb),
    )
