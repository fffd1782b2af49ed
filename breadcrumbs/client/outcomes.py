"""Matching of answers, errors and deltas to their message, without I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from breadcrumbs.client.errors import AgentFailed
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
from breadcrumbs.runtime.schema_names import AGENT_ERROR, USER_MESSAGE
from breadcrumbs.runtime.sessions.outcome_matching import is_outcome


def stored_outcome(document: Any, message_id: str, agent: str | None) -> Answer | None:
    """Return the stored answer to a message, or None. Raise `AgentFailed` for a stored error."""
    outcome = document.get("answer") or document.get("error")
    if outcome is None:
        return None
    crumb = breadcrumb_of({"title": "", **outcome})
    return outcome_of(crumb.id, crumb, message_id, agent)


def outcome_of(id: str, found: Event | Breadcrumb, message_id: str, agent: str | None) -> Answer | None:
    """Return the answer if `found` answers the message, else None. Raise `AgentFailed` if it is an error."""
    context = found.context
    if not is_outcome(found.schema_name, context, message_id, agent):
        return None
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
