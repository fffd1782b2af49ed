"""What goes into a context and what does not, and why: pure decisions on breadcrumbs that were fetched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

import orjson

from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.tokens import TokenCounter
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, users_of
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.retrieval.model_view import hints_for, view_of, withheld
from breadcrumbs.runtime.retrieval.sources import Found, Source
from breadcrumbs.runtime.workers.errors import TurnFailed

Place = Literal["conversation", "elsewhere", "shared"]
"""Of this session; of another one; of none."""

Reason = Literal["over budget", "duplicate", "excluded", "internal", "secret", "private", "not yet its turn"]

TRIGGER: Final = "trigger"
"""The source of a trigger that no source has found."""

MOST_LEFT_OUT: Final = 100
"""How much of what was left out a context names; of the rest it tells the number."""


class TriggerWithheld(TurnFailed):
    """What is to be answered may not be shown to a model, so there is nothing to make a context of."""


class Item(NamedTuple):
    """A breadcrumb in a context."""

    source: str
    number: int | None
    place: Place
    rank: int
    tokens: int
    crumb: Breadcrumb
    content: dict[str, Any]
    """What the model may see of it."""
    matched: tuple[str, ...] = ()
    """Which of the source's tags it carries."""

    def reference(self) -> dict[str, Any]:
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
        return reference


