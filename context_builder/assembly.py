"""Selects, counts, orders and renders the items of a context.

This module does no I/O. It works on breadcrumbs that were already fetched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

import orjson

from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.item_cuts import Cut, cut_to_tokens
from breadcrumbs.context_builder.key_limits import (
    Windows,
    answers_without_questions,
    apply_limits,
    cut_sources,
    sources_to_extend,
    windows_of,
)
from breadcrumbs.context_builder.tokens import TokenCounter
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.session_rule import users_of
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.retrieval.model_view import find_hints, model_content, withheld_reason
from breadcrumbs.runtime.retrieval.sources import Source, SourceItem
from breadcrumbs.runtime.schema_names import ATTACHMENT_SCHEMAS
from breadcrumbs.runtime.workers.errors import TurnFailed

ItemPlace = Literal["conversation", "elsewhere", "shared"]
"""Origin of an item: the session of the trigger, another session, or no session."""

Reason = Literal[
    "over budget",
    "over limit",
    "without its question",
    "duplicate",
    "excluded",
    "internal",
    "secret",
    "private",
    "not yet its turn",
]
"""Reason why a breadcrumb was left out of a context."""

TRIGGER: Final = "trigger"
"""Source name of a trigger that no source found."""

MAX_LEFT_OUT: Final = 100
"""Maximum number of left-out breadcrumbs that a context lists. Further ones are only counted."""


class TriggerWithheld(TurnFailed):
    """The trigger must not be shown to a model, so it gets no context."""


class ContextItem(NamedTuple):
    """A breadcrumb in a context."""

    source: str
    """Key of the source, or `TRIGGER`."""
    number: int | None
    """Index of the source that found it. None for a trigger that no source found."""
    place: ItemPlace
    rank: int
    """Position in the results of the source. 0 is the newest."""
    tokens: int
    crumb: Breadcrumb
    content: dict[str, Any]
    """The content that the model may see."""
    matched: tuple[str, ...] = ()
    """Tags of the source that the breadcrumb has."""
    cut: Cut | None = None
    """Set if the source's `max_tokens` shortened the content."""

    def reference(self) -> dict[str, Any]:
        """Return the reference that is stored in the explanation."""
        reference: dict[str, Any] = {
            "id": self.crumb.id_text,
            "version": self.crumb.version,
            "source": self.source,
            "place": self.place,
            "rank": self.rank,
            "tokens": self.tokens,
        }
        if self.number is not None:
            reference["number"] = self.number
        if self.matched:
            reference["matched"] = list(self.matched)
        if self.cut is not None:
            reference["cut"] = self.cut._asdict()
        return reference


class LeftOut(NamedTuple):
    """A breadcrumb that a source found, but that is not in the context."""

    source: str
    number: int | None
    crumb: Breadcrumb
    reason: Reason
    tokens: int | None = None
    """Size of the breadcrumb. Set only if it or its question did not fit into the budget."""

    def reference(self) -> dict[str, Any]:
        """Return the reference that is stored in the explanation."""
        reference: dict[str, Any] = {
            "id": self.crumb.id_text,
            "version": self.crumb.version,
            "source": self.source,
            "reason": self.reason,
        }
        if self.number is not None:
            reference["number"] = self.number
        if self.tokens is not None:
            reference["tokens"] = self.tokens
        return reference


