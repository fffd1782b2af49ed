"""What can go wrong for a client, as one tree.

BreadcrumbsError
├── ProblemError             the server refused; carries its problem document (RFC 9457)
│   ├── InvalidInput         the request is wrong; `errors` says where and what to do
│   │   ├── SessionConflict
│   │   └── InvalidCursor
│   ├── Unauthenticated
│   ├── Forbidden
│   ├── NotFound             no such thing, or not yours: the two look the same on purpose
│   ├── AlreadyExists
│   ├── SessionGone          the session is being deleted
│   ├── NothingToRetry       no turn has failed there
│   ├── RateLimited          too much at once; after all retries
│   ├── StateTooLarge        the state of the session would exceed its limit
│   ├── QuotaExceeded        the owner has used up a quota
│   ├── VersionMismatch      somebody else wrote first; `current` is the version that is there
│   ├── IdempotencyMismatch  the key was used for another body
│   └── StoreUnavailable     the server cannot do it now
│       └── StoreFull
├── ServerUnreachable        nothing answers, or the connection broke; after all retries
├── AgentFailed              the agent that should have answered left an `agent.error.v1`
└── NoAnswer                 nobody answered within the time limit; also a TimeoutError

A name that `breadcrumbs.runtime.errors` has too means the same, and is a subclass of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from breadcrumbs.runtime import errors as runtime
from breadcrumbs.runtime.errors import BreadcrumbsError, Complaint

__all__ = [
    "AgentFailed",
    "AlreadyExists",
    "BreadcrumbsError",
    "Forbidden",
    "IdempotencyMismatch",
    "InvalidCursor",
    "InvalidInput",
    "NoAnswer",
    "NotFound",
    "NothingToRetry",
    "ProblemError",
    "QuotaExceeded",
    "RateLimited",
    "ServerUnreachable",
    "SessionConflict",
    "SessionGone",
    "StateTooLarge",
    "StoreFull",
    "StoreUnavailable",
    "Unauthenticated",
    "VersionMismatch",
    "problem_from_document",
]


class ProblemError(BreadcrumbsError):
    """The server refused a request, and says why."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = dict(document)
        self.status = int(document["status"])
        self.type = str(document.get("type", "about:blank"))
        self.title = str(document.get("title", ""))
        self.detail = str(document.get("detail", self.title))
        self.errors = [
            Complaint(str(error.get("where", "")), str(error.get("message", "")))
            for error in document.get("errors", ())
        ]
        """Each place that is wrong, and what to do about it."""
        lines = [self.detail]
        lines += [
            f"  {error.where}: {error.message}" for error in self.errors if error.message != self.detail
        ]
        BreadcrumbsError.__init__(self, "\n".join(lines))

    def __reduce__(self) -> tuple[type[ProblemError], tuple[dict[str, Any]]]:
        return type(self), (self.document,)  # the message alone could not make it again


class InvalidInput(ProblemError, runtime.InvalidInput):
    """The input is wrong. Nothing was written."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        ProblemError.__init__(self, document)
        self.message = self.detail
        self.complaints = self.errors or [Complaint("", self.detail)]


class SessionConflict(InvalidInput, runtime.SessionConflict):
    """A breadcrumb belongs to at most one session, and stays in it."""


class InvalidCursor(InvalidInput, runtime.InvalidCursor):
    """The cursor was not made for this query."""


class Unauthenticated(ProblemError, runtime.Unauthenticated):
    """No token, or one that is not good."""


class Forbidden(ProblemError, runtime.Forbidden):
    """A good token that does not allow this."""


class NotFound(ProblemError, runtime.NotFound):
    """There is no such thing, or it belongs to somebody else."""


class AlreadyExists(ProblemError, runtime.AlreadyExists):
    """The id is taken."""


class SessionGone(ProblemError, runtime.SessionGone):
    """The session is being deleted: nothing more can be written into it."""


class NothingToRetry(ProblemError, runtime.NothingToRetry):
    """No turn has failed there, or it was answered since."""


class RateLimited(ProblemError, runtime.RateLimited):
    """Too much was asked for at once. `retry_after` says for how many seconds to wait."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        ProblemError.__init__(self, document)
        self.retry_after = int(document.get("retry_after", 1))
        self.limit = int(document.get("limit", 0))


