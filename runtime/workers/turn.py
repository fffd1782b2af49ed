"""Turns: the handling of one event, the handler protocol, and the results of attempts.

A worker creates a new `Turn` for each attempt, and passes it to its handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

import anyio

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.concurrency import cancel_scope
from breadcrumbs.runtime.errors import SessionGone
from breadcrumbs.runtime.events.deltas import Saving, new_run_number
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.store.batched_reads import Read, SessionRead, build_reads
from breadcrumbs.runtime.store.fence import (
    NO_CACHED_INPUTS,
    CachedInputs,
    EndedAnswers,
    Fence,
    LeaseLost,
    TriggerGone,
)
from breadcrumbs.runtime.store.running_answers import SavedAnswer, ended_answers, next_run
from breadcrumbs.runtime.store.spending import ModelUsage, Spending
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.written import Written
from breadcrumbs.runtime.telemetry.turns import TurnReport
from breadcrumbs.runtime.workers.errors import STORE_UNAVAILABLE, TurnStopped
from breadcrumbs.runtime.workers.lane import Lane, session_key
from breadcrumbs.runtime.workers.retries import Slot, is_retryable

INTERNAL: Final = "turn:internal"
"""Tag of a breadcrumb that a turn wrote for its own use. Workers ignore it."""


@dataclass(slots=True)
class Turn:
    """Current attempt at an event, as the handler sees it."""

    event: Event
    attempt: int
    """Number of this attempt. The first is 1."""
    lane: Lane
    slot: Slot
    report: TurnReport
    """Takes the facts about the answers, for metrics and the log."""
    stopped: bool = False
    """The turn was stopped by a cancellation."""
    session_gone: bool = False
    """The session was deleted. The turn ends without an answer or an error."""
    dead_letter: bytes = b""
    """Dead letter (JSON) to store with the acknowledgement. Set when the turn has failed and is not retried."""
    scope: anyio.CancelScope = field(default_factory=cancel_scope)
    _next_attempt: anyio.Event | None = field(default=None, init=False)
    commits: bool = False
    """A commit of this attempt acknowledges the event, and so ends all running answers of the turn."""
    requested_at: int = 0
    """Time of the message or of its last retry. A later cancellation refuses the answer. Set by the handler."""
    cached: CachedInputs = NO_CACHED_INPUTS
    """Inputs from the memory of the process. Commits check that they are up to date."""
    bypasses_cache: bool = False
    """Read everything from the store, because inputs from the memory were outdated."""
    unrecorded: list[ModelUsage] = field(default_factory=list)
    """Usage of model calls that no commit has recorded. All attempts of an event in a worker share the list."""
    on_retry: Callable[[Exception, float], None] | None = None
    """Set by the handler to be told that the attempt failed and the next one begins after some seconds."""

    @property
    def next_attempt(self) -> anyio.Event:
        """Set to end the pause before the next attempt. Created on first use: most turns have no pause."""
        if self._next_attempt is None:
            self._next_attempt = anyio.Event()
        return self._next_attempt

    @property
    def is_first(self) -> bool:
        """Whether no worker, including this one, can have started the event before."""
        return self.attempt == 1 and self.lane.is_new(self.event)

    def fence(self, *, acknowledge: bool, answer: UUID | None = None) -> Fence:
        """Return the fence of a commit.

        The last commit of a turn also acknowledges the event. `answer` is the id of the answer that the commit writes.
        """
        lease, since, cached = self.lane.lease, self.event.at, self.cached
        spent = self._spending() if self.unrecorded else None
        self.lane.sessions.begin_commit(self.event)
        if acknowledge:
            self.commits = True
            up_to = self.lane.low_water_mark(finished=since)
            ended = self.ended_answers()
            return Fence(
                lease, since, up_to, self.dead_letter, since=since, ended=ended, cached=cached, spent=spent
            )
        ended = None if answer is None else self.ended_answers(answer)
        return Fence(lease, since=since, ended=ended, cached=cached, spent=spent)

    def _spending(self) -> Spending:
        # Calls are recorded on the day of the commit. The clock of this process can differ a little.
        event = self.event
        return Spending(event.owner_id, event.session_id, tuple(self.unrecorded), self.lane.leases.now())

    def recorded(self, spent: Spending | None, written: Written) -> None:
        """Note that a commit has recorded usage.

        If the breadcrumb existed already, an earlier run of the commit wrote it, whose reply was lost, or an earlier
        attempt. In the second case it is older than the model calls, and they are recorded by the next commit.
        """
        if spent is None or (written.found and written.created < spent.calls[0].started):
            return
        del self.unrecorded[: len(spent.calls)]

    def committed(self, store: Store, *crumbs: Breadcrumb) -> None:
        """Note the result of a commit. Without this call, the next turn of the session reads everything again."""
        self.lane.sessions.end_commit(store, self.event, *crumbs)

    async def read_batch(self, store: Store, *reads: Read[Any] | SessionRead) -> list[Any]:
        """Return the results of reads. The memory of the worker answers those of the session, if it can."""
        if self.lane.closing or self.attempt > 1 or self.bypasses_cache:
            self.cached = NO_CACHED_INPUTS
            return list(await store.read_batch(*build_reads(store, reads)))
        values, self.cached = await self.lane.sessions.read_batch(store, self.lane.lease, self.event, reads)
        return values

    def ended_answers(self, answer: UUID | None = None) -> EndedAnswers | None:
        """Return the running answers that can be saved for this turn. None: none was saved."""
        event = self.event
        if event.session_id is None or (self.is_first and event.at not in self.lane.saved_answers):
            return None
        return ended_answers(event.owner_id, event.session_id, event.at, self.lane.lease.kind, answer)

    def saving(self, answer: UUID, keep_seconds: float) -> Saving | None:
        """Return what is needed to save a running answer of this turn. None: an event without a session."""
        event, lane = self.event, self.lane
        if event.session_id is None:
            return None
        run = next_run(lane.lease, new_run_number())
        saved = SavedAnswer(lane.lease, event.owner_id, event.session_id, event.at, answer, run, keep_seconds)
        return Saving(saved, lambda: lane.saved_answers.add(event.at))

    async def acknowledge(self) -> None:
        """Acknowledge the event without a commit."""
        up_to = self.lane.low_water_mark(finished=self.event.at)
        await self.lane.leases.acknowledge(
            self.lane.lease, self.event.at, up_to, dead_letter=self.dead_letter
        )

    def derived_id(self, *parts: str) -> UUID:
        """Return an id in the lane of the event.

        The same parts give the same id in each attempt.
        """
        return derived_id(self.event.lane, *parts)

    @contextmanager
    def waiting_outside(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Release the slot while the turn waits for another process. Yield a function that takes a slot again."""
        self.slot.release()
        yield self.slot.acquire

    def waiting(self) -> list[Event]:
        """Return the waiting events of the same session, oldest first."""
        return list(self.lane.waiting.get(session_key(self.event), ()))

    def stop(self) -> None:
        """Stop the turn because of a cancellation. Earlier commits of the turn are kept."""
        self.stopped = True
        self.scope.cancel()


