"""Values that the client returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Self

from breadcrumbs.runtime.breadcrumb.text import plain_text

SESSION = "session:"

EventOperation = Literal["created", "updated", "deleted"]


@dataclass(frozen=True, slots=True)
class Breadcrumb:
    """A breadcrumb as the server returned it."""

    id: str
    version: int
    schema_name: str | None
    title: str
    tags: tuple[str, ...]
    context: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    document: Mapping[str, Any] = field(repr=False, compare=False)
    """The whole JSON document. With `get_full` it includes owner, visibility and TTL."""

    @property
    def session_id(self) -> str | None:
        return session_in(self.tags)

    @property
    def text(self) -> str:
        """The text of its context, for display."""
        return plain_text(self.context)


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a breadcrumb."""

    version: int
    schema_name: str | None
    title: str
    tags: tuple[str, ...]
    context: dict[str, Any] | None
    """None if it is secret and the token may not read it."""
    updated_at: datetime
    updated_by: str | None


@dataclass(frozen=True, slots=True)
class Written:
    """Result of a write."""

    id: str
    version: int
    updated_at: datetime
    replayed: bool = False
    """Whether the idempotency key was used before. If so, this is the result of that write."""


class Retried(str):
    """Id of a message whose turn runs again. Pass it to `wait`."""

    __slots__ = ("retried_at",)
    retried_at: datetime
    """Time of the retry. `wait` ignores older errors about the message."""

    def __new__(cls, message_id: str, retried_at: datetime) -> Self:
        retried = super().__new__(cls, message_id)
        retried.retried_at = retried_at
        return retried


