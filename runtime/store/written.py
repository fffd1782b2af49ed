"""The result of a write."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb


class Written(NamedTuple):
    """Id, version and times of a written breadcrumb."""

    id: UUID
    version: int
    created: int
    updated: int
    replayed: bool = False
    """True: nothing was written. This is the first result of the same idempotency key."""
    found: bool = False
    """True: nothing was written. The id existed already, for example from an attempt whose reply was lost."""
    session_version: int | None = None
    """Version of the session after a create. None: there is no session, or this is not the result of a new create."""
    breadcrumb: Breadcrumb | None = None
    """The breadcrumb as a reader gets it, but `expires` and `max_reads` are 0. Only the script sets them.

    None: nothing was written.
    """
    along: tuple[Breadcrumb | None, ...] = ()
    """The breadcrumbs of `CreateOptions.along`, in their order. None: its id existed already."""