class Handler(Protocol):
    """Handler of events, run by workers of one kind."""

    kind: str

    async def wants(self, event: Event) -> bool:
        """Return whether the handler must be called for an event."""
        ...

    async def handle(self, turn: Turn) -> None:
        """Handle an event, and commit the result together with the acknowledgement.

        A handler without a result only returns. The low-water mark then acknowledges the event. The handler must shield
        its commits from cancellation. A cancelled commit may or may not have been written.
        """
        ...

    async def give_up(self, turn: Turn, error: Exception) -> None:
        """Write an error for a turn that finally failed, and acknowledge the event."""
        ...

    def arrived(self, event: Event, running: Turn | None, waiting: Sequence[Event]) -> bool:
        """React to a new event, even if the handler does not want it.

        The handler may cancel `running`, the running turn of the same session. `waiting` contains the queued events of
        the session. Return True to handle the event immediately, concurrently with the running turn. Handlers do this
        for events that they will reject.
        """
        ...


class Ended(Enum):
    """The turn is over for this worker, without an error to report."""

    FINISHED = auto()
    """The event is done, or its session or its trigger was deleted."""
    LEASE_LOST = auto()
    """The lease has expired, or another worker has the lane."""
    ABANDONED = auto()
    """The turn was stopped because the lane was lost or released. Another worker handles the event."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed, and another one follows."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed, and no other attempt follows."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Postponed:
    """The store was unavailable during the attempt.

    The attempt is repeated and not counted.
    """

    error: Exception


AttemptResult: TypeAlias = Ended | Retry | Failed | Postponed
"""Result of one attempt."""


async def run_handler(handler: Handler, turn: Turn, *, max_attempts: int) -> AttemptResult:
    """Run the handler once and return the result of the attempt."""
    try:
        with turn.scope:
            await handler.handle(turn)
    except Exception as error:
        return _failure_result(turn, error, max_attempts)
    if turn.scope.cancelled_caught:
        return stopped_result(turn) or Ended.FINISHED
    return Ended.FINISHED


def stopped_result(turn: Turn) -> AttemptResult | None:
    """Return the result of a turn that was stopped from outside.

    Return None if it was not stopped.
    """
    if turn.session_gone:
        return Ended.FINISHED
    if turn.stopped:
        return Failed(TurnStopped())
    return Ended.ABANDONED if turn.scope.cancelled_caught else None


def _failure_result(turn: Turn, error: Exception, max_attempts: int) -> AttemptResult:
    if isinstance(error, LeaseLost):
        return Ended.LEASE_LOST
    if isinstance(error, TriggerGone):
        turn.commits = False
    if isinstance(error, SessionGone | TriggerGone):
        return Ended.FINISHED
    if isinstance(error, STORE_UNAVAILABLE):
        return Postponed(error)
    if turn.session_gone:
        return Ended.FINISHED
    if turn.stopped:
        return Failed(TurnStopped())
    if is_retryable(error) and turn.attempt < max_attempts:
        return Retry(error)
    return Failed(error)
