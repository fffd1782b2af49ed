"""Types of request and reply bodies, for the OpenAPI document and the type checker.

An optional key is `NotRequired`: it is absent, never null. The docstrings appear in the OpenAPI document.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from breadcrumbs.runtime.breadcrumb.breadcrumb import Sensitivity, Title, Visibility
from breadcrumbs.runtime.breadcrumb.ttl import TtlType
from breadcrumbs.runtime.settings.settings import Role

_closed = with_config(extra="forbid")  # other keys are not allowed

Id = Annotated[str, Field(json_schema_extra={"format": "uuid"})]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
VersionNumber = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]


@_closed
class Created(TypedDict):
    """Result of creating a breadcrumb."""

    id: Id
    version: VersionNumber
    created_at: Time
    updated_at: Time
    session_id: NotRequired[str]


@_closed
class Updated(TypedDict):
    """Result of updating a breadcrumb: its new version."""

    ok: Literal[True]
    id: Id
    version: VersionNumber
    updated_at: Time


@_closed
class Done(TypedDict):
    """The operation succeeded."""

    ok: Literal[True]


@_closed
class ModelView(TypedDict):
    """A breadcrumb as a model sees it, with `llm_hints` applied to its context."""

    id: Id
    title: str
    description: NotRequired[str]
    semantic_version: NotRequired[str]
    schema_name: NotRequired[str]
    tags: list[str]
    context: dict[str, Any]
    version: VersionNumber
    created_at: Time
    updated_at: Time


@_closed
class FullView(TypedDict):
    """A breadcrumb with all of its fields."""

    id: Id
    owner_id: Id
    version: VersionNumber
    created_at: Time
    updated_at: Time
    created_by: NotRequired[Id]
    updated_by: NotRequired[Id]
    title: str
    description: NotRequired[str]
    semantic_version: NotRequired[str]
    schema_name: NotRequired[str]
    tags: list[str]
    context: dict[str, Any]
    visibility: Visibility
    sensitivity: Sensitivity
    llm_hints: NotRequired[dict[str, Any]]
    ttl: NotRequired[Time]
    ttl_type: NotRequired[TtlType]
    ttl_config: NotRequired[dict[str, Any]]
    ttl_source: NotRequired[Literal["explicit", "schema-default"]]
    expires_at: NotRequired[Time]
    checksum: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    size_bytes: Count


@_closed
class HistoryItem(TypedDict):
    """One version of a breadcrumb."""

    version: VersionNumber
    title: str
    schema_name: NotRequired[str]
    tags: list[str]
    context: NotRequired[dict[str, Any]]
    updated_at: Time
    updated_by: NotRequired[Id]


@_closed
class ListItem(TypedDict):
    """A breadcrumb in a list. `context` is included on request."""

    id: Id
    title: str
    schema_name: NotRequired[str]
    tags: list[str]
    version: VersionNumber
    created_at: Time
    updated_at: Time
    context: NotRequired[dict[str, Any]]


class TokenRequest(BaseModel):
    """The owner, agent, roles and lifetime of a new token."""

    model_config = ConfigDict(extra="forbid")

    owner_id: Annotated[str, Field(json_schema_extra={"format": "uuid"})] | None = None
    agent_id: Annotated[str, Field(json_schema_extra={"format": "uuid"})] | None = None
    roles: Annotated[list[Role], Field(min_length=1, max_length=16)] | None = None
    ttl_sec: Annotated[int, Field(ge=1, le=30 * 86_400, strict=True)] | None = None
    session_id: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Limits the token to this session"
    )
    user_id: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Limits the token to breadcrumbs with the tag `user:<user_id>`"
    )


@_closed
class IssuedToken(TypedDict):
    """A token and its claims."""

    token: str
    owner_id: Id
    agent_id: Id
    roles: list[Role]
    exp: Annotated[int, Field(description="Seconds since 1970")]
    session_id: NotRequired[str]
    user_id: NotRequired[str]


@_closed
class SavedSelector(TypedDict):
    """A saved selector of an agent."""

    id: Id
    owner_id: Id
    agent_id: Id
    selector: dict[str, Any]


@_closed
class Agent(TypedDict):
    """An agent of the tenant."""

    id: Id
    roles: list[Role]
    created_at: Time


class AgentChange(BaseModel):
    """The roles of an agent."""

    model_config = ConfigDict(extra="forbid")

    roles: Annotated[list[Role], Field(max_length=16)]


@_closed
class Tenant(TypedDict):
    """A tenant."""

    id: Id
    name: str
    created_at: Time


class TenantChange(BaseModel):
    """The name of a tenant."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[Title, Field(min_length=1)]


@_closed
class TenantDeleted(TypedDict):
    """Result of deleting a tenant: the number of deleted breadcrumbs."""

    ok: Literal[True]
    deleted: Count


@_closed
class Swept(TypedDict):
    """Result of a hygiene run."""

    ok: bool
    purged: Count
    trimmed: Count
    duration_ms: Annotated[float, Field(ge=0)]


@_closed
class Health(TypedDict):
    """The status and version of the server process."""

    status: Literal["ok"]
    version: str


@_closed
class ProblemError(TypedDict):
    """One invalid field, and how to correct it."""

    where: str
    message: str
    pointer: NotRequired[
        Annotated[str, Field(description="JSON pointer (RFC 6901) of the field, for errors of a definition")]
    ]
    line: NotRequired[Annotated[int, Field(ge=1, description="Line in a text, starting at 1")]]
    column: NotRequired[Annotated[int, Field(ge=1, description="Column in characters, starting at 1")]]


@_closed
class Problem(TypedDict):
    """An RFC 9457 problem document: the error and how to correct it."""

    type: Annotated[str, Field(json_schema_extra={"format": "uri-reference"})]
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    instance: NotRequired[Annotated[str, Field(json_schema_extra={"format": "uri-reference"})]]
    errors: NotRequired[list[ProblemError]]
    current_version: NotRequired[Count]
    retry_after: NotRequired[Annotated[int, Field(ge=1, description="Seconds")]]
    limit: NotRequired[Count]


@_closed
class DeadLetterView(TypedDict):
    """An event that failed every attempt of a worker."""

    id: Id
    kind: str
    breadcrumb_id: Id
    version: VersionNumber
    session_id: NotRequired[str]
    attempts: int
    last_error: str
    created_at: Time


@_closed
class Requeued(TypedDict):
    """The event of the dead letter is queued again."""

    requeued: Literal[True]
