"""The lanes that a worker holds: take them, renew their leases, save their progress, drop lost ones."""

from __future__ import annotations

import time
from collections.abc import Mapping

import structlog

from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.events.reader import Follower
from breadcrumbs.runtime.store.fence import LeaseLost
from breadcrumbs.runtime.workers.attempts import Attempts
from breadcrumbs.runtime.workers.concurrency import run_all
from breadcrumbs.runtime.workers.lane import Lane
from breadcrumbs.runtime.workers.leases import Leases
from breadcrumbs.runtime.workers.liveness import Liveness

_log = structlog.get_logger("breadcrumbs.worker")


class HeldLanes:
    """The lanes of one worker, by number."""

    def __init__(self, leases: Leases, liveness: Liveness, follower: Follower[Lane]) -> None:
        self.by_number: dict[int, Lane] = {}
        self.closed = False
        """Set when the worker stops: a lane that it still gets is given back at once."""
        self._leases = leases
        self._liveness = liveness
        # Events come with the lane itself: a lane that is lost and taken again is another object.
        self._follower = follower

    def holds(self, lane: Lane) -> bool:
        return self.by_number.get(lane.number) is lane

    async def take(self, number: int) -> None:
        """Take a lane if no other worker holds it, and follow its events."""
        asked_at = time.monotonic()
        lease = await self._leases.take(number)
        if lease is None:
            return
        progress = await self._leases.progress(number)
        held_until = asked_at + self._leases.seconds
        lane = Lane.from_progress(lease, self._leases, progress, held_until=held_until)
        try:
            await self._count_losses(lane)
        except LeaseLost:
            return
        if self.closed:
            await self.save_progress(lane, release=True)
            return
        self.by_number[number] = lane
        self._follower.follow(number, lane.position, lane)
        _log.debug("lane taken", kind=self._leases.kind, lane=number, low=lane.position)

    async def _count_losses(self, lane: Lane) -> None:
        """Blame the events whose handlers were running when the worker before us lost the lane."""
        marks = {at: one.mark for at, one in lane.attempts.items() if one.mark is not None}
        if not marks:
            return
        stalled = await self._liveness.may_live({mark.worker for mark in marks.values()})
        blamed = {at: lane.attempts[at].lost(stalled=mark.worker in stalled) for at, mark in marks.items()}
        await self._leases.store_attempts(lane.lease, blamed)
        lane.attempts.update(blamed)

    async def renew_all(self) -> None:
        """Renew all leases and save the progress of the lanes.

        All at once: one by one, on a slow line, the first lease would end before the last one is renewed.
        """
        await run_all(self._renew_and_save, list(self.by_number.values()))

    async def _renew_and_save(self, lane: Lane) -> None:
        if await self.renew(lane) and lane.low_water_mark() > lane.acknowledged_up_to:
            await self.save_progress(lane)

    async def renew(self, lane: Lane) -> bool:
        """Extend a lease. Returns False, and drops the lane, if it has ended."""
        asked_at = time.monotonic()
        if not await self._leases.renew(lane.lease):
            self.drop(lane)
            return False
        lane.held_until = asked_at + self._leases.seconds
        return True

    async def is_still_ours(self, lane: Lane) -> bool:
        """Return whether no other worker can have the lane. Asks the server only if the lease may have ended."""
        return time.monotonic() < lane.held_until or await self.renew(lane)

    def drop(self, lane: Lane) -> None:
        """Drop a lane that another worker holds now, and stop all its turns."""
        if self._remove(lane):
            lane.drop_all()
            _log.warning("lane lost", kind=self._leases.kind, lane=lane.number)

    async def give_back(self, lane: Lane) -> None:
        """Save the progress of a lane and release its lease."""
        if self._remove(lane):
            # The lane is given back in order: handlers that are stopped for it are not to blame.
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
        """Store the low-water mark. If that fails, the next holder only reads a few events again."""
        up_to = lane.low_water_mark()
        try:
            await self._leases.acknowledge(lane.lease, None, up_to, release=release)
            lane.acknowledged_up_to = up_to
        except LeaseLost:
            self.drop(lane)
        except StoreError as error:
            _log.warning("progress was not saved", kind=self._leases.kind, error=str(error))

    async def store_attempts(self, lane: Lane, attempts: Mapping[int, Attempts]) -> None:
        """Replace the attempts at events, here and if possible on the server."""
        lane.record_attempts(attempts)
        try:
            await self._leases.store_attempts(lane.lease, attempts)
        except LeaseLost:
            self.drop(lane)
        except StoreError as error:
            _log.warning("attempts were not stored", kind=self._leases.kind, error=str(error))

    def follow_again(self) -> None:
        """Follow all lanes from their positions: the link to the server was lost."""
        for number, lane in self.by_number.items():
            self._follower.follow(number, lane.position, lane)
