"""An operation of the API, declared once: the routes, the checks and the OpenAPI document come from it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import parse_qsl
from uuid import UUID

import orjson
from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.access.rate_limits import Left, RateLimiter
from breadcrumbs.runtime.breadcrumb.ids import parse_id
from breadcrumbs.runtime.breadcrumb.json_input import parse_json
from breadcrumbs.runtime.errors import Complaint, InvalidInput
from breadcrumbs.runtime.http.api.problems import (
    FORBIDDEN,
    FOREIGN_ORIGIN,
    HEAD_TOO_LARGE,
    INVALID_INPUT,
    MALFORMED,
    METHOD_NOT_ALLOWED,
    MISDIRECTED,
    NOT_FOUND,
    RATE_LIMITED,
    REQUEST_TIMEOUT,
    STORE_FULL,
    STORE_UNAVAILABLE,
    TOO_LARGE,
    TOO_MANY_CONNECTIONS,
    UNAUTHENTICATED,
    UNSUPPORTED_MEDIA_TYPE,
    URL_TOO_LONG,
    ClientDisconnected,
    HttpProblem,
    ProblemType,
    problem,
    problem_for,
)
from breadcrumbs.runtime.http.api.replies import Header, Reply
from breadcrumbs.runtime.http.connections import mark_authenticated
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.settings.rates import Class

if TYPE_CHECKING:
    from breadcrumbs.runtime.http.services import Services

MAX_QUERY_FIELDS: Final = 256

_NOTHING: Final = nullcontext()
_CHECK_HOLDS_SECONDS: Final = 0.05  # a body that takes longer than this has its token checked again

_CONNECTION_PROBLEMS: Final = (REQUEST_TIMEOUT, URL_TOO_LONG, HEAD_TOO_LARGE, TOO_MANY_CONNECTIONS)
"""The server answers with these before a request reaches its operation."""

SLASH: Final = "\x1f"
"""Stands for a slash inside a name while a path is matched. No name holds it."""

JSON_TYPE: Final = "application/json"
MERGE_PATCH_TYPE: Final = "application/merge-patch+json"

UUID_SCHEMA: Final = {"type": "string", "format": "uuid"}

Handler: TypeAlias = "Callable[[Call], Awaitable[Reply]]"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One thing that a request may carry outside of its body."""

    name: str
    place: Literal["path", "query", "header"]
    description: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    repeatable: bool = False
    example: Any = None


ID: Final = Parameter("id", "path", "A UUID.", UUID_SCHEMA)


