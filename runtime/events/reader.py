"""The events of a store as they happen, read once for all who follow them in this process.

A process may hold a context builder, an agent runner and an event hub. Each follows lanes of its own choice,
from places of its own, and at its own speed; the server is asked once. Who is behind the others (it comes with
an old place, or does not take what is read) reads by itself until it has caught up, and holds nobody up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import structlog

from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.events.event import Event, EventLog

if TYPE_CHECKING:
    from breadcrumbs.runtime.backend.connection import BlockingLink
    from breadcrumbs.runtime.store.store import Store

_log = structlog.get_logger("breadcrumbs.tail")

T = TypeVar("T")

_BLOCK_MS: Final = 5_000

_MOST_WAITING: Final = 4_096
"""Events that a follower may leave lying; after that it has to read for itself."""

_FEW: Final = 8
"""So many events that come together may be taken at once, without letting others go first."""


@dataclass(eq=False, slots=True)
class _Place(Generic[T]):
    """How far a follower is in a lane."""

    lane: int
    after: int
    note: T
    follower: Follower[T]
    joined: bool = False
    """It gets what is read for everybody."""


@dataclass(slots=True)
class _Lane:
    position: int
    places: list[_Place[Any]] = field(default_factory=list)


class Tail:
    """Reads the lanes that somebody follows."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.log = EventLog(store)
        self._lanes: dict[int, _Lane] = {}
        self._readers: dict[int, asyncio.Task[None]] = {}
        """By the first lane of what is read together."""
        self._asking: set[int] = set()
        """Which of them wait for the server just now."""
        self._ending: set[asyncio.Task[None]] = set()

    def join(self, place: _Place[T]) -> bool:
        """Give a follower what is read from now on. Not if that would leave something out: it is behind."""
        lane = self._lanes.get(place.lane)
        if lane is None:
            lane = self._lanes[place.lane] = _Lane(place.after)
            self._start(place.lane)
        elif place.after < lane.position:
            return False
        lane.places.append(place)
        place.joined = True
        return True

    def leave(self, place: _Place[T]) -> None:
        if not place.joined:
            return
        place.joined = False
        lane = self._lanes[place.lane]
        lane.places.remove(place)
        if not lane.places:
            del self._lanes[place.lane]
            self._stop_unused(place.lane)

    def positions(self, lanes: Iterable[int]) -> dict[int, int]:
        """How far the reading is in lanes that somebody follows."""
        return {number: self._lanes[number].position for number in lanes}

    async def close(self) -> None:
        for reader in self._readers.values():
            self._end(reader)
        self._readers.clear()
        await asyncio.gather(*self._ending, return_exceptions=True)

    # Reading

    def _group_of(self, number: int) -> list[int]:
        return next(group for group in self._store.connection.reader_groups() if number in group)

    def _start(self, number: int) -> None:
        group = self._group_of(number)
        if group[0] in self._asking:
            # It waits for other lanes and would not hear of this one. What it is told meanwhile is read again.
            self._asking.discard(group[0])
            self._end(self._readers.pop(group[0]))
        if group[0] not in self._readers:
            self._readers[group[0]] = asyncio.create_task(self._read(group))

    def _stop_unused(self, number: int) -> None:
        group = self._group_of(number)
        if self._lanes.keys().isdisjoint(group) and group[0] in self._readers:
            self._asking.discard(group[0])
            self._end(self._readers.pop(group[0]))

    def _end(self, reader: asyncio.Task[None]) -> None:
        self._ending.add(reader)
        reader.add_done_callback(self._ending.discard)
        reader.cancel()

    async def _read(self, group: list[int]) -> None:
        wait = 0.05
        while True:
            link = await self._store.connection.blocking(group[0])
            try:
                while True:
                    await self._read_once(link, group)
                    wait = 0.05
            except StoreError as error:
                # Positions stay where they are, so nothing is missed, however long it takes.
                _log.warning("lost the server, trying again", error=str(error), wait=wait)
            except Exception:
                _log.exception("reading events failed, trying again", wait=wait)
            finally:
                await link.close()
            self._asking.discard(group[0])
            await asyncio.sleep(wait)
            wait = min(1.0, wait * 2)

    async def _read_once(self, link: BlockingLink, group: list[int]) -> None:
        lanes = {number: lane for number in group if (lane := self._lanes.get(number)) is not None}
        self._asking.add(group[0])
        events = await self.log.wait(
            link, {number: lane.position for number, lane in lanes.items()}, block_ms=_BLOCK_MS
        )
        self._asking.discard(group[0])
        few = len(events) <= _FEW
        for event in events:
            lane = lanes[event.lane]
            lane.position = event.at
            for place in list(lane.places):
                if event.at > place.after:
                    place.after = event.at
                    place.follower.offer(event, place, at_once=few)


class Follower(Generic[T]):
    """Somebody who follows lanes. Each event comes once, in the order of its lane, with a note of the follower's."""

    def __init__(self, tail: Tail, take: Callable[[Event], bool] | None = None) -> None:
        """`take` is called with an event that nothing waits before, the moment that it is read. Where it says that
        it has taken it, the event does not come again."""
        self._tail = tail
        self._take = take
        self._idle = False
        self._places: dict[int, _Place[T]] = {}
        self._waiting: deque[tuple[Event, _Place[T]]] = deque()
        self._ready = asyncio.Event()

    def follow(self, lane: int, after: int, note: T) -> None:
        """Begin (or begin again) with what comes after a time."""
        self.leave(lane)
        self._places[lane] = _Place(lane, after, note, self)
        self._ready.set()

    def leave(self, lane: int) -> None:
        """What was read of this lane and not taken yet is forgotten."""
        place = self._places.pop(lane, None)
        if place is not None:
            self._tail.leave(place)

    def leave_all(self) -> None:
        for lane in list(self._places):
            self.leave(lane)

    async def next(self) -> list[tuple[Event, T]]:
        """The next events; waits for them."""
        while True:
            if self._waiting:
                # Of places that were left meanwhile: whoever follows the lane again has another one.
                taken = [
                    (event, place.note)
                    for event, place in self._waiting
                    if self._places.get(place.lane) is place
                ]
                self._waiting.clear()
                if taken:
                    return taken
            behind = {
                number: place
                for number, place in self._places.items()
                if not place.joined and not self._tail.join(place)
            }
            if behind:
                if found := await self._catch_up(behind):
                    return found
                continue
            self._ready.clear()
            self._idle = True
            try:
                await self._ready.wait()
            finally:
                self._idle = False

    async def _catch_up(self, behind: dict[int, _Place[T]]) -> list[tuple[Event, T]]:
        until = self._tail.positions(behind)
        found: list[tuple[Event, T]] = []
        for event in await self._tail.log.between(
            {number: place.after for number, place in behind.items()}, until
        ):
            place = behind[event.lane]
            if self._places.get(event.lane) is place:
                place.after = event.at
                found.append((event, place.note))
        if not found:  # nothing is left of what was there: trimmed, or only times went on
            for number, at in until.items():
                behind[number].after = max(behind[number].after, at)
        return found

    def offer(self, event: Event, place: _Place[T], *, at_once: bool) -> None:
        if at_once and self._idle and not self._waiting and self._has_taken(event):
            return
        if len(self._waiting) >= _MOST_WAITING:
            place.after = event.at - 1
            self._tail.leave(place)
        else:
            self._waiting.append((event, place))
        self._ready.set()

    def _has_taken(self, event: Event) -> bool:
        try:
            return self._take is not None and self._take(event)
        except Exception:
            # Others follow the same lane: this one may try again by itself.
            _log.exception("an event could not be taken at once")
            return False
