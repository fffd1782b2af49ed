"""Leases of lanes, and fences for the writes of workers. `workers/leases.py` acquires and renews leases."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from breadcrumbs.runtime.errors import BreadcrumbsError
from breadcrumbs.runtime.store.spending import Spending


class LeaseLost(BreadcrumbsError):
    """The lease expired, or another worker holds the lane. The next holder repeats the turn."""


class AnswerCancelled(BreadcrumbsError):
    """The session was stopped (`agent.cancel.v1`) after the answer was requested. The answer was not written."""


class TriggerGone(BreadcrumbsError):
    """The trigger of the turn was deleted. The result was not written."""


class InputsOutdated(BreadcrumbsError):
    """Shared breadcrumbs that the result depends on have changed. The result was not written."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one worker to commit in a lane."""

    lane: int
    kind: str
    value: bytes
    """The fence number, the time when the lease began (microseconds), and the worker's name."""
    taken_from: str = field(default="", compare=False)
    """Worker that held the lane before and did not release it. Empty if there was none."""


@dataclass(frozen=True, slots=True)
class EndedAnswers:
    """Running answers of a session that a commit removes. See running_answers.py."""

    owner: UUID
    session: str
    fields: bytes
    """The beginning of their fields."""


@dataclass(frozen=True, slots=True)
class RequestedAnswer:
    """The request that an answer belongs to. A later cancellation in the session refuses the answer."""

    owner: UUID
    session: str
    at: int
    """Time of the message, or of its last retry."""


@dataclass(frozen=True, slots=True)
class CachedInputs:
    """Inputs of a turn that came from memory. The commit checks that they are up to date."""

    trigger: tuple[UUID, UUID] | None = None
    """Owner and id of the trigger. It must still exist."""
    shared: tuple[UUID, bytes] | None = None
    """Owner, and version of its breadcrumbs without a session (see shared_cache.py). Empty: no version was written."""


NO_CACHED_INPUTS = CachedInputs()


@dataclass(frozen=True, slots=True)
class Fence:
    """Turns a write into the commit of a worker.

    The write is refused if the lease is lost. Otherwise the same script also acknowledges an event.
    """

    lease: Lease
    event: int | None = None
    """The time of the event to acknowledge. None: the turn continues after this write."""
    low: int = 0
    """The low-water mark: every event up to this time is done."""
    dead_letter: bytes = b""
    """The dead letter (JSON) that the event becomes if the turn failed."""
    since: int | None = None
    """The time of the event that led to this write. If the session was deleted since, the write is refused."""
    ended: EndedAnswers | None = None
    """The running answers that end with this write. None: none was saved."""
    requested: RequestedAnswer | None = None
    """The request that this write answers. None: a cancellation does not refuse the write."""
    cached: CachedInputs = NO_CACHED_INPUTS
    """Inputs that must be up to date. Otherwise the write is refused."""
    spent: Spending | None = None
    """Usage of model calls that the same script records. None: there is none."""
