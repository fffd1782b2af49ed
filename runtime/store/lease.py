"""What a lease is; `leasing.py` gets and keeps them."""

from __future__ import annotations

from dataclasses import dataclass

from breadcrumbs.runtime.errors import BreadcrumbsError


class LeaseLost(BreadcrumbsError):
    """The lane belongs to another worker now. What was being done here is done there."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A worker's right to commit in a lane."""

    lane: int
    kind: str
    value: bytes
    """The fence number, since when (microseconds), and the worker's name."""
