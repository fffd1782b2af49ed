"""Replies of the server as values and errors, and the rules for retries. No I/O."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, urlsplit

import orjson

from breadcrumbs.client.errors import (
    ProblemError,
    ServerUnreachable,
    StoreFull,
    StoreReplaced,
    VersionMismatch,
    problem_from_document,
)
from breadcrumbs.client.requests import Request
from breadcrumbs.client.values import (
    Breadcrumb,
    Retried,
    SessionInfo,
    Token,
    Version,
    Written,
    breadcrumb_of,
    session_info_of,
    version_of,
)

_MAX_BACKOFF_SECONDS: Final = 5.0
_MAX_RETRY_AFTER_SECONDS: Final = 10.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of the server to `Client.request`."""

    status: int
    headers: Mapping[str, str]
    """Names are in lower case."""
    content: bytes

    def json(self) -> Any:
        """Return the decoded content. Raise `ValueError` if it is not JSON."""
        return orjson.loads(self.content)


class ConnectionLost(Exception):
    """The connection failed or broke."""

    def __init__(self, reason: str, *, refused: bool = False, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused
        """Whether the connection could not be opened."""
        self.timed_out = timed_out


class ReplyReader:
    """Converts the replies of one server to values and errors."""

    def __init__(self, url: str) -> None:
        self._url = url

    def error_in(self, reply: Reply, request: Request) -> ProblemError | None:
        """Return the error in a reply, or None if the request succeeded."""
        if 200 <= reply.status < 300:
            # A server of another program can reply to every request with a web page.
            is_json = "json" in reply.headers.get("content-type", "json")
            return None if is_json or not request.expects_json else self._unexpected_reply_error(reply)
        try:
            document = reply.json()
            if isinstance(document, dict) and "detail" in document:
                return _problem_for(request, {"status": reply.status, **document})
        except (TypeError, ValueError, AttributeError):
            pass
        return self._unexpected_reply_error(
            reply, f"replied {reply.status} to {request.method} {request.path}"
        )

    def read(self, reply: Reply, convert: Callable[[Any], T]) -> T:
        """Return the JSON of a reply, converted by `convert`."""
        try:
            return convert(reply.json())
        except (LookupError, TypeError, ValueError, AttributeError):
            raise self._unexpected_reply_error(reply) from None

    def read_written(self, reply: Reply) -> Written:
        replayed = reply.headers.get("idempotency-replayed") == "true"
        return self.read(reply, lambda document: _parse_written(document, replayed))

    def unreachable(self, lost: ConnectionLost) -> ServerUnreachable:
        """Return the error to raise when no retries are left."""
        if lost.refused:
            return ServerUnreachable(f"cannot connect to {self._url}. Start the server with: crumb up")
        if lost.timed_out:
            return ServerUnreachable(f"{self._url} did not answer in time")
        return ServerUnreachable(f"the connection to {self._url} failed: {lost}")

    def _unexpected_reply_error(
        self, reply: Reply, problem: str = "sent an unexpected reply"
    ) -> ProblemError:
        return ProblemError(
            {"status": reply.status, "detail": f"{self._url} {problem}: is this a Breadcrumbs server?"}
        )


# Retries


def is_retryable(error: ProblemError) -> bool:
    """Return whether the same request can succeed later."""
    return error.status in (429, 503) and not isinstance(error, (StoreFull, StoreReplaced))


def backoff(attempt: int) -> float:
    """Return the seconds to wait before a retry. Jitter spreads the retries of many clients."""
    jitter = 0.75 + random.random() / 2  # noqa: S311 - not used for security
    return min(_MAX_BACKOFF_SECONDS, 0.2 * float(2**attempt)) * jitter


def retry_after(reply: Reply) -> float | None:
    """Return the seconds in the `Retry-After` header, at most 10, or None."""
    text = reply.headers.get("retry-after", "")
    return min(_MAX_RETRY_AFTER_SECONDS, float(text)) if text.isascii() and text.isdigit() else None


# Values


def parse_breadcrumbs(documents: Any) -> list[Breadcrumb]:
    return [breadcrumb_of(document) for document in documents]


def parse_versions(documents: Any) -> list[Version]:
    return [version_of(document) for document in documents]


def parse_session_page(page: Any) -> tuple[list[SessionInfo], str | None]:
    return [session_info_of(document) for document in page["sessions"]], page.get("next_cursor")


def parse_token(issued: Any) -> Token:
    return Token(
        token=issued["token"],
        owner_id=issued["owner_id"],
        agent_id=issued["agent_id"],
        roles=tuple(issued["roles"]),
        expires_at=datetime.fromtimestamp(issued["exp"], UTC),
        session_id=issued.get("session_id"),
        user_id=issued.get("user_id"),
    )


def parse_retried(document: Any) -> Retried:
    return Retried(document["message_id"], datetime.fromisoformat(document["retried_at"]))


def parse_deleted(document: Any) -> int:
    return int(document["deleted"])


def next_cursor(reply: Reply) -> str | None:
    """Return the cursor in the `Link` header, or None on the last page."""
    link = reply.headers.get("link", "")
    if 'rel="next"' not in link:
        return None
    target = link.partition("<")[2].partition(">")[0]
    return parse_qs(urlsplit(target).query)["cursor"][0]


def _parse_written(document: Any, replayed: bool) -> Written:
    updated_at = datetime.fromisoformat(document["updated_at"])
    return Written(id=document["id"], version=document["version"], updated_at=updated_at, replayed=replayed)


def _problem_for(request: Request, document: Mapping[str, Any]) -> ProblemError:
    error = problem_from_document(document)
    if isinstance(error, VersionMismatch):
        expected = request.headers.get("if-match", "").strip('"')
        error.expected = int(expected) if expected.isascii() and expected.isdigit() else 0
    return error
