"""Workers: take lanes, read their events, and run a handler on them.

The events of one session are handled in order, one at a time. Different sessions run concurrently. If a worker dies,
another worker takes its lanes when their leases expire, or earlier (see `liveness.py`). It starts at the first event
that was not acknowledged. So a handler can run more than once on an event, but only one run can commit its result. The
commit is one script that checks the lease, writes the result and acknowledges the event.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import anyio
import anyio.abc
import structlog

from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.events.reader import EventReader, Follower
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.concurrency import TaskSet, run_all
from breadcrumbs.runtime.workers.held_lanes import HeldLanes
from breadcrumbs.runtime.workers.lane import Lane, session_key
from breadcrumbs.runtime.workers.leases import Leases
from breadcrumbs.runtime.workers.liveness import Liveness
from breadcrumbs.runtime.workers.retries import TurnLimits
from breadcrumbs.runtime.workers.turn import INTERNAL, Handler
from breadcrumbs.runtime.workers.turn_runner import TurnRunner

_log = structlog.get_logger("breadcrumbs.worker")

_BALANCE_SECONDS: Final = 0.25
"""Longest time between two checks for free lanes and dead workers."""
_RENEWALS_PER_LEASE: Final = 6
"""Number of renewals within the duration of a lease. A busy machine can delay several in a row before the lease is
lost."""
_FIRST_READ_PAUSE_SECONDS: Final = 0.05
_MAX_READ_PAUSE_SECONDS: Final = 1.0


class Worker:
    """Runs one handler on this worker's share of the lanes."""

    def __init__(
        self,
        store: Store,
        reader: EventReader,
        handler: Handler,
        *,
        lease_seconds: float = 6.0,
        limits: TurnLimits | None = None,
        name: str | None = None,
    ) -> None:
        self.store = store
        self.handler = handler
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.leases = Leases(store, handler.kind, self.name, seconds=lease_seconds)
        self.at_work = anyio.Event()
        """Set once the worker has its share of the lanes, or gets the rest when other workers release theirs."""
        self._follower: Follower[Lane] = Follower(reader)
        self._liveness = Liveness(store, handler.kind, self.name, grace=lease_seconds)
        self._lanes = HeldLanes(self.leases, self._liveness, self._follower)
        self._turns = TurnRunner(handler, self.leases, self._lanes, limits or TurnLimits())
        self._renewal_seconds = lease_seconds / _RENEWALS_PER_LEASE
        self._last_heartbeat = -float("inf")
        self._stop_requested = anyio.Event()
        self._tasks = TaskSet()

    @property
    def lanes(self) -> list[int]:
        """Numbers of the held lanes."""
        return sorted(self._lanes.by_number)

    def stop(self) -> None:
        """Finish the running turns, release the lanes and end."""
        self._lanes.closed = True
        self._stop_requested.set()

    async def run(self) -> None:
        """Take lanes and handle their events until `stop` is called."""
        try:
            async with TaskSet() as self._tasks, anyio.create_task_group() as tasks:
                tasks.start_soon(self._liveness.stay_visible)
                tasks.start_soon(self._renew_leases)
                tasks.start_soon(self._keep_share)
                tasks.start_soon(self._read)
                await self._stop_requested.wait()
                await self._drain()
                tasks.cancel_scope.cancel()
                self._tasks.cancel()
        finally:
            self._follower.leave_all()

    # Lanes

    async def _renew_leases(self) -> None:
        """Renew the leases at a fixed interval.

        This is a separate task, because taking lanes can take seconds on a busy machine.
        """
        while not self._stop_requested.is_set():
            try:
                await self._lanes.renew_all()
            except StoreError as error:
                _log.warning("renewing leases failed", kind=self.handler.kind, error=str(error))
            with anyio.move_on_after(self._renewal_seconds):
                await self._stop_requested.wait()

    async def _keep_share(self) -> None:
        """Take and release lanes as workers come and go."""
        while not self._stop_requested.is_set():
            try:
                await self._balance()
                self.at_work.set()
            except StoreError as error:
                _log.warning("balancing lanes failed", kind=self.handler.kind, error=str(error))
            with anyio.move_on_after(min(_BALANCE_SECONDS, self._renewal_seconds)):
                await self._stop_requested.wait()

    async def _balance(self) -> None:
        await self._evict_dead_peers()
        share = self.leases.lane_share(await self._living_workers())
        missing = share - len(self._lanes.by_number)
        if missing > 0 and not self._stop_requested.is_set():
            free = await self.leases.free_lanes()
            random.shuffle(free)  # workers that start together should not compete for the same lanes
            await run_all(self._lanes.take, free[:missing])
        staying = [lane for lane in self._lanes.by_number.values() if not lane.closing]
        staying.sort(key=lambda lane: len(lane.running))  # idle lanes first: they are released immediately
        for lane in staying[: max(0, len(staying) - share)]:
            self._start_release(lane)

    async def _evict_dead_peers(self) -> None:
        for peer in await self._liveness.dead_peers():
            _log.info("worker died, freeing its lanes", kind=self.handler.kind, worker=peer)
            await self.leases.evict(peer)
            await self._liveness.forget(peer)

    async def _living_workers(self) -> list[str]:
        now = time.monotonic()
        if now - self._last_heartbeat < self._renewal_seconds:
            return await self.leases.list_workers()
        # Register with each heartbeat: the server can have been restored from a backup without this kind.
        await self.leases.register()
        living = await self.leases.heartbeat()
        self._last_heartbeat = now
        return living

    def _start_release(self, lane: Lane) -> None:
        lane.closing = True
        self._start(self._release, lane)

    async def _release(self, lane: Lane) -> None:
        """Release a lane when its turns have ended.

        Turns that are still running after the duration of a lease are stopped.
        """
        lane.drop_waiting()
        if lane.running:
            with anyio.move_on_after(self.leases.seconds):
                await lane.idle.wait()
        lane.stop_turns()
        await self._lanes.give_back(lane)

    async def _drain(self) -> None:
        """Release all lanes.

        Wait at most one second longer than the duration of a lease. Do not wait for an unavailable store.
        """
        for lane in list(self._lanes.by_number.values()):
            if not lane.closing:
                self._start_release(lane)
        with anyio.move_on_after(self.leases.seconds + 1):
            while self._lanes.by_number:
                await self._renew_held_lanes()
                await anyio.sleep(min(0.05, self.leases.seconds / 10))
            try:
                await self.leases.sign_off()
                await self._liveness.forget(self.name)
            except StoreError:
                pass

    async def _renew_held_lanes(self) -> None:
        try:
            for lane in list(self._lanes.by_number.values()):
                if self._lanes.holds(lane):
                    await self._lanes.renew(lane)
        except StoreError:
            pass

    # Events

    async def _read(self) -> None:
        """Accept the events of the held lanes as they arrive."""
        pause = _FIRST_READ_PAUSE_SECONDS
        while True:
            try:
                for event, lane in await self._follower.next():
                    await self._accept(event, lane)
                pause = _FIRST_READ_PAUSE_SECONDS
            except StoreError as error:
                _log.warning("reading events failed, retrying", kind=self.handler.kind, error=str(error))
                await anyio.sleep(pause)
                pause = min(_MAX_READ_PAUSE_SECONDS, pause * 2)
                self._lanes.follow_again()

    async def _accept(self, event: Event, lane: Lane) -> None:
        """Queue an event for its session, or skip it.

        The deletion of a session is not queued. It discards the waiting events of the session and stops its turn.
        """
        if lane.closing or event.at <= lane.position:
            return
        skipped = self._is_skipped(event, lane)
        deleted = event.operation == "session_deleted"
        wanted = not skipped and not deleted and await self._wants(event)
        if lane.closing:
            return
        # There must be no await below this line. The low-water mark must not pass an event that is not queued yet.
        lane.position = event.at
        if deleted and not skipped:
            lane.drop_session(session_key(event))
        elif not skipped:
            self._queue(event, lane, wanted=wanted)

    def _is_skipped(self, event: Event, lane: Lane) -> bool:
        return (
            event.at in lane.done
            or event.operation == "unknown"
            or INTERNAL in event.tags
            or event.only_for not in (None, self.handler.kind)
        )

    def _queue(self, event: Event, lane: Lane, *, wanted: bool) -> None:
        session = session_key(event)
        immediate = self.handler.arrived(event, lane.running.get(session), lane.waiting.get(session, ()))
        if not wanted:
            return
        if immediate:
            session = event.owner_id, event.id  # a queue of its own, as for an event without a session
        if lane.add_event(event, session):
            self._start(self._turns.run_session, lane, session)

    async def _wants(self, event: Event) -> bool:
        try:
            return await self.handler.wants(event)
        except StoreError:
            raise
        except Exception as error:
            # Accept the event, so that it fails visibly in its own session and reading continues for the others.
            _log.warning("filtering an event failed, accepting it", kind=self.handler.kind, error=repr(error))
            return True

    def _start(self, function: Callable[..., Any], *args: Any) -> None:
        self._tasks.start(function(*args))
