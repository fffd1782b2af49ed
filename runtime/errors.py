"""Everything that can go wrong, as one tree.

BreadcrumbsError
├── InvalidInput             the request itself is wrong; says where and what to do
│   ├── SessionConflict      two sessions claim one breadcrumb
│   └── InvalidCursor        a page cursor that was changed, or belongs to another query
├── Unauthenticated          no token, or one that is not good
├── Forbidden                a good token that does not allow this
├── NotFound                 no such thing, or not yours: the two look the same on purpose
├── AlreadyExists            the id is taken
├── NothingToRetry           no turn has failed there
├── RateLimited              too much at once; says for how long to wait
├── SessionGone              the session is being deleted, or was since the turn began that writes into it
├── AnotherSession           a session ended and one of the same name began; whoever is told looks again
├── VersionMismatch          somebody else wrote first; carries the version the store has
├── IdempotencyMismatch      the key was used for another body
├── StateTooLarge            a session's state would exceed its limit; carries both sizes
├── QuotaExceeded            an owner has used up a quota; carries what is used and what is allowed
├── StoreError               the server behind the store cannot do it now
│   ├── StoreUnavailable     it does not answer
│   │   └── CommandRefused   it refuses the login or the command (a password, an ACL)
│   └── StoreFull            it answers, but has no memory left
└── StartupError             found while starting, before any request; says how to mend it
    └── DataDirectoryInUse   another process holds the data directory
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Complaint:
    """One thing that is wrong with an input: where it is and what to do about it."""

    where: str
    message: str


class BreadcrumbsError(Exception):
    """Base of every error that this package raises on purpose."""


class InvalidInput(BreadcrumbsError):
    """The input is wrong. Nothing was written."""

    def __init__(self, message: str, *, where: str = "", complaints: list[Complaint] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.complaints = complaints or [Complaint(where, message)]


class SessionConflict(InvalidInput):
    """A breadcrumb belongs to at most one session, and stays in it."""


class InvalidCursor(InvalidInput):
    """The cursor was not made by this store for this query."""


class Unauthenticated(BreadcrumbsError):
    """Nobody we know."""


class Forbidden(BreadcrumbsError):
    """Somebody we know, who may not do this."""


class NotFound(BreadcrumbsError):
    """There is no such thing, or it belongs to somebody else."""


class AlreadyExists(BreadcrumbsError):
    """A breadcrumb with this id is there already."""


class NothingToRetry(BreadcrumbsError):
    """No turn has failed there, or it was answered since."""


class RateLimited(BreadcrumbsError):
    """Too much was asked for at once. Nothing was done."""

    def __init__(self, message: str, retry_after: int, *, limit: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds."""
        self.limit = limit


class SessionGone(BreadcrumbsError):
    """The session is being deleted, or was deleted after the event that this write is an answer to."""


class AnotherSession(BreadcrumbsError):
    """The session is not the one that the write was meant for: it began since, or ended, or both."""


class VersionMismatch(BreadcrumbsError):
    """The update was based on a version that is no longer the newest."""

    def __init__(self, current: int, expected: int) -> None:
        super().__init__(f"expected version {expected}, but the newest is {current}")
        self.current = current
        self.expected = expected


class IdempotencyMismatch(BreadcrumbsError):
    """The idempotency key was used before, for another body."""


class StateTooLarge(BreadcrumbsError):
    """A change would make the state of a session larger than allowed. Nothing was written."""

    def __init__(self, session: str, size: int, limit: int) -> None:
        super().__init__(
            f"the state of session {session!r} would have {size:,} bytes, and {limit:,} are allowed: remove names "
            "from it, or keep large values in breadcrumbs of their own"
        )
        self.size = size
        self.limit = limit


class QuotaExceeded(BreadcrumbsError):
    """A write would exceed a quota of its owner. Nothing was written."""

    def __init__(self, quota: str, used: int, limit: int) -> None:
        super().__init__(
            f"the quota of {quota} is used up: {used:,} of {limit:,}. Delete some, or let the operator raise the quota"
        )
        self.quota = quota
        """`bytes`, `breadcrumbs` or `sessions`."""
        self.used = used
        self.limit = limit


class StoreError(BreadcrumbsError):
    """The store cannot do it now; the same call may work later."""


class StoreUnavailable(StoreError):
    """The server behind the store does not answer."""


class CommandRefused(StoreUnavailable):
    """The server behind the store refuses the login or the command: change its password or its ACL."""


class StoreFull(StoreError):
    """The server behind the store has no memory left and refuses writes."""


class StartupError(BreadcrumbsError):
    """Something is wrong with the set-up. The message says how to mend it."""


class DataDirectoryInUse(StartupError):
    """Another process holds the data directory."""
