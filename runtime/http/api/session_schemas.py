"""The shapes of sessions and messages, in and out."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from breadcrumbs.runtime.breadcrumb.breadcrumb import Tag, Title
from breadcrumbs.runtime.breadcrumb.session_rule import MAX_TAG_LENGTH, MAX_TAGS, SESSION, USER
from breadcrumbs.runtime.http.api.schemas import Count, Id, Time, VersionNumber

_closed = with_config(extra="forbid")


class SessionCreate(BaseModel):
    """A new session. All of it may be left out."""

    model_config = ConfigDict(extra="forbid")

    id: Annotated[str, Field(min_length=1, max_length=MAX_TAG_LENGTH - len(SESSION))] | None = None
    title: Title | None = None
    user_id: Annotated[str, Field(min_length=1, max_length=MAX_TAG_LENGTH - len(USER))] | None = Field(
        None, description="Whose session it is"
    )
    state: dict[str, Any] | None = Field(None, description="The state that it begins with")


class SessionChange(BaseModel):
    """What is there replaces; `state` is merged, and null takes a name out of it."""

    model_config = ConfigDict(extra="forbid")

    title: Title | None = None
    state: dict[str, Any] | None = None
    active: Annotated[bool, Field(strict=True)] | None = Field(
        None, description="false: agents do not answer until it is true again"
    )


class MessageCreate(BaseModel):
    """Something that a user says."""

    model_config = ConfigDict(extra="forbid")

    message: Annotated[str, Field(min_length=1)]
    tags: Annotated[list[Tag], Field(max_length=MAX_TAGS)] = []
    context: dict[str, Any] = {}


class ForkRequest(BaseModel):
    """Where a fork begins, and what it is called."""

    model_config = ConfigDict(extra="forbid")

    message_id: Annotated[str, Field(json_schema_extra={"format": "uuid"})] | None = Field(
        None, description="The last message that is taken over; none: everything"
    )
    id: Annotated[str, Field(min_length=1, max_length=MAX_TAG_LENGTH - len(SESSION))] | None = None
    title: Title | None = None


class RetryRequest(BaseModel):
    """Which turn to run again."""

    model_config = ConfigDict(extra="forbid")

    message_id: Annotated[str, Field(json_schema_extra={"format": "uuid"})] | None = Field(
        None, description="The message that was not answered; none: the newest whose turn failed"
    )


@_closed
class Retried(TypedDict):
    """The turn of this message is being run again."""

    ok: Literal[True]
    message_id: Id
    retried_at: Time
    """When: errors about the message that are older are of an earlier try."""


@_closed
class Counts(TypedDict):
    """How much there is in a session."""

    messages: Count
    answers: Count
    errors: Count
    breadcrumbs: Count


@_closed
class ListedSession(TypedDict):
    """A session in a list, or as it is told to who may write and not read."""

    id: str
    title: NotRequired[str]
    summary: NotRequired[Annotated[str, Field(description="How the first message begins")]]
    user_id: NotRequired[str]
    version: VersionNumber
    created_at: Time
    last_active_at: Time
    returning: Annotated[bool, Field(description="Somebody was answered here before")]
    active: Annotated[bool, Field(description="false: paused, agents do not answer")]
    counts: Counts


@_closed
class Session(ListedSession):
    """A session, with its state."""

    state: dict[str, Any]


@_closed
class SessionList(TypedDict):
    """A page of sessions."""

    sessions: list[ListedSession]
    has_more: bool
    next_cursor: NotRequired[str]


@_closed
class SessionDeleted(TypedDict):
    """How many breadcrumbs went with the session."""

    ok: Literal[True]
    deleted: Count


@_closed
class MessageView(TypedDict):
    """Something that was said in a session. Words and context are missing where they are secret."""

    id: Id
    role: Literal["user", "assistant", "error", "tool"]
    text: NotRequired[str]
    schema_name: str
    created_at: Time
    updated_at: Time
    version: VersionNumber
    tags: list[str]
    trigger_id: NotRequired[str]
    agent_id: NotRequired[str]
    tool: NotRequired[dict[str, Any]]
    context: NotRequired[dict[str, Any]]


@_closed
class MessageList(TypedDict):
    """A page of messages, the oldest first."""

    messages: list[MessageView]
    has_more: Annotated[bool, Field(description="In the direction asked for")]
    before: NotRequired[Annotated[str, Field(description="Where older ones begin")]]
    after: NotRequired[Annotated[str, Field(description="Where newer ones begin, also those still to come")]]


@_closed
class MessageOutcome(TypedDict):
    """A message, and what came of it so far: an answer, an error or nothing."""

    message: MessageView
    answer: NotRequired[MessageView]
    error: NotRequired[MessageView]


@_closed
class MessagePosted(TypedDict):
    """A message, and the version that it gave to its session."""

    message: MessageView
    session_version: NotRequired[
        Annotated[VersionNumber, Field(description="Missing where it was posted before, and deleted since")]
    ]


@_closed
class MessageAnswered(MessagePosted):
    """The same, with what came of it: an answer or an error."""

    answer: NotRequired[MessageView]
    error: NotRequired[MessageView]
