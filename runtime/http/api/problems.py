"""Every error as an RFC 9457 problem document. `type` leads to the explanation on the docs page."""

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
    Unauthenticated,
    VersionMismatch,
)
from breadcrumbs.runtime.http.api.replies import PROBLEM_JSON, Header, Reply

_log = structlog.get_logger("breadcrumbs.http")


@dataclass(frozen=True, slots=True)
class ProblemType:
    """One kind of problem: what a client may rely on, and what the docs page says about it."""

    name: str
    status: int
    title: str
    advice: str

    @property
    def uri(self) -> str:
        return f"/docs#problem-{self.name}"


MALFORMED = ProblemType(
    "malformed", 400, "The request cannot be read",
    "The body is not JSON in UTF-8, the query is not percent-encoded UTF-8, or a header such as If-Match has "
    "a form that nobody can read. Mend the client; the same request will fail again.",
)  # fmt: skip
UNAUTHENTICATED = ProblemType(
    "unauthenticated", 401, "No valid token",
    "Send `Authorization: Bearer <token>` with a token from POST /auth/token, or an API key in `X-API-Key`. "
    "Tokens expire: get a new one and try again.",
)  # fmt: skip
FORBIDDEN = ProblemType(
    "forbidden", 403, "The token does not allow this",
    "The token is good, but it lacks the role, or it is narrowed to a session or a user. Get one that may.",
)  # fmt: skip
QUOTA_EXCEEDED = ProblemType(
    "quota-exceeded", 403, "A quota is used up",
    "`quota` says which one (bytes, breadcrumbs or sessions), `used` and `limit` how much of it. Delete what is not "
    "needed any more, or raise the setting `quotas`. Nothing was written.",
)  # fmt: skip
FOREIGN_ORIGIN = ProblemType(
    "foreign-origin", 403, "This page may not use this server",
    "The request came from a web page of another origin, or from an unknown browser extension. Add the origin to "
    "the setting `allowed_origins`, or the extension to `allowed_extensions`.",
)  # fmt: skip
NOT_FOUND = ProblemType(
    "not-found", 404, "There is no such thing",
    "It was never there, it has expired or was deleted, belongs to somebody else, or the path is misspelt.",
)  # fmt: skip
METHOD_NOT_ALLOWED = ProblemType(
    "method-not-allowed", 405, "This path does not know this method",
    "The Allow header lists the methods that it knows.",
)  # fmt: skip
REQUEST_TIMEOUT = ProblemType(
    "request-timeout", 408, "The request arrived too slowly",
    "The head or the body of the request was not complete in time, and the connection was closed. Send the "
    "request again. The settings in `connection_limits` set the times.",
)  # fmt: skip
ALREADY_EXISTS = ProblemType(
    "already-exists", 409, "The id is taken", "Something with this id is there already."
)
SESSION_GONE = ProblemType(
    "session-gone", 409, "The session is being deleted",
    "Nothing more can be written into it. Once it is gone (GET /sessions/{id} says 404), its name can be used again.",
)  # fmt: skip
NOTHING_TO_RETRY = ProblemType(
    "nothing-to-retry", 409, "There is no failed turn",
    "No turn has failed in this session, or it was answered since, or the session is paused. Say something new.",
)  # fmt: skip
VERSION_MISMATCH = ProblemType(
    "version-mismatch", 412, "Somebody else wrote first",
    "The version in If-Match is not the newest. `current_version` and the ETag say which one is: read it, "
    "apply the change to it, and send that version in If-Match.",
)  # fmt: skip
TOO_LARGE = ProblemType(
    "too-large", 413, "The body is too large",
    "Put large data elsewhere and its address into the breadcrumb, or raise the setting `max_body_bytes`.",
)  # fmt: skip
STATE_TOO_LARGE = ProblemType(
    "state-too-large", 413, "The session's state would be too large",
    "`size` is what the state would have, `limit` what the setting `max_state_bytes` allows. Remove names (null "
    "removes one), or keep large values in breadcrumbs of their own. Nothing was written.",
)  # fmt: skip
URL_TOO_LONG = ProblemType(
    "url-too-long", 414, "The URL is too long",
    "Shorten the query, or raise the setting `connection_limits.max_url_bytes`.",
)  # fmt: skip
UNSUPPORTED_MEDIA_TYPE = ProblemType(
    "unsupported-media-type", 415, "The body has a type that is not understood here",
    "Send `Content-Type: application/json`; for PATCH also `application/merge-patch+json`.",
)  # fmt: skip
MISDIRECTED = ProblemType(
    "misdirected", 421, "The Host header names another server",
    "So that no web page reaches a local server through a name of its own, only known names are answered. "
    "Use 127.0.0.1 or localhost, or add the name to the setting `allowed_hosts`.",
)  # fmt: skip
INVALID_INPUT = ProblemType(
    "invalid-input", 422, "The input is not valid",
    "`errors` lists each place that is wrong and what to do about it. Nothing was written.",
)  # fmt: skip
SESSION_CONFLICT = ProblemType(
    "session-conflict", 422, "Two sessions claim one breadcrumb",
    "A breadcrumb belongs to at most one session and stays in it: one `session:` tag, and no other "
    "`context.session_id`.",
)  # fmt: skip
INVALID_CURSOR = ProblemType(
    "invalid-cursor", 422, "The cursor is not for this query",
    "Take the cursor unchanged from the Link header of the last page, and keep the filters the same.",
)  # fmt: skip
IDEMPOTENCY_MISMATCH = ProblemType(
    "idempotency-mismatch", 422, "The idempotency key was used for another body",
    "A key stands for one breadcrumb. A retry sends the same body; a new breadcrumb needs a new key.",
)  # fmt: skip
RATE_LIMITED = ProblemType(
    "rate-limited", 429, "Too many requests",
    "Posting, managing and reading have budgets of their own, per token and per owner. Wait for the seconds in "
    "Retry-After. The setting `rate_limits` says how large they are. Open event streams are limited, too: see "
    "`max_streams_per_token`.",
)  # fmt: skip
HEAD_TOO_LARGE = ProblemType(
    "head-too-large", 431, "The request head is too large",
    "The request line and the headers have too many bytes, or there are too many headers. Send less, or raise "
    "`max_head_bytes` or `max_headers` in the setting `connection_limits`.",
)  # fmt: skip
INTERNAL = ProblemType(
    "internal", 500, "Something went wrong in the server",
    "A bug. The log has the details under the id in `instance`.",
)  # fmt: skip
STORE_UNAVAILABLE = ProblemType(
    "store-unavailable", 503, "The store does not answer",
    "The Redis server behind this one is down or busy. Nothing was half-written. Try again after the seconds "
    "in Retry-After, with the same Idempotency-Key.",
)  # fmt: skip
STORE_FULL = ProblemType(
    "store-full", 503, "The store has no memory left",
    "The Redis server refuses writes. Delete old breadcrumbs or raise its maxmemory. Reading still works.",
)  # fmt: skip