class VersionMismatch(ProblemError, runtime.VersionMismatch):
    """The change was based on a version that is no longer the newest."""

    def __init__(self, document: Mapping[str, Any], expected: int = 0) -> None:
        ProblemError.__init__(self, document)
        self.current = int(document.get("current_version", 0))
        self.expected = expected


class IdempotencyMismatch(ProblemError, runtime.IdempotencyMismatch):
    """The idempotency key was used before, for another body."""


class StateTooLarge(ProblemError, runtime.StateTooLarge):
    """A change would make the state of a session larger than allowed. Nothing was written."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        ProblemError.__init__(self, document)
        self.size = int(document.get("size", 0))
        self.limit = int(document.get("limit", 0))


class QuotaExceeded(ProblemError, runtime.QuotaExceeded):
    """A write would exceed a quota of the owner. Nothing was written."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        ProblemError.__init__(self, document)
        self.quota = str(document.get("quota", ""))
        self.used = int(document.get("used", 0))
        self.limit = int(document.get("limit", 0))


class StoreUnavailable(ProblemError, runtime.StoreUnavailable):
    """The store behind the server does not answer."""


class StoreFull(StoreUnavailable, runtime.StoreFull):
    """The store behind the server has no memory left and refuses writes."""


class ServerUnreachable(BreadcrumbsError):
    """Nothing answers, or the connection broke and did not come back."""


class AgentFailed(BreadcrumbsError):
    """Instead of an answer there is an `agent.error.v1`."""

    def __init__(self, reason: str, *, trigger_id: str, breadcrumb_id: str, cancelled: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.trigger_id = trigger_id
        """The message that was not answered."""
        self.breadcrumb_id = breadcrumb_id
        """The `agent.error.v1`."""
        self.cancelled = cancelled
        """Somebody asked for it to stop, or a newer message took its place."""

    def __reduce__(self) -> tuple[partial[AgentFailed], tuple[str]]:
        named = {"trigger_id": self.trigger_id, "breadcrumb_id": self.breadcrumb_id}
        return partial(type(self), **named, cancelled=self.cancelled), (self.reason,)


class NoAnswer(BreadcrumbsError, TimeoutError):
    """Nobody has answered within the time limit. An answer may still come: `Session.wait` waits for it."""

    def __init__(self, message: str, *, trigger_id: str) -> None:
        super().__init__(message)
        self.trigger_id = trigger_id

    def __reduce__(self) -> tuple[partial[NoAnswer], tuple[str]]:
        return partial(type(self), trigger_id=self.trigger_id), (str(self),)


_BY_NAME: dict[str, type[ProblemError]] = {
    "invalid-input": InvalidInput,
    "malformed": InvalidInput,
    "too-large": InvalidInput,
    "unsupported-media-type": InvalidInput,
    "session-conflict": SessionConflict,
    "invalid-cursor": InvalidCursor,
    "unauthenticated": Unauthenticated,
    "forbidden": Forbidden,
    "foreign-origin": Forbidden,
    "not-found": NotFound,
    "already-exists": AlreadyExists,
    "session-gone": SessionGone,
    "nothing-to-retry": NothingToRetry,
    "rate-limited": RateLimited,
    "version-mismatch": VersionMismatch,
    "idempotency-mismatch": IdempotencyMismatch,
    "quota-exceeded": QuotaExceeded,
    "state-too-large": StateTooLarge,
    "store-unavailable": StoreUnavailable,
    "store-full": StoreFull,
}


def problem_from_document(document: Mapping[str, Any]) -> ProblemError:
    """Return the error for a problem document. A kind that we do not know yet is a plain `ProblemError`."""
    name = str(document.get("type", "")).rpartition("#problem-")[2]
    return _BY_NAME.get(name, ProblemError)(document)
