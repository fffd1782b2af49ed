"""Lanes that a worker holds.

Takes lanes, renews their leases, saves their progress, and drops lanes whose leases are lost.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import structlog

from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.events.reader import Follower
from breadcrumbs.runtime.store.fence import LeaseLost
from breadcrumbs.runtime.telemetry.store_calls import log_store_error
from breadcrumbs.runtime.telemetry.workers import LaneGauges, WorkerMetrics
from breadcrumbs.runtime.workers.attempts import Attempts
from breadcrumbs.runtime.workers.concurrency import run_all
from breadcrumbs.runtime.workers.lane import Lane
from breadcrumbs.runtime.workers.leases import Leases
from breadcrumbs.runtime.workers.liveness import Liveness
from breadcrumbs.runtime.workers.session_cache import SessionCache

_log = structlog.get_logger("breadcrumbs.worker")


class HeldLanes:
    """Lanes of one worker, by number."""

    def __init__(
        self, leases: Leases, liveness: Liveness, follower: Follower[Lane], metrics: WorkerMetrics
    ) -> None:
        self.by_number: dict[int, Lane] = {}
        self.sessions = SessionCache()
        self._metrics = metrics
        self._taken_from: dict[str, list[int]] = {}
        """Lanes that were taken since the last report, by the worker that had not released them."""
        self._lost: list[int] = []
        """Lanes whose leases were lost since the last report."""
        self.closed = False
        """Set when the worker stops. A lane that is taken after that is released immediately."""
        self._leases = leases
        self._liveness = liveness
        # The follower returns each event with its `Lane` object. A lane that is lost and taken again gets a new
        # object. Late events of the old object are ignored, because a lost lane is marked as closing.
        self._follower = follower

    def holds(self, lane: Lane) -> bool:
        """Return whether the lane is held, without contacting the server."""
        return self.by_number.get(lane.number) is lane

    async def take(self, numbers: Sequence[int]) -> None:
        """Take the lanes that no other worker holds, and follow their events.

        The lanes of a server are taken in two round trips. The time does not grow with their number.
        """
        await run_all(self._take, self._leases.by_server(numbers))

    async def _take(self, numbers: list[int]) -> None:
        held_until = time.monotonic() + self._leases.seconds
        leases = await self._leases.take_all(numbers)
        progress = await self._leases.progress_of([lease.lane for lease in leases])
        lanes = [
            Lane.from_progress(lease, self._leases, one, held_until=held_until)
            for lease, one in zip(leases, progress, strict=True)
        ]
        for lane in lanes:
            lane.sessions = self.sessions
        await run_all(self._begin, lanes)

    async def _begin(self, lane: Lane) -> None:
        try:
            await self._count_losses(lane)
        except LeaseLost:
            return
        if self.closed:
            await self.save_progress(lane, release=True)
            return
        number, taken_from = lane.number, lane.lease.taken_from
        self.by_number[number] = lane
        self._follower.follow(number, lane.position, lane)
        _log.debug("lane taken", kind=self._leases.kind, lane=number, low=lane.position)
        if taken_from:
            self._metrics.takeovers.inc()
            self._taken_from.setdefault(taken_from, []).append(number)

    async def _count_losses(self, lane: Lane) -> None:
        """Count a loss for each event whose handler the previous worker did not finish."""
        marks = {at: one.mark for at, one in lane.attempts.items() if one.mark is not None}
        if not marks:
            return
        stalled = await self._liveness.possibly_alive({mark.worker for mark in marks.values()})
        blamed = {at: lane.attempts[at].lost(stalled=mark.worker in stalled) for at, mark in marks.items()}
        await self._leases.store_attempts(lane.lease, blamed)
        lane.attempts.update(blamed)

    async def renew_all(self) -> None:
        """Renew all leases, in one round trip per server, and save the progress of the lanes."""
        await run_all(self._renew_and_save, self._leases.by_server(self.by_number))

    async def _renew_and_save(self, numbers: list[int]) -> None:
        lanes = [lane for number in numbers if (lane := self.by_number.get(number)) is not None]
        await self._renew(lanes)
        progressed = [
            lane for lane in lanes if self.holds(lane) and lane.low_water_mark() > lane.acknowledged_up_to
        ]
        await run_all(self.save_progress, progressed)

    async def renew(self, lane: Lane) -> bool:
        """Extend a lease. If it has expired, drop the lane and return False."""
        await self._renew([lane])
        return self.holds(lane)

    async def _renew(self, lanes: list[Lane]) -> None:
        held_until = time.monotonic() + self._leases.seconds
        lost = {lease.lane for lease in await self._leases.renew_all([lane.lease for lane in lanes])}
        for lane in lanes:
            if lane.number in lost:
                self.drop(lane)
            else:
                lane.held_until = held_until

    async def confirm_lease(self, lane: Lane) -> bool:
        """Return whether no other worker can have taken the lane.

        The server is contacted only if the lease may have expired.
        """
        return time.monotonic() < lane.held_until or await self.renew(lane)

    def drop(self, lane: Lane) -> None:
        """Drop a lane whose lease is lost, and stop all its turns."""
        if self._remove(lane):
            lane.drop_all()
            self._metrics.leases_lost.inc()
            self._lost.append(lane.number)

    def report_changes(self) -> None:
        """Log the lanes that were lost, and those that were taken over, since the last report.

        Lanes change hands together, for example when a worker dies. One line for all of them can be read.
        """
        lost, self._lost = sorted(self._lost), []
        if lost:
            _log.warning("leases lost", kind=self._leases.kind, count=len(lost), lanes=lost)
        taken, self._taken_from = self._taken_from, {}
        for worker, lanes in taken.items():
            _log.info(
                "lanes taken over",
                kind=self._leases.kind,
                count=len(lanes),
                lanes=sorted(lanes),
                taken_from=worker,
            )

    def gauges(self) -> LaneGauges:
        """Return the numbers of lanes, running turns and waiting events, for metrics."""
        lanes = self.by_number.values()
        return LaneGauges(
            len(lanes),
            sum(len(lane.running) for lane in lanes),
            sum(len(queue) for lane in lanes for queue in lane.waiting.values()),
        )

    async def give_back(self, lane: Lane) -> None:
        """Save the progress of a lane and release its lease."""
        if self._remove(lane):
            # The lane is released on purpose. Handlers that were stopped for the release are not counted as lost.
            marked = {at: one.ended() for at, one in lane.attempts.items() if one.mark is not None}
            if marked:
                await self.store_attempts(lane, marked)
            await self.save_progress(lane, release=True)

    def _remove(self, lane: Lane) -> bool:
        if not self.holds(lane):
            return False
        del self.by_number[lane.number]
        self._follower.leave(lane.number)
        return True

    async def save_progress(self, lane: Lane, *, release: bool = False) -> None:
        """Store the low-water mark.

        If that fails, the next holder of the lane only reads a few events again.
        """
        up_to = lane.low_water_mark()
        try:
            await self._leases.acknowledge(lane.lease, None, up_to, release=release)
            lane.acknowledged_up_to = up_to
        except LeaseLost:
            self.drop(lane)
        except StoreError as error:
            log_store_error(_log, "saving progress failed", error, kind=self._leases.kind)

    async def store_attempts(self, lane: Lane, attempts: Mapping[int, Attempts]) -> None:
        """Replace the attempts at events, in memory and on the server.

        Log a store error instead of raising it.
        """
        lane.record_attempts(attempts)
        try:
            await self._leases.store_attempts(lane.lease, attempts)
        except LeaseLost:
            self.drop(lane)
        except StoreError as error:
            log_store_error(_log, "storing attempts failed", error, kind=self._leases.kind)

    def follow_again(self) -> None:
        """Follow all lanes from their positions, after the connection to the server was lost."""
        for number, lane in self.by_number.items():
            self._follower.follow(number, lane.position, lane)
