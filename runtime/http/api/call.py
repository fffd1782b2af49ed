"""One HTTP request to an operation: principal, path, query, headers and body."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl
from uuid import UUID

import orjson
from starlette.datastructures import QueryParams
from starlette.types import Message, Receive, Scope

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.access.rate_limits import RateLimiter, RemainingBudget
from breadcrumbs.runtime.breadcrumb.ids import parse_id
from breadcrumbs.runtime.breadcrumb.json_input import parse_json
from breadcrumbs.runtime.errors import Complaint, InvalidInput
from breadcrumbs.runtime.http.api.problems import (
    MALFORMED,
    TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE,
    ClientDisconnected,
    HttpProblem,
)
from breadcrumbs.runtime.http.api.replies import Header
from breadcrumbs.runtime.sessions.sessions import Sessions

if TYPE_CHECKING:
    from breadcrumbs.runtime.http.services import Services

from breadcrumbs.runtime.http.api.operations import Operation

MAX_QUERY_FIELDS: Final = 256

_RECHECK_SECONDS: Final = 0.05  # the session token is checked again if the body takes longer than this


class HttpCall:
    """One HTTP request to an operation, with its principal and the services."""

    __slots__ = (
        "_checked_at",
        "_query",
        "_receive",
        "headers",
        "operation",
        "principal",
        "scope",
        "services",
    )

    principal: Principal
    """The principal of the request. Set only if the operation requires a token."""

    def __init__(self, operation: Operation, services: Services, scope: Scope, receive: Receive) -> None:
        self.operation = operation
        self.services = services
        self.scope = scope
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self._receive = receive
        self._query: QueryParams | None = None
        self._checked_at = 0.0

    def admit(self) -> None:
        """Authenticate the request and check its permission to call the operation."""
        if self.operation.rule.access != "token":
            return
        self.principal = self.services.auth.identify(self.headers)
        policy.check_operation(self.principal, self.operation.id)

    async def check_session_token(self, *, missing_is_fine: bool = False) -> None:
        """Refuse a token whose session was deleted after the token was issued.

        `missing_is_fine` accepts the token if the session does not exist, after a write.
        """
        await Sessions(self.services.store).check_token(self.principal, missing_is_fine=missing_is_fine)
        self._checked_at = time.monotonic()

    async def spend(self, limiter: RateLimiter) -> Sequence[Header]:
        """Charge the request to its budget. Returns the remaining budget as headers."""
        budget = self.operation.budget
        return () if budget is None else budget_headers(await limiter.spend(self.principal, budget))

    def path_id(self) -> UUID:
        return parse_id(self.scope["path_params"]["id"])

    def message_id(self) -> UUID:
        return parse_id(self.scope["path_params"]["message_id"], what="message_id")

    def path_name(self) -> str:
        """Return the id in the path as a name. Session ids are names, not UUIDs."""
        name: str = self.scope["path_params"]["id"]
        return name

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def query(self) -> QueryParams:
        """Return the query parameters. Raises `InvalidInput` for an unknown name.

        A misspelt filter would otherwise be ignored and widen the result. The query of every request is
        therefore checked before its handler runs.
        """
        if self._query is None:
            self._query = self._read_query()
        return self._query

    def _read_query(self) -> QueryParams:
        if self.operation.ignores_query:
            return QueryParams()
        raw: bytes = self.scope["query_string"]
        try:
            pairs = parse_qsl(
                raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS
            )
        except UnicodeDecodeError:
            raise HttpProblem(MALFORMED, "the query is not percent-encoded UTF-8") from None
        except ValueError:
            raise HttpProblem(MALFORMED, f"the query has more than {MAX_QUERY_FIELDS} fields") from None
        query = QueryParams(pairs)
        known = self.operation.query_names
        if unknown := [name for name in query if name not in known]:
            hint = f"known parameters: {', '.join(known)}" if known else "this operation has no parameters"
            raise InvalidInput(
                f"unknown query parameters {', '.join(repr(name[:64]) for name in unknown[:5])}; {hint}",
                complaints=[Complaint(name[:64], "unknown parameter") for name in unknown[:20]],
            )
        for parameter in self.operation.parameters:
            if not parameter.repeatable and len(query.getlist(parameter.name)) > 1:
                raise InvalidInput(f"{parameter.name} must not be repeated", where=parameter.name)
        return query

    def media_type(self) -> str:
        """Return the media type of the body. Raises a 415 problem if the operation does not allow it.

        JSON types are the only allowed ones. Web pages cannot send them without a CORS preflight.
        """
        body = self.operation.body
        allowed = body.media_types if body is not None else ()
        given = self.headers.get(b"content-type", b"").decode("latin-1")
        if given in allowed:
            return given
        media_type, *parameters = (part.strip() for part in given.lower().split(";"))
        if media_type not in allowed or not set(parameters) <= {"charset=utf-8", 'charset="utf-8"', ""}:
            raise HttpProblem(
                UNSUPPORTED_MEDIA_TYPE,
                f"send the body as {' or '.join(allowed)} in UTF-8",
                headers=[(b"accept", ", ".join(allowed).encode())],
            )
        return media_type

    async def until_disconnected(self) -> None:
        """Wait until the client disconnects. Call this only after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def body(self) -> bytes:
        """Return the whole body. Raises a 413 problem as soon as its declared or received length exceeds the limit."""
        limit = self.services.settings.max_body_bytes
        declared = self.headers.get(b"content-length", b"")
        if declared.isdigit() and (len(declared) > 15 or int(declared) > limit):
            raise _too_large(limit)
        message = await self._receive()
        body: bytes = message.get("body", b"")
        if message["type"] != "http.request" or message.get("more_body", False) or len(body) > limit:
            body = await self._read_rest(message, limit)
        # The client decides how long its body takes. Its session can be replaced by a new one meanwhile.
        if self._checked_at and time.monotonic() - self._checked_at > _RECHECK_SECONDS:
            await self.check_session_token()
        return body

    async def _read_rest(self, message: Message, limit: int) -> bytes:
        """Read a body that arrives in several messages. Most bodies arrive in one."""
        pieces: list[bytes] = [message.get("body", b"")]
        size = len(pieces[0])
        while message["type"] != "http.disconnect":
            if size > limit:
                raise _too_large(limit)
            if not message.get("more_body", False):
                return b"".join(pieces)
            message = await self._receive()
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
        raise ClientDisconnected

    async def json(self) -> Any:
        """Return the parsed JSON body."""
        self.media_type()
        return read_json(await self.body())

    async def optional_json(self) -> Any:
        """Return the parsed JSON body, or an empty object if the request has no body."""
        if b"content-type" in self.headers:
            self.media_type()
        if self.headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in self.headers:
            return {}
        return await self.json()


def read_json(raw: bytes) -> Any:
    """Parse a body. Raises a 400 problem if it is not JSON, and `InvalidInput` if its JSON is not accepted."""
    try:
        return parse_json(raw)
    except InvalidInput as error:
        # Invalid JSON means a broken client (400). Valid JSON above a limit on levels or integers is input to
        # correct (422).
        if isinstance(error.__context__, orjson.JSONDecodeError):
            raise HttpProblem(MALFORMED, error.message) from None
        raise


def budget_headers(left: RemainingBudget | None) -> list[Header]:
    """Return the RateLimit headers, or an empty list if requests are not limited."""
    if left is None:
        return []
    return [
        (b"ratelimit-limit", b"%d" % left.limit),
        (b"ratelimit-remaining", b"%d" % left.remaining),
        (b"ratelimit-reset", b"%d" % left.reset),
    ]


def _too_large(limit: int) -> HttpProblem:
    return HttpProblem(TOO_LARGE, f"the body is larger than {limit} bytes")
