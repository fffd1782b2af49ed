"""Leases of lanes, and the fence that a worker puts around a write. `workers/leases.py` gets and renews leases."""

from __future__ import annotations

from dataclasses import dataclass

from breadcrumbs.runtime.errors import BreadcrumbsError


class LeaseLost(BreadcrumbsError):
    """The lane belongs to another worker now. That worker repeats the turn."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one worker to commit in a lane."""

    lane: int
    kind: str
    value: bytes
    """The fence number, the time when the lease began (microseconds), and the worker's name."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Makes a write a worker's commit: it fails if the lease is lost, and it acknowledges an event."""

    lease: Lease
    event: int | None = None
    """The time of the event to acknowledge. None: the turn goes on."""
    low: int = 0
    """Every event up to this time is done."""
    dead_letter: bytes = b""
    """The dead letter (JSON) that the event becomes if the turn failed."""
    since: int | None = None
    """The time of the event that led to this write. A session deleted after it accepts nothing."""
