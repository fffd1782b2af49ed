"""Fan-out of events to all subscribers of a process.

The hub follows each lane once and loads each breadcrumb once. Subscribers that may see the same part of a breadcrumb
share one value. The hub reads only while there are subscribers. A subscriber that does not take its values fills its
own queue and is dropped. It does not delay the others.

A subscriber that resumes at a position first gets the missed events (see `catch_up.py`), and is then added.
`condition_queues.py` delivers the events of subscribers with conditions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable, Sequence
from contextlib import aclosing
from typing import Final
from uuid import UUID

import anyio
import anyio.lowlevel
import structlog

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.events import deltas
from breadcrumbs.runtime.events.bodies import cached_version, has_body, load_or_cached
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.events.log import Position
from breadcrumbs.runtime.events.positions import PositionCodec
from breadcrumbs.runtime.events.reader import EventReader, Follower
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.streams.answer_joins import AnswerJoins
from breadcrumbs.runtime.streams.catch_up import Replayer
from breadcrumbs.runtime.streams.condition_queues import ConditionQueues, Recipient
from breadcrumbs.runtime.streams.conditions import Pacer
from breadcrumbs.runtime.streams.filters import is_streamed
from breadcrumbs.runtime.streams.stream_event import OutgoingEvent, StreamEvent
from breadcrumbs.runtime.streams.subscribers import Subscribers
from breadcrumbs.runtime.streams.subscription import MAX_QUEUED_BYTES, Subscription
from breadcrumbs.runtime.telemetry.store_calls import log_store_error

_BATCH_EVENTS: Final = 64
"""Maximum number of events whose breadcrumbs are loaded at a time."""
_MAX_BYTES_AT_ONCE: Final = MAX_QUEUED_BYTES // 4
"""Bytes to deliver before subscribers get a chance to take their values."""
_FIRST_RETRY_SECONDS: Final = 0.1
_MAX_RETRY_SECONDS: Final = 2.0

_log = structlog.get_logger("breadcrumbs.hub")


class EventHub:
    """Delivers events and deltas to the subscribers of this process."""

    def __init__(self, store: Store, reader: EventReader) -> None:
        self.log = reader.log
        self._store = store
        self._reader = reader
        self._position: Position = self.log.zero_position()
        # These are asyncio tasks, because they start with the first client and end with the last one. That can be in
        # different tasks, so no anyio task group can contain them.
        self._tasks: list[asyncio.Task[None]] = []
        self._starting = anyio.Lock(fast_acquire=True)
        self._closed = False
        self._positions = PositionCodec(store.secret, len(self._position))
        self._pacer = Pacer()
        self._subscribers = Subscribers(on_empty=self._cancel_tasks)
        self._joins = AnswerJoins(store, self._subscribers)
        self._conditions = ConditionQueues(self._subscribers, self._pacer)
        self._replayer = Replayer(store, self.log, self._pacer)

    @property
    def clients(self) -> int:
        """Number of subscribers."""
        return len(self._subscribers)

    @property
    def dropped_clients(self) -> int:
        """Number of subscribers that were dropped because they failed or were too slow."""
        return self._subscribers.dropped

    async def close(self) -> None:
        """End all streams and stop reading."""
        self.end_streams()
        tasks = self._tasks
        self._cancel_tasks()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._joins.close()
        await self._conditions.close()

    def end_streams(self) -> None:
        """End all streams immediately, without waiting. Safe to call in signal handlers."""
        self._closed = True
        self._subscribers.drop_all()

    def encode_position(self, owner: UUID, position: Sequence[int]) -> str:
        """See `PositionCodec.encode`."""
        return self._positions.encode(owner, position)

    def decode_position(self, owner: UUID, text: str) -> Position | None:
        """See `PositionCodec.decode`."""
        return self._positions.decode(owner, text)

    # Subscribing

    async def subscribe(self, subscription: Subscription) -> Position:
        """Add a subscriber for new events. Return the position where it starts."""
        await self._start_reading()
        self._join(subscription)
        return list(self._position)

    async def catch_up(
        self, subscription: Subscription, position: Position
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events since a position, then add the subscriber.

        No event is lost in between. A caller that does not read the generator to its end must close it (`aclosing`),
        because the generator can hold a slot.
        """
        position = list(position)
        while not self._closed:
            # Start in each round, because reading stops when the last other subscriber leaves.
            await self._start_reading()
            until = list(self._position)
            async with aclosing(self._replayer.replay(subscription.filter, position, until)) as values:
                async for value in values:
                    yield value
                    del value
            # There must be no await between this check and `_join`, so that later events go into the queue.
            if self._tasks and all(seen >= now for seen, now in zip(position, self._position, strict=True)):
                subscription.start_after(position, self._position)
                break
        self._join(subscription)

    def join_answers(self, subscription: Subscription, session: str) -> None:
        """Send the text so far of the session's running answers to a subscriber, without waiting.

        Without this call, the subscriber gets the text so far with the next delta of an answer.
        """
        self._joins.join(subscription, session)

    def served(self, subscription: Subscription) -> Position | None:
        """Return the position of a subscriber that has taken all its values.

        Return None if events still wait for the evaluation of its conditions.
        """
        return subscription.served_until(self._position)

    def leave(self, subscription: Subscription) -> None:
        """Remove a subscriber."""
        self._subscribers.remove(subscription)

    def _join(self, subscription: Subscription) -> None:
        if self._closed:
            subscription.drop()
        else:
            self._subscribers.add(subscription)

    # Reading

    async def _start_reading(self) -> None:
        async with self._starting:
            if self._tasks or self._closed:
                return
            self._position = await self.log.end()
            self._tasks = [
                asyncio.create_task(self._follow_events()),
                asyncio.create_task(deltas.listen(self._store, self._joins.deliver)),
            ]

    def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    async def _follow_events(self) -> None:
        follower: Follower[None] = Follower(self._reader, self._deliver_now)
        wait = _FIRST_RETRY_SECONDS
        try:
            while True:
                for lane, at in enumerate(self._position):
                    follower.follow(lane, at, None)
                try:
                    while True:
                        await self._deliver([event for event, _ in await follower.next()])
                        wait = _FIRST_RETRY_SECONDS
                except StoreError as error:
                    # The position does not change, so no event is lost, regardless of how long the outage lasts.
                    log_store_error(_log, "event hub lost its connection, retrying", error, wait=wait)
                except Exception:
                    # Continue. If this task ended, all subscribers would only get pings.
                    _log.exception("event hub failed, retrying", wait=wait)
                await anyio.sleep(wait)
                wait = min(_MAX_RETRY_SECONDS, wait * 2)
        finally:
            follower.leave_all()

    def _deliver_now(self, event: Event, _: None) -> bool:
        """Deliver an event as soon as it is read.

        Return False if its breadcrumb must be loaded first.
        """
        recipients, crumb = self._recipients(event), None
        if recipients and has_body(event):
            crumb = cached_version(self._store, event)
            if crumb is None:
                return False
        self._position[event.lane] = event.at
        self._deliver_to(recipients, event, crumb)
        return True

    async def _deliver(self, events: list[Event]) -> None:
        """Load and deliver events in small portions.

        Subscribers get a chance to take their values in between. Otherwise a large batch would fill their queues.
        """
        loaded: dict[int, Breadcrumb | None] = {}
        number = 0
        while number < len(events):
            end = max(loaded) + 1 if loaded else min(number + _BATCH_EVENTS, len(events))
            end = await self._load_wanted(events, loaded, number, end)
            size = 0
            while number < end and size < _MAX_BYTES_AT_ONCE:
                event = events[number]
                self._position[event.lane] = event.at
                size += self._deliver_to(self._recipients(event), event, loaded.pop(number, None))
                number += 1
            if number < len(events):
                await anyio.lowlevel.checkpoint()

    async def _load_wanted(
        self, events: list[Event], loaded: dict[int, Breadcrumb | None], start: int, end: int
    ) -> int:
        """Load the wanted breadcrumbs of events from `start` to `end`.

        Return the index up to which all wanted breadcrumbs are loaded. It can be below `end`.
        """
        while missing := [
            number
            for number in range(start, end)
            if number not in loaded and has_body(events[number]) and self._recipients(events[number])
        ]:
            # Repeat, because a subscriber that joins during the load can want other breadcrumbs.
            crumbs = await load_or_cached(self._store, [events[number] for number in missing])
            loaded.update(zip(missing, crumbs, strict=False))
            if len(crumbs) < len(missing):
                end = missing[len(crumbs)]
        return end

    def _recipients(self, event: Event) -> list[Subscription]:
        """Return the subscribers that want an event. Some of them decide later, by its breadcrumb."""
        return self._subscribers.wanting(event) if is_streamed(event) else []

    # Delivery

    def _deliver_to(self, recipients: list[Subscription], event: Event, crumb: Breadcrumb | None) -> int:
        """Queue an event for the subscribers that want it.

        Return the bytes of content that each subscriber got. Subscribers with conditions get the event later and do not
        count.
        """
        self._joins.on_event(event)
        if not recipients:
            return 0
        outgoing, reached = OutgoingEvent(event, crumb), tuple(self._position)
        conditional: dict[Hashable, list[Recipient]] = {}
        delivered = False
        for subscription in recipients:
            position = subscription.position_after(event, reached)
            if position is None:
                continue
            if subscription.filter.conditional:
                conditional.setdefault(subscription.filter.token, []).append((subscription, position))
            elif self._subscribers.accepts(subscription, event, outgoing.evaluation):
                self._joins.on_delivered(subscription, event)
                self._subscribers.queue_event(subscription, outgoing, position)
                delivered = True
        for token, undecided in conditional.items():
            self._conditions.add(token, outgoing, undecided)
        return outgoing.content_bytes if delivered else 0
