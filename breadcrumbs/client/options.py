"""The options that calls have in common, with what they mean. All of them may be left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypedDict

OnConnection: TypeAlias = Callable[[Literal["lost", "back"], str], None]
"""Is told when a stream loses its server, and when it has it back. Nothing is missed in between."""


class Filters(TypedDict, total=False):
    """What to find. All that are given must hold."""

    session: str | None
    schema_name: str | None
    tags: Iterable[str]
    """Carries all of these."""
    any_tags: Iterable[str]
    """Carries at least one of these."""


class Listing(Filters, total=False):
    """What to list, and how."""

    updated_since: datetime | None
    sort: Literal["created_at", "-created_at", "updated_at", "-updated_at"] | None
    """With `-` the newest first, which is the default."""
    limit: int | None
    """How many at most; None: all."""
    include_context: bool
    """True unless told otherwise; without, the contexts stay empty."""


class EventOptions(Filters, total=False):
    """Which events to follow, and from where."""

    selector: Mapping[str, Any] | None
    """A selector of the HTTP interface, for conditions on the context."""
    last_event_id: str | None
    """Go on after this event (`Event.event_id`); None: begin with what happens now."""
    on_connection: OnConnection | None


class Message(TypedDict, total=False):
    """What goes along with a message."""

    tags: Iterable[str]
    """Besides `user:message` and the session's."""
    context: Mapping[str, Any] | None
    """Data of your own beside the text."""
    idempotency_key: str | None
    """The same key a second time gives the first result again. None: a new one."""


class Waiting(TypedDict, total=False):
    """How to wait for an answer."""

    timeout: float | None
    """Seconds, 120 unless told otherwise; None: for ever."""
    agent: str | None
    """Wait for the answer of this agent. None: the first one."""
    on_connection: OnConnection | None


class Saying(Message, Waiting, total=False):
    """A message and the wait for its answer."""


class SessionChange(TypedDict, total=False):
    """What of a session is to change."""

    title: str | None
    """None: it shall have none."""
    state: Mapping[str, Any]
    """Is merged; what is None goes."""
    active: bool
    """False: agents do not answer until it is True again; then what waited is answered."""


class TokenRequest(TypedDict, total=False):
    """Whom a token is for and what it may do. What is left out is as much as you may have."""

    owner_id: str | None
    agent_id: str | None
    roles: Iterable[str] | None
    session_id: str | None
    """Good for this session only."""
    user_id: str | None
    """Good for what carries `user:<user_id>` only."""
    ttl_sec: int | None
