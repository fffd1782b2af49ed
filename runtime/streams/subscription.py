"""One subscriber's queue of stream values."""

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
"""A subscriber that has not taken this much is dropped."""


class Subscription:
    """The queue of one subscriber."""

    __slots__ = (
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
        """Its client did not read, or its conditions take too long."""
        self.pending = 0
        """Events that wait for the evaluation of its conditions."""
        self.on_drop: Callable[[], None] | None = None
        self._queue: deque[StreamValue] = deque()
        self._queued_bytes = 0
        self._ready = asyncio.Event()  # anyio's event cannot be cleared
        self._dropped = False
        self._seen_until: ReachedPosition | None = None
        """What it saw while it caught up, if that is more than the hub had read then."""

    @property
    def dropped(self) -> bool:
        return self._dropped

    @property
    def is_empty(self) -> bool:
        """Whether everything that was offered has been taken."""
        return not self._queue and not self.pending

    async def take(self, patience: float) -> list[StreamValue]:
        """Return all queued values. Waits for the first one, at most `patience` seconds."""
        if not self._ready.is_set():
            # A plain timer: a cancel scope around each wait is half the cost of an event to a client.
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
        """Queue a value. Returns False if the queue is full: then the subscriber is dropped."""
        size = queued_bytes(value)
        # A single value may be larger than the limit: its size does not show that the client does not read.
        if self._queue and self._queued_bytes + size > MAX_QUEUED_BYTES:
            self.give_up()
            return False
        self._queue.append(value)
        self._queued_bytes += size
        self._ready.set()
        return True

    def give_up(self) -> None:
        """Drop it because its client does not keep up."""
        self.overflowed = True
        self.drop()

    def drop(self) -> None:
        """End it: the hub closes, or its client does not keep up."""
        self._queue.clear()
        self._dropped = True
        self._ready.set()
        if self.on_drop is not None:
            self.on_drop()

    # Positions. A subscriber that caught up may have seen more than the hub has read.

    def start_after(self, seen: Position, reached: Position) -> None:
        """Begin after what was seen. `reached`: what the hub has read."""
        self._seen_until = None if seen == reached else tuple(seen)

    def position_after(self, event: Event, reached: ReachedPosition) -> ReachedPosition | None:
        """Return the position after an event, or None if the subscriber has seen the event already."""
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
        """Return the position of a subscriber that has taken all its values. None: evaluation is behind."""
        if self.pending:
            return None
        if self._seen_until is None:
            return list(reached)
        return list(map(max, self._seen_until, reached))
