"""All errors that Breadcrumbs raises, as one tree.

BreadcrumbsError
├── InvalidInput             the request is invalid; names each field and how to correct it
│   ├── SessionConflict      a breadcrumb names two different sessions
│   └── InvalidCursor        a page cursor was modified, or is for another query
├── Unauthenticated          the token or API key is missing, invalid or expired
├── Forbidden                the token is valid but does not allow the operation
├── NotFound                 the resource does not exist, or is invisible to the caller (deliberately the same error)
├── AlreadyExists            the id is taken
├── NothingToRetry           the session has no failed turn
├── RateLimited              a rate limit is exceeded; carries the time to wait
├── SessionGone              the session is being deleted, or was deleted after the turn began
├── AnotherSession           the session began or ended after the caller read it; the caller reads it again
├── VersionMismatch          another client wrote first; carries the current version
├── IdempotencyMismatch      the idempotency key was used for another body
├── StateTooLarge            a session's state would exceed its limit; carries both sizes
├── QuotaExceeded            an owner has used up a quota; carries the usage and the limit
├── StoreError               Redis cannot execute the command now
│   ├── StoreUnavailable     Redis does not respond
│   │   ├── CommandRefused   Redis refuses the login or the command (password, ACL)
│   │   └── StoreReplaced    Redis has lost the store of this process, or contains another one
│   └── StoreFull            Redis has no memory left
└── StartupError             the process cannot start; explains how to fix it
    └── DataDirectoryInUse   another process uses the data directory
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Complaint:
    """One validation error of an input."""

    where: str
    """The field, such as `context.session_id`."""
    message: str
    """States the problem and how to correct it."""
    pointer: str | None = None
    """JSON pointer (RFC 6901) of the field, for errors inside of a definition."""
    line: int | None = None
    """Line in the text of the request, counted from 1."""
    column: int | None = None

    @property
    def position(self) -> dict[str, str | int]:
        """The members of an error document that state the position."""
        given = {"pointer": self.pointer, "line": self.line, "column": self.column}
        return {name: value for name, value in given.items() if value is not None}


class BreadcrumbsError(Exception):
    """Base class of all errors above."""


class InvalidInput(BreadcrumbsError):
    """The input is invalid. Nothing was written."""

    def __init__(self, message: str, *, where: str = "", complaints: list[Complaint] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.complaints = complaints or [Complaint(where, message)]


class SessionConflict(InvalidInput):
    """The breadcrumb names two sessions, or a session other than its own."""


class InvalidCursor(InvalidInput):
    """The cursor was not created by this store for this query."""


class Unauthenticated(BreadcrumbsError):
    """The token or API key is missing, invalid or expired."""


class Forbidden(BreadcrumbsError):
    """The principal is authenticated, but may not do this."""


class NotFound(BreadcrumbsError):
    """The resource does not exist, or is invisible to the principal."""


class AlreadyExists(BreadcrumbsError):
    """A breadcrumb with this id already exists."""


class NothingToRetry(BreadcrumbsError):
    """No turn of the session has failed, or the failed turn was answered later."""


class RateLimited(BreadcrumbsError):
    """A rate limit or a concurrency limit is exceeded. Nothing was done."""

    def __init__(self, message: str, retry_after: int, *, limit: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Time to wait, in seconds."""
        self.limit = limit


class SessionGone(BreadcrumbsError):
    """The session is being deleted, or was deleted after the event that this write answers."""


class AnotherSession(BreadcrumbsError):
    """The write is for another session: this one began or ended after the caller read it."""


class VersionMismatch(BreadcrumbsError):
    """The update is based on an outdated version."""

    def __init__(self, current: int, expected: int) -> None:
        super().__init__(f"expected version {expected}, but the current version is {current}")
        self.current = current
        self.expected = expected


class IdempotencyMismatch(BreadcrumbsError):
    """The idempotency key was used before with another body."""


class StateTooLarge(BreadcrumbsError):
    """The change would make a session's state larger than allowed. Nothing was written."""

    def __init__(self, session: str, size: int, limit: int) -> None:
        super().__init__(
            f"the state of session {session!r} would be {size:,} bytes, and the limit is {limit:,}: remove names "
            "from it, or store large values in separate breadcrumbs"
        )
        self.size = size
        self.limit = limit


class QuotaExceeded(BreadcrumbsError):
    """The write would exceed a quota of its owner. Nothing was written."""

    def __init__(self, quota: str, used: int, limit: int) -> None:
        super().__init__(
            f"the quota of {quota} is used up: {used:,} of {limit:,}. Delete some, or ask the operator for more"
        )
        self.quota = quota
        """`bytes`, `breadcrumbs` or `sessions`."""
        self.used = used
        self.limit = limit


class StoreError(BreadcrumbsError):
    """The store cannot execute the call now. The same call can succeed later."""


class StoreUnavailable(StoreError):
    """Redis does not respond."""


class CommandRefused(StoreUnavailable):
    """Redis refuses the login or the command: correct the password or the ACL."""


class StoreReplaced(StoreUnavailable):
    """Redis has lost the store that this process opened, or contains another one. Nothing is written to it."""

    advice: ClassVar[str] = (
        "Restore a backup and restart the Redis server: the processes then continue. Or correct the address of the "
        "server and restart them. To accept the store that the server has now, restart them with --new-store"
    )


class StoreFull(StoreError):
    """Redis has no memory left and refuses writes."""


class StartupError(BreadcrumbsError):
    """The process cannot start. The message explains how to fix it."""


class DataDirectoryInUse(StartupError):
    """Another process uses the data directory."""
