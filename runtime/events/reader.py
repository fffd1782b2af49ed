"""One read of each lane's events, shared by all followers of a process.

A process can contain a context builder, an agent runner and an event hub. Each follows its own lanes from its own
position at its own speed, and one reader per server serves all of them (see node_reader.py). A follower is behind the
shared read if it starts at an old position or does not take its events. It then reads for itself until it has caught
up, and does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, Self, TypeVar

import structlog

from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.events.log import EventLog
from breadcrumbs.runtime.events.node_reader import NodeReader
from breadcrumbs.runtime.store.store import Store

_log = structlog.get_logger("breadcrumbs.events")

T = TypeVar("T")

_MAX_BUFFERED_EVENTS: Final = 4_096
"""Events that a follower can buffer. With more it leaves the shared read and reads for itself."""


@dataclass(eq=False, slots=True)
class _LanePosition(Generic[T]):
    """Position of a follower in one lane."""

    lane: int
    after: int
    """Time of the last event that the follower got, in microseconds since 1970."""
    note: T
    """Value passed to `Follower.follow`. `Follower.next` returns it with each event."""
    follower: Follower[T]
    joined: bool = False
    """Whether the follower takes part in the shared read of this lane."""


@dataclass(eq=False, slots=True)
class _SharedLane:
    """A lane of the shared read and its followers."""

    position: int
    node: object
    """Server that has the lane, see `Connection.node_of`."""
    followers: tuple[_LanePosition[Any], ...] = ()
    """Replaced by each change, because a follower can leave while it gets an event."""

    def take(self, event: Event, *, direct: bool) -> None:
        at = self.position = event.at
        for position in self.followers:
            if at > position.after:
                position.after = at
                position.follower.deliver(event, position, direct=direct)


class EventReader:
    """Reads all lanes that have followers. Each process has one. Close it before its connection."""

    def __init__(self, store: Store) -> None:
        self._connection = store.connection
        self.log = EventLog(store.connection, store.keys)
        self._lanes: dict[int, _SharedLane] = {}
        self._nodes: dict[object, NodeReader] = {}
        """Readers of the servers, by server."""
        self._ending: set[asyncio.Task[None]] = set()
        """Cancelled tasks that have not ended. `close` waits for them."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def join(self, position: _LanePosition[T]) -> bool:
        """Add a follower to the shared read. Return False if it is behind and would miss events."""
        number = position.lane
        lane = self._lanes.get(number)
        if lane is None:
            lane = _SharedLane(position.after, self._connection.node_of(number))
            self._lanes[number] = lane
            self._start_reading(number, lane)
        elif position.after < lane.position:
            return False
        lane.followers = (*lane.followers, position)
        position.joined = True
        return True

    def leave(self, position: _LanePosition[T]) -> None:
        """Remove a follower from the shared read."""
        if not position.joined:
            return
        position.joined = False
        lane = self._lanes[position.lane]
        lane.followers = tuple(other for other in lane.followers if other is not position)
        if not lane.followers:
            del self._lanes[position.lane]
            self._stop_reading(position.lane, lane)

    def positions(self, lanes: Iterable[int]) -> dict[int, int]:
        """Return the positions of the shared read in some of its lanes."""
        return {number: self._lanes[number].position for number in lanes}

    async def close(self) -> None:
        """Stop reading."""
        for node in list(self._nodes):
            self._stop_node(node)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _start_reading(self, number: int, lane: _SharedLane) -> None:
        node = self._nodes.get(lane.node)
        if node is None:
            node = self._nodes[lane.node] = NodeReader(self._connection, self.log, self._follow_moves)
        node.add(number, lane)

    def _stop_reading(self, number: int, lane: _SharedLane) -> None:
        if (node := self._nodes.get(lane.node)) is not None:
            node.remove(number)
            if not node.lanes:
                self._stop_node(lane.node)

    def _stop_node(self, node: object) -> None:
        for task in self._nodes.pop(node).stop():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _follow_moves(self) -> None:
        """Read each lane that has moved on its new server, from its position."""
        for number, lane in self._lanes.items():
            node = self._connection.node_of(number)
            if node != lane.node:
                self._stop_reading(number, lane)
                lane.node = node
                self._start_reading(number, lane)


