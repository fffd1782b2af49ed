"""Waiting for the answer to a message.

The turn runs in a worker, which can be in another process. A watch only listens, so ending it does not stop the turn.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.errors import SessionGone
from breadcrumbs.runtime.events.deltas import Delta
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT
from breadcrumbs.runtime.sessions.outcome_matching import is_outcome
from breadcrumbs.runtime.sessions.outcomes import find_outcome
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.streams.conditions import Evaluation
from breadcrumbs.runtime.streams.hub import EventHub
from breadcrumbs.runtime.streams.stream_event import StreamEvent, StreamValue
from breadcrumbs.runtime.streams.subscription import Subscription


class _SessionFilter:
    """Accepts the events of one session that a principal may see."""

    def __init__(self, principal: Principal, session: str) -> None:
        self.owner_id = principal.owner_id
        self._principal = principal
        self._tag = SESSION + session
        self.ended = False

    def wants(self, event: Event) -> bool:
        return (
            self._tag in event.tags
            and event.schema_name != AGENT_CONTEXT
            and (
                event.operation == "session_deleted"
                or policy.may_see_event(self._principal, event.tags, event.private_to)
            )
        )

    @property
    def token(self) -> Principal:
        return self._principal

    @property
    def conditional(self) -> bool:
        return False

    def accepts(self, event: Event, evaluation: Evaluation | None) -> bool | None:
        return True

    # The unredacted breadcrumb is needed to recognize the outcome. The outcome is redacted when it is rendered.

    def shows_context(self, crumb: Breadcrumb) -> bool:
        return True

    def redact(self, crumb: Breadcrumb) -> Breadcrumb:
        return crumb


class SessionWatch:
    """Receives the events of a session that a principal may see.

    Call `begin` before the message is posted, so that no event is lost.
    """

    def __init__(self, hub: EventHub, principal: Principal, session: str) -> None:
        self._hub = hub
        self._session = session
        self._subscription = Subscription(_SessionFilter(principal, session))
        self.was_interrupted = False
        """Whether events were lost before the last `take`, because the queue was full."""

    async def begin(self) -> None:
        """Subscribe to the events of the session."""
        await self._hub.subscribe(self._subscription)

    def end(self) -> None:
        """Unsubscribe. The turn continues."""
        self._hub.leave(self._subscription)

    def join_answers(self) -> None:
        """Also receive the text so far of answers that are being written."""
        self._hub.join_answers(self._subscription, self._session)

    async def take(self, patience: float) -> list[StreamValue] | None:
        """Return the values that arrive within `patience` seconds. None: the server stops.

        The subscription is dropped if its queue is full or the server stops. If the queue was full, it is renewed, and
        the caller has to search the stored breadcrumbs.
        """
        values = await self._subscription.take(patience)
        self.was_interrupted = self._subscription.dropped
        if self.was_interrupted and not await self._restart():
            return None
        return values

    async def _restart(self) -> bool:
        """Subscribe again. Return False if the hub is closed."""
        self.end()
        self._subscription = Subscription(self._subscription.filter)
        await self.begin()
        self.join_answers()
        return not self._subscription.dropped

    def created_breadcrumb(self, value: StreamEvent) -> Breadcrumb | None:
        """Return the breadcrumb that an event reports as new. Raise `SessionGone` if the session was deleted."""
        event = value.event
        if event.operation == "session_deleted":
            raise SessionGone(f"session {self._session!r} was deleted before the answer arrived")
        return value.load_breadcrumb() if event.operation == "created" else None


class AnswerWatch:
    """Follows a session until a message has its first outcome."""

    def __init__(self, store: Store, principal: Principal, watch: SessionWatch) -> None:
        self._store = store
        self._principal = principal
        self._watch = watch

    async def until_answered(
        self, message: Breadcrumb, seconds: float, *, look_first: bool, patience: float
    ) -> AsyncGenerator[Delta | Breadcrumb | None, None]:
        """Yield the deltas of the answer, then the answer or an error.

        End without an outcome after `seconds`. Yield None each time nothing has happened for `patience` seconds. If the
        outcome can be stored already, set `look_first` to search for it first. Raise `SessionGone` if the session is
        deleted.
        """
        deadline = time.monotonic() + seconds
        if look_first:
            self._watch.join_answers()  # the turn can already be running
        while True:
            if look_first:
                outcome = await find_outcome(self._store, self._principal, message)
                if outcome is not None:
                    yield outcome
                    return
            left = deadline - time.monotonic()
            if left <= 0:
                return
            values = await self._watch.take(min(left, patience))
            if values is None:
                return
            look_first = self._watch.was_interrupted
            if not values and not look_first:
                yield None
            for relevant in self._relevant_values(values, message):
                yield relevant
                if isinstance(relevant, Breadcrumb):
                    return

    def _relevant_values(
        self, values: list[StreamValue], message: Breadcrumb
    ) -> Iterator[Delta | Breadcrumb]:
        """Yield the deltas and outcomes of a message.

        Raise `SessionGone` if the session was deleted.
        """
        for value in values:
            if (relevant := self._match_event(value, message)) is not None:
                yield relevant

    def _match_event(self, value: StreamValue, message: Breadcrumb) -> Delta | Breadcrumb | None:
        if isinstance(value, Delta):
            return value if value.trigger_id == str(message.id) else None
        crumb = None if value.event.id == message.id else self._watch.created_breadcrumb(value)
        if crumb is None or not is_outcome(crumb.schema_name, crumb.context, str(message.id)):
            return None
        return crumb
