"""Exceptions of the client.

BreadcrumbsError
├── ProblemError             the server refused the request; has its problem document (RFC 9457)
│   ├── InvalidInput         the request is not valid; `errors` lists what to change
│   │   ├── SessionConflict
│   │   └── InvalidCursor
│   ├── Unauthenticated
│   ├── Forbidden
│   ├── NotFound             not found, or not visible to this token; deliberately the same error
│   ├── AlreadyExists
│   ├── SessionGone          the session is being deleted
│   ├── NothingToRetry       the session has no failed turn
│   ├── RateLimited          too many requests, also after all retries
│   ├── StateTooLarge        the state of the session would exceed its limit
│   ├── QuotaExceeded        the owner has reached a quota
│   ├── VersionMismatch      another write came first; `current` is the stored version
│   ├── IdempotencyMismatch  the key was used with another body
│   └── StoreUnavailable     the server cannot reach its store, also after all retries
│       ├── StoreReplaced    Redis has lost the store of the server, or contains another one
│       └── StoreFull        the store has no memory left
├── ServerUnreachable        no connection, or a broken one, also after all retries
├── AgentFailed              the agent wrote an `agent.error.v1` instead of an answer
└── NoAnswer                 no answer within the timeout; also a TimeoutError

Exceptions with the same name in `breadcrumbs.runtime.errors` are base classes of these.
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
    "StoreReplaced",
    "StoreUnavailable",
    "Unauthenticated",
    "VersionMismatch",
    "problem_from_document",
]


class ProblemError(BreadcrumbsError):
    """The server refused a request. `detail` is the reason."""

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
        """The invalid fields of the request, each with a correction."""
        lines = [self.detail]
        lines += [
            f"  {error.where}: {error.message}" for error in self.errors if error.message != self.detail
        ]
        BreadcrumbsError.__init__(self, "\n".join(lines))

    def __reduce__(self) -> tuple[type[ProblemError], tuple[dict[str, Any]]]:
        return type(self), (self.document,)  # the default pickles the message, which the constructor rejects


class InvalidInput(ProblemError, runtime.InvalidInput):
    """The request is not valid. Nothing was written."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        ProblemError.__init__(self, document)
        self.message = self.detail
        self.complaints = self.errors or [Complaint("", self.detail)]


class SessionConflict(InvalidInput, runtime.SessionConflict):
    """The write names two sessions, or would move a breadcrumb to another session."""


class InvalidCursor(InvalidInput, runtime.InvalidCursor):
    """The cursor does not belong to this query."""


class Unauthenticated(ProblemError, runtime.Unauthenticated):
    """The credentials are missing or not valid."""


class Forbidden(ProblemError, runtime.Forbidden):
    """The credentials are valid but do not allow this."""


class NotFound(ProblemError, runtime.NotFound):
    """Not found, or not visible to this token."""


class AlreadyExists(ProblemError, runtime.AlreadyExists):
    """The id is already in use."""


class SessionGone(ProblemError, runtime.SessionGone):
    """The session is being deleted and accepts no more writes."""


class NothingToRetry(ProblemError, runtime.NothingToRetry):
    """The turn has not failed, or it was answered since."""


class RateLimited(ProblemError, runtime.RateLimited):
    """Too many requests. Retry after `retry_after` seconds."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        ProblemError.__init__(self, document)
        self.retry_after = int(document.get("retry_after", 1))
        self.limit = int(document.get("limit", 0))


class VersionMismatch(ProblemError, runtime.VersionMismatch):
    """The expected version is not the current one."""

    def __init__(self, document: Mapping[str, Any], expected: int = 0) -> None:
        ProblemError.__init__(self, document)
        self.current = int(document.get("current_version", 0))
        self.expected = expected


class IdempotencyMismatch(ProblemError, runtime.IdempotencyMismatch):
    """The idempotency key was used before with another body."""


class StateTooLarge(ProblemError, runtime.StateTooLarge):
    """The state of the session would exceed its size limit. Nothing was written."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        ProblemError.__init__(self, document)
        self.size = int(document.get("size", 0))
        self.limit = int(document.get("limit", 0))


class QuotaExceeded(ProblemError, runtime.QuotaExceeded):
    """The write would exceed a quota of the owner. Nothing was written."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        ProblemError.__init__(self, document)
        self.quota = str(document.get("quota", ""))
        self.used = int(document.get("used", 0))
        self.limit = int(document.get("limit", 0))


class StoreUnavailable(ProblemError, runtime.StoreUnavailable):
    """The server cannot reach its store."""


class StoreReplaced(StoreUnavailable, runtime.StoreReplaced):
    """Redis has lost the store of the server, or contains another one. Nothing was written."""


class StoreFull(StoreUnavailable, runtime.StoreFull):
    """The store of the server has no memory left and refuses writes."""


class ServerUnreachable(BreadcrumbsError):
    """The client cannot connect to the server, or the connection broke on every attempt."""


class AgentFailed(BreadcrumbsError):
    """The agent wrote an `agent.error.v1` instead of an answer."""

    def __init__(self, reason: str, *, trigger_id: str, breadcrumb_id: str, cancelled: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.trigger_id = trigger_id
        """Id of the message that was not answered."""
        self.breadcrumb_id = breadcrumb_id
        """Id of the `agent.error.v1`."""
        self.cancelled = cancelled
        """Whether the turn was cancelled, by request or by a newer message."""

    def __reduce__(self) -> tuple[partial[AgentFailed], tuple[str]]:
        named = {"trigger_id": self.trigger_id, "breadcrumb_id": self.breadcrumb_id}
        return partial(type(self), **named, cancelled=self.cancelled), (self.reason,)


class NoAnswer(BreadcrumbsError, TimeoutError):
    """No answer within the timeout. It can still arrive: `Session.wait` waits for it."""

    def __init__(self, message: str, *, trigger_id: str) -> None:
        super().__init__(message)
        self.trigger_id = trigger_id
        """Id of the message, or empty if the timeout passed before its id was received."""

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
    "store-replaced": StoreReplaced,
    "store-full": StoreFull,
}


def problem_from_document(document: Mapping[str, Any]) -> ProblemError:
    """Return the error for a problem document. An unknown type becomes a plain `ProblemError`."""
    name = str(document.get("type", "")).rpartition("#problem-")[2]
    return _BY_NAME.get(name, ProblemError)(document)