@dataclass(frozen=True, slots=True)
class Body:
    """What a request carries in its body."""

    model: Any
    example: Mapping[str, Any]
    media_types: tuple[str, ...] = (JSON_TYPE,)
    required: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """One way in which an operation succeeds."""

    status: int
    description: str
    schema: Any = None
    """A type, or None for an answer without a body or with text."""
    media_type: str = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)
    """Name → what it says."""
    sometimes: frozenset[str] = frozenset()
    """The headers that are not always there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A method on a path."""

    id: str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    group: str
    summary: str
    description: str = ""
    handle: Handler | None
    """None: an ASGI application of its own answers (the event stream)."""
    uses_store: Literal["no", "reads", "writes"] = "reads"
    spends: Class | None = None
    """The budget that it is paid from; None: it follows from the rest."""
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    answers: tuple[Answer, ...]
    may_fail: tuple[ProblemType, ...] = ()
    """The problems that do not follow from the rest of the declaration."""
    rule: policy.Rule = field(init=False)
    """The conditions for calling it. The policy has one for every operation."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", policy.RULES[self.id])

    @property
    def query_names(self) -> list[str]:
        return [parameter.name for parameter in self.parameters if parameter.place == "query"]

    @property
    def budget(self) -> Class | None:
        """What is open to everybody costs nothing: a health check must never be refused."""
        if self.rule.access != "token":
            return None
        reads = self.rule.roles == ("subscriber",) or self.method == "GET"
        return self.spends or ("reading" if reads else "managing")

    @property
    def problems(self) -> list[ProblemType]:
        """Every problem that this operation can answer with."""
        # The query may be malformed, or hold what does not exist, everywhere.
        found = {FOREIGN_ORIGIN, MISDIRECTED, MALFORMED, INVALID_INPUT, *_CONNECTION_PROBLEMS, *self.may_fail}
        if self.rule.access != "open":
            found |= {UNAUTHENTICATED, FORBIDDEN}
        if self.body is not None:
            found |= {TOO_LARGE, UNSUPPORTED_MEDIA_TYPE}
        if "{id}" in self.path:
            found.add(NOT_FOUND)
        if self.budget is not None:
            found.add(RATE_LIMITED)
        if self.uses_store != "no":
            found.add(STORE_UNAVAILABLE)
        if self.uses_store == "writes":
            found.add(STORE_FULL)
        return sorted(found, key=lambda kind: (kind.status, kind.name))


class Call:
    """One request on its way through an operation."""

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
    """Who is asking. An open operation has none."""

    def __init__(self, operation: Operation, services: Services, scope: Scope, receive: Receive) -> None:
        self.operation = operation
        self.services = services
        self.scope = scope
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self._receive = receive
        self._query: QueryParams | None = None
        self._checked_at = 0.0

    def admit(self) -> None:
        """Find out who is asking and whether they may, before the handler runs."""
        if self.operation.rule.access != "token":
            return
        self.principal = self.services.auth.identify(self.headers)
        policy.check_operation(self.principal, self.operation.id)

    async def check_session_token(self, *, missing_is_fine: bool = False) -> None:
        """Refuse a token whose session was deleted after the token was issued."""
        await Sessions(self.services.store).check_token(self.principal, missing_is_fine=missing_is_fine)
        self._checked_at = time.monotonic()

    async def spend(self, limiter: RateLimiter) -> Sequence[Header]:
        """Pay for the request. What is left of its budget, as headers."""
        budget = self.operation.budget
        return () if budget is None else budget_headers(await limiter.spend(self.principal, budget))

    def id(self) -> UUID:
        return parse_id(self.scope["path_params"]["id"])

    def message_id(self) -> UUID:
        return parse_id(self.scope["path_params"]["message_id"], what="message_id")

    def name(self) -> str:
        """The id in the path, where it is a name and not a UUID."""
        name: str = self.scope["path_params"]["id"]
        return name

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def query(self) -> QueryParams:
        """The query, all of whose names the operation knows: a misspelt filter must not widen a result.

        A parameter works or does not exist, so whatever has a query is looked at before its handler runs.
        """
        if self._query is None:
            self._query = self._read_query()
        return self._query

    def _read_query(self) -> QueryParams:
        raw: bytes = self.scope["query_string"]
        try:
            pairs = parse_qsl(
                raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS
            )
        except UnicodeDecodeError:
            raise HttpProblem(MALFORMED, "the query is not percent-encoded UTF-8") from None
        except ValueError:
            raise HttpProblem(MALFORMED, f"the query has more than {MAX_QUERY_FIELDS} fields") from None
        found = QueryParams(pairs)
        known = self.operation.query_names
        if unknown := [name for name in found if name not in known]:
            there_is = f"Known are {', '.join(known)}" if known else "There are no parameters here"
            raise InvalidInput(
                f"unknown in the query: {', '.join(repr(name[:64]) for name in unknown[:5])}. {there_is}",
                complaints=[Complaint(name[:64], "there is no such parameter") for name in unknown[:20]],
            )
        for parameter in self.operation.parameters:
            if not parameter.repeatable and len(found.getlist(parameter.name)) > 1:
                raise InvalidInput(f"{parameter.name} may be given once", where=parameter.name)
        return found

    def media_type(self) -> str:
        """The type of the body. It must be one that pages cannot send without asking first (CORS)."""
        body = self.operation.body
        allowed = body.media_types if body is not None else ()
        given = self.headers.get(b"content-type", b"").decode("latin-1").lower()
        if given in allowed:
            return given
        media_type, *parameters = (part.strip() for part in given.split(";"))
        if media_type not in allowed or not set(parameters) <= {"charset=utf-8", 'charset="utf-8"', ""}:
            raise HttpProblem(
                UNSUPPORTED_MEDIA_TYPE,
                f"send the body as {' or '.join(allowed)} in UTF-8",
                headers=[(b"accept", ", ".join(allowed).encode())],
            )
        return media_type

    async def until_disconnected(self) -> None:
        """Wait for the client to go away. Only once the body has been read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def body(self) -> bytes:
        """Return the whole body, or raise 413 as soon as it is known to be too large."""
        body = await self._read_body()
        # A client decides how long its body takes. The session may have been replaced meanwhile.
        if self._checked_at and time.monotonic() - self._checked_at > _CHECK_HOLDS_SECONDS:
            await self.check_session_token()
        return body

    async def _read_body(self) -> bytes:
        limit = self.services.settings.max_body_bytes
        declared = self.headers.get(b"content-length", b"")
        if declared.isdigit() and (len(declared) > 15 or int(declared) > limit):
            raise _too_large(limit)
        message = await self._receive()
        first: bytes = message.get("body", b"")
        if message["type"] == "http.request" and not message.get("more_body", False) and len(first) <= limit:
            return first  # almost every body comes in one piece
        pieces = [first]
        size = len(first)
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
        """The body's JSON."""
        self.media_type()
        return read_json(await self.body())

    async def optional_json(self) -> Any:
        """The body's JSON; no body is an empty object. A body of another type is refused before it is looked at."""
        if b"content-type" in self.headers:
            return await self.json()
        if await self.body():
            self.media_type()
        return {}


