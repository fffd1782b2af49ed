"""Problem types of the API, and the conversion of errors to RFC 9457 problem documents.

The `type` of a problem document links to its explanation on the docs page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import orjson
import structlog

from breadcrumbs.runtime.errors import (
    AlreadyExists,
    BreadcrumbsError,
    Complaint,
    Forbidden,
    IdempotencyMismatch,
    InvalidCursor,
    InvalidInput,
    NotFound,
    NothingToRetry,
    QuotaExceeded,
    RateLimited,
    SessionConflict,
    SessionGone,
    StateTooLarge,
    StoreError,
    StoreFull,
    StoreReplaced,
    Unauthenticated,
    VersionMismatch,
)
from breadcrumbs.runtime.http.api.replies import PROBLEM_JSON, Header, Reply
from breadcrumbs.runtime.telemetry.store_calls import log_store_error

_log = structlog.get_logger("breadcrumbs.http")


@dataclass(frozen=True, slots=True)
class ProblemType:
    """One kind of problem. Clients can rely on its name and status; the docs page shows its advice."""

    name: str
    status: int
    title: str
    advice: str

    @property
    def uri(self) -> str:
        return f"/docs#problem-{self.name}"


MALFORMED = ProblemType(
    "malformed", 400, "Malformed request",
    "The body is not JSON in UTF-8, the query is not percent-encoded UTF-8, or a header such as If-Match has "
    "an invalid form. Fix the client: the same request will fail again.",
)  # fmt: skip
UNAUTHENTICATED = ProblemType(
    "unauthenticated", 401, "Not authenticated",
    "Send `Authorization: Bearer <token>` with a token from POST /auth/token, or an API key in `X-API-Key`. "
    "If the token has expired, get a new one and retry.",
)  # fmt: skip
FORBIDDEN = ProblemType(
    "forbidden", 403, "Permission denied",
    "The token is valid, but it lacks the role, or it is narrowed to a session or a user. Use a token with the "
    "necessary permissions.",
)  # fmt: skip
QUOTA_EXCEEDED = ProblemType(
    "quota-exceeded", 403, "Quota exceeded",
    "`quota` is the name of the quota (bytes, breadcrumbs or sessions), `used` the current usage and `limit` the "
    "maximum. Delete old data, or raise the setting `quotas`. Nothing was written.",
)  # fmt: skip
FOREIGN_ORIGIN = ProblemType(
    "foreign-origin", 403, "Origin not allowed",
    "The request came from a web page of another origin, or from an unknown browser extension. Add the origin to "
    "the setting `allowed_origins`, or the extension to `allowed_extensions`.",
)  # fmt: skip
NOT_FOUND = ProblemType(
    "not-found", 404, "Not found",
    "The resource does not exist, it has expired or was deleted, the token may not see it, or the path is wrong.",
)  # fmt: skip
METHOD_NOT_ALLOWED = ProblemType(
    "method-not-allowed", 405, "Method not allowed",
    "The Allow header lists the methods of this path.",
)  # fmt: skip
REQUEST_TIMEOUT = ProblemType(
    "request-timeout", 408, "Request timeout",
    "The head or the body of the request was not complete in time, and the connection was closed. Send the "
    "request again. The setting `connection_limits` contains the timeouts.",
)  # fmt: skip
ALREADY_EXISTS = ProblemType("already-exists", 409, "Already exists", "The id is in use. Choose another one.")
SESSION_GONE = ProblemType(
    "session-gone", 409, "Session is being deleted",
    "The session cannot be written to any more. Its name can be used again once GET /sessions/{id} returns 404.",
)  # fmt: skip
NOTHING_TO_RETRY = ProblemType(
    "nothing-to-retry", 409, "Nothing to retry",
    "No turn of this session has failed, the failed turns were answered since, or the session is paused. Send a new "
    "message, or resume the session first.",
)  # fmt: skip
NOT_REPLAYABLE = ProblemType(
    "not-replayable", 409, "Answer cannot be replayed",
    "`detail` contains the reason, and `missing` lists what was deleted, if that is the reason. Without models in this "
    "process, run `crumb replay` where the models are configured. Nothing was sent to a model.",
)  # fmt: skip
VERSION_MISMATCH = ProblemType(
    "version-mismatch", 412, "Version conflict",
    "The version in If-Match is not the newest. `current_version` and the ETag contain the newest one. Read that "
    "version, apply the change to it, and send its number in If-Match.",
)  # fmt: skip
TOO_LARGE = ProblemType(
    "too-large", 413, "Body too large",
    "Store large data elsewhere and put its address into the breadcrumb, or raise the setting `max_body_bytes`.",
)  # fmt: skip
STATE_TOO_LARGE = ProblemType(
    "state-too-large", 413, "Session state too large",
    "`size` is the size that the state would have, `limit` the value of the setting `max_state_bytes`. Remove names "
    "(null removes one), or store large values in separate breadcrumbs. Nothing was written.",
)  # fmt: skip
URL_TOO_LONG = ProblemType(
    "url-too-long", 414, "URL too long",
    "Shorten the query, or raise the setting `connection_limits.max_url_bytes`.",
)  # fmt: skip
UNSUPPORTED_MEDIA_TYPE = ProblemType(
    "unsupported-media-type", 415, "Unsupported media type",
    "Send `Content-Type: application/json`; for PATCH also `application/merge-patch+json`.",
)  # fmt: skip
MISDIRECTED = ProblemType(
    "misdirected", 421, "Misdirected request",
    "The Host header contains an unknown name. The server refuses unknown names, because a web page could otherwise "
    "reach a local server under its own domain. Use 127.0.0.1 or localhost, or add the name to the setting "
    "`allowed_hosts`.",
)  # fmt: skip
INVALID_INPUT = ProblemType(
    "invalid-input", 422, "Invalid input",
    "`errors` lists each invalid field and how to correct it. Nothing was written.",
)  # fmt: skip
SESSION_CONFLICT = ProblemType(
    "session-conflict", 422, "Session conflict",
    "A breadcrumb belongs to at most one session and stays in it. Send one `session:` tag, and the same id or none "
    "in `context.session_id`.",
)  # fmt: skip
INVALID_CURSOR = ProblemType(
    "invalid-cursor", 422, "Invalid cursor",
    "Send the cursor of the previous page unchanged, with the same filters.",
)  # fmt: skip
IDEMPOTENCY_MISMATCH = ProblemType(
    "idempotency-mismatch", 422, "Idempotency key reused",
    "The key was used before with a different body. A retry must send the same body. A new breadcrumb needs a new key.",
)  # fmt: skip
RATE_LIMITED = ProblemType(
    "rate-limited", 429, "Too many requests",
    "Posting, managing and reading have separate budgets, per token and per owner. Wait for the number of seconds in "
    "Retry-After. The setting `rate_limits` contains the budgets. The number of open event streams is limited by the "
    "settings `max_streams_per_token` and `max_streams_per_owner`.",
)  # fmt: skip
HEAD_TOO_LARGE = ProblemType(
    "head-too-large", 431, "Request head too large",
    "The request line and the headers have too many bytes, or there are too many headers. Send fewer or shorter "
    "headers, or raise `max_head_bytes` or `max_headers` in the setting `connection_limits`.",
)  # fmt: skip
INTERNAL = ProblemType(
    "internal", 500, "Internal server error",
    "This is a bug in the server. The server log contains the details under the id in `instance`.",
)  # fmt: skip
STORE_UNAVAILABLE = ProblemType(
    "store-unavailable", 503, "Store unavailable",
    "The Redis server is down or busy. No write was applied in part. Retry after the number of seconds in "
    "Retry-After, with the same Idempotency-Key.",
)  # fmt: skip
STORE_REPLACED = ProblemType(
    "store-replaced", 503, "Store replaced",
    "The Redis server has lost the data of this server, or contains another store. Nothing is written to it. `detail` "
    "contains the reason. " + StoreReplaced.advice + ".",
)  # fmt: skip
STORE_FULL = ProblemType(
    "store-full", 503, "Store full",
    "The Redis server has no memory left and refuses writes. Delete old breadcrumbs or raise its maxmemory. Reads "
    "still work.",
)  # fmt: skip
TOO_MANY_CONNECTIONS = ProblemType(
    "too-many-connections", 503, "Too many connections",
    "The server has reached its maximum number of connections, in total or from this address. Retry after the "
    "number of seconds in Retry-After. The setting `connection_limits` contains the limits.",
)  # fmt: skip

PROBLEM_TYPES: Final = (
    MALFORMED,
    UNAUTHENTICATED,
    FORBIDDEN,
    QUOTA_EXCEEDED,
    FOREIGN_ORIGIN,
    NOT_FOUND,
    METHOD_NOT_ALLOWED,
    REQUEST_TIMEOUT,
    ALREADY_EXISTS,
    SESSION_GONE,
    NOTHING_TO_RETRY,
    NOT_REPLAYABLE,
    VERSION_MISMATCH,
    TOO_LARGE,
    STATE_TOO_LARGE,
    URL_TOO_LONG,
    UNSUPPORTED_MEDIA_TYPE,
    MISDIRECTED,
    INVALID_INPUT,
    SESSION_CONFLICT,
    INVALID_CURSOR,
    IDEMPOTENCY_MISMATCH,
    RATE_LIMITED,
    HEAD_TOO_LARGE,
    INTERNAL,
    STORE_UNAVAILABLE,
    STORE_REPLACED,
    STORE_FULL,
    TOO_MANY_CONNECTIONS,
)


class HttpProblem(BreadcrumbsError):
    """An error that exists only in HTTP and has no class in `runtime.errors`."""

    def __init__(self, type: ProblemType, detail: str, *, headers: Sequence[Header] = ()) -> None:
        super().__init__(detail)
        self.type = type
        self.detail = detail
        self.headers = headers


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete. No reply can be sent."""


