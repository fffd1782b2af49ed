"""What a client gets back."""

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
    """A breadcrumb as the server showed it."""

    id: str
    version: int
    schema_name: str | None
    title: str
    tags: tuple[str, ...]
    context: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    document: Mapping[str, Any] = field(repr=False, compare=False)
    """Everything that came; `get_full` brings owner, visibility, TTL and more."""

    @property
    def session_id(self) -> str | None:
        return session_in(self.tags)

    @property
    def text(self) -> str:
        """The words in it, as a person would read them."""
        return plain_text(self.context)


@dataclass(frozen=True, slots=True)
class Version:
    """One of the versions of a breadcrumb."""

    version: int
    schema_name: str | None
    title: str
    tags: tuple[str, ...]
    context: dict[str, Any] | None
    """None: it is secret."""
    updated_at: datetime
    updated_by: str | None


@dataclass(frozen=True, slots=True)
class Written:
    """What the store made of a write."""

    id: str
    version: int
    updated_at: datetime
    replayed: bool = False
    """The idempotency key had been used: this is what was written then."""


class Retried(str):
    """The id of a message whose turn is run again, for `wait`, and when that was asked for."""

    __slots__ = ("retried_at",)
    retried_at: datetime
    """Errors about the message that are older are of an earlier try: `wait` passes over them."""

    def __new__(cls, message_id: str, retried_at: datetime) -> Self:
        made = super().__new__(cls, message_id)
        made.retried_at = retried_at
        return made


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and what it is good for."""

    token: str = field(repr=False)
    owner_id: str
    agent_id: str
    roles: tuple[str, ...]
    expires_at: datetime
    session_id: str | None = None
    user_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something happened to a breadcrumb."""

    type: str
    """`breadcrumb.created`, `.updated`, `.deleted`; see also `Delta` and `Gap`."""
    event_id: str | None
    """Where to go on from: `events(last_event_id=…)`."""
    session_id: str | None = None
    breadcrumb_id: str = ""
    operation: EventOperation | None = None
    version: int = 0
    schema_name: str | None = None
    title: str = ""
    tags: tuple[str, ...] = ()
    context: dict[str, Any] = field(default_factory=dict)
    """As it was in that version. Empty where the breadcrumb is gone or secret."""
    updated_at: datetime | None = None
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Everything that came."""

    @property
    def text(self) -> str:
        """The words in it, as a person would read them."""
        return plain_text(self.context) if self.context else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta(Event):
    """A piece of an answer that is being made. Pieces may get lost; the answer itself is the truth."""

    agent_id: str
    trigger_id: str
    """The message that is being answered. `breadcrumb_id` is the id that the answer will have."""
    offset: int
    """How many characters came before. 0 again: the agent has begun anew."""
    piece: str

    @property
    def text(self) -> str:
        return self.piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap(Event):
    """Events were missed, because the server no longer keeps them: list again what you need."""

    detail: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What an agent answered."""

    text: str
    id: str
    trigger_id: str
    """The message that it answers."""
    session_id: str | None
    agent_id: str | None
    tags: tuple[str, ...]
    context: dict[str, Any]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One thing that was said in a session."""

    role: Literal["user", "agent"]
    text: str
    id: str
    created_at: datetime
    agent_id: str | None = None
    trigger_id: str | None = None
    """The message that it answers."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What is known of a session."""

    id: str
    title: str | None
    summary: str | None
    """How its first message begins: what to show where there is no title."""
    user_id: str | None
    version: int
    """Counts what is written in it; for `expected_version`."""
    created_at: datetime
    last_active_at: datetime
    returning: bool
    """Somebody was answered here before."""
    active: bool
    """False: paused, agents do not answer."""
    counts: Mapping[str, int]
    """`messages`, `answers`, `errors`, `breadcrumbs`."""
    state: dict[str, Any] | None = None
    """None in a list: there it does not come along."""


def session_in(tags: tuple[str, ...]) -> str | None:
    return next((tag[len(SESSION) :] for tag in tags if tag.startswith(SESSION)), None)


# Reading what the server sent


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
    )


def event_of(payload: Mapping[str, Any], event_id: str | None) -> Event:
    """The event behind the data of a server-sent event."""
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
            document=payload,
        )
    # RCRT's clients are told of an update also where something is new; `operation` says which it is.
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
    """The agent that made it, where it was an agent."""
    creator = context.get("creator")
    agent = creator.get("agent_id") if isinstance(creator, dict) else creator
    return agent if isinstance(agent, str) else None