def read_json(raw: bytes) -> Any:
    try:
        return parse_json(raw)
    except InvalidInput as error:
        # What is no JSON at all is a broken client (400); JSON that we do not take is input to correct (422).
        if isinstance(error.__context__, orjson.JSONDecodeError):
            raise HttpProblem(MALFORMED, error.message) from None
        raise


def budget_headers(left: Left | None) -> list[Header]:
    if left is None:
        return []
    return [
        (b"ratelimit-limit", b"%d" % left.limit),
        (b"ratelimit-remaining", b"%d" % left.remaining),
        (b"ratelimit-reset", b"%d" % left.reset),
    ]


def _too_large(limit: int) -> HttpProblem:
    return HttpProblem(TOO_LARGE, f"a body has at most {limit} bytes")


class Resource:
    """One path with its methods, as an ASGI application."""

    def __init__(
        self, path: str, operations: Sequence[Operation], services: Services, stream: ASGIApp
    ) -> None:
        self.path = path
        self._services = services
        self._stream = stream
        self._by_method: dict[str, Operation] = {operation.method: operation for operation in operations}
        if "GET" in self._by_method:
            self._by_method["HEAD"] = self._by_method["GET"]
        self._allow = ", ".join(sorted(self._by_method)).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if SLASH in scope["path"]:
            given = scope["path_params"].items()
            scope["path_params"] = {name: value.replace(SLASH, "/") for name, value in given}
        operation = self._by_method.get(scope["method"])
        if operation is not None and operation.handle is None:
            await self._serve_stream(scope, receive, send)
            return
        unsent: ExitStack | nullcontext[None] = _NOTHING
        try:
            if operation is None or operation.handle is None:
                reply = self._not_allowed(scope["method"])
            else:
                call = Call(operation, self._services, scope, receive)
                call.admit()
                is_token = operation.rule.access == "token"
                if is_token and not self._services.auth.development_mode:
                    mark_authenticated(scope)
                if scope["query_string"]:
                    call.query()
                left = () if self._services.limiter is None else await call.spend(self._services.limiter)
                for_session = is_token and call.principal.session_id is not None
                if for_session and operation.method != "GET":
                    await call.check_session_token()
                reply = await operation.handle(call)
                if for_session:  # again: the reply must show nothing of a session that began meanwhile
                    await call.check_session_token(missing_is_fine=True)
                if is_token and operation.method == "GET":
                    unsent = ExitStack()
                    unsent.enter_context(self._services.unsent.counted(call.principal, reply.size))
                reply.headers += left
                if operation.rule.access != "open" and reply.status < 400:
                    mark_authenticated(scope)  # in the development mode no token is needed: success counts
        except ClientDisconnected:
            return
        except Exception as error:
            reply = problem_for(error)
        with unsent:
            await reply.send(send, without_body=scope["method"] == "HEAD")

    def _not_allowed(self, method: str) -> Reply:
        allow = [(b"allow", self._allow)]
        if method == "OPTIONS":
            return Reply(204, headers=allow)
        return problem(METHOD_NOT_ALLOWED, f"this path knows {self._allow.decode()}", headers=allow)

    async def _serve_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Any) -> None:
            nonlocal started
            if not started and message["status"] < 400:
                mark_authenticated(scope)
            started = True
            await send(message)

        try:
            await self._stream(scope, receive, watched)
        except Exception as error:
            if started:
                raise
            await problem_for(error).send(send)
