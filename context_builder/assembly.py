"""Selects, counts, orders and renders the items of a context.

This module does no I/O. It works on breadcrumbs that were already fetched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

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
from breadcrumbs.context_builder.stepped_budget import first_kept
from breadcrumbs.context_builder.stepped_windows import NO_COUNTS, Counts, Trimmed, trim
from breadcrumbs.context_builder.tokens import TokenCounter
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.cached import once_per_object
from breadcrumbs.runtime.breadcrumb.session_rule import users_of
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.retrieval.model_view import find_hints, model_content, withheld_reason
from breadcrumbs.runtime.retrieval.part_digests import new_parts_digest, parts_digest
from breadcrumbs.runtime.retrieval.sources import Source, SourceItem
from breadcrumbs.runtime.schema_names import ATTACHMENT_SCHEMAS, FEEDBACK
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

POSITION: Final = attrgetter("crumb.position")
"""Sort key of candidates and items by time."""

_CHECKSUM_LENGTH: Final = 16

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
        source, number, place, rank, tokens, crumb, _, matched, cut = self
        reference: dict[str, Any] = {
            "id": crumb.id_text,
            "version": crumb.version,
            "source": source,
            "place": place,
            "rank": rank,
            "tokens": tokens,
        }
        if number is not None:
            reference["number"] = number
        if matched:
            reference["matched"] = list(matched)
        if cut is not None:
            reference["cut"] = cut._asdict()
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
    """In the order of the prompt: stable items, conversation, volatile items, trigger."""
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
        users = self.users
        return group_parts(
            [
                (place, source, render_item(crumb, place, content, users))
                for source, _, place, _, _, crumb, content, _, _ in self.items
            ]
        )

    def explain(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the explanation that is stored with the context."""
        explained: dict[str, Any] = {
            "tokens": self.tokens,
            "budget": self.budget,
            "counted_by": self.method,
            "checksum": new_checksum(parts),
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
    kind = "feedback" if trigger.schema_name == FEEDBACK else withheld_reason(trigger)
    if kind in ("secret", "private", "feedback"):
        raise TriggerWithheld(
            f"this breadcrumb is {kind}: it must not be shown to a model, so it cannot be answered"
        )
    if selection is None:
        selection = select(config, trigger, found, config.full_sources)
    result = Assembled(
        budget=config.formatting.max_tokens,
        method=counter.method,
        sources=describe_sources(config, selection.found, selection.counts),
        users=users_of(trigger.tags),
    )
    chosen = _limit_candidates(config, trigger, selection, result)
    groups = _group_by_priority(chosen, trigger, _attached_since(config, trigger, chosen))
    filler = _Filler(result, config, counter, definitions or {})
    if config.formatting.keep_tokens is None:
        _fill(filler, groups)
    else:
        _fill_in_steps(filler, groups, config.formatting.keep_tokens)
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
    """The trigger first, then the newest first."""
    left_out: list[LeftOut]
    windows: Windows
    cut: frozenset[int]
    """Sources that reached the limit that they were read with. Empty if the config has no limits per key."""
    found: Mapping[int | None, int]
    """Number of items that each source found, without those before a stepped window."""
    trimmed: Trimmed
    counts: Counts


def select(
    config: ContextConfig,
    trigger: Breadcrumb,
    found: Sequence[SourceItem],
    read: Sequence[Source],
    counts: Counts = NO_COUNTS,
) -> Selection:
    """Select the items that may be in a context.

    `read` are the sources with the limits they were read with. `counts` are needed for stepped windows.
    """
    left_out: list[LeftOut] = []
    trimmed, cut = Trimmed(found), frozenset[int]()
    if config.limits or config.stepped_windows:

        def waits(crumb: Breadcrumb) -> bool:
            return waits_for_its_turn(config, trigger, crumb)

        now = trigger.created
        started = [entry for entry in found if entry[2].created <= now or not waits(entry[2])]
        cut = cut_sources(read, Counter([entry[3] for entry in started]))
        if config.stepped_windows:
            trimmed = trim(config.stepped_windows, now, found, started, counts)
            cut |= trimmed.cut
    candidates = _choose_candidates(config, trigger, trimmed.found, left_out)
    numbers = Counter([entry.number for entry in trimmed.found])
    return Selection(candidates, left_out, windows_of(config, candidates), cut, numbers, trimmed, counts)


def find_sources_to_extend(config: ContextConfig, selection: Selection) -> dict[int, Source]:
    """Return the sources that were not read far enough for the limits of their keys, by index."""
    if not selection.cut:
        return {}
    return sources_to_extend(config, selection.windows, selection.cut, selection.trimmed)


def _limit_candidates(
    config: ContextConfig, trigger: Breadcrumb, selection: Selection, result: Assembled
) -> list[SourceItem]:
    """Return the candidates within the limits of their keys. Add all others to `result.left_out`."""
    result.left_out += selection.left_out
    if not config.limits:
        return selection.candidates
    limited = apply_limits(
        config,
        trigger,
        selection.candidates,
        selection.windows,
        selection.cut,
        selection.trimmed.dropped,
    )
    result.left_out += [
        LeftOut(entry.source, entry.number, entry.crumb, reason) for entry, reason in limited.left_out
    ]
    return limited.kept


def plain_item(entry: SourceItem, place: ItemPlace, counter: TokenCounter) -> ContextItem:
    """Return a candidate with its content and size. It has no hints, and its source has neither tags nor a limit."""
    key, rank, crumb, number = entry
    tokens = counter.count(crumb.visible_text)
    return ContextItem(key, number, place, rank, tokens, crumb, crumb.visible_context)


class _Filler:
    """Adds candidates to a context."""

    def __init__(
        self,
        result: Assembled,
        config: ContextConfig,
        counter: TokenCounter,
        definitions: Mapping[str, Breadcrumb],
    ) -> None:
        self.result = result
        self._config = config
        self._counter = counter
        self._definitions = definitions
        self._plain = config.plain_sources if not definitions else frozenset[int | None]()

    def size_all(self, entries: Iterable[SourceItem], place: ItemPlace) -> list[ContextItem]:
        """Return candidates with their contents and sizes."""
        plain, counter = self._plain, self._counter
        return [
            plain_item(entry, place, counter)
            if entry.number in plain and not entry.crumb.own_hints  # most items
            else self.size(entry, place)
            for entry in entries
        ]

    def size(self, entry: SourceItem, place: ItemPlace, *, is_trigger: bool = False) -> ContextItem:
        """Return a candidate with its content and size. The trigger is never cut."""
        key, rank, crumb, number = entry
        hints, _ = find_hints(crumb, self._definitions)
        source = None if number is None else self._config.sources[number]
        matched = () if source is None else _matched_tags(source, crumb)
        if is_trigger or source is None or source.max_tokens is None:
            content = model_content(crumb, hints)
            tokens = self._counter.count(plain_text(content) if hints else crumb.visible_text)
            return ContextItem(key, number, place, rank, tokens, crumb, content, matched)
        content, tokens, cut = cut_to_tokens(model_content(crumb, hints), source.max_tokens, self._counter)
        return ContextItem(key, number, place, rank, tokens, crumb, content, matched, cut)

    def add(self, *items: ContextItem) -> None:
        self.result.tokens += sum([item.tokens for item in items])
        self.result.items += items
        if self._definitions:
            for item in items:
                _, definition = find_hints(item.crumb, self._definitions)
                if definition is not None and item.crumb.schema_name is not None:
                    self.result.definitions[item.crumb.schema_name] = definition

    def leave_out(self, item: ContextItem) -> None:
        self.result.left_out.append(LeftOut(item.source, item.number, item.crumb, "over budget", item.tokens))

    def add_if_it_fits(self, item: ContextItem) -> bool:
        """Add a candidate or leave it out. Return whether it was added."""
        fits = self.result.tokens + item.tokens <= self.result.budget
        (self.add if fits else self.leave_out)(item)
        return fits

    def add_all_that_fit(self, entries: Iterable[SourceItem], place: ItemPlace) -> None:
        for item in self.size_all(entries, place):
            self.add_if_it_fits(item)

    def end_conversation(self, *, is_cut: bool) -> None:
        """Remove answers whose questions did not fit."""
        if is_cut:
            _remove_cut_answers(self.result, self._config)


def _fill(filler: _Filler, groups: _Groups) -> None:
    """Add the candidates that fit into the budget, newer ones first.

    The trigger is always added. The conversation is complete before other items are added.
    """
    filler.add(filler.size(groups.trigger, "conversation", is_trigger=True))
    is_full = False
    filler.add_all_that_fit(groups.own_attachments, "conversation")
    # A gap in a conversation would mislead the model. If one message does not fit, all older ones are left out.
    for item in filler.size_all(groups.messages, "conversation"):
        if is_full:
            filler.leave_out(item)
        else:
            is_full = not filler.add_if_it_fits(item)
    for item in filler.size_all(groups.attachments, "conversation"):
        if is_full:
            filler.leave_out(item)
        else:
            filler.add_if_it_fits(item)
    filler.end_conversation(is_cut=is_full)
    filler.add_all_that_fit(groups.shared, "shared")
    filler.add_all_that_fit(groups.elsewhere, "elsewhere")


def _fill_in_steps(filler: _Filler, groups: _Groups, keep_tokens: int) -> None:
    """Add the candidates that fit into a stepped budget.

    Shared items are added first, because they are at the beginning of the prompt. They must not depend on the length of
    the conversation. They leave at least `keep_tokens` for it.
    """
    result = filler.result
    trigger = filler.size(groups.trigger, "conversation", is_trigger=True)
    filler.add(trigger)
    shared, room = 0, result.budget - keep_tokens
    for item in filler.size_all(groups.shared, "shared"):
        fits = shared + item.tokens <= room
        (filler.add if fits else filler.leave_out)(item)
        shared += item.tokens if fits else 0
    entries = [*groups.own_attachments, *groups.messages, *groups.attachments]
    newest_first = [trigger, *filler.size_all(entries, "conversation")]
    newest_first.sort(key=POSITION, reverse=True)
    kept = len(newest_first)
    if result.tokens + sum([item.tokens for item in newest_first]) - trigger.tokens > result.budget:
        sizes = [
            (item.tokens, item.crumb.schema_name not in ATTACHMENT_SCHEMAS) for item in reversed(newest_first)
        ]
        kept -= first_kept(sizes, result.budget - shared, keep_tokens)
    filler.add(*[item for item in newest_first[:kept] if item is not trigger])
    for item in newest_first[kept:]:
        if item is not trigger:
            filler.leave_out(item)
    filler.end_conversation(is_cut=kept < len(newest_first))
    filler.add_all_that_fit(groups.elsewhere, "elsewhere")


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


def describe_sources(
    config: ContextConfig, found: Mapping[int | None, int], counts: Counts
) -> list[dict[str, Any]]:
    """Return the sources for the explanation. `found`: the number of items that each found within its window."""
    described = [dict(source) for source in config.described_sources]
    for number, source in enumerate(described):
        if number in counts:  # recorded, because deleted breadcrumbs cannot be counted later
            source["count"] = counts[number]
        source["found"] = found.get(number, 0)
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
    trigger_id, now = trigger.id_text, trigger.created
    visible_schemas = config.visible_schemas
    chosen: dict[str, SourceItem] = {trigger_id: SourceItem(TRIGGER, 0, trigger)}
    for entry in found:
        crumb = entry.crumb
        id = crumb.id_text
        if id == trigger_id:
            # A source found the trigger too. Keep the version of the event, and record the source.
            if chosen[id].number is None:
                chosen[id] = SourceItem(entry.source, entry.rank, trigger, entry.number)
            continue
        # The first condition decides most cases faster than `exclusion_reason`.
        is_visible = crumb.schema_name in visible_schemas and not crumb.is_withheld
        reason = None if is_visible else exclusion_reason(crumb, config)
        if reason is None and id in chosen:
            reason = "duplicate"
        if reason is None and crumb.created > now and waits_for_its_turn(config, trigger, crumb):
            reason = "not yet its turn"
        if reason is None:
            chosen[id] = entry
        else:
            left_out.append(LeftOut(entry.source, entry.number, crumb, reason))
    chosen_trigger = chosen.pop(trigger_id)
    return [chosen_trigger, *sorted(chosen.values(), key=POSITION, reverse=True)]


def exclusion_reason(crumb: Breadcrumb, config: ContextConfig) -> Reason | None:
    """Return why a breadcrumb must not be in a context, or None if it may be."""
    if (reason := withheld_reason(crumb)) is not None:
        return reason
    schema, exclude = crumb.schema_name, config.exclude
    if schema == config.output.schema_name:
        return "internal"
    if schema in exclude.schema_names or (exclude.tags and not config.excluded_tags.isdisjoint(crumb.tags)):
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
    if ATTACHMENT_SCHEMAS.isdisjoint([entry.crumb.schema_name for entry in candidates]):
        return 0
    earlier = (
        crumb.created
        for crumb in (entry.crumb for entry in candidates)
        if crumb.id != trigger.id and crumb.session_id == trigger.session_id and config.reacts_to(crumb)
    )
    return max(earlier, default=0)


class _Groups(NamedTuple):
    """The candidates in the order in which they fill the budget. Within each group, newer ones come first."""

    trigger: SourceItem
    own_attachments: list[SourceItem]
    """Attachments of the trigger."""
    messages: list[SourceItem]
    """The conversation."""
    attachments: list[SourceItem]
    """Attachments of earlier messages."""
    shared: list[SourceItem]
    """Breadcrumbs without a session."""
    elsewhere: list[SourceItem]
    """Breadcrumbs of other sessions."""


def _group_by_priority(candidates: Sequence[SourceItem], trigger: Breadcrumb, attached_since: int) -> _Groups:
    """Return the candidates by priority. The first candidate is the trigger."""
    groups = _Groups(candidates[0], [], [], [], [], [])
    session, messages = trigger.session_id, groups.messages
    for entry in candidates[1:]:
        crumb = entry.crumb
        if crumb.session_id is None:
            groups.shared.append(entry)
        elif crumb.session_id != session:
            groups.elsewhere.append(entry)
        elif crumb.schema_name not in ATTACHMENT_SCHEMAS:
            messages.append(entry)
        elif crumb.created > attached_since:
            groups.own_attachments.append(entry)
        else:
            groups.attachments.append(entry)
    return groups


def _sort_for_prompt(items: list[ContextItem], config: ContextConfig, trigger: Breadcrumb) -> None:
    """Sort the items so that those which change rarely come first, for the prompt caches of providers.

    Stable items come first, then the conversation, volatile items, and the trigger. Stable and volatile items are
    sorted by place and source. Within each of these groups, older items come first.
    """
    order, trigger_id = config.part_order, trigger.id_text
    conversation = [item for item in items if item.place == "conversation"]
    conversation.sort(key=POSITION)
    ids = [item.crumb.id_text for item in conversation]
    last = conversation.pop(ids.index(trigger_id))
    if len(conversation) + 1 == len(items):
        items[:] = [*conversation, last]
        return

    def position(item: ContextItem) -> tuple[bool, int, int, str]:
        return item.place == "elsewhere", order.get(item.source, -1), item.crumb.created, item.crumb.id_text

    others = sorted((item for item in items if item.place != "conversation"), key=position)
    stable = [item for item in others if item.place == "shared" and _is_stable(config, item.number)]
    volatile = [item for item in others if item not in stable]
    items[:] = [*stable, *conversation, *volatile, last]


def _is_stable(config: ContextConfig, number: int | None) -> bool:
    """Return whether a source finds the same breadcrumbs without a session for many turns, such as a tool catalog.

    With the scopes `user` and `all`, `recent` finds something new in many turns.
    """
    if number is None:
        return False
    fetch = config.sources[number].fetch
    return fetch.method == "latest" or fetch.scope == "current"


# Rendering, used for new contexts and for contexts that are rebuilt later.


def render_item(
    crumb: Breadcrumb, place: ItemPlace, content: dict[str, Any], trigger_users: list[str]
) -> dict[str, Any]:
    """Return an item as it is stored in a part of a context. It must not be modified."""
    if place != "elsewhere" and content is crumb.visible_context and crumb.users == trigger_users:
        return _usual_item(crumb)
    return _render_item(crumb, place, content, trigger_users)


@once_per_object
def _usual_item(crumb: Breadcrumb) -> dict[str, Any]:
    """Return an item of this session or of no session, with its whole content and no other users.

    Most items are of this kind. They are rendered once, and all contexts of the session share them.
    """
    return _render_item(crumb, "conversation", crumb.visible_context, crumb.users)


def _render_item(
    crumb: Breadcrumb, place: ItemPlace, content: dict[str, Any], trigger_users: list[str]
) -> dict[str, Any]:
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
    if (users := crumb.users) != trigger_users:
        shown["users"] = users
    shown["content"] = content
    return shown


def group_parts(shown: Iterable[tuple[ItemPlace, str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Group consecutive items with the same place and key into parts. Keeps their order.

    If volatile items are between the conversation and the trigger, the trigger is a part of its own.
    """
    parts: list[dict[str, Any]] = []
    last_place = last_key = ""
    items: list[dict[str, Any]] = []
    for place, source, item in shown:
        key = "conversation" if place == "conversation" else source
        if key != last_key or place != last_place:
            last_place, last_key, items = place, key, []
            parts.append({"place": place, "key": key, "items": items})
        items.append(item)
    return parts


def checksum(parts: list[dict[str, Any]]) -> str:
    """Return a hash of the parts, to compare a rebuilt context with the original."""
    return parts_digest(parts).hex()[:_CHECKSUM_LENGTH]


def new_checksum(parts: list[dict[str, Any]]) -> str:
    """Return the checksum of the parts of a new context. Its receipt needs the same digest."""
    return new_parts_digest(parts).hex()[:_CHECKSUM_LENGTH]