@dataclass(frozen=True, slots=True)
class Token:
    """A token with its identity and permissions."""

    token: str = field(repr=False)
    owner_id: str
    agent_id: str
    roles: tuple[str, ...]
    expires_at: datetime
    session_id: str | None = None
    user_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A breadcrumb was created, updated or deleted, or a session was deleted."""

    type: str
    """`breadcrumb.created`, `.updated`, `.deleted` or `session.deleted`. See also `Delta` and `Gap`."""
    event_id: str | None
    """Position in the stream. `events(last_event_id=…)` continues after it."""
    session_id: str | None = None
    breadcrumb_id: str = ""
    operation: EventOperation | None = None
    version: int = 0
    schema_name: str | None = None
    title: str = ""
    tags: tuple[str, ...] = ()
    context: dict[str, Any] = field(default_factory=dict)
    """The context of that version. Empty if the breadcrumb is deleted or secret."""
    updated_at: datetime | None = None
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The whole JSON document."""

    @property
    def text(self) -> str:
        """The text of its context, for display."""
        return plain_text(self.context) if self.context else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryNotice:
    """A model failed and is called again."""

    attempt: int
    """Number of the attempt that follows."""
    reason: str
    retry_in: float
    """Seconds until the next attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta(Event):
    """A piece of an answer that is being written. Deltas can get lost, answers cannot.

    A client that joins in the middle gets the whole text so far as one delta with offset 0.
    """

    agent_id: str
    trigger_id: str
    """Id of the message that is being answered. `breadcrumb_id` is the id of the future answer."""
    offset: int
    """Number of characters before this piece. It returns to 0 if the agent starts again."""
    piece: str
    reasoning: str = ""
    """A piece of the model's reasoning, which is not part of the answer."""
    reasoning_offset: int = 0
    """Number of characters of the reasoning before this piece of it."""
    notice: RetryNotice | None = None
    """The last failure of the model, until it writes again."""

    @property
    def text(self) -> str:
        return self.piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap(Event):
    """Events were missed, because the server no longer has them. List the breadcrumbs you need again."""

    detail: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of an agent."""

    text: str
    id: str
    trigger_id: str
    """Id of the message that it answers."""
    session_id: str | None
    agent_id: str | None
    tags: tuple[str, ...]
    context: dict[str, Any]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a user or an answer of an agent."""

    role: Literal["user", "agent"]
    text: str
    id: str
    created_at: datetime
    agent_id: str | None = None
    trigger_id: str | None = None
    """Id of the message that it answers."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """Description of a session."""

    id: str
    title: str | None
    summary: str | None
    """Start of the first message, to show if there is no title."""
    user_id: str | None
    version: int
    """Increases with every write in the session except those of contexts. Used for `expected_version`."""
    created_at: datetime
    last_active_at: datetime
    returning: bool
    """Whether the session has an answer already."""
    active: bool
    """False if the session is paused: agents do not answer."""
    counts: Mapping[str, int]
    """`messages`, `answers`, `errors`, `breadcrumbs`."""
    state: dict[str, Any] | None = None
    """None in lists, which do not include the state."""
    model: str | None = None
    """The model that a curator chose for the session. None: the agents use their own."""
    agent: str | None = None
    """The agent that a curator chose for the session. None: all agents answer that react to a message."""


def session_in(tags: tuple[str, ...]) -> str | None:
    """Return the session id in the tags, or None."""
    return next((tag[len(SESSION) :] for tag in tags if tag.startswith(SESSION)), None)


# Conversion of documents from the server


def breadcrumb_of(document: Mapping[str, Any]) -> Breadcrumb:
    return Breadcrumb(
        id=document["id"],
        version=document["version"],
        schema_name=document.get("schema_name"),
        title=document["title"],
        tags=tuple(document["tags"]),
        context=document.get("context", {}),
        created_at=datetime.fromisoformat(document["created_at"]),
        updated_at=datetime.fromisoformat(document["updated_at"]),
        document=document,
    )


def version_of(document: Mapping[str, Any]) -> Version:
    return Version(
        version=document["version"],
        schema_name=document.get("schema_name"),
        title=document["title"],
        tags=tuple(document["tags"]),
        context=document.get("context"),
        updated_at=datetime.fromisoformat(document["updated_at"]),
        updated_by=document.get("updated_by"),
    )


def session_info_of(document: Mapping[str, Any]) -> SessionInfo:
    return SessionInfo(
        id=document["id"],
        title=document.get("title"),
        summary=document.get("summary"),
        user_id=document.get("user_id"),
        version=document["version"],
        created_at=datetime.fromisoformat(document["created_at"]),
        last_active_at=datetime.fromisoformat(document["last_active_at"]),
        returning=document["returning"],
        active=document["active"],
        counts=document["counts"],
        state=document.get("state"),
        model=document.get("model"),
        agent=document.get("agent"),
    )


def _notice_of(document: Mapping[str, Any] | None) -> RetryNotice | None:
    if document is None:
        return None
    return RetryNotice(attempt=document["attempt"], reason=document["reason"], retry_in=document["retry_in"])


def event_of(payload: Mapping[str, Any], event_id: str | None) -> Event:
    """Return the event in the data of a server-sent event."""
    kind = str(payload.get("type", ""))
    if kind == "gap":
        detail = str(payload.get("detail", ""))
        return Gap(type=kind, event_id=event_id, detail=detail, document=payload)
    if kind == "agent.response.delta":
        return Delta(
            type=kind,
            event_id=event_id,
            session_id=payload.get("session_id"),
            breadcrumb_id=payload["breadcrumb_id"],
            agent_id=payload["agent_id"],
            trigger_id=payload["trigger_id"],
            offset=payload["offset"],
            piece=payload["text"],
            reasoning=payload.get("reasoning", ""),
            reasoning_offset=payload.get("reasoning_offset", 0),
            notice=_notice_of(payload.get("notice")),
            document=payload,
        )
    # For RCRT clients the server sends the type of an update also for a create. `operation` is exact.
    operation: EventOperation | None = payload.get("operation")
    moment = payload.get("updated_at")
    return Event(
        type=f"breadcrumb.{operation}" if operation else kind,
        event_id=event_id,
        session_id=payload.get("session_id"),
        breadcrumb_id=payload.get("breadcrumb_id", ""),
        operation=operation,
        version=payload.get("version", 0),
        schema_name=payload.get("schema_name"),
        title=payload.get("title", ""),
        tags=tuple(payload.get("tags", ())),
        context=payload.get("context", {}),
        updated_at=datetime.fromisoformat(moment) if moment else None,
        document=payload,
    )


def creator_in(context: Mapping[str, Any]) -> str | None:
    """Return the agent that wrote a context, or None if it was not an agent."""
    creator = context.get("creator")
    agent = creator.get("agent_id") if isinstance(creator, dict) else creator
    return agent if isinstance(agent, str) else None