def problem(
    type: ProblemType,
    detail: str,
    *,
    headers: Sequence[Header] = (),
    complaints: Sequence[Complaint] = (),
    members: Mapping[str, Any] | None = None,
) -> Reply:
    """Return a problem document as a reply. `members` are additional fields of the document."""
    document: dict[str, Any] = {
        "type": type.uri,
        "title": type.title,
        "status": type.status,
        "detail": detail,
        **(members or {}),
    }
    if complaints:
        document["errors"] = [{"where": c.where, "message": c.message, **c.position} for c in complaints]
    return Reply(type.status, orjson.dumps(document), PROBLEM_JSON, headers)


def problem_from_error(error: Exception) -> Reply:
    """Return the reply to an error. An unexpected error is logged, and its details are not sent."""
    error = _first_error(error)
    if (known := _known_problem(error)) is not None:
        return known
    occurrence = uuid4().urn
    _log.error("unexpected error", instance=occurrence, exc_info=error)
    return problem(INTERNAL, INTERNAL.advice, members={"instance": occurrence})


def status_of(error: Exception) -> int:
    """Return the status of the reply to an error."""
    known = _known_problem(_first_error(error))
    return INTERNAL.status if known is None else known.status


def _first_error(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):  # raised by a task group of the request; report its first error
        error = error.exceptions[0]
    return error


