"""Waiting for the answer to a message.

The turn runs in a worker, perhaps in another process. A watch only listens: leaving does not stop the turn.
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
from breadcrumbs.runtime.streams.stream_event import StreamValue
from breadcrumbs.runtime.streams.subscription import Subscription


class _SessionFilter:
    """Lets the events of one session through that a principal may see."""

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

    # The whole breadcrumb decides whether it is the outcome. The outcome is redacted when it is rendered.

    def shows_context(self, crumb: Breadcrumb) -> bool:
        return True

    def redact(self, crumb: Breadcrumb) -> Breadcrumb:
        return crumb


class AnswerWatch:
    """Follows a session. Begin it before the message is posted, so that no event is lost."""

    def __init__(self, store: Store, hub: EventHub, principal: Principal, session: str) -> None:
        self._store = store
        self._hub = hub
        self._principal = principal
        self._session = session
        self._subscription = Subscription(_SessionFilter(principal, session))

    async def begin(self) -> None:
        await self._hub.subscribe(self._subscription)

    def end(self) -> None:
        self._hub.leave(self._subscription)

    async def until_answered(
        self, message: Breadcrumb, seconds: float, *, look_first: bool, patience: float
    ) -> AsyncGenerator[Delta | Breadcrumb | None, None]:
        """Yield the deltas of the answer, and last the answer or an error. Ends without either after `seconds`.

        None: nothing has happened for `patience` seconds. `look_first`: the outcome may be stored already.
        """
        deadline = time.monotonic() + seconds
        while True:
            if look_first:
                outcome = await find_outcome(self._store, self._principal, message)
                if outcome is not None:
                    yield outcome
                    return
            left = deadline - time.monotonic()
            if left <= 0:
                return
            values = await self._subscription.take(min(left, patience))
            # Dropped: too much at once, so look at what is stored and go on. Or the server ends, and so does this.
            look_first = self._subscription.dropped
            if look_first and not await self._restart():
                return
            if not values and not look_first:
                yield None
            for said in self._relevant_values(values, message):
                yield said
                if isinstance(said, Breadcrumb):
                    return

    async def _restart(self) -> bool:
        """Subscribe again. Returns False if the hub is closed."""
        self.end()
        self._subscription = Subscription(self._subscription.filter)
        await self.begin()
        return not self._subscription.dropped

    def _relevant_values(
        self, values: list[StreamValue], message: Breadcrumb
    ) -> Iterator[Delta | Breadcrumb]:
        """Yield the deltas and outcomes of a message. Raises SessionGone at the deletion of the session."""
        for value in values:
            if (said := self._match_event(value, message)) is not None:
                yield said

    def _match_event(self, value: StreamValue, message: Breadcrumb) -> Delta | Breadcrumb | None:
        if isinstance(value, Delta):
            return value if value.trigger_id == str(message.id) else None
        event = value.event
        if event.operation == "session_deleted":
            raise SessionGone(f"session {self._session!r} was deleted while its answer was waited for")
        if event.operation != "created" or event.id == message.id:
            return None
        crumb = value.load_breadcrumb()
        if crumb is None or not is_outcome(crumb.schema_name, crumb.context, str(message.id)):
            return None
        return crumb
