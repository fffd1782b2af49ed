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
        self._text = ""
        self._last: Delta | None = None

    def add(self, delta: Delta) -> Delta | None:
        """Return the new part of a delta, or None if it has none.

        After a reconnect, the server sends the text so far again.
        """
        same = self._last is not None and self._last.breadcrumb_id == delta.breadcrumb_id
        before = self._text if same else ""
        text = before[: delta.offset] + delta.piece
        if same and delta.notice is None and before.startswith(text):
            return None if delta.piece else delta
        self._text, self._last = text, delta
        if before and text.startswith(before) and delta.offset < len(before):
            return replace(delta, offset=len(before), piece=text[len(before) :])
        return delta

    def rest_of(self, answer: Answer) -> Delta | None:
        """Return the end of the answer that no delta has shown, or None.

        Deltas and answers use different channels, so an answer can arrive before its last delta.
        """
        if self._last is None or self._last.breadcrumb_id != answer.id:
            return None
        rest = answer.text.removeprefix(self._text)
        if not rest or len(rest) == len(answer.text):
            return None
        return replace(self._last, offset=len(self._text), piece=rest)