TOO_MANY_CONNECTIONS = ProblemType(
    "too-many-connections", 503, "Too many connections",
    "The server holds as many connections as it may, in total or from this address. Try again after the "
    "seconds in Retry-After. The setting `connection_limits` sets the numbers.",
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
    STORE_FULL,
    TOO_MANY_CONNECTIONS,
)


class HttpProblem(BreadcrumbsError):
    """A problem of HTTP alone, which the rest of the runtime has no word for."""

    def __init__(self, type: ProblemType, detail: str, *, headers: Sequence[Header] = ()) -> None:
        super().__init__(detail)
        self.type = type
        self.detail = detail
        self.headers = headers


class ClientDisconnected(Exception):
    """The client went away before its request was complete: there is nobody to answer."""


def problem(
    type: ProblemType,
    detail: str,
    *,
    headers: Sequence[Header] = (),
    complaints: Sequence[Complaint] = (),
    members: Mapping[str, Any] | None = None,
) -> Reply:
    document: dict[str, Any] = {
        "type": type.uri,
        "title": type.title,
        "status": type.status,
        "detail": detail,
        **(members or {}),
    }
    if complaints:
        document["errors"] = [{"where": c.where, "message": c.message} for c in complaints]
    return Reply(type.status, orjson.dumps(document), PROBLEM_JSON, headers)


def problem_from_error(error: Exception) -> Reply:
    """Return the reply to an error. An unexpected error is logged, and its details are not sent."""
    while isinstance(error, ExceptionGroup):  # of tasks that worked on one request: the first one counts
        error = error.exceptions[0]
    for kind, reply in _REPLIES:
        if isinstance(error, kind):
            return reply(error)
    occurrence = uuid4().urn
    _log.error("unexpected_error", instance=occurrence, exc_info=error)
    return problem(INTERNAL, "This is a bug in the server.", members={"instance": occurrence})


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
    _log.error("store_full", reason=str(error))
    return problem(STORE_FULL, STORE_FULL.advice, headers=[(b"retry-after", b"30")])


def _store_unavailable(error: StoreError) -> Reply:
    # The message contains the server's address, so it goes to the log only.
    _log.error("store_unavailable", reason=str(error))
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
    (StoreError, _store_unavailable),
)
"""The reply to each class of errors. The first class that fits counts: subclasses stand before their bases."""
