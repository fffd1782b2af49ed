"""Reads the new events of the lanes of one server.

A write announces its event on the Pub/Sub channel of its lane. The announcement contains the event, so a reader sends
no command to receive it, and the cost does not depend on the number of lanes. The announcement also contains the time
of the lane before the event. If earlier events are missing, announcements were lost, and the lane's log is read.

Pub/Sub only saves time. The logs of all lanes are read each second, from the last positions. They are read more often
while there is no subscription: the link is broken, or the server refuses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import anyio
import anyio.lowlevel
import structlog

from breadcrumbs.runtime.backend.connection import Connection, LaneChannels
from breadcrumbs.runtime.errors import StoreError, StoreUnavailable
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.events.log import EventLog
from breadcrumbs.runtime.telemetry.store_calls import log_store_error

_log = structlog.get_logger("breadcrumbs.events")

_CHECK_SECONDS: Final = 1.0
"""Longest time until an event is read whose announcement was lost."""
_UNSUBSCRIBED_CHECK_SECONDS: Final = 0.1
"""The same while there is no subscription."""
_FIRST_RETRY_SECONDS: Final = 0.05
_MAX_RETRY_SECONDS: Final = 1.0
_STABLE_SECONDS: Final = 5.0  # after a link that lasted as long, retries begin with the short pause
_MAX_READ_EVENTS: Final = 8_192  # in one read of several lanes
_MIN_LANE_EVENTS: Final = 32
_MAX_DIRECT_EVENTS: Final = 8  # a larger batch goes through the buffers, so that other tasks can run


class ReadLane(Protocol):
    """A lane that is read."""

    position: int
    """Time of the last event that was read, in microseconds since 1970."""

    def take(self, event: Event, *, direct: bool) -> None:
        """Move the position to the next event and pass it on."""
        ...


class NodeReader:
    """Reads lanes of one server. `lost` is called when the subscriptions end: a lane may have moved."""

    def __init__(self, connection: Connection, log: EventLog, lost: Callable[[], None]) -> None:
        self.lanes: dict[int, ReadLane] = {}
        self._connection = connection
        self._log = log
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._channels: LaneChannels | None = None
        """Subscriptions of all lanes. None: there is no link."""
        self._announced: list[tuple[int, Event]] = []
        """Announced events that were not taken, each with the time before it."""
        self._unread: set[int] = set()
        """Lanes whose logs must be read: their subscription has begun, or an announcement was lost."""
        self._unconfirmed: set[int] = set()
        """Lanes whose subscription the server has not confirmed."""
        self._reading = False
        self._wake = asyncio.Event()
        # asyncio tasks without a task group, because one follower starts them and another can end them.
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._read_logs())]

    def add(self, number: int, lane: ReadLane) -> None:
        """Read a lane from its position."""
        self.lanes[number] = lane
        if self._channels is not None:
            self._subscribe(self._channels, number)

    def remove(self, number: int) -> None:
        """End reading a lane."""
        del self.lanes[number]
        self._unconfirmed.discard(number)
        if self._channels is not None:
            self._channels.unsubscribe(self._log.channel(number))

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop reading. Return the tasks, which end soon."""
        for task in self._tasks:
            task.cancel()
        return self._tasks

    # Announcements

    async def _listen(self) -> None:
        """Keep the subscriptions of all lanes."""
        wait = _FIRST_RETRY_SECONDS
        refused = False
        while True:
            opened_at = self._loop.time()
            try:
                await self._hold_subscriptions()
            except StoreUnavailable as error:
                log_store_error(_log, "announcements of events lost, retrying", error, wait=wait)
            except StoreError as error:
                if not refused:
                    log_store_error(_log, "server refuses announcements, reading the event logs", error)
                refused = True
            except Exception:
                _log.exception("announcements of events lost, retrying", wait=wait)
            if self._loop.time() - opened_at > _STABLE_SECONDS:
                wait = _FIRST_RETRY_SECONDS
            self._lost()
            await anyio.sleep(wait)
            wait = min(_MAX_RETRY_SECONDS, wait * 2)

    async def _hold_subscriptions(self) -> None:
        channels = await self._connection.open_channels(next(iter(self.lanes)), self._hear)
        try:
            for number in self.lanes:
                self._subscribe(channels, number)
            self._channels = channels
            await channels.wait_lost()
        finally:
            self._channels = None
            self._unconfirmed.clear()
            self._wake.set()  # the logs are read more often now
            channels.close()

    def _subscribe(self, channels: LaneChannels, number: int) -> None:
        self._unconfirmed.add(number)
        channels.subscribe(self._log.channel(number))

    def _hear(self, channel: bytes, message: bytes | None) -> None:
        if message is None:
            self._unconfirmed.discard(self._log.lane_of(channel))
            self._read_soon(self._log.lane_of(channel))  # events before the subscription
            return
        try:
            announced = self._log.decode_announcement(channel, message)
        except ValueError:
            announced = None
        if announced is None or announced[1].operation == "unknown":
            # Another program can write to the channel. Only the log decides.
            self._read_soon(self._log.lane_of(channel))
            return
        if not self._announced:
            # Let the tasks of this process whose writes caused these events run first. They put the breadcrumb into the
            # write cache, which saves the hub one read per answer. Deltas on another link are read first, too.
            self._loop.call_soon(self._loop.call_soon, self._take_announced)
        self._announced.append(announced)

    def _take_announced(self) -> None:
        announced, self._announced = self._announced, []
        direct = len(announced) <= _MAX_DIRECT_EVENTS
        for before, event in announced:
            lane = self.lanes.get(event.lane)
            if lane is None or event.at <= lane.position:
                continue
            # While logs are read, or wait to be read, all new events come from the logs. Events of different lanes then
            # keep the order of their times.
            if before <= lane.position and not (self._unread or self._unconfirmed or self._reading):
                lane.take(event, direct=direct)
            else:
                self._read_soon(event.lane)

    def _read_soon(self, number: int) -> None:
        self._unread.add(number)
        if not self._unconfirmed:
            self._wake.set()

    # Logs

    async def _read_logs(self) -> None:
        """Read the lanes whose announcements were lost, and all lanes at an interval."""
        wait = _FIRST_RETRY_SECONDS
        checked_at = self._loop.time()
        while True:
            interval = _UNSUBSCRIBED_CHECK_SECONDS if self._channels is None else _CHECK_SECONDS
            await self._wait_until(checked_at + interval)
            if self._loop.time() >= checked_at + interval:
                self._unread.update(self.lanes)
                checked_at = self._loop.time()
            try:
                await self._read_unread()
                wait = _FIRST_RETRY_SECONDS
                continue
            except StoreError as error:
                # The positions do not change, so no event is lost, regardless of the length of the outage.
                log_store_error(_log, "reading events failed, retrying", error, wait=wait)
            except Exception:
                _log.exception("reading events failed, retrying", wait=wait)
            self._unread.update(self.lanes)
            self._wake.set()
            await anyio.sleep(wait)
            wait = min(_MAX_RETRY_SECONDS, wait * 2)

    async def _wait_until(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _read_unread(self) -> None:
        numbers, self._unread = self._unread, set()
        lanes = {number: lane for number in numbers if (lane := self.lanes.get(number)) is not None}
        if not lanes:
            return
        count = max(_MIN_LANE_EVENTS, _MAX_READ_EVENTS // len(lanes))
        self._reading = True
        try:
            events = await self._log.after(
                {number: lane.position for number, lane in lanes.items()}, count=count
            )
            await anyio.lowlevel.checkpoint()  # see `_hear`
        finally:
            self._reading = False
        direct = len(events) <= _MAX_DIRECT_EVENTS
        for event in events:
            lane = lanes[event.lane]
            # A lane that was removed, and perhaps added again, has another object and position.
            if self.lanes.get(event.lane) is lane and event.at > lane.position:
                lane.take(event, direct=direct)
        if len(events) >= count:  # a lane may have more
            for number in lanes:
                self._read_soon(number)