@dataclass(slots=True)
class Assembled:
    """A context before it is stored."""

    items: list[ContextItem] = field(default_factory=list)
    """In the order of the prompt: by place, then by source, oldest first."""
    left_out: list[LeftOut] = field(default_factory=list)
    tokens: int = 0
    budget: int = 0
    method: str = ""
    """Method by which the tokens were counted, see `TokenCounter.method`."""
    notes: list[str] = field(default_factory=list)
    """Warnings for the reader of the explanation."""
    sources: list[dict[str, Any]] = field(default_factory=list)
    """The sources, with the number of items that each found."""
    definitions: dict[str, Breadcrumb] = field(default_factory=dict)
    """Schema definitions whose hints were used, by schema name."""
    users: list[str] = field(default_factory=list)
    """Users in the tags of the trigger."""

    def parts(self) -> list[dict[str, Any]]:
        """Render the parts of the prompt."""
        return group_parts(
            (item.place, item.source, render_item(item.crumb, item.place, item.content, self.users))
            for item in self.items
        )

    def explain(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the explanation that is stored with the context."""
        explained: dict[str, Any] = {
            "tokens": self.tokens,
            "budget": self.budget,
            "counted_by": self.method,
            "checksum": checksum(parts),
            "sources": self.sources,
            "items": [item.reference() for item in self.items],
            "left_out": [out.reference() for out in self.left_out[:MAX_LEFT_OUT]],
            "notes": self.notes,
        }
        if len(self.left_out) > MAX_LEFT_OUT:
            explained["left_out_besides"] = len(self.left_out) - MAX_LEFT_OUT
        if self.definitions:
            explained["hints"] = {
                schema: {"id": str(crumb.id), "version": crumb.version}
                for schema, crumb in self.definitions.items()
            }
        return explained


def assemble(
    config: ContextConfig,
    trigger: Breadcrumb,
    found: Sequence[SourceItem],
    *,
    counter: TokenCounter,
    definitions: Mapping[str, Breadcrumb] | None = None,
    selection: Selection | None = None,
) -> Assembled:
    """Select, count and order the items.

    The trigger is always included. Newer items have priority over older ones. `definitions` are schema definitions
    with the hints for breadcrumbs that have no hints of their own. `selection` is the result of `select`.
    None: select among the items of sources that were read with their full limits.
    """
    if (kind := withheld_reason(trigger)) in ("secret", "private"):
        raise TriggerWithheld(
            f"this breadcrumb is {kind}: it must not be shown to a model, so it cannot be answered"
        )
    numbers = Counter(entry.number for entry in found)
    result = Assembled(
        budget=config.formatting.max_tokens,
        method=counter.method,
        sources=[
            _describe_source(source, numbers[number], config.key_limits.get(source.key))
            for number, source in enumerate(config.full_sources)
        ],
        users=users_of(trigger.tags),
    )
    if selection is None:
        selection = select(config, trigger, found, config.full_sources)
    chosen = _limit_candidates(config, trigger, selection, result)
    candidates = _sort_by_priority(chosen, trigger, _attached_since(config, trigger, chosen))
    _add_items(result, candidates, config, counter, definitions or {})
    _sort_for_prompt(result.items, config, trigger)
    if result.tokens > result.budget:
        result.notes.append("the trigger alone exceeds the budget")
    if exclusion_reason(trigger, config) == "excluded":
        result.notes.append("the trigger matches exclude, but a trigger is always included")
    return result


@dataclass(frozen=True, slots=True)
class Selection:
    """The candidates of a context, before limits per key and the budget are applied."""

    candidates: list[SourceItem]
    left_out: list[LeftOut]
    windows: Windows
    cut: frozenset[int]
    """Sources that reached the limit that they were read with. Empty if the config has no limits per key."""


def select(
    config: ContextConfig, trigger: Breadcrumb, found: Sequence[SourceItem], read: Sequence[Source]
) -> Selection:
    """Select the items that may be in a context. `read` are the sources with the limits they were read with."""
    left_out: list[LeftOut] = []
    candidates = _choose_candidates(config, trigger, found, left_out)
    if not config.limits:
        return Selection(candidates, left_out, {}, frozenset())
    counts = Counter(
        [entry.number for entry in found if not waits_for_its_turn(config, trigger, entry.crumb)]
    )
    return Selection(candidates, left_out, windows_of(config, candidates), cut_sources(read, counts))


def find_sources_to_extend(config: ContextConfig, selection: Selection) -> dict[int, Source]:
    """Return the sources that were not read far enough for the limits of their keys, by index."""
    if not selection.cut:
        return {}
    return sources_to_extend(config, selection.windows, selection.cut)


def _limit_candidates(
    config: ContextConfig, trigger: Breadcrumb, selection: Selection, result: Assembled
) -> list[SourceItem]:
    """Return the candidates within the limits of their keys. Add all others to `result.left_out`."""
    result.left_out += selection.left_out
    if not config.limits:
        return selection.candidates
    limited = apply_limits(config, trigger, selection.candidates, selection.windows, selection.cut)
    result.left_out += [
        LeftOut(entry.source, entry.number, entry.crumb, reason) for entry, reason in limited.left_out
    ]
    return limited.kept


def _add_items(
    result: Assembled,
    candidates: Sequence[tuple[SourceItem, ItemPlace]],
    config: ContextConfig,
    counter: TokenCounter,
    definitions: Mapping[str, Breadcrumb],
) -> None:
    """Add the candidates that fit into the budget.

    The trigger, which is the first candidate, is always added. The conversation is complete before other items are
    added.
    """
    conversation_is_full = False
    for position, (entry, place) in enumerate(candidates):
        crumb = entry.crumb
        if conversation_is_full and place != "conversation":
            _remove_cut_answers(result, config)
        hints, definition = find_hints(crumb, definitions)
        source = None if entry.number is None or position == 0 else config.sources[entry.number]
        content, tokens, cut = _sized_content(model_content(crumb, hints), source, counter)
        # A gap in a conversation would mislead the model. If one message does not fit, all older ones are left out.
        skipped = conversation_is_full and place == "conversation"
        if position > 0 and (skipped or result.tokens + tokens > result.budget):
            is_message = place == "conversation" and crumb.schema_name not in ATTACHMENT_SCHEMAS
            conversation_is_full = conversation_is_full or is_message
            result.left_out.append(LeftOut(entry.source, entry.number, crumb, "over budget", tokens))
            continue
        result.tokens += tokens
        if definition is not None and crumb.schema_name is not None:
            result.definitions[crumb.schema_name] = definition
        matched = () if entry.number is None else _matched_tags(config.sources[entry.number], crumb)
        result.items.append(
            ContextItem(entry.source, entry.number, place, entry.rank, tokens, crumb, content, matched, cut)
        )
    if conversation_is_full:
        _remove_cut_answers(result, config)


def _sized_content(
    content: dict[str, Any], source: Source | None, counter: TokenCounter
) -> tuple[dict[str, Any], int, Cut | None]:
    """Return the content, cut to the limit of its source, with its tokens and the cut."""
    if source is None or source.max_tokens is None:
        return content, counter.count(plain_text(content)), None
    return cut_to_tokens(content, source.max_tokens, counter)


def _remove_cut_answers(result: Assembled, config: ContextConfig) -> None:
    """Remove answers whose questions did not fit into the budget, for keys with a limit."""
    if not config.limits:
        return
    left = [out.crumb for out in result.left_out if out.reason == "over budget"]
    dropped = answers_without_questions(
        [(item.source, item.crumb) for item in result.items], left, config.key_limits
    )
    for item in [item for item in result.items if item.crumb.id_text in dropped]:
        result.items.remove(item)
        result.tokens -= item.tokens
        result.left_out.append(
            LeftOut(item.source, item.number, item.crumb, "without its question", item.tokens)
        )


def _describe_source(source: Source, found: int, key_limit: int | None) -> dict[str, Any]:
    described: dict[str, Any] = {"key": source.key}
    if source.schema_name is not None:
        described["schema_name"] = source.schema_name
    if source.any_tags:
        described["any_tags"] = list(source.any_tags)
    if source.all_tags:
        described["all_tags"] = list(source.all_tags)
    described["method"] = source.fetch.method
    if source.fetch.method == "recent":
        described["limit"] = source.fetch.limit
    if source.max_tokens is not None:
        described["max_tokens"] = source.max_tokens
    if key_limit is not None:
        described["key_limit"] = key_limit
    if source.fetch.method != "event_data":
        described["scope"] = source.fetch.scope
    if source.fetch.includes_shared:
        described["shared"] = True
    described["found"] = found
    return described


def _matched_tags(source: Source, crumb: Breadcrumb) -> tuple[str, ...]:
    if not (source.all_tags or source.any_tags):
        return ()
    return tuple(tag for tag in (*source.all_tags, *source.any_tags) if tag in crumb.tags)


def _choose_candidates(
    config: ContextConfig, trigger: Breadcrumb, found: Iterable[SourceItem], left_out: list[LeftOut]
) -> list[SourceItem]:
    """Return the items that may be in the context.

    The trigger is one of them. Add the other items to `left_out`, with the reason.
    """
    trigger_id = trigger.id_text
    chosen: dict[str, SourceItem] = {trigger_id: SourceItem(TRIGGER, 0, trigger)}
    for entry in found:
        crumb = entry.crumb
        id = crumb.id_text
        if id == trigger_id:
            # A source found the trigger too. Keep the version of the event, and record the source.
            if chosen[id].number is None:
                chosen[id] = SourceItem(entry.source, entry.rank, trigger, entry.number)
            continue
        reason = exclusion_reason(crumb, config)
        if reason is None and id in chosen:
            reason = "duplicate"
        if reason is None and waits_for_its_turn(config, trigger, crumb):
            reason = "not yet its turn"
        if reason is None:
            chosen[id] = entry
        else:
            left_out.append(LeftOut(entry.source, entry.number, crumb, reason))
    return list(chosen.values())


def exclusion_reason(crumb: Breadcrumb, config: ContextConfig) -> Reason | None:
    """Return why a breadcrumb must not be in a context, or None if it may be."""
    if (reason := withheld_reason(crumb)) is not None:
        return reason
    schema, exclude = crumb.schema_name, config.exclude
    if schema == config.output.schema_name:
        return "internal"
    if schema in exclude.schema_names or not frozenset(exclude.tags).isdisjoint(crumb.tags):
        return "excluded"
    return None


def waits_for_its_turn(config: ContextConfig, trigger: Breadcrumb, crumb: Breadcrumb) -> bool:
    """Return whether a breadcrumb is a later message of the same session, or an attachment of one.

    Such a message gets its own context and its own answer.
    """
    return (
        crumb.created > trigger.created
        and crumb.session_id is not None
        and crumb.session_id == trigger.session_id
        and (crumb.schema_name in ATTACHMENT_SCHEMAS or config.reacts_to(crumb))
    )


def _attached_since(config: ContextConfig, trigger: Breadcrumb, candidates: Sequence[SourceItem]) -> int:
    """Return the time of the message before the trigger. Later attachments belong to the trigger."""
    if not any(entry.crumb.schema_name in ATTACHMENT_SCHEMAS for entry in candidates):
        return 0
    earlier = (
        crumb.created
        for crumb in (entry.crumb for entry in candidates)
        if crumb.id != trigger.id and crumb.session_id == trigger.session_id and config.reacts_to(crumb)
    )
    return max(earlier, default=0)


def _sort_by_priority(
    candidates: Sequence[SourceItem], trigger: Breadcrumb, attached_since: int
) -> list[tuple[SourceItem, ItemPlace]]:
    """Return the candidates in the order in which they fill the budget.

    The trigger comes first, then its attachments, the conversation, attachments of earlier messages, items of no
    session, and items of other sessions. Within each group, newer items come first.
    """
    rank: dict[ItemPlace, int] = {"conversation": 1, "shared": 3, "elsewhere": 4}
    placed = [(entry, item_place(entry.crumb, trigger.id, trigger.session_id)) for entry in candidates]

    def priority(candidate: tuple[SourceItem, ItemPlace]) -> tuple[bool, int, int, str]:
        crumb, place = candidate[0].crumb, candidate[1]
        group = rank[place]
        if place == "conversation" and crumb.schema_name in ATTACHMENT_SCHEMAS:
            group = 0 if crumb.created > attached_since else 2
        return crumb.id_text != trigger.id_text, group, -crumb.created, crumb.id_text

    return sorted(placed, key=priority)


def _sort_for_prompt(items: list[ContextItem], config: ContextConfig, trigger: Breadcrumb) -> None:
    """Sort the items by place, then by source (except the conversation), oldest first.

    The trigger comes last.
    """
    first_with_key: dict[str, int] = {}
    for number, source in enumerate(config.sources):
        first_with_key.setdefault(source.key, number)
    places: dict[ItemPlace, int] = {"shared": 0, "elsewhere": 1, "conversation": 2}
    items.sort(
        key=lambda item: (
            places[item.place],
            0 if item.place == "conversation" else first_with_key.get(item.source, -1),
            item.crumb.id_text == trigger.id_text,  # last, even if newer messages exist
            item.crumb.created,
            item.crumb.id_text,
        )
    )


def item_place(crumb: Breadcrumb, trigger_id: UUID, session_id: str | None) -> ItemPlace:
    """Return the place of a breadcrumb in a context with this trigger and session."""
    if crumb.session_id is None:
        return "conversation" if crumb.id == trigger_id else "shared"
    return "conversation" if crumb.session_id == session_id else "elsewhere"


# Rendering, used for new contexts and for contexts that are rebuilt later.


def render_item(
    crumb: Breadcrumb, place: ItemPlace, content: dict[str, Any], trigger_users: list[str]
) -> dict[str, Any]:
    """Return an item as it is stored in a part of a context."""
    shown: dict[str, Any] = {"id": crumb.id_text, "created_at": crumb.created_at}
    if crumb.schema_name is not None:
        shown["schema_name"] = crumb.schema_name
    if place == "elsewhere" and crumb.session_id is not None:
        shown["session_id"] = crumb.session_id
    # Not shown to the model. Determines whether the model itself or another participant is the speaker.
    creator = crumb.context.get("creator")
    speaker = creator.get("agent_id") if isinstance(creator, dict) else creator
    if isinstance(speaker, str):
        shown["creator"] = speaker
    # Not shown to the model. Restricts which users may read this item of the context.
    if (users := users_of(crumb.tags)) != trigger_users:
        shown["users"] = users
    shown["content"] = content
    return shown


def group_parts(shown: Iterable[tuple[ItemPlace, str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Group rendered items into parts by place and key. Keeps their order."""
    parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for place, source, item in shown:
        key = "conversation" if place == "conversation" else source
        parts.setdefault((place, key), []).append(item)
    return [{"place": place, "key": key, "items": items} for (place, key), items in parts.items()]


def checksum(parts: list[dict[str, Any]]) -> str:
    """Return a hash of the parts, to compare a rebuilt context with the original."""
    return sha256(orjson.dumps(parts)).hexdigest()[:16]
