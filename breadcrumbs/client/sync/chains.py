# Generated from breadcrumbs/client/aio/chains.py by `python -m tests.support.sync_client`. Do not edit.
"""Waiting for the last answer of a chain, or for the answer of one agent in it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from breadcrumbs.client.errors import NoAnswer, ServerUnreachable
from breadcrumbs.client.options import Waiting
from breadcrumbs.client.outcomes import (
    NOT_ENDED,
    ChainIds,
    ChainResult,
    answers_in,
    chain_result,
    wanted_answer,
)
from breadcrumbs.client.requests import chain_request
from breadcrumbs.client.sync.connection import ServerConnection
from breadcrumbs.client.sync.events import DeadlinePassed
from breadcrumbs.client.sync.turns import AnswerFollower, Show
from breadcrumbs.client.values import Delta, Event, Gap

_WAIT_SECONDS: Final = 1.0
"""Longest time that the server delays its reply, if only the answer is wanted."""
_SHORT_WAIT_SECONDS: Final = 0.25
"""The same if events are shown meanwhile. They are delayed, too."""


def answer_follower(
    connection: ServerConnection,
    session_id: str,
    show: Show,
    options: Waiting,
    *,
    last_event_id: str | None = None,
) -> AnswerFollower:
    """Return the follower for the answer that the options ask for."""
    wanted = wanted_answer(options)
    if wanted.which == "first":
        return AnswerFollower(connection, session_id, show, options, last_event_id=last_event_id)
    return ChainFollower(connection, session_id, show, options, last_event_id=last_event_id)


@dataclass(slots=True)
class _Steps:
    """Progress of a chain whose events are shown."""

    message_id: str
    ids: ChainIds = field(init=False)
    result: ChainResult = NOT_ENDED
    gives_up: bool = False
    """The event of the last answer is not waited for any more."""

    def __post_init__(self) -> None:
        self.ids = ChainIds(self.message_id)

    @property
    def are_complete(self) -> bool:
        """Whether the chain has ended, and the event of its last answer was received."""
        outcome = self.result.outcome
        return self.result.is_end and (self.gives_up or outcome is None or outcome.id in self.ids)


class ChainFollower(AnswerFollower):
    """Waits for an answer of the chain that a message starts. The server decides whether the chain has ended."""

    def _until_answered(self, message_id: str, *, check_stored: bool) -> Generator[Any, None, None]:
        stored = self._ask(message_id, 0) if check_stored else None
        if stored is not None and stored.is_end:
            result = stored
        elif self._show == "answer":
            result = self._end_of_chain(message_id, stored)
        else:
            steps = _Steps(message_id)
            with closing(self._follow(message_id, steps)) as items:
                yield from items
            result = steps.result
        answer = result.answer(message_id, str(self._wanted))
        if self._show == "pieces" and (rest := self._shown.rest_of(answer)) is not None:
            yield rest
        yield answer

    def _end_of_chain(self, message_id: str, result: ChainResult | None) -> ChainResult:
        """Wait for the first answer by events. From then on the chain can also end without one: ask the server."""
        ids, has_begun = ChainIds(message_id), result is not None and bool(result.agents)
        while result is None or not result.is_end:
            if has_begun:
                result = self._ask(message_id, _WAIT_SECONDS)
                continue
            event = self._next_event(message_id)
            if event is None or isinstance(event, Gap) or ids.add(event):
                result = self._ask(message_id, 0)
                has_begun = bool(result.agents)
        return result

    def _follow(self, message_id: str, steps: _Steps) -> Generator[Any, None, None]:
        """Yield the items to show, until the chain has ended and all its events were received."""
        while not steps.are_complete:
            event = self._next_event(message_id)
            is_step = event is not None and steps.ids.add(event)
            if event is not None:
                yield from self._shown_items(event, steps.ids)
            if steps.result.is_end:
                steps.gives_up = event is None  # the last event was received before
            elif is_step or event is None or isinstance(event, Gap):
                steps.result = self._ask(message_id, _SHORT_WAIT_SECONDS if is_step else 0)
                steps.gives_up = isinstance(event, Gap)
            if is_step and self._show == "pieces" and not steps.are_complete:
                yield from answers_in(event)

    def _next_event(self, message_id: str) -> Event | None:
        """Return the next event, or None if the server sends a sign of life only. A chain can end without an event."""
        try:
            return self._events.next_event_or_ping()
        except DeadlinePassed:
            raise self._late(message_id) from None

    def _shown_items(self, event: Event, ids: ChainIds) -> list[Event]:
        if self._show == "answer" or (self._show == "pieces" and not ids.has_delta(event)):
            return []
        shown = self._shown.add(event) if isinstance(event, Delta) else event
        return [] if shown is None else [shown]

    def _ask(self, message_id: str, wait: float) -> ChainResult:
        if self._events.is_over:
            raise self._late(message_id)
        return self._request(message_id, wait)

    def _request(self, message_id: str, wait: float) -> ChainResult:
        request = chain_request(self._session_id, message_id, str(self._wanted), wait)
        try:
            reply = self._connection.perform(request, deadline=self._events.deadline)
        except ServerUnreachable:
            if self._events.is_over:
                raise self._no_answer(message_id) from None
            raise
        return self._connection.replies.read(reply, chain_result)

    def _late(self, message_id: str) -> NoAnswer:
        """Return the error after the timeout. It names the agents that have not answered."""
        error = self._no_answer(message_id)
        try:
            waiting = (self._request(message_id, 0)).waiting_for
        except Exception:  # the error without names is better than another one
            return error
        more = f". Still waiting for: {', '.join(waiting)}" if waiting else ""
        return NoAnswer(f"{error}{more}", trigger_id=message_id)