class Follower(Generic[T]):
    """Follows lanes. Each event is delivered once, in the order of its lane, with the note passed to `follow`."""

    def __init__(self, reader: EventReader, handle_now: Callable[[Event, T], bool] | None = None) -> None:
        """Create a follower that follows no lane.

        `handle_now` is called with an event and its note as soon as the event is read, if the buffer is empty. If it
        returns True, the event is handled and `next` does not return it.
        """
        self._reader = reader
        self._handle_now = handle_now
        self._idle = False
        self._positions: dict[int, _LanePosition[T]] = {}
        self._behind: dict[int, _LanePosition[T]] = {}
        """Positions that do not take part in the shared read, by lane."""
        self._buffer: deque[tuple[Event, _LanePosition[T]]] = deque()
        self._ready = asyncio.Event()  # anyio's event cannot be cleared

    def follow(self, lane: int, after: int, note: T) -> None:
        """Follow a lane from a given time. If the lane is already followed, it restarts at that time."""
        self.leave(lane)
        self._positions[lane] = self._behind[lane] = _LanePosition(lane, after, note, self)
        self._ready.set()

    def leave(self, lane: int) -> None:
        """Stop following a lane. Its buffered events are dropped."""
        position = self._positions.pop(lane, None)
        self._behind.pop(lane, None)
        if position is not None:
            self._reader.leave(position)

    def leave_all(self) -> None:
        """Stop following all lanes."""
        for lane in list(self._positions):
            self.leave(lane)

    async def next(self) -> list[tuple[Event, T]]:
        """Wait for events and return them, at least one."""
        while True:
            if taken := self._take_buffered():
                return taken
            self._behind = {
                number: position
                for number, position in self._behind.items()
                if not self._reader.join(position)
            }
            if not self._behind:
                await self._wait_until_ready()
            elif found := await self._catch_up(dict(self._behind)):
                return found

    def _take_buffered(self) -> list[tuple[Event, T]]:
        # A lane that was left, and perhaps followed again, has another position object. Its old events are dropped.
        taken = [
            (event, position.note)
            for event, position in self._buffer
            if self._positions.get(position.lane) is position
        ]
        self._buffer.clear()
        return taken

    async def _wait_until_ready(self) -> None:
        self._ready.clear()
        self._idle = True
        try:
            await self._ready.wait()
        finally:
            self._idle = False

    async def _catch_up(self, behind: dict[int, _LanePosition[T]]) -> list[tuple[Event, T]]:
        """Read a batch of events up to the position of the shared read."""
        until = self._reader.positions(behind)
        found: list[tuple[Event, T]] = []
        for event in await self._reader.log.between(
            {number: position.after for number, position in behind.items()}, until
        ):
            position = behind[event.lane]
            if self._positions.get(event.lane) is position:
                position.after = event.at
                found.append((event, position.note))
        if not found:  # the events were trimmed, or the clock advanced without events
            for number, at in until.items():
                behind[number].after = max(behind[number].after, at)
        return found

    def deliver(self, event: Event, position: _LanePosition[T], *, direct: bool) -> None:
        """Pass an event of the shared read to this follower."""
        if direct and self._idle and not self._buffer and self._is_handled(event, position.note):
            return
        if len(self._buffer) >= _MAX_BUFFERED_EVENTS:
            # The follower catches up later, from this event on.
            position.after = event.at - 1
            self._reader.leave(position)
            self._behind[position.lane] = position
        else:
            self._buffer.append((event, position))
        self._ready.set()

    def _is_handled(self, event: Event, note: T) -> bool:
        try:
            return self._handle_now is not None and self._handle_now(event, note)
        except Exception:
            # The shared read must not stop. `next` returns the event instead.
            _log.exception("immediate handling of an event failed")
            return False
