"""Declarations of the API's operations.

Routing, access checks, query validation and the OpenAPI document are derived from them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Required, TypeAlias, TypedDict, Unpack

from breadcrumbs.runtime.access import policy
from breadcrumbs.runtime.http.api.problems import (
    FORBIDDEN,
    FOREIGN_ORIGIN,
    HEAD_TOO_LARGE,
    INVALID_INPUT,
    MALFORMED,
    MISDIRECTED,
    NOT_FOUND,
    RATE_LIMITED,
    REQUEST_TIMEOUT,
    STORE_FULL,
    STORE_REPLACED,
    STORE_UNAVAILABLE,
    TOO_LARGE,
    TOO_MANY_CONNECTIONS,
    UNAUTHENTICATED,
    UNSUPPORTED_MEDIA_TYPE,
    URL_TOO_LONG,
    ProblemType,
)
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.settings.rates import RouteClass

if TYPE_CHECKING:
    from breadcrumbs.runtime.http.api.call import HttpCall

_CONNECTION_PROBLEMS: Final = (REQUEST_TIMEOUT, URL_TOO_LONG, HEAD_TOO_LARGE, TOO_MANY_CONNECTIONS)
"""Problems that the server returns before a request reaches its operation."""

JSON_TYPE: Final = "application/json"
MERGE_PATCH_TYPE: Final = "application/merge-patch+json"

UUID_SCHEMA: Final = {"type": "string", "format": "uuid"}

OperationHandler: TypeAlias = "Callable[[HttpCall], Awaitable[Reply]]"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A path, query or header parameter."""

    name: str
    location: Literal["path", "query", "header"]
    description: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    repeatable: bool = False
    example: Any = None


ID: Final = Parameter("id", "path", "A UUID.", UUID_SCHEMA)


@dataclass(frozen=True, slots=True)
class Body:
    """The request body of an operation: its pydantic model, an example and its media types."""

    model: Any
    example: Mapping[str, Any]
    media_types: tuple[str, ...] = (JSON_TYPE,)
    required: bool = True


@dataclass(frozen=True, slots=True)
class SuccessReply:
    """Documentation of a successful reply of an operation."""

    status: int
    description: str
    schema: Any = None
    """The type of the JSON body, or None if the reply has no body or is text."""
    media_type: str = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)
    """Descriptions by header name."""
    optional_headers: frozenset[str] = frozenset()
    """Headers that some replies do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A method on a path, with its handler and documentation."""

    id: str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    group: str
    summary: str
    description: str = ""
    handle: OperationHandler | None
    """None for the event stream, which is an ASGI application of its own."""
    uses_store: Literal["no", "reads", "writes"] = "reads"
    """Decides which problems of the store are documented."""
    spends: RouteClass | None = None
    """The rate limit budget that a call is charged to. None: derived, see `budget`."""
    parameters: tuple[Parameter, ...] = ()
    ignores_query: bool = False
    """True for a page. Other sites add parameters to links, and the page must open anyway."""
    body: Body | None = None
    successes: tuple[SuccessReply, ...]
    may_fail: tuple[ProblemType, ...] = ()
    """Problems that cannot be derived from the rest of the declaration."""
    rule: policy.Rule = field(init=False)
    """The access rule of the operation, from `policy.RULES`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", policy.RULES[self.id])

    @property
    def query_names(self) -> list[str]:
        return [parameter.name for parameter in self.parameters if parameter.location == "query"]

    @property
    def budget(self) -> RouteClass | None:
        """The budget of a call, or None if it is not limited.

        Only operations that require a token are limited, because a health check must never be refused.
        """
        if self.rule.access != "token":
            return None
        reads = self.rule.roles == ("subscriber",) or self.method == "GET"
        return self.spends or ("reading" if reads else "managing")

    @property
    def problems(self) -> list[ProblemType]:
        """All problems that this operation can return, by status and name."""
        # Every operation validates its query.
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
            found |= {STORE_UNAVAILABLE, STORE_REPLACED}
        if self.uses_store == "writes":
            found.add(STORE_FULL)
        return sorted(found, key=lambda kind: (kind.status, kind.name))


class Declaration(TypedDict, total=False):
    """Keyword arguments of `Routes.operation`: the fields of an `Operation` without handler and group."""

    id: Required[str]
    method: Required[Literal["GET", "POST", "PUT", "PATCH", "DELETE"]]
    path: Required[str]
    summary: Required[str]
    description: str
    uses_store: Literal["no", "reads", "writes"]
    spends: RouteClass | None
    parameters: tuple[Parameter, ...]
    ignores_query: bool
    body: Body | None
    successes: Required[tuple[SuccessReply, ...]]
    may_fail: tuple[ProblemType, ...]


class Routes:
    """Collects the operations of one group, in declaration order."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._operations: list[Operation] = []

    def operation(self, **declaration: Unpack[Declaration]) -> Callable[[OperationHandler], OperationHandler]:
        """Declare an operation. The decorated function is its handler."""

        def declare(handle: OperationHandler) -> OperationHandler:
            self._operations.append(Operation(group=self._group, handle=handle, **declaration))
            return handle

        return declare

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations)
