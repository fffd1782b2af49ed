"""A worker: takes lanes, reads their events, and runs a handler on those it wants.

Inside a lane the events of one session are handled in order, one at a time; different sessions run side
by side. A worker that dies loses its lanes when their leases run out, and whoever takes them starts at
the first event that was not acknowledged. So a handler may run more than once on an event, but only one
run can commit: the commit is one script that checks the lease, writes the result and acknowledges.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
import anyio.abc
import orjson
import structlog

from breadcrumbs.runtime import clock
from breadcrumbs.runtime.errors import BreadcrumbsError, StoreError
from breadcrumbs.runtime.events import Event, EventLog
from breadcrumbs.runtime.lease import Lease, LeaseLost
from breadcrumbs.runtime.leasing import Leases
from breadcrumbs.runtime.multiplexer import LinkLost, ReplyError
from breadcrumbs.runtime.store import Fence, Store

_log = structlog.get_logger("breadcrumbs.worker")


class TurnFailed(BreadcrumbsError):
    """A handler gives up on an event. `retry`: the same may work later."""

    def __init__(self, reason: str, *, retry: bool = False, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry
        self.retry_after = retry_after
        """Seconds to wait at least."""


class TurnCancelled(BreadcrumbsError):
    """Somebody asked for this turn to stop."""


@dataclass(slots=True)
class Turn:
    """One event being handled."""

    event: Event
    attempt: int
    lane: _Lane
    cancelled: str | None = None
    """Why it was asked to stop."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    def fence(self, *, acknowledge: bool) -> Fence:
        """What a commit must carry: the lease, and with the last commit of a turn the acknowledgement."""
        if acknowledge:
            return Fence(self.lane.lease, self.event.at, self.lane.low_without(self.event.at))
        return Fence(self.lane.lease)

    async def acknowledge(self, *, dead_letter: dict[str, Any] | None = None) -> None:
        """Finish without a result."""
        raw = b"" if dead_letter is None else orjson.dumps(dead_letter)
        low = self.lane.low_without(self.event.at)
        await self.lane.leases.acknowledge(self.lane.lease, self.event.at, low, dead_letter=raw)

    def waiting(self) -> list[Event]:
        """What waits in the same session, the next first."""
        return list(self.lane.sessions.get(self.event.session_id or str(self.event.id), ()))

    def cancel(self, reason: str) -> None:
        self.cancelled = reason
        self.scope.cancel()


class Handler(Protocol):
    """What a kind of worker does with events."""

    kind: str

    async def wants(self, event: Event) -> bool: ...

    async def handle(self, turn: Turn) -> None:
        """Handle an event. What it leads to is committed together with the acknowledgement.

        Where nothing comes of it, simply return: the low-water mark passes over it.
        """
        ...

    async def give_up(self, turn: Turn, error: Exception) -> None:
        """Leave a trace of a turn that failed for good. The worker acknowledges and buries it."""
        ...

    def arrived(self, event: Event, running: Turn | None, waiting: int) -> None:
        """An event was read: a chance to interrupt what is running in its session."""
        ...


@dataclass(slots=True)
class _Lane:
    lease: Lease
    leases: Leases
    position: int
    done: frozenset[int]
    known_until: int
    """Events up to here may have been begun by a worker before us."""
    unfinished: dict[int, None] = field(default_factory=dict)
    sessions: dict[str, deque[Event]] = field(default_factory=dict)
    running: dict[str, Turn] = field(default_factory=dict)
    stored_low: int = 0
    closing: bool = False
    idle: anyio.Event = field(default_factory=anyio.Event)

    def low_without(self, at: int) -> int:
        """The low-water mark once this event is done."""
        for first in self.unfinished:
            if first != at:
                return first - 1
        return self.position