class LeftOut(NamedTuple):
    """A breadcrumb that was found, and is not in the context."""

    source: str
    number: int | None
    crumb: Breadcrumb
    reason: Reason
    tokens: int | None = None
    """Where it did not fit: what it would have taken."""

    def reference(self) -> dict[str, Any]:
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
    """A context before it is written."""

    items: list[Item] = field(default_factory=list)
    """In the order of the prompt: by place, then source, the oldest first."""
    left_out: list[LeftOut] = field(default_factory=list)
    tokens: int = 0
    budget: int = 0
    method: str = ""
    notes: list[str] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    """What was asked for, and how much of it there was."""
    definitions: dict[str, Breadcrumb] = field(default_factory=dict)
    """By schema: the definition whose hints were used."""
    users: list[str] = field(default_factory=list)
    """Whose the trigger is."""

    def parts(self) -> list[dict[str, Any]]:
        return parts_of(
            (item.place, item.source, rendered(item.crumb, item.place, item.content, self.users))
            for item in self.items
        )

    def explain(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Why the context is as it is: kept with it."""
        explained: dict[str, Any] = {
            "tokens": self.tokens,
            "budget": self.budget,
            "counted_by": self.method,
            "checksum": checksum(parts),
            "sources": self.sources,
            "items": [item.reference() for item in self.items],
            "left_out": [out.reference() for out in self.left_out[:MOST_LEFT_OUT]],
            "notes": self.notes,
        }
        if len(self.left_out) > MOST_LEFT_OUT:
            explained["left_out_besides"] = len(self.left_out) - MOST_LEFT_OUT
        if self.definitions:
            explained["hints"] = {
                schema: {"id": str(crumb.id), "version": crumb.version}
                for schema, crumb in self.definitions.items()
            }
        return explained


def assemble(
    config: ContextConfig,
    trigger: Breadcrumb,
    found: Sequence[Found],
    *,
    counter: TokenCounter,
    definitions: Mapping[str, Breadcrumb] | None = None,
) -> Assembled:
    """Choose, count and order. The trigger is always in; the newest of the rest come first.

    `definitions`: of schemas, for the hints of breadcrumbs that have none of their own.
    """
    if (kind := withheld(trigger)) in ("secret", "private"):
        raise TriggerWithheld(f"this breadcrumb is {kind}: it is shown to no model, so nobody can answer it")
    numbers = Counter(entry.number for entry in found)
    result = Assembled(
        budget=config.formatting.max_tokens,
        method=counter.method,
        sources=[_described(source, numbers[number]) for number, source in enumerate(config.sources)],
        users=users_of(trigger.tags),
    )
    full, definitions = False, definitions or {}
    for entry, place in _by_priority(_candidates(config, trigger, found, result), trigger):
        crumb = entry.crumb
        hints, definition = hints_for(crumb, definitions)
        content = view_of(crumb, hints)
        tokens = counter.count(plain_text(content))
        # Older parts of a conversation after a gap would mislead: once one does not fit, the rest stays out.
        fits = result.tokens + tokens <= result.budget and not (full and place == "conversation")
        if not fits and crumb.id_text != trigger.id_text:
            full = full or place == "conversation"
            result.left_out.append(LeftOut(entry.source, entry.number, crumb, "over budget", tokens))
            continue
        result.tokens += tokens
        if definition is not None and crumb.schema_name is not None:
            result.definitions[crumb.schema_name] = definition
        matched = _matched(config.sources[entry.number], crumb) if entry.number is not None else ()
        result.items.append(
            Item(entry.source, entry.number, place, entry.rank, tokens, crumb, content, matched)
        )
    _put_in_order(result.items, config, trigger)
    if result.tokens > result.budget:
        result.notes.append("the trigger alone is larger than the budget")
    if unfit(trigger, config) == "excluded":
        result.notes.append("the trigger is among what is excluded, but what is to be answered is always in")
    return result


def _described(source: Source, found: int) -> dict[str, Any]:
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
    if source.fetch.method != "event_data":
        described["scope"] = source.fetch.scope
    if source.fetch.includes_shared:
        described["shared"] = True
    described["found"] = found
    return described


def _matched(source: Source, crumb: Breadcrumb) -> tuple[str, ...]:
    if not (source.all_tags or source.any_tags):
        return ()
    return tuple(tag for tag in (*source.all_tags, *source.any_tags) if tag in crumb.tags)


def _candidates(
    config: ContextConfig, trigger: Breadcrumb, found: Iterable[Found], result: Assembled
) -> list[Found]:
    triggered = trigger.id_text
    chosen: dict[str, Found] = {triggered: Found(TRIGGER, 0, trigger)}
    for entry in found:
        crumb = entry.crumb
        id = crumb.id_text
        if id == triggered:
            # The version that the event speaks of, found by a source too: name the source.
            if chosen[id].number is None:
                chosen[id] = Found(entry.source, entry.rank, trigger, entry.number)
            continue
        reason = unfit(crumb, config)
        if reason is None and id in chosen:
            reason = "duplicate"
        if reason is None and waits_for_its_turn(config, trigger, crumb):
            reason = "not yet its turn"
        if reason is None:
            chosen[id] = entry
        else:
            result.left_out.append(LeftOut(entry.source, entry.number, crumb, reason))
    return list(chosen.values())


def unfit(crumb: Breadcrumb, config: ContextConfig) -> Reason | None:
    """What never enters any context, and what this config does not want."""
    if (reason := withheld(crumb)) is not None:
        return reason
    schema, exclude = crumb.schema_name, config.exclude
    if schema == config.output.schema_name:
        return "internal"
    if schema in exclude.schema_names or not frozenset(exclude.tags).isdisjoint(crumb.tags):
        return "excluded"
    return None


def waits_for_its_turn(config: ContextConfig, trigger: Breadcrumb, crumb: Breadcrumb) -> bool:
    """A message posted after the one being answered: it gets an answer, and a context, of its own."""
    return (
        crumb.created > trigger.created
        and crumb.session_id is not None
        and crumb.session_id == trigger.session_id
        and any(selector.matches(crumb) for selector in config.update_triggers)
    )


def _by_priority(candidates: Sequence[Found], trigger: Breadcrumb) -> list[tuple[Found, Place]]:
    """The trigger, then the conversation from the newest back, then what belongs to nobody, then the rest."""
    rank: dict[Place, int] = {"conversation": 0, "shared": 1, "elsewhere": 2}
    placed = [(entry, place_of(entry.crumb, trigger.id, trigger.session_id)) for entry in candidates]

    def priority(candidate: tuple[Found, Place]) -> tuple[bool, int, int, str]:
        crumb, place = candidate[0].crumb, candidate[1]
        return crumb.id_text != trigger.id_text, rank[place], -crumb.created, crumb.id_text

    return sorted(placed, key=priority)


def _put_in_order(items: list[Item], config: ContextConfig, trigger: Breadcrumb) -> None:
    first_with_key: dict[str, int] = {}
    for number, source in enumerate(config.sources):
        first_with_key.setdefault(source.key, number)
    places: dict[Place, int] = {"shared": 0, "elsewhere": 1, "conversation": 2}
    items.sort(
        key=lambda item: (
            places[item.place],
            0 if item.place == "conversation" else first_with_key.get(item.source, -1),
            item.crumb.id_text
            == trigger.id_text,  # what is to be answered comes last, whatever was said since
            item.crumb.created,
            item.crumb.id_text,
        )
    )


def place_of(crumb: Breadcrumb, trigger_id: UUID, session_id: str | None) -> Place:
    """Where a breadcrumb belongs, as seen from a context's trigger and session."""
    if crumb.session_id is None:
        return "conversation" if crumb.id == trigger_id else "shared"
    return "conversation" if crumb.session_id == session_id else "elsewhere"


# Rendering: the same for a context that is made and for one that is looked at later.


def rendered(
    crumb: Breadcrumb, place: Place, content: dict[str, Any], trigger_users: list[str]
) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": crumb.id_text, "created_at": crumb.created_at}
    if crumb.schema_name is not None:
        shown["schema_name"] = crumb.schema_name
    if place == "elsewhere" and crumb.session_id is not None:
        shown["session_id"] = crumb.session_id
    # Not for the model's eyes: it decides whether the model or somebody else is speaking.
    creator = crumb.context.get("creator")
    speaker = creator.get("agent_id") if isinstance(creator, dict) else creator
    if isinstance(speaker, str):
        shown["creator"] = speaker
    # Nor this: it decides who may read it out of the context.
    if (users := users_of(crumb.tags)) != trigger_users:
        shown["users"] = users
    shown["content"] = content
    return shown


def parts_of(shown: Iterable[tuple[Place, str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Items in their order, gathered into parts: a place and a key each."""
    parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for place, source, item in shown:
        key = "conversation" if place == "conversation" else source
        parts.setdefault((place, key), []).append(item)
    return [{"place": place, "key": key, "items": items} for (place, key), items in parts.items()]


def checksum(parts: list[dict[str, Any]]) -> str:
    """Tells whether what is rendered again is what was shown then."""
    return sha256(orjson.dumps(parts)).hexdigest()[:16]
