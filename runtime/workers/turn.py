"""A turn: one attempt to handle one event, and its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Protocol, TypeAlias
from uuid import UUID

import anyio

from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.errors import SessionGone
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.store.fence import Fence, LeaseLost
from breadcrumbs.runtime.workers.errors import STORE_UNAVAILABLE, TurnCancelled
from breadcrumbs.runtime.workers.lane import Lane, session_key
from breadcrumbs.runtime.workers.retries import Slot, is_retryable

INTERNAL: Final = "turn:internal"
"""Tag of a breadcrumb that a turn wrote for itself. No worker reacts to it."""


@dataclass(slots=True)
class Turn:
    """One event being handled."""

    event: Event
    attempt: int
    lane: Lane
    slot: Slot
    cancelled: str | None = None
    """Why the turn was asked to stop."""
    session_gone: bool = False
    """The session was deleted: the turn ends without an answer or an error."""
    dead_letter: bytes = b""
    """The dead letter that the acknowledgement stores. Set when the turn failed for good."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    next_attempt: anyio.Event = field(default_factory=anyio.Event)
    """Set to end the pause before the next attempt."""

    @property
    def is_first(self) -> bool:
        """Whether no worker, this one included, can have started the event before."""
        return self.attempt == 1 and self.lane.is_new(self.event)

    def fence(self, *, acknowledge: bool) -> Fence:
        """Return the fence of a commit. The last commit of a turn also acknowledges the event."""
        if acknowledge:
            up_to = self.lane.low_water_mark(finished=self.event.at)
            return Fence(self.lane.lease, self.event.at, up_to, self.dead_letter, since=self.event.at)
        return Fence(self.lane.lease, since=self.event.at)

    async def acknowledge(self) -> None:
        """Finish the event without a commit."""
        up_to = self.lane.low_water_mark(finished=self.event.at)
        await self.lane.leases.acknowledge(
            self.lane.lease, self.event.at, up_to, dead_letter=self.dead_letter
        )

    def derived_id(self, *parts: str) -> UUID:
        """Return an id in the lane of the event, which is the same for the same parts in each attempt."""
        return derived_id(self.event.lane, *parts)

    def waiting(self) -> list[Event]:
        """Return the events that wait in the same session, the next one first."""
        return list(self.lane.waiting.get(session_key(self.event), ()))

    def cancel(self, reason: str) -> None:
        """Ask the turn to stop. What it has committed by then stays."""
        self.cancelled = reason
        self.scope.cancel()


class Handler(Protocol):
    """Handles the events of one kind of worker."""

    kind: str

    async def wants(self, event: Event) -> bool: ...

    async def handle(self, turn: Turn) -> None:
        """Handle an event. The result is committed together with the acknowledgement.

        A handler that has no result simply returns: the low-water mark then acknowledges the event. A commit must
        be shielded from cancellation: a cancelled handler could not know whether it was written.
        """
        ...

    async def give_up(self, turn: Turn, error: Exception) -> None:
        """Leave an error for a turn that failed for good, and acknowledge the event with it."""
        ...

    def arrived(self, event: Event, running: Turn | None, waiting: Sequence[Event]) -> bool:
        """Notice a new event: a handler may interrupt the running turn of the same session.

        Returns whether the event is handled at once, beside the running turn, because it will only be refused.
        """
        ...


class Ended(Enum):
    """The turn is over for this worker, without an error."""

    FINISHED = auto()
    """The event is done, or its session is gone."""
    LEASE_LOST = auto()
    """Another worker has the lane."""
    ABANDONED = auto()
    """The turn was stopped because the lane is lost or given back: another worker handles the event."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed, and another one follows."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed, and no other one follows."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Unserved:
    """The store did not serve the attempt. The attempt is repeated and not counted."""

    error: Exception


AttemptResult: TypeAlias = Ended | Retry | Failed | Unserved
"""What follows after an attempt."""


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
    """Return why a turn was stopped from outside, or None if it was not."""
    if turn.session_gone:
        return Ended.FINISHED
    if turn.cancelled is not None:
        return Failed(TurnCancelled(turn.cancelled))
    return Ended.ABANDONED if turn.scope.cancelled_caught else None


def _failure_result(turn: Turn, error: Exception, max_attempts: int) -> AttemptResult:
    if isinstance(error, LeaseLost):
        return Ended.LEASE_LOST
    if isinstance(error, SessionGone):
        return Ended.FINISHED
    if isinstance(error, STORE_UNAVAILABLE):
        return Unserved(error)
    if turn.session_gone:
        return Ended.FINISHED
    if turn.cancelled is not None:
        return Failed(TurnCancelled(turn.cancelled))
    if is_retryable(error) and turn.attempt < max_attempts:
        return Retry(error)
    return Failed(error)
