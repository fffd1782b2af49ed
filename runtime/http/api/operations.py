"""Declares the operations of the API. Routing, checks and the OpenAPI document follow from the declarations."""

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
"""The server answers with these before a request reaches its operation."""

JSON_TYPE: Final = "application/json"
MERGE_PATCH_TYPE: Final = "application/merge-patch+json"

UUID_SCHEMA: Final = {"type": "string", "format": "uuid"}

OperationHandler: TypeAlias = "Callable[[HttpCall], Awaitable[Reply]]"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One thing that a request may carry outside of its body."""

    name: str
    location: Literal["path", "query", "header"]
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
class SuccessReply:
    """Describes one reply of an operation that succeeded."""

    status: int
    description: str
    schema: Any = None
    """A type, or None for an answer without a body or with text."""
    media_type: str = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)
    """Name → what it says."""
    optional_headers: frozenset[str] = frozenset()
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
    handle: OperationHandler | None
    """None: an ASGI application of its own answers (the event stream)."""
    uses_store: Literal["no", "reads", "writes"] = "reads"
    spends: RouteClass | None = None
    """The budget that it is paid from; None: it follows from the rest."""
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    successes: tuple[SuccessReply, ...]
    may_fail: tuple[ProblemType, ...] = ()
    """The problems that do not follow from the rest of the declaration."""
    rule: policy.Rule = field(init=False)
    """The conditions for calling it. The policy has one for every operation."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", policy.RULES[self.id])

    @property
    def query_names(self) -> list[str]:
        return [parameter.name for parameter in self.parameters if parameter.location == "query"]

    @property
    def budget(self) -> RouteClass | None:
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


class Declaration(TypedDict, total=False):
    """The fields of an `Operation` that its decorator takes."""

    id: Required[str]
    method: Required[Literal["GET", "POST", "PUT", "PATCH", "DELETE"]]
    path: Required[str]
    summary: Required[str]
    description: str
    uses_store: Literal["no", "reads", "writes"]
    spends: RouteClass | None
    parameters: tuple[Parameter, ...]
    body: Body | None
    successes: Required[tuple[SuccessReply, ...]]
    may_fail: tuple[ProblemType, ...]


class Routes:
    """Collects the operations of one group, in the order of their declaration."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._operations: list[Operation] = []

    def operation(self, **declaration: Unpack[Declaration]) -> Callable[[OperationHandler], OperationHandler]:
        """Declare an operation; the decorated function handles it."""

        def declare(handle: OperationHandler) -> OperationHandler:
            self._operations.append(Operation(group=self._group, handle=handle, **declaration))
            return handle

        return declare

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations)
