"""What goes into a context and what does not, and why: pure decisions on breadcrumbs that were fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from breadcrumbs.context_builder.config import ContextConfig, Exclude
from breadcrumbs.context_builder.tokens import TokenCounter
from breadcrumbs.runtime.breadcrumb import Breadcrumb
from breadcrumbs.runtime.llm_view import apply_hints
from breadcrumbs.runtime.sources import Found
from breadcrumbs.runtime.wording import plain_text

Place = Literal["conversation", "elsewhere", "shared"]
"""Of this session; of another one; of none."""

Reason = Literal["over budget", "duplicate", "excluded", "internal", "secret", "private", "not yet its turn"]

# The system talking to itself: never shown to a model.
INTERNAL_SCHEMAS = frozenset(
    (
        "agent.context.v1",
        "agent.def.v1",
        "agent.cancel.v1",
        "context.config.v1",
        "context.request.v1",
        "schema.def.v1",
    )
)
INFRASTRUCTURE = ("session_id", "trigger_id", "creator", "conversation_id")


@dataclass(frozen=True, slots=True)
class Item:
    """A breadcrumb in a context."""

    source: str
    place: Place
    rank: int
    tokens: int
    crumb: Breadcrumb
    content: dict[str, Any]
    """What the model may see of it."""

    def reference(self) -> dict[str, Any]:
        return {
            "id": str(self.crumb.id),
            "version": self.crumb.version,
            "source": self.source,
            "place": self.place,
            "rank": self.rank,
            "tokens": self.tokens,
        }

    def rendered(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"id": str(self.crumb.id), "created_at": self.crumb.created_at}
        if self.crumb.schema_name is not None:
            shown["schema_name"] = self.crumb.schema_name
        if self.place == "elsewhere" and self.crumb.session_id is not None:
            shown["session_id"] = self.crumb.session_id
        shown["content"] = self.content
        return shown


@dataclass(frozen=True, slots=True)
class LeftOut:
    source: str
    crumb: Breadcrumb
    reason: Reason

    def reference(self) -> dict[str, Any]:
        return {
            "id": str(self.crumb.id),
            "version": self.crumb.version,
            "source": self.source,
            "reason": self.reason,
        }


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


def assemble(
    config: ContextConfig,
    trigger: Breadcrumb,
    found: Iterable[Found],
    *,
    counter: TokenCounter,
    hints: Callable[[Breadcrumb], Mapping[str, Any] | None] = lambda crumb: crumb.document.get("llm_hints"),
) -> Assembled:
    """Choose, count and order. The trigger is always in; the newest of the rest come first."""
    result = Assembled(budget=config.formatting.max_tokens, method=counter.method)
    candidates = _candidates(config, trigger, found, result)
    for entry in _by_priority(candidates, trigger):
        content = view_of(entry.crumb, hints(entry.crumb))
        tokens = counter.count(plain_text(content))
        place = _place(entry.crumb, trigger)
        is_trigger = entry.crumb.id == trigger.id
        # Older parts of a conversation after a gap would mislead: once one does not fit, the rest stays out.
        full = place == "conversation" and any(
            out.reason == "over budget" and _place(out.crumb, trigger) == "conversation"
            for out in result.left_out
        )
        if not is_trigger and (full or result.tokens + tokens > result.budget):
            result.left_out.append(LeftOut(entry.source, entry.crumb, "over budget"))
            continue
        result.tokens += tokens
        result.items.append(Item(entry.source, place, entry.rank, tokens, entry.crumb, content))
    order = {source.key: number for number, source in enumerate(config.sources)}
    places = {"shared": 0, "elsewhere": 1, "conversation": 2}
    result.items.sort(
        key=lambda item: (
            places[item.place],
            0 if item.place == "conversation" else order.get(item.source, -1),
            item.crumb.id == trigger.id,  # what is to be answered comes last, whatever was said since
            item.crumb.created,
            item.crumb.id.bytes,
        )
    )
    if result.tokens > result.budget:
        result.notes.append("the trigger alone is larger than the budget")
    return result


def _candidates(
    config: ContextConfig, trigger: Breadcrumb, found: Iterable[Found], result: Assembled
) -> list[Found]:
    chosen: dict[Any, Found] = {trigger.id: Found("trigger", 0, trigger)}
    for entry in found:
        crumb = entry.crumb
        if crumb.id == trigger.id:
            # The version that the event speaks of, found by a source too: name the source.
            if chosen[trigger.id].source == "trigger":
                chosen[trigger.id] = Found(entry.source, entry.rank, trigger)
            continue
        reason = unfit(crumb, config.exclude)
        if reason is None and crumb.id in chosen:
            reason = "duplicate"
        if reason is None and _waits_for_its_turn(config, trigger, crumb):
            reason = "not yet its turn"
        if reason is None:
            chosen[crumb.id] = entry
        else:
            result.left_out.append(LeftOut(entry.source, crumb, reason))
    return list(chosen.values())


def unfit(crumb: Breadcrumb, exclude: Exclude) -> Reason | None:
    """What never enters any context, and what this config does not want."""
    if crumb.sensitivity == "secret":
        return "secret"
    if crumb.visibility == "private":
        return "private"
    if crumb.schema_name in INTERNAL_SCHEMAS or (crumb.schema_name or "").startswith("system."):
        return "internal"
    if crumb.schema_name in exclude.schema_names or any(tag in exclude.tags for tag in crumb.tags):
        return "excluded"
    return None


def _waits_for_its_turn(config: ContextConfig, trigger: Breadcrumb, crumb: Breadcrumb) -> bool:
    """A message posted after the one being answered: it gets an answer, and a context, of its own."""
    return (
        crumb.created > trigger.created
        and crumb.session_id is not None
        and crumb.session_id == trigger.session_id
        and any(selector.matches(crumb) for selector in config.update_triggers)
    )


def _by_priority(candidates: Sequence[Found], trigger: Breadcrumb) -> list[Found]:
    rank = {"conversation": 0, "shared": 1, "elsewhere": 2}
    return sorted(
        candidates,
        key=lambda entry: (
            entry.crumb.id != trigger.id,
            rank[_place(entry.crumb, trigger)],
            -entry.crumb.created,
        ),
    )


def _place(crumb: Breadcrumb, trigger: Breadcrumb) -> Place:
    if crumb.session_id is None:
        return "conversation" if crumb.id == trigger.id else "shared"
    return "conversation" if crumb.session_id == trigger.session_id else "elsewhere"


def view_of(crumb: Breadcrumb, hints: Mapping[str, Any] | None) -> dict[str, Any]:
    """The content as a model gets it: its hints applied, the glue of the runtime taken out."""
    content = apply_hints(crumb.context, dict(hints)) if hints else crumb.context
    return {key: value for key, value in content.items() if key not in INFRASTRUCTURE}