def _known_problem(error: Exception) -> Reply | None:
    return next((reply(error) for kind, reply in _REPLIES if isinstance(error, kind)), None)


def _problem_with_detail(type: ProblemType) -> Callable[[Any], Reply]:
    return lambda error: problem(type, str(error))


def _version_mismatch(error: VersionMismatch) -> Reply:
    etag = [(b"etag", b'"%d"' % error.current)]
    return problem(VERSION_MISMATCH, str(error), headers=etag, members={"current_version": error.current})


def _rate_limited(error: RateLimited) -> Reply:
    seconds = b"%d" % error.retry_after
    return problem(
        RATE_LIMITED,
        str(error),
        headers=[
            (b"retry-after", seconds),
            (b"ratelimit-limit", b"%d" % error.limit),
            (b"ratelimit-remaining", b"0"),
            (b"ratelimit-reset", seconds),
        ],
        members={"retry_after": error.retry_after, "limit": error.limit},
    )


def _quota_exceeded(error: QuotaExceeded) -> Reply:
    members = {"quota": error.quota, "used": error.used, "limit": error.limit}
    return problem(QUOTA_EXCEEDED, str(error), members=members)


def _state_too_large(error: StateTooLarge) -> Reply:
    return problem(STATE_TOO_LARGE, str(error), members={"size": error.size, "limit": error.limit})


def _store_full(error: StoreFull) -> Reply:
    return problem(STORE_FULL, STORE_FULL.advice, headers=[(b"retry-after", b"30")])


def _store_replaced(error: StoreReplaced) -> Reply:
    # Not logged here: the loss is logged once, see `watch_identity`.
    return problem(STORE_REPLACED, f"{error}. {error.advice}.", headers=[(b"retry-after", b"10")])


def _store_unavailable(error: StoreError) -> Reply:
    # The message contains the address of the Redis server. It goes to the log only.
    log_store_error(_log, "store unavailable", error)
    return problem(STORE_UNAVAILABLE, STORE_UNAVAILABLE.advice, headers=[(b"retry-after", b"2")])


def _input_problem_type(error: InvalidInput) -> ProblemType:
    if isinstance(error, SessionConflict):
        return SESSION_CONFLICT
    return INVALID_CURSOR if isinstance(error, InvalidCursor) else INVALID_INPUT


_REPLIES: Final[Sequence[tuple[type[Exception], Callable[[Any], Reply]]]] = (
    (HttpProblem, lambda error: problem(error.type, error.detail, headers=error.headers)),
    (
        InvalidInput,
        lambda error: problem(_input_problem_type(error), error.message, complaints=error.complaints),
    ),
    (
        Unauthenticated,
        lambda error: problem(UNAUTHENTICATED, str(error), headers=[(b"www-authenticate", b"Bearer")]),
    ),
    (Forbidden, _problem_with_detail(FORBIDDEN)),
    (NotFound, _problem_with_detail(NOT_FOUND)),
    (AlreadyExists, _problem_with_detail(ALREADY_EXISTS)),
    (NothingToRetry, _problem_with_detail(NOTHING_TO_RETRY)),
    (SessionGone, _problem_with_detail(SESSION_GONE)),
    (VersionMismatch, _version_mismatch),
    (IdempotencyMismatch, _problem_with_detail(IDEMPOTENCY_MISMATCH)),
    (RateLimited, _rate_limited),
    (QuotaExceeded, _quota_exceeded),
    (StateTooLarge, _state_too_large),
    (StoreFull, _store_full),
    (StoreReplaced, _store_replaced),
    (StoreError, _store_unavailable),
)
"""The reply to each class of errors. The first match counts, so subclasses come before their base classes."""
