"""Matching of answers, errors and deltas to their message, without I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from breadcrumbs.client.errors import AgentFailed, NoAnswer
from breadcrumbs.client.options import Waiting
from breadcrumbs.client.values import (
    Answer,
    Breadcrumb,
    ChatMessage,
    Delta,
    Event,
    breadcrumb_of,
    creator_in,
)
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.schema_names import AGENT_ERROR, USER_MESSAGE
from breadcrumbs.runtime.sessions.outcome_matching import is_answer_or_error, is_outcome
from breadcrumbs.runtime.sessions.wait_for import WaitFor


def stored_outcome(document: Any, message_id: str, agent: str | None) -> Answer | None:
    """Return the stored answer to a message, or None. Raise `AgentFailed` for a stored error."""
    outcome = document.get("answer") or document.get("error")
    if outcome is None:
        return None
    crumb = breadcrumb_of({"title": "", **outcome})
    return outcome_of(crumb.id, crumb, message_id, agent)


def outcome_of(id: str, found: Event | Breadcrumb, message_id: str, agent: str | None) -> Answer | None:
    """Return the answer if `found` answers the message, else None. Raise `AgentFailed` if it is an error."""
    if not is_outcome(found.schema_name, found.context, message_id, agent):
        return None
    return _to_answer(id, found, message_id)


def _to_answer(id: str, found: Event | Breadcrumb, message_id: str) -> Answer:
    """Return an answer. Raise `AgentFailed` if it is an error."""
    context = found.context
    if found.schema_name == AGENT_ERROR:
        raise AgentFailed(
            str(context.get("error") or "the agent failed and gave no reason"),
            trigger_id=message_id,
            breadcrumb_id=id,
            cancelled=context.get("cancelled") is True,
        )
    return Answer(
        text=plain_text(context),
        id=id,
        trigger_id=message_id,
        session_id=found.session_id,
        agent_id=creator_in(context),
        tags=found.tags,
        context=context,
    )


def wanted_answer(options: Waiting) -> WaitFor:
    """Return the answer to wait for. Raise `ValueError` if the options contradict each other."""
    text = options.get("wait_for")
    if text is not None and options.get("agent") is not None:
        raise ValueError("pass agent or wait_for, not both: wait_for='agent:NAME' waits for one agent")
    try:
        return WaitFor.parse(text)
    except InvalidInput as error:
        raise ValueError(str(error)) from None


@dataclass(frozen=True, slots=True)
class ChainResult:
    """An answer of a chain, as the server returns it."""

    outcome: Breadcrumb | None
    finished: bool
    agents: tuple[str, ...]
    waiting_for: tuple[str, ...]

    @property
    def is_end(self) -> bool:
        return self.finished or self.outcome is not None

    def answer(self, message_id: str, wanted: str) -> Answer:
        """Return the answer. Raise `AgentFailed` for an error, and `NoAnswer` if the chain ended without the answer."""
        if self.outcome is not None:
            trigger = self.outcome.context.get("trigger_id")
            return _to_answer(
                self.outcome.id, self.outcome, trigger if isinstance(trigger, str) else message_id
            )
        answered = ", ".join(self.agents) or "no agent"
        name = wanted.removeprefix("agent:")
        raise NoAnswer(
            f"all agents are done, and {name} has not answered ({answered} did)", trigger_id=message_id
        )


NOT_ENDED: Final = ChainResult(None, False, (), ())


def chain_result(document: Any) -> ChainResult:
    """Return the result in the reply to a request for an answer of a chain."""
    outcome, chain = document.get("answer") or document.get("error"), document["chain"]
    return ChainResult(
        None if outcome is None else breadcrumb_of({"title": "", **outcome}),
        bool(chain["finished"]),
        tuple(chain.get("agents", ())),
        tuple(chain.get("waiting_for", ())),
    )


class ChainIds:
    """Ids of the breadcrumbs of a chain, collected from events."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        self._ids = {message_id}

    def add(self, event: Event) -> bool:
        """Return whether an event is an answer or error of the chain, and note its id."""
        if event.operation != "created" or isinstance(event, Delta):
            return False
        context = event.context
        if context.get("root_id") != self.message_id and context.get("trigger_id") not in self._ids:
            return False
        if event.breadcrumb_id is not None:
            self._ids.add(event.breadcrumb_id)
        return is_answer_or_error(event.schema_name, context)

    def __contains__(self, id: object) -> bool:
        return id in self._ids

    def has_delta(self, event: Event) -> bool:
        return isinstance(event, Delta) and event.trigger_id in self._ids


def answers_in(event: Event | None) -> list[Answer]:
    """Return the answer that an event reports. Empty if it is an error or something else."""
    if event is None or event.schema_name == AGENT_ERROR or event.operation != "created":
        return []
    trigger = event.context.get("trigger_id")
    return [_to_answer(event.breadcrumb_id or "", event, trigger if isinstance(trigger, str) else "")]


def is_delta_of(event: Event, message_id: str, agent: str | None) -> bool:
    return isinstance(event, Delta) and event.trigger_id == message_id and agent in (None, event.agent_id)


def chat_message(crumb: Breadcrumb) -> ChatMessage:
    trigger = crumb.context.get("trigger_id")
    return ChatMessage(
        role="user" if crumb.schema_name == USER_MESSAGE else "agent",
        text=crumb.text,
        id=crumb.id,
        created_at=crumb.created_at,
        agent_id=None if crumb.schema_name == USER_MESSAGE else creator_in(crumb.context),
        trigger_id=trigger if isinstance(trigger, str) else None,
    )


class ShownText:
    """Text of an answer that its deltas have shown so far."""

    def __init__(self) -> None:
        self._text = self._reasoning = ""
        self._last: Delta | None = None

    def add(self, delta: Delta) -> Delta | None:
        """Return the new part of a delta, or None if it has none.

        After a reconnect, the server sends text and reasoning so far again.
        """
        if self._last is not None and self._last.breadcrumb_id != delta.breadcrumb_id:
            self._text = self._reasoning = ""
        self._last = delta
        self._text, offset, piece = _continued(self._text, delta.offset, delta.piece)
        self._reasoning, reasoning_offset, reasoning = _continued(
            self._reasoning, delta.reasoning_offset, delta.reasoning
        )
        if not (piece or reasoning or delta.notice):
            return None
        return replace(
            delta, offset=offset, piece=piece, reasoning_offset=reasoning_offset, reasoning=reasoning
        )

    def rest_of(self, answer: Answer) -> Delta | None:
        """Return the end of the answer that no delta has shown, or None.

        Deltas and answers use different channels, so an answer can arrive before its last delta.
        """
        if self._last is None or self._last.breadcrumb_id != answer.id:
            return None
        rest = answer.text.removeprefix(self._text)
        if not rest or len(rest) == len(answer.text):
            return None
        return replace(self._last, offset=len(self._text), piece=rest, reasoning="", notice=None)


def _continued(shown: str, offset: int, piece: str) -> tuple[str, int, str]:
    """Return the text with a piece, and the offset and text of the part of the piece that is new.

    A piece that is shown already changes nothing. Any other piece replaces the text after its offset, because the agent
    has started again.
    """
    text = shown[:offset] + piece
    if shown.startswith(text):
        return shown, len(shown), ""
    if text.startswith(shown):
        return text, max(offset, len(shown)), text[len(shown) :]
    return text, offset, piece
