"""Subscriptions: one subscriber's filter and queue of stream values."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.events.log import Position
from breadcrumbs.runtime.streams.filters import Filter
from breadcrumbs.runtime.streams.stream_event import ReachedPosition, StreamValue, queued_bytes

MAX_QUEUED_BYTES: Final = 1 << 20
"""Maximum size of a queue. A subscriber whose queue would exceed it is dropped."""


class Subscription:
    """Filter and queue of one subscriber."""

    __slots__ = (
        "__weakref__",
        "_dropped",
        "_queue",
        "_queued_bytes",
        "_ready",
        "_seen_until",
        "filter",
        "on_drop",
        "overflowed",
        "pending",
    )

    def __init__(self, filter: Filter) -> None:
        self.filter = filter
        self.overflowed = False
        """Whether it was dropped because its client did not read, or because its conditions take too long."""
        self.pending = 0
        """Number of events that wait for the evaluation of its conditions."""
        self.on_drop: Callable[[], None] | None = None
        """Called when the subscription is dropped."""
        self._queue: deque[StreamValue] = deque()
        self._queued_bytes = 0
        self._ready = asyncio.Event()  # anyio's event cannot be cleared
        self._dropped = False
        self._seen_until: ReachedPosition | None = None
        """Position after the catch-up. None if it is not ahead of the position of the hub."""

    @property
    def dropped(self) -> bool:
        return self._dropped

    @property
    def is_empty(self) -> bool:
        """Whether all values have been taken and no events wait for evaluation."""
        return not self._queue and not self.pending

    @property
    def is_read(self) -> bool:
        """Whether all queued values have been taken."""
        return not self._queue

    @property
    def room(self) -> int:
        """Size of the values that can be queued now."""
        return max(0, MAX_QUEUED_BYTES - self._queued_bytes)

    async def take(self, patience: float) -> list[StreamValue]:
        """Remove and return all queued values.

        Wait at most `patience` seconds for the first value. Return an empty list if none arrives or the subscription is
        dropped.
        """
        if not self._ready.is_set():
            # Use a plain timer. A cancel scope around each wait would be half of the cost of sending an event.
            timer = asyncio.get_running_loop().call_later(patience, self._ready.set)
            try:
                await self._ready.wait()
            finally:
                timer.cancel()
        self._ready.clear()
        values = list(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        return values

    def offer(self, value: StreamValue) -> bool:
        """Queue a value.

        If the queue is full, drop the subscriber and return False.
        """
        size = queued_bytes(value)
        # A single value can exceed the limit, so it is accepted into an empty queue. Its size does not show that the
        # client is too slow.
        if self._queue and self._queued_bytes + size > MAX_QUEUED_BYTES:
            self.give_up()
            return False
        self._queue.append(value)
        self._queued_bytes += size
        self._ready.set()
        return True

    def give_up(self) -> None:
        """Drop the subscriber because its client is too slow."""
        self.overflowed = True
        self.drop()

    def drop(self) -> None:
        """Discard the queue and end the subscription.

        This happens when the hub closes, the filter fails or the client is too slow.
        """
        self._queue.clear()
        self._dropped = True
        self._ready.set()
        if self.on_drop is not None:
            self.on_drop()

    # Positions. After its catch-up, a subscriber can have seen events that the hub has not read yet.

    def start_after(self, seen: Position, reached: Position) -> None:
        """Start after the position `seen`. `reached` is the position of the hub."""
        self._seen_until = None if seen == reached else tuple(seen)

    def position_after(self, event: Event, reached: ReachedPosition) -> ReachedPosition | None:
        """Return the position after an event, or None if the subscriber has already seen the event."""
        seen = self._seen_until
        if seen is None:
            return reached
        if event.at <= seen[event.lane]:
            return None
        position = tuple(map(max, seen, reached))
        if position == reached:
            self._seen_until = None
        return position

    def served_until(self, reached: Position) -> Position | None:
        """Return the position of a subscriber that has taken all its values.

        `reached` is the position of the hub. Return None if events still wait for the evaluation of its conditions.
        """
        if self.pending:
            return None
        if self._seen_until is None:
            return list(reached)
        return list(map(max, self._seen_until, reached))
