"""The result of a write."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb


@dataclass(frozen=True, slots=True)
class Written:
    """The id, version and times that a write has in the store."""

    id: UUID
    version: int
    created: int
    updated: int
    replayed: bool = False
    """True: nothing was written. This is the first result of the same idempotency key."""
    found: bool = False
    """True: nothing was written. The id existed already, perhaps from a first attempt whose reply was lost."""
    session_version: int | None = None
    """The version that the session got with this write. None: unknown, because nothing was written."""
    breadcrumb: Breadcrumb | None = None
    """The breadcrumb as a reader gets it, except `expires` and `max_reads`: the script sets those, and they are 0 here.

    None: nothing was written.
    """
