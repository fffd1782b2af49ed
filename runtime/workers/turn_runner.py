"""Runs the handler on the events of a session, in order and with retries.

An event whose attempts all fail becomes a dead letter, and an error is written into its session.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

import anyio
import structlog

from breadcrumbs.runtime.errors import SessionGone, StoreError
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.store.fence import LeaseLost, TriggerGone
from breadcrumbs.runtime.store.spending import ModelUsage
from breadcrumbs.runtime.telemetry.redaction import log_reason
from breadcrumbs.runtime.telemetry.tracing import carried
from breadcrumbs.runtime.telemetry.turns import TurnReport, TurnSubject
from breadcrumbs.runtime.telemetry.workers import WorkerMetrics
from breadcrumbs.runtime.workers.attempts import NO_ATTEMPTS
from breadcrumbs.runtime.workers.dead_letters import encode_dead_letter
from breadcrumbs.runtime.workers.errors import STORE_UNAVAILABLE, TurnCancelled, TurnFailed, error_reason
from breadcrumbs.runtime.workers.held_lanes import HeldLanes
from breadcrumbs.runtime.workers.lane import Lane, SessionKey
from breadcrumbs.runtime.workers.leases import Leases
from breadcrumbs.runtime.workers.retries import Permits, Reruns, Slot, TurnLimits
from breadcrumbs.runtime.workers.turn import (
    AttemptResult,
    Ended,
    Failed,
    Handler,
    Postponed,
    Retry,
    Turn,
    run_handler,
    stopped_result,
)

_log = structlog.get_logger("breadcrumbs.worker")

_STORE_PAUSE_SECONDS: Final = 0.2
"""Pause before a turn tries an unavailable store again."""
_GIVE_UP_PAUSE_SECONDS: Final = 0.3
"""Pause before the error of a failed turn is written again."""


class TurnRunner:
    """Runs the turns of one worker."""

    def __init__(
        self,
        handler: Handler,
        leases: Leases,
        lanes: HeldLanes,
        limits: TurnLimits,
        metrics: WorkerMetrics,
    ) -> None:
        self._handler = handler
        self._leases = leases
        self._metrics = metrics
        self._lanes = lanes
        self._limits = limits
        # Without fast_acquire, every turn would yield to the event loop even if a permit is free. An uncontended
        # acquire and release takes 4 µs instead of 16 µs.
        self._new = anyio.Semaphore(limits.concurrency, fast_acquire=True)
        self._reruns = Reruns(limits.concurrency)
        self.answered = 0
        """Turns with a committed result, since the last heartbeat that reported them."""
        self.failed = 0
        """Turns that failed every attempt, since the same heartbeat."""

    async def run_session(self, lane: Lane, session: SessionKey) -> None:
        """Handle the waiting events of a session in order."""
        while waiting := lane.waiting.get(session):
            event = waiting.popleft()
            carried.set(event.trace)  # each call of this method is a task, so no other turn sees it
            alone = lane.attempts_at(event).runs_alone
            async with Slot(self._permits(lane, event, alone=alone)) as slot:
                await self._run_event(lane, session, event, slot, alone=alone)
        lane.waiting.pop(session, None)
        if lane.closing and not lane.running:
            lane.idle.set()

    def _permits(self, lane: Lane, event: Event, *, alone: bool) -> Permits:
        if lane.is_new(event):
            return self._new
        return self._reruns.alone if alone else self._reruns.together

    async def _run_event(
        self, lane: Lane, session: SessionKey, event: Event, slot: Slot, *, alone: bool
    ) -> None:
        """Run attempts until an event is finished, or the lane is lost or released."""
        report: TurnReport | None = None
        unrecorded: list[ModelUsage] = []
        again = True
        while again and await self._begin_attempt(lane, event, alone=alone):
            if report is None:
                report = self._start_report(event)
            turn = Turn(event, self._attempt_number(lane, event), lane, slot, report)
            turn.unrecorded = unrecorded
            report.attempt = turn.attempt
            lane.running[session] = turn
            try:
                again = await self._run_attempt(turn)
            finally:
                del lane.running[session]
        if again and report is not None:  # the lane was lost between two attempts
            report.abandoned()
        if event.at in lane.attempts and event.at not in lane.unfinished:
            # The event is finished, so it is no longer a suspect. A commit has already removed the stored attempts,
            # but a handler without a result has not.
            await self._lanes.store_attempts(lane, {event.at: NO_ATTEMPTS})

    def _start_report(self, event: Event) -> TurnReport:
        # The clocks differ by a little, so an event can seem to come from the future.
        waited = max(0, self._leases.now() - event.at) / 1_000_000
        return self._metrics.start_turn(TurnSubject(event.owner_id, event.session_id, event.id, waited))

    async def _begin_attempt(self, lane: Lane, event: Event, *, alone: bool) -> bool:
        """Return whether the handler may start. Wait if the store is unavailable."""
        while event.at in lane.unfinished and self._lanes.holds(lane):
            try:
                # If the process was frozen for longer than the lease, another worker may have the lane.
                if not await self._lanes.confirm_lease(lane):
                    return False
                await self._mark_running(lane, event, alone=alone)
                return event.at in lane.unfinished
            except LeaseLost:
                self._lanes.drop(lane)
                return False
            except StoreError:
                await anyio.sleep(_STORE_PAUSE_SECONDS)
        return False

    async def _mark_running(self, lane: Lane, event: Event, *, alone: bool) -> None:
        """Mark the event as running, unless this is certainly its first attempt.

        The first attempt at an event that arrived while this worker held the lane is not marked. This saves a round
        trip. If this worker dies, the next one treats the event as not started.
        """
        attempts = lane.attempts_at(event)
        is_first = attempts is NO_ATTEMPTS and lane.is_new(event)
        if is_first or attempts.exhausted(self._limits.attempts):
            return
        lane.attempts[event.at] = attempts.started(self._leases.worker, alone=alone)
        await self._leases.store_attempts(lane.lease, {event.at: lane.attempts[event.at]})

    def _attempt_number(self, lane: Lane, event: Event) -> int:
        attempts = lane.attempts_at(event)
        no_attempt_left = attempts.exhausted(self._limits.attempts)
        return attempts.counted + (attempts.stalls if no_attempt_left else 1)

    async def _run_attempt(self, turn: Turn) -> bool:
        """Run the handler once. Return whether another attempt follows."""
        result = await self._attempt(turn)
        if result is Ended.FINISHED:  # almost always
            self._metrics.finished.value += 1
            self._finish(turn)
            return False
        self._metrics.attempts[_result_name(result)].inc()
        if isinstance(result, Retry):
            result = await self._wait_for_retry(turn, result.error)
        match result:
            case Retry():
                return True
            case Postponed(error):
                if await self._wait_for_store(turn, error):
                    return True
                turn.report.abandoned()
            case Failed(error):
                await self._fail(turn, error)
            case Ended.FINISHED:
                self._finish(turn)
            case Ended.LEASE_LOST:
                self._lanes.drop(turn.lane)
                turn.report.abandoned()
            case Ended.ABANDONED:
                turn.report.abandoned()
        return False

    def _finish(self, turn: Turn) -> None:
        """End a turn whose event is done."""
        self.answered += turn.commits
        if not turn.commits:
            self._leases.discard_answers(turn.lane.lease, turn.ended_answers())
        turn.lane.finish(turn.event)
        turn.report.finished()

    async def _fail(self, turn: Turn, error: Exception) -> None:
        """End a turn that is not attempted again."""
        if not await self._give_up(turn, error):
            turn.report.abandoned()
            return
        turn.lane.finish(turn.event)
        if turn.dead_letter:
            self.failed += 1
            self._metrics.dead_letters.inc()
        turn.report.failed(error, cancelled=isinstance(error, TurnCancelled))

    async def _attempt(self, turn: Turn) -> AttemptResult:
        if turn.lane.attempts_at(turn.event).exhausted(self._limits.attempts):
            return Failed(TurnFailed(f"failed after {turn.attempt} attempts that did not complete"))
        return await run_handler(self._handler, turn, max_attempts=self._limits.attempts)

    async def _wait_for_store(self, turn: Turn, error: Exception) -> bool:
        """Wait a moment for an unavailable store.

        Return True to repeat the attempt, or False if the lane is being released.
        """
        _log.debug("store unavailable, turn is waiting", kind=self._handler.kind, error=str(error))
        jitter = random.random() * _STORE_PAUSE_SECONDS  # noqa: S311 - spreads load, protects nothing
        await anyio.sleep(_STORE_PAUSE_SECONDS + jitter)
        return not turn.lane.closing

    async def _wait_for_retry(self, turn: Turn, error: Exception) -> AttemptResult:
        """Release the slot and wait for the next attempt.

        Return `Retry`, or a result that ends the turn.
        """
        lane = turn.lane
        turn.scope = anyio.CancelScope()
        turn.slot.release()
        pause = self._limits.pause(turn.attempt, error)
        turn.report.retrying(error, pause)
        if turn.on_retry is not None:
            turn.on_retry(error, pause)
        await self._lanes.store_attempts(lane, {turn.event.at: lane.attempts_at(turn.event).failed()})
        with turn.scope:
            with anyio.move_on_after(pause):
                await turn.next_attempt.wait()
            await turn.slot.acquire()
        return stopped_result(turn) or Retry(error)

    async def _give_up(self, turn: Turn, error: Exception) -> bool:
        """Write the error into the session and store a dead letter.

        Repeat this while the store is unavailable. Return False if the lane is lost or being released.
        """
        event = turn.event
        turn.cached = replace(turn.cached, shared=None)  # the error does not depend on shared breadcrumbs
        if not isinstance(error, TurnCancelled):
            turn.dead_letter = encode_dead_letter(
                event, kind=self._handler.kind, attempts=turn.attempt, error=error_reason(error)
            )
        while True:
            try:
                await self._write_error(turn, error)
                await turn.acknowledge()
                return True
            except LeaseLost:
                self._lanes.drop(turn.lane)
                return False
            except StoreError:
                await anyio.sleep(_GIVE_UP_PAUSE_SECONDS)
                if turn.lane.closing:
                    return False

    async def _write_error(self, turn: Turn, error: Exception) -> None:
        try:
            await self._handler.give_up(turn, error)
        except (LeaseLost, *STORE_UNAVAILABLE):
            raise
        except (SessionGone, TriggerGone):
            turn.dead_letter = b""  # a deleted session or message keeps no dead letters
        except Exception as problem:  # the dead letter is stored anyway
            _log.error(
                "writing the error into the session failed",
                kind=self._handler.kind,
                session=turn.event.session_id,
                problem=log_reason(problem),
            )


def _result_name(result: AttemptResult) -> str:
    """Return the name of a result in the metrics."""
    match result:
        case Retry():
            return "retry"
        case Failed():
            return "failed"
        case Postponed():
            return "store_unavailable"
        case Ended():
            return result.name.lower()