class Worker:
    """Runs one handler on as many lanes as are this worker's share."""

    def __init__(
        self,
        store: Store,
        handler: Handler,
        *,
        lease_seconds: float = 6.0,
        concurrency: int = 256,
        attempts: int = 4,
        backoff: Callable[[int], float] = lambda attempt: min(30.0, 0.5 * 2 ** (attempt - 1)),
        name: str | None = None,
    ) -> None:
        self.store = store
        self.handler = handler
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.leases = Leases(store, handler.kind, self.name, seconds=lease_seconds)
        self.log = EventLog(store)
        self._lanes: dict[int, _Lane] = {}
        self._have_lanes = anyio.Event()
        self._limit = anyio.CapacityLimiter(concurrency)
        self._attempts = attempts
        self._backoff = backoff
        self._stopping = False
        self._stop_asked = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None

    @property
    def lanes(self) -> list[int]:
        return sorted(self._lanes)

    def stop(self) -> None:
        """Drain: finish what runs, give the lanes back, end."""
        self._stopping = True
        self._stop_asked.set()

    async def run(self) -> None:
        """Work until asked to stop."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._keep_lanes)
            for group in self.store.connection.reader_groups():
                tasks.start_soon(self._read, group)
            await self._stop_asked.wait()
            await self._drain()
            tasks.cancel_scope.cancel()

    # Lanes

    async def _keep_lanes(self) -> None:
        pause = self.leases.seconds / 3
        registered = False
        while not self._stopping:
            try:
                if not registered:
                    await self.leases.register()
                    registered = True
                await self._balance()
            except StoreError as error:
                _log.warning("worker cannot reach its store", kind=self.handler.kind, error=str(error))
            # A free lane is work that waits: look more often while we could take one.
            with anyio.move_on_after(pause if self._lanes else min(pause, 0.25)):
                await self._stop_asked.wait()

    async def _balance(self) -> None:
        living = await self.leases.heartbeat()
        for lane in list(self._lanes.values()):
            if not await self.leases.keep(lane.lease):
                self._lose(lane)
            elif (low := lane.low_without(-1)) > lane.stored_low:
                await self._try_acknowledge(lane, low)
        share = -(-self.store.lanes // max(1, living))
        if len(self._lanes) < share and not self._stopping:
            free = await self.leases.free_lanes()
            random.shuffle(free)  # so that workers starting together do not all want the same one
            for number in free[: share - len(self._lanes)]:
                if not self._stopping:
                    await self._take(number)
        for lane in list(self._lanes.values())[share:]:
            if not lane.closing:
                lane.closing = True
                self._start(self._release, lane)

    async def _take(self, number: int) -> None:
        lease = await self.leases.take(number)
        if lease is None:
            return
        progress = await self.leases.progress(number)
        end = await self.store.connection.call(number, b"GET", self.store.keys.clock(number))
        lane = _Lane(lease, self.leases, progress.low, progress.done, int(end or 0), stored_low=progress.low)
        if self._stopping:
            await self._try_acknowledge(lane, progress.low, release=True)
            return
        self._lanes[number] = lane
        self._have_lanes.set()
        _log.debug("lane taken", kind=self.handler.kind, lane=number, low=progress.low)

    def _lose(self, lane: _Lane) -> None:
        """Somebody else has it now: stop everything here."""
        if self._lanes.get(lane.lease.lane) is not lane:
            return  # given back already
        del self._lanes[lane.lease.lane]
        lane.closing = True
        lane.sessions.clear()
        for turn in list(lane.running.values()):
            turn.scope.cancel()
        _log.warning("lane lost", kind=self.handler.kind, lane=lane.lease.lane)

    async def _release(self, lane: _Lane) -> None:
        """Finish what runs in a lane and give it back."""
        lane.sessions = {session: deque() for session in lane.running}
        # What is waiting was not begun: forget it here, whoever takes the lane reads it again.
        running = {turn.event.at for turn in lane.running.values()}
        first_waiting = next((at for at in lane.unfinished if at not in running), None)
        if first_waiting is not None:
            lane.position = min(lane.position, first_waiting - 1)
            lane.unfinished = dict.fromkeys(at for at in lane.unfinished if at in running)
        if lane.running:
            await lane.idle.wait()
        if self._lanes.get(lane.lease.lane) is lane:
            del self._lanes[lane.lease.lane]
            await self._try_acknowledge(lane, lane.low_without(-1), release=True)

    async def _try_acknowledge(self, lane: _Lane, low: int, *, release: bool = False) -> None:
        try:
            await self.leases.acknowledge(lane.lease, None, low, release=release)
            lane.stored_low = low
        except LeaseLost:
            self._lose(lane)

    async def _drain(self) -> None:
        async with anyio.create_task_group() as closing:
            for lane in list(self._lanes.values()):
                if not lane.closing:
                    lane.closing = True
                    closing.start_soon(self._release, lane)
            with anyio.move_on_after(self.leases.seconds):
                while self._lanes:
                    for number, lane in list(self._lanes.items()):
                        if number in self._lanes and not await self.leases.keep(lane.lease):
                            self._lose(lane)
                            lane.idle.set()
                    await anyio.sleep(min(0.05, self.leases.seconds / 10))
            closing.cancel_scope.cancel()
        for lane in list(self._lanes.values()):
            # Not finished in time: hand back, another worker runs it again.
            for turn in list(lane.running.values()):
                turn.scope.cancel()
            await self._try_acknowledge(lane, lane.low_without(-1), release=True)
        await self.leases.sign_off()

    # Events

    async def _read(self, group: list[int]) -> None:
        """Follow the lanes of one node; on a standalone server that is all of them."""
        wait = 0.05
        while True:
            mine = [number for number in group if number in self._lanes and not self._lanes[number].closing]
            if not mine:
                self._have_lanes = anyio.Event()
                with anyio.move_on_after(0.1):
                    await self._have_lanes.wait()
                continue
            link = await self.store.connection.blocking(mine[0])
            try:
                while mine := [n for n in group if n in self._lanes and not self._lanes[n].closing]:
                    position = [0] * self.store.lanes
                    for number in mine:
                        position[number] = self._lanes[number].position
                    # Short blocks: a lane that was just taken is followed from the next round on.
                    events = await self.log.wait(link, position, mine, block_ms=200)
                    for event in events:
                        await self._accept(event)
                    wait = 0.05
            except (LinkLost, ReplyError, StoreError) as error:
                _log.warning("worker lost its server, trying again", kind=self.handler.kind, error=str(error))
                await anyio.sleep(wait)
                wait = min(1.0, wait * 2)
            finally:
                await link.close()

    async def _accept(self, event: Event) -> None:
        lane = self._lanes.get(event.lane)
        if lane is None or lane.closing or event.at <= lane.position:
            return
        done = event.at in lane.done
        wanted = not done and await self.handler.wants(event)
        if lane.closing:
            return
        # From here on without a pause: the low-water mark must never pass an event that is not noted yet.
        lane.position = event.at
        if done:
            return
        session = event.session_id or str(event.id)
        self.handler.arrived(event, lane.running.get(session), len(lane.sessions.get(session, ())))
        if not wanted:
            return
        lane.unfinished[event.at] = None
        waiting = lane.sessions.get(session)
        if waiting is None:
            lane.sessions[session] = deque([event])
            self._start(self._work, lane, session)
        else:
            waiting.append(event)

    def _start(self, function: Callable[..., Any], *args: Any) -> None:
        if self._tasks is not None:
            self._tasks.start_soon(function, *args)

    async def _work(self, lane: _Lane, session: str) -> None:
        """Handle what waits in a session, one after the other."""
        while waiting := lane.sessions.get(session):
            event = waiting.popleft()
            async with self._limit:
                if event.at in lane.unfinished:
                    await self._turn(lane, session, event)
        lane.sessions.pop(session, None)
        if lane.closing and not lane.running:
            lane.idle.set()

    async def _turn(self, lane: _Lane, session: str, event: Event) -> None:
        attempt = 1
        if event.at <= lane.known_until:
            # Perhaps it killed the worker before us: count, so that poison ends somewhere.
            attempt = await self._patiently(
                lambda: self.leases.count_attempt(lane.lease.lane, event.at), lane
            )
        while True:
            turn = Turn(event, attempt, lane)
            lane.running[session] = turn
            try:
                if attempt > self._attempts:
                    raise TurnFailed(f"given up after {attempt - 1} attempts that did not come to an end")
                with turn.scope:
                    await self.handler.handle(turn)
                if turn.scope.cancelled_caught and turn.cancelled is None:
                    return  # the lane is lost, or we are stopping: it is somebody else's now
                if turn.cancelled is not None:
                    raise TurnCancelled(turn.cancelled)
                break
            except LeaseLost:
                self._lose(lane)
                return
            except StoreError as error:
                # Not the event's fault: wait for the server, however long it takes.
                _log.warning("turn waits for the store", kind=self.handler.kind, error=str(error))
                await anyio.sleep(0.2 + random.random() * 0.2)  # noqa: S311 - spreads load, protects nothing
                if lane.closing:
                    return
            except Exception as error:
                retry = attempt < self._attempts and (not isinstance(error, TurnFailed) or error.retry)
                if isinstance(error, TurnCancelled):
                    retry = False
                if not retry:
                    if await self._bury(turn, error):
                        break
                    return
                _log.info(
                    "turn failed, trying again", kind=self.handler.kind, attempt=attempt, error=str(error)
                )
                with turn.scope:
                    asked = error.retry_after if isinstance(error, TurnFailed) else None
                    await anyio.sleep(max(self._backoff(attempt), asked or 0.0))
                if turn.scope.cancelled_caught and turn.cancelled is None:
                    return
                attempt += 1
            finally:
                if lane.running.get(session) is turn:
                    del lane.running[session]
        lane.unfinished.pop(event.at, None)

    async def _bury(self, turn: Turn, error: Exception) -> bool:
        """A turn that failed for good: say so in the session, then put it aside. False: the lane is lost."""
        event = turn.event
        letter = None
        if not isinstance(error, TurnCancelled):
            _log.warning("turn failed", kind=self.handler.kind, breadcrumb=str(event.id), error=repr(error))
            letter = {
                "at": clock.to_text(event.at),
                "event": event.at,
                "kind": self.handler.kind,
                "owner_id": str(event.owner_id),
                "breadcrumb_id": str(event.id),
                "version": event.version,
                "session_id": event.session_id,
                "attempts": turn.attempt,
                "error": str(error) or type(error).__name__,
            }
        while True:
            try:
                await self.handler.give_up(turn, error)
                await turn.acknowledge(dead_letter=letter)
                return True
            except LeaseLost:
                self._lose(turn.lane)
                return False
            except StoreError:
                await anyio.sleep(0.3)
                if turn.lane.closing:
                    return False

    async def _patiently(self, action: Callable[[], Any], lane: _Lane) -> Any:
        while True:
            try:
                return await action()
            except StoreError:
                await anyio.sleep(0.2)
                if lane.closing:
                    return 1
