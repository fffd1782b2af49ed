"""Workers: take lanes, read their events, and run a handler on them.

The events of one session are handled in order, one at a time. Different sessions run concurrently. If a worker dies,
another worker takes its lanes when their leases expire, or earlier (see `liveness.py`). It starts at the first event
that was not acknowledged. So a handler can run more than once on an event, but only one run can commit its result. The
commit is one script that checks the lease, writes the result and acknowledges the event.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal

import anyio
import anyio.abc
import structlog

from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.events.reader import EventReader, Follower
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_reports import MAX_NAMES, WorkerReport, remove_old_reports
from breadcrumbs.runtime.telemetry.redaction import log_reason
from breadcrumbs.runtime.telemetry.store_calls import log_store_error
from breadcrumbs.runtime.telemetry.workers import WorkerMetrics
from breadcrumbs.runtime.version import VERSION
from breadcrumbs.runtime.workers.concurrency import TaskSet, result_now
from breadcrumbs.runtime.workers.held_lanes import HeldLanes
from breadcrumbs.runtime.workers.lane import Lane, session_key
from breadcrumbs.runtime.workers.leases import Heartbeat, Leases, NameHolder
from breadcrumbs.runtime.workers.liveness import Liveness
from breadcrumbs.runtime.workers.retries import TurnLimits
from breadcrumbs.runtime.workers.turn import INTERNAL, Handler
from breadcrumbs.runtime.workers.turn_runner import TurnRunner
from breadcrumbs.runtime.workers.worker_info import NameInUse, WorkerInfo

_log = structlog.get_logger("breadcrumbs.worker")

_BALANCE_SECONDS: Final = 0.25
"""Longest time between two checks for free lanes and dead workers."""
_VISIBLE_SECONDS: Final = 1.0
"""Longest time that a new worker waits until other workers know it. A server can refuse the liveness channel."""
_VISIBLE_PAUSE_SECONDS: Final = 0.005
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
        info: WorkerInfo | None = None,
    ) -> None:
        self.store = store
        self.handler = handler
        self.info = info or WorkerInfo.create()
        self.leases = Leases(store, handler.kind, self.info.id, seconds=lease_seconds)
        self.at_work = anyio.Event()
        """Set once the worker has its share of the lanes, or gets the rest when other workers release theirs."""
        self.ended = anyio.Event()
        """Set when the worker has released its lanes and signed off."""
        self._report = self.info.first_report(started_at=store.now(), lease_seconds=lease_seconds)
        self._name_holder: NameHolder | None = None
        """Worker that had the name of this worker when it was last checked."""
        self._follower: Follower[Lane] = Follower(reader, self._accept_now)
        self._liveness = Liveness(store, handler.kind, self.info.id, grace=lease_seconds)
        self._metrics = WorkerMetrics(handler.kind)
        self._lanes = HeldLanes(self.leases, self._liveness, self._follower, self._metrics)
        self._turns = TurnRunner(handler, self.leases, self._lanes, limits or TurnLimits(), self._metrics)
        self._renewal_seconds = lease_seconds / _RENEWALS_PER_LEASE
        self._last_heartbeat = -float("inf")
        self._stop_requested = anyio.Event()
        self._stopped_at = 0.0
        self._patience = lease_seconds
        """Seconds that running turns get to end after `stop`."""
        self._drain_seconds = (limits or TurnLimits()).drain_seconds
        self._tasks = TaskSet()

    @property
    def name(self) -> str:
        """Name that the operator gave, or the id."""
        return self.info.name

    @property
    def stopping(self) -> bool:
        """Whether the worker finishes its turns and takes no more events."""
        return self._stop_requested.is_set()

    @property
    def lanes(self) -> list[int]:
        """Numbers of the held lanes."""
        return sorted(self._lanes.by_number)

    def stop(self) -> None:
        """Finish the running turns, release the lanes and end.

        Turns that run longer than the duration of a lease are stopped, and another worker repeats them.
        """
        if not self.stopping:
            self._lanes.closed = True
            self._stopped_at = time.monotonic()
            self._stop_requested.set()

    def drain(self) -> None:
        """Finish the running turns, release the lanes and end. Running turns get more time than after `stop`."""
        if not self.stopping:
            turns = self._running_turns()
            _log.info("worker drain requested", kind=self.handler.kind, worker=self.name, turns=turns)
            self._patience = max(self._patience, self._drain_seconds)
        self.stop()

    async def run(self) -> None:
        """Take lanes and handle their events until `stop` is called."""
        log = _log.bind(kind=self.handler.kind, worker=self.name)
        log.info("worker started", version=VERSION)
        with self._metrics.observing(self._lanes.gauges):
            await self._run()
        seconds = round(time.monotonic() - self._stopped_at, 3)
        log.info("worker drained", seconds=seconds, unreleased_lanes=len(self._lanes.by_number))

    async def _run(self) -> None:
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
            self.ended.set()

    # Lanes

    async def _renew_leases(self) -> None:
        """Renew the leases at a fixed interval.

        This is a separate task, because taking lanes can take seconds on a busy machine.
        """
        while not self._stop_requested.is_set():
            try:
                await self._lanes.renew_all()
            except StoreError as error:
                log_store_error(_log, "renewing leases failed", error, kind=self.handler.kind)
            with anyio.move_on_after(self._renewal_seconds):
                await self._stop_requested.wait()

    async def _keep_share(self) -> None:
        """Take and release lanes as workers come and go."""
        await self._become_visible()
        registered = False
        while not self._stop_requested.is_set():
            try:
                await self._evict_dead_peers()
                registered = registered or await self.register()
                if registered:
                    await self._balance()
                    self._note_ready()
            except StoreError as error:
                log_store_error(_log, "balancing lanes failed", error, kind=self.handler.kind)
            self._lanes.report_changes()
            with anyio.move_on_after(min(_BALANCE_SECONDS, self._renewal_seconds)):
                await self._stop_requested.wait()

    async def _become_visible(self) -> None:
        """Wait until other workers know this one, but not longer than a moment.

        If a worker dies before it is known, its lanes are taken only when its leases expire.
        """
        with anyio.move_on_after(_VISIBLE_SECONDS):
            while not self._liveness.listed and not self.stopping:
                await self._liveness.dead_peers()
                await anyio.sleep(_VISIBLE_PAUSE_SECONDS)

    async def register(self) -> bool:
        """Register the kind and the name of this worker.

        Call it again if the store was emptied. Return False if the name belongs to a worker that is probably dead: call
        it again later. Raise `NameInUse` if that worker is alive.
        """
        await self.leases.register()
        await remove_old_reports(self.store, [self.handler.kind])
        holder = await self.leases.claim_name(self.info.name)
        if holder is not None:
            before, self._name_holder = self._name_holder, holder
            sent_heartbeat = before is not None and holder.alive_until > before.alive_until
            if sent_heartbeat or await self._liveness.is_connected(holder.worker):
                raise NameInUse(
                    f"a worker of kind {self.handler.kind} with the name {self.info.name} is running: choose another "
                    "name with --name, or stop it first. crumb workers list shows all workers"
                )
            return False
        return True

    def _note_ready(self) -> None:
        if not self.at_work.is_set():
            self.at_work.set()
            lanes = len(self._lanes.by_number)
            _log.info("worker ready", kind=self.handler.kind, worker=self.name, lanes=lanes)

    async def _balance(self) -> None:
        share = self.leases.lane_share(await self._living_workers())
        missing = share - len(self._lanes.by_number)
        if missing > 0 and not self._stop_requested.is_set():
            free = await self.leases.free_lanes()
            random.shuffle(free)  # workers that start together should not compete for the same lanes
            await self._lanes.take(free[:missing])
        staying = [lane for lane in self._lanes.by_number.values() if not lane.closing]
        staying.sort(key=lambda lane: len(lane.running))  # idle lanes first: they are released immediately
        for lane in staying[: max(0, len(staying) - share)]:
            self._start_release(lane)

    async def _evict_dead_peers(self) -> None:
        for peer in await self._liveness.dead_peers():
            freed = await self.leases.evict(peer)
            await self._liveness.forget(peer)
            _log.warning("worker died", kind=self.handler.kind, worker=peer, freed_lanes=freed)

    async def _living_workers(self) -> list[str]:
        now = time.monotonic()
        if now - self._last_heartbeat < self._renewal_seconds:
            living = await self.leases.list_workers()
        else:
            # Register with each heartbeat: the server can have been restored from a backup without this kind.
            await self.leases.register()
            if self.stopping:
                return []  # a heartbeat after the last one would make this worker seem alive, and then lost
            living = await self._send_heartbeat("running")
            self._last_heartbeat = now
        if self.leases.drain_requested:
            self.drain()
        return living

    async def _send_heartbeat(self, state: Literal["running", "draining", "stopped"]) -> list[str]:
        """Send a heartbeat with a report. The turns that it counts are not counted again."""
        turns = self._turns
        answered, failed = turns.answered, turns.failed
        report, leaving = self._current_report(state).encode(), state == "draining"
        beat = Heartbeat(report, answered, failed, leaving=leaving, name=self.info.name)
        living = []
        if state == "stopped":
            await self.leases.sign_off(beat)
        else:
            living = await self.leases.heartbeat(beat)
        turns.answered -= answered
        turns.failed -= failed
        return living

    def _current_report(self, state: Literal["running", "draining", "stopped"]) -> WorkerReport:
        lanes = self._lanes.by_number.values()
        return replace(
            self._report,
            lanes=len(lanes),
            turns=self._running_turns(),
            waiting=sum(len(queue) for lane in lanes for queue in lane.waiting.values()),
            skipped_models=self.info.skipped_models()[:MAX_NAMES],
            state=state,
        )

    def _running_turns(self) -> int:
        return sum(len(lane.running) for lane in self._lanes.by_number.values())

    def _start_release(self, lane: Lane) -> None:
        lane.closing = True
        self._start(self._release, lane)

    async def _release(self, lane: Lane) -> None:
        """Release a lane when its turns have ended.

        Turns that are still running after some time are stopped: after the duration of a lease, or later for a drain.
        """
        lane.drop_waiting()
        if lane.running:
            with anyio.move_on_after(self._patience):
                await lane.idle.wait()
        lane.stop_turns()
        await self._lanes.give_back(lane)

    async def _drain(self) -> None:
        """Release all lanes.

        Wait at most one second longer than running turns have. Do not wait for an unavailable store.
        """
        next_heartbeat = -float("inf")
        for lane in list(self._lanes.by_number.values()):
            if not lane.closing:
                self._start_release(lane)
        with anyio.move_on_after(self._patience + 1):
            while self._lanes.by_number:
                if time.monotonic() >= next_heartbeat:
                    next_heartbeat = time.monotonic() + self._renewal_seconds
                    await self._renew_held_lanes()
                await anyio.sleep(min(0.05, self.leases.seconds / 10))
            try:
                await self._send_heartbeat("stopped")
                await self._liveness.forget(self.info.id)
            except StoreError:
                pass

    async def _renew_held_lanes(self) -> None:
        try:
            await self._lanes.renew_all()
            await self._send_heartbeat("draining")
        except StoreError:
            pass

    # Events

    async def _read(self) -> None:
        """Accept the events of the held lanes that `_accept_now` leaves."""
        pause = _FIRST_READ_PAUSE_SECONDS
        while True:
            try:
                for event, lane in await self._follower.next():
                    await self._accept(event, lane)
                pause = _FIRST_READ_PAUSE_SECONDS
            except StoreError as error:
                log_store_error(_log, "reading events failed, retrying", error, kind=self.handler.kind)
                await anyio.sleep(pause)
                pause = min(_MAX_READ_PAUSE_SECONDS, pause * 2)
                self._lanes.follow_again()

    def _accept_now(self, event: Event, lane: Lane) -> bool:
        """Accept an event as soon as it is read. Return False if `_accept` must do it, because it has to wait."""
        if lane.closing or event.at <= lane.position:
            return True
        wanted: bool | None = None
        if not self._is_skipped(event, lane):
            try:
                wanted = event.operation != "session_deleted" and result_now(self.handler.wants(event))
            except Exception:  # `_accept` handles it
                return False
            if wanted is None:
                return False
        self._take(event, lane, wanted=wanted)
        return True

    async def _accept(self, event: Event, lane: Lane) -> None:
        if lane.closing or event.at <= lane.position:
            return
        wanted: bool | None = None
        if not self._is_skipped(event, lane):
            wanted = event.operation != "session_deleted" and await self._wants(event)
        if not lane.closing:
            self._take(event, lane, wanted=wanted)

    def _take(self, event: Event, lane: Lane, *, wanted: bool | None) -> None:
        """Queue an event for its session, or skip it. `wanted`: whether the handler wants it. None: it is skipped.

        The deletion of a session is not queued. It discards the waiting events of the session and stops its turn. This
        method must not wait: the low-water mark must not pass an event that is not queued yet.
        """
        lane.sessions.apply(lane.lease, event)
        if wanted is not None:
            if event.operation == "session_deleted":
                lane.drop_session(session_key(event))
            else:
                self._queue(event, lane, wanted=wanted)
        lane.position = event.at

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
            session = (
                event.owner_id.int,
                event.id.int,
            )  # a queue of its own, as for an event without a session
        if lane.add_event(event, session):
            self._start(self._turns.run_session, lane, session)

    async def _wants(self, event: Event) -> bool:
        try:
            return await self.handler.wants(event)
        except StoreError:
            raise
        except Exception as error:
            # Accept the event, so that it fails visibly in its own session and reading continues for the others.
            _log.warning(
                "filtering an event failed, accepting it", kind=self.handler.kind, error=log_reason(error)
            )
            return True

    def _start(self, function: Callable[..., Any], *args: Any) -> None:
        self._tasks.start(function(*args))
