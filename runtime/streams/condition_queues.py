"""Queues of events that wait for the evaluation of conditions.

Evaluating conditions can take long, so it is separate from the fan-out. The events of subscribers with conditions wait
in a queue per token. One task per token evaluates them, paced by `conditions.py`. All other subscribers get their
events immediately.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from breadcrumbs.runtime.streams.conditions import Pacer
from breadcrumbs.runtime.streams.stream_event import OutgoingEvent, ReachedPosition
from breadcrumbs.runtime.streams.subscribers import Subscribers
from breadcrumbs.runtime.streams.subscription import Subscription

# Above these limits the streams of the token are ended. Their clients can resume at their positions.
_MAX_PENDING_EVENTS: Final = 1_000
_MAX_PENDING_BYTES: Final = 4 << 20

Recipient: TypeAlias = tuple[Subscription, ReachedPosition]
"""Subscriber, with its position after the event."""


@dataclass(slots=True)
class _PendingEvent:
    """Event, with the subscribers whose conditions must be evaluated."""

    outgoing: OutgoingEvent
    recipients: list[Recipient]


@dataclass(slots=True)
class _Queue:
    """Events that wait for the evaluation of one token's conditions, in order."""

    events: deque[_PendingEvent] = field(default_factory=deque)
    bytes: int = 0
    task: asyncio.Task[None] | None = None
    """Evaluates the events. It is an asyncio task, because it starts on demand and outside a task group."""

    @property
    def is_too_long(self) -> bool:
        return len(self.events) > _MAX_PENDING_EVENTS or self.bytes > _MAX_PENDING_BYTES

    def append(self, pending: _PendingEvent) -> None:
        self.events.append(pending)
        self.bytes += pending.outgoing.content_bytes

    def drop_first(self) -> None:
        self.bytes -= self.events.popleft().outgoing.content_bytes

    def drop_all_but_first(self) -> None:
        while len(self.events) > 1:
            self.bytes -= self.events.pop().outgoing.content_bytes


class ConditionQueues:
    """Evaluates conditions, and delivers the matching events to their subscribers."""

    def __init__(self, subscribers: Subscribers, pacer: Pacer) -> None:
        self._subscribers = subscribers
        self._pacer = pacer
        self._queues: dict[Hashable, _Queue] = {}

    async def close(self) -> None:
        """Stop all evaluations and drop the queued events."""
        tasks = [queue.task for queue in self._queues.values() if queue.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._queues.clear()

    def add(self, token: Hashable, outgoing: OutgoingEvent, recipients: list[Recipient]) -> None:
        """Queue an event for the subscribers of one token."""
        queue = self._queues.get(token)
        if queue is None:
            queue = self._queues[token] = _Queue()
            queue.task = asyncio.create_task(self._evaluate(token, queue))
        for subscription, _ in recipients:
            subscription.pending += 1
        queue.append(_PendingEvent(outgoing, recipients))
        if queue.is_too_long:
            self._cut(queue)

    def _cut(self, queue: _Queue) -> None:
        """End the streams of all subscribers in a queue that is too long.

        Keep the first event, because its evaluation may be in progress.
        """
        waiting = {
            subscription
            for pending in queue.events
            for subscription, _ in pending.recipients
            if subscription in self._subscribers
        }
        for subscription in waiting:
            self._subscribers.give_up(subscription)
        queue.drop_all_but_first()

    async def _evaluate(self, token: Hashable, queue: _Queue) -> None:
        """Evaluate the queued events in order until the queue is empty."""
        try:
            while queue.events:
                pending = queue.events[0]
                for subscription, position in pending.recipients:
                    await self._decide(token, pending.outgoing, subscription, position)
                queue.drop_first()
        finally:
            if self._queues.get(token) is queue:
                del self._queues[token]

    async def _decide(
        self, token: Hashable, outgoing: OutgoingEvent, subscription: Subscription, position: ReachedPosition
    ) -> None:
        decision: bool | None = False
        if subscription in self._subscribers:
            decision = await self._pacer.run(
                token,
                lambda: self._subscribers.accepts(subscription, outgoing.event, outgoing.evaluation),
            )
        subscription.pending -= 1
        if decision is not False and subscription in self._subscribers:
            self._subscribers.queue_event(subscription, outgoing, position, undecided=decision is None)
