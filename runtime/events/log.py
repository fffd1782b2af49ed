"""Reads the event logs, which are Redis streams: positions, ranges and announcements.

A `Position` is one time per lane: all events up to it have been seen. Clients get it encrypted as the `id:` of a
server-sent event (see positions.py), so that they can resume at any process without losing events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from breadcrumbs.runtime.backend.connection import Connection
from breadcrumbs.runtime.backend.link import Command
from breadcrumbs.runtime.events.event import Event, decode_event
from breadcrumbs.runtime.store.keys import Keys

Position: TypeAlias = list[int]


class EventLog:
    """Reader of the event logs of a store."""

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys
        self._streams = [keys.events(lane) for lane in range(keys.lanes)]
        self._lane_of = {stream: lane for lane, stream in enumerate(self._streams)}

    def zero_position(self) -> Position:
        """Return the position before all events."""
        return [0] * self._keys.lanes

    async def end(self) -> Position:
        """Return the position of the newest events."""
        return await self._read_times(self._keys.clock)

    async def beginning(self) -> Position:
        """Return the position up to which events may have been trimmed."""
        return await self._read_times(self._keys.trimmed)

    def channel(self, lane: int) -> bytes:
        """Return the channel on which the events of a lane are announced. It has the name of the stream."""
        return self._streams[lane]

    def decode_announcement(self, channel: bytes, message: bytes) -> tuple[int, Event]:
        """Decode an announcement: the time of the last event of the lane before, and the event."""
        before, at, payload = message.split(b" ", 2)
        return int(before), decode_event(self._lane_of[channel], at, payload)

    def lane_of(self, channel: bytes) -> int:
        """Return the lane of a channel."""
        return self._lane_of[channel]

    async def after(self, position: Mapping[int, int], *, count: int) -> list[Event]:
        """Return the next events after a position, ordered by time. Each lane returns up to `count` events."""
        commands: list[tuple[int, Command]] = []
        for group in self._connection.reader_groups():
            if lanes := [lane for lane in group if lane in position]:
                streams = [self._streams[lane] for lane in lanes]
                times = [b"%d-0" % position[lane] for lane in lanes]
                commands.append((lanes[0], (b"XREAD", b"COUNT", count, b"STREAMS", *streams, *times)))
        events = [
            decode_event(self._lane_of[stream], entry[0], entry[1][1])
            for reply in await self._connection.call_all(commands)
            for stream, entries in reply or ()
            for entry in entries
        ]
        events.sort(key=lambda event: event.at)
        return events

    async def between(
        self, after: Mapping[int, int], until: Mapping[int, int], *, count: int = 256
    ) -> list[Event]:
        """Return the events between two positions, ordered by time.

        Events at `after` are excluded, and events at `until` are included. Each lane returns up to `count` events.
        """
        lanes = [lane for lane in after if after[lane] < until[lane]]
        replies = await self._connection.call_all(
            [
                (
                    lane,
                    (
                        b"XRANGE",
                        self._streams[lane],
                        b"(%d-0" % after[lane],
                        b"%d-0" % until[lane],
                        b"COUNT",
                        count,
                    ),
                )
                for lane in lanes
            ]
        )
        events = [
            decode_event(lane, entry[0], entry[1][1])
            for lane, entries in zip(lanes, replies, strict=True)
            for entry in entries
        ]
        events.sort(key=lambda event: event.at)
        return events

    async def newest(self, lane: int, after: int, until: int, *, count: int) -> list[Event]:
        """Return up to `count` events of a lane, the newest first.

        Events at `after` are excluded, and events at `until` are included.
        """
        entries = await self._connection.call(
            lane,
            b"XREVRANGE",
            self._streams[lane],
            b"%d-0" % until,
            b"(%d-0" % after,
            b"COUNT",
            count,
        )
        return [decode_event(lane, entry[0], entry[1][1]) for entry in entries]

    async def _read_times(self, key: Callable[[int], bytes]) -> Position:
        replies = await self._connection.call_all(
            [(lane, (b"GET", key(lane))) for lane in range(self._keys.lanes)]
        )
        return [int(reply or 0) for reply in replies]
