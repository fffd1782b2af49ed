"""Types of request and reply bodies of sessions and messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from breadcrumbs.runtime.breadcrumb.breadcrumb import Tag, Title
from breadcrumbs.runtime.breadcrumb.session_rule import MAX_TAG_LENGTH, MAX_TAGS, SESSION, USER
from breadcrumbs.runtime.http.api.schemas import Count, Id, Time, VersionNumber
from breadcrumbs.runtime.store.offered_models import MAX_MODEL_NAME
from breadcrumbs.runtime.store.published_agents import MAX_AGENT_NAME

_closed = with_config(extra="forbid")  # other keys are not allowed


class SessionCreate(BaseModel):
    """A new session. All fields are optional."""

    model_config = ConfigDict(extra="forbid")

    id: Annotated[str, Field(min_length=1, max_length=MAX_TAG_LENGTH - len(SESSION))] | None = None
    title: Title | None = None
    user_id: Annotated[str, Field(min_length=1, max_length=MAX_TAG_LENGTH - len(USER))] | None = Field(
        None, description="The user of the session"
    )
    state: dict[str, Any] | None = Field(None, description="The initial state")


class SessionChange(BaseModel):
    """A change of a session. Given fields are replaced. `state` is merged, and null removes a name from it."""

    model_config = ConfigDict(extra="forbid")

    title: Title | None = None
    state: dict[str, Any] | None = None
    active: Annotated[bool, Field(strict=True)] | None = Field(
        None, description="false pauses the session: agents do not answer until it is set to true"
    )
    model: Annotated[str, Field(min_length=1, max_length=MAX_MODEL_NAME)] | None = Field(
        None,
        description="Model of the session: a `name` of `GET /models`. null: the agents use their own. Requires the "
        "role curator",
    )
    agent: Annotated[str, Field(min_length=1, max_length=MAX_AGENT_NAME)] | None = Field(
        None,
        description="The only agent that answers users' messages in the session: an `agent_id` of "
        "`GET /agents/answering`. null: all agents answer that react to a message. Requires the role curator",
    )


class MessageCreate(BaseModel):
    """A message of a user."""

    model_config = ConfigDict(extra="forbid")

    message: Annotated[str, Field(min_length=1)]
    tags: Annotated[list[Tag], Field(max_length=MAX_TAGS)] = []
    context: dict[str, Any] = Field(
        {},
        description="More data of the message. `attached_images` is a list of at most 8 objects with `media_type` and "
        "`data` (base64)",
    )
    agent: Annotated[str, Field(min_length=1, max_length=MAX_AGENT_NAME)] | None = Field(
        None,
        description="The only agent that answers this message: an `agent_id` of `GET /agents/answering`, or an agent "
        "that reacts to the tags of the message. Stored as `addressed_to` in the context. Default: the agent of the "
        "session, or else all that the setting `answering` selects",
    )


class ForkRequest(BaseModel):
    """The messages to copy, and the id and title of the fork. All fields are optional."""

    model_config = ConfigDict(extra="forbid")

    message_id: Annotated[str, Field(json_schema_extra={"format": "uuid"})] | None = Field(
        None, description="The last message to copy. Default: copy all messages"
    )
    before_id: Annotated[str, Field(json_schema_extra={"format": "uuid"})] | None = Field(
        None, description="Copy only the messages before this one. Not together with message_id"
    )
    id: Annotated[str, Field(min_length=1, max_length=MAX_TAG_LENGTH - len(SESSION))] | None = None
    title: Title | None = None


class RetryRequest(BaseModel):
    """The turn to run again."""

    model_config = ConfigDict(extra="forbid")

    message_id: Annotated[str, Field(json_schema_extra={"format": "uuid"})] | None = Field(
        None, description="The message without an answer. Default: the newest message whose turn failed"
    )


@_closed
class Retried(TypedDict):
    """The turn of this message runs again."""

    ok: Literal[True]
    message_id: Id
    retried_at: Time
    """Time of the retry. Older errors for the message belong to an earlier attempt."""


@_closed
class Counts(TypedDict):
    """The number of breadcrumbs in a session, by kind."""

    messages: Count
    answers: Count
    errors: Count
    breadcrumbs: Count


@_closed
class ListedSession(TypedDict):
    """A session without its state. Lists contain it, and tokens that can write but not read receive it."""

    id: str
    title: NotRequired[str]
    summary: NotRequired[Annotated[str, Field(description="The beginning of the first message")]]
    user_id: NotRequired[str]
    model: NotRequired[Annotated[str, Field(description="The model that a curator chose for the session")]]
    agent: NotRequired[Annotated[str, Field(description="The agent that a curator chose for the session")]]
    version: VersionNumber
    created_at: Time
    last_active_at: Time
    returning: Annotated[bool, Field(description="Whether the session already contains an answer")]
    active: Annotated[bool, Field(description="false if the session is paused: agents do not answer")]
    counts: Counts


@_closed
class Session(ListedSession):
    """A session with its state."""

    state: dict[str, Any]


@_closed
class MessageMatch(TypedDict):
    """A message that a search found."""

    session_id: str
    message_id: Id
    role: Literal["user", "assistant", "error"]
    created_at: Time
    excerpt: Annotated[str, Field(description="The part of the text around the first word, as one line")]


@_closed
class SessionList(TypedDict):
    """A page of sessions."""

    sessions: list[ListedSession]
    matches: NotRequired[Annotated[list[MessageMatch], Field(description="Matching messages. Only with `q`")]]
    has_more: bool
    next_cursor: NotRequired[str]


@_closed
class SessionDeleted(TypedDict):
    """Result of deleting a session: the number of deleted breadcrumbs."""

    ok: Literal[True]
    deleted: Count


@_closed
class MessageView(TypedDict):
    """A message of a session. `text` and `context` are absent if the token may not read them."""

    id: Id
    role: Literal["user", "assistant", "error", "tool"]
    text: NotRequired[str]
    schema_name: str
    created_at: Time
    updated_at: Time
    version: VersionNumber
    tags: list[str]
    trigger_id: NotRequired[str]
    root_id: NotRequired[
        Annotated[str, Field(description="The message that the chain of an answer or a tool call began with")]
    ]
    agent_id: NotRequired[str]
    tool: NotRequired[dict[str, Any]]
    context: NotRequired[dict[str, Any]]


@_closed
class MessageList(TypedDict):
    """A page of messages, oldest first."""

    messages: list[MessageView]
    has_more: Annotated[bool, Field(description="Whether there are more messages in the requested direction")]
    before: NotRequired[Annotated[str, Field(description="Cursor for older messages")]]
    after: NotRequired[Annotated[str, Field(description="Cursor for newer messages, including future ones")]]


@_closed
class ChainState(TypedDict):
    """State of the chain that a message starts."""

    finished: Annotated[
        bool, Field(description="Whether the chain has an outcome, and no turn of it is open")
    ]
    agents: NotRequired[Annotated[list[str], Field(description="Agents that answered, in this order")]]
    waiting_for: NotRequired[
        Annotated[list[str], Field(description="Agents and consumers with an open turn")]
    ]


@_closed
class ChainStep(MessageView):
    """A message, answer, error or tool call of a chain."""

    handed_over_to: NotRequired[Annotated[list[str], Field(description="Agents that reacted to it, or will")]]


@_closed
class ChainView(ChainState):
    """A message and everything that follows from it."""

    root_id: Annotated[str, Field(description="The message that the whole chain began with")]
    message: ChainStep
    steps: list[ChainStep]
    truncated: Annotated[bool, Field(description="Whether the session is too long to search all of it")]


@_closed
class MessageOutcome(TypedDict):
    """A message and its outcome so far: an answer, an error or neither."""

    message: MessageView
    answer: NotRequired[MessageView]
    error: NotRequired[MessageView]
    chain: NotRequired[Annotated[ChainState, Field(description="Only with `wait_for`")]]


@_closed
class MessagePosted(TypedDict):
    """A posted message and the resulting version of its session."""

    message: MessageView
    session_version: NotRequired[
        Annotated[
            VersionNumber, Field(description="Absent if the message was posted before and deleted since")
        ]
    ]
    chain: NotRequired[Annotated[ChainState, Field(description="Only with `wait` and `wait_for`")]]


@_closed
class MessageAnswered(MessagePosted):
    """A posted message and its outcome: an answer or an error."""

    answer: NotRequired[MessageView]
    error: NotRequired[MessageView]
