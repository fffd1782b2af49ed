"""Keyword options that several methods share. All of them are optional."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypedDict

OnConnection: TypeAlias = Callable[[Literal["lost", "back"], str], None]
"""Called when a stream loses its connection, with the reason, and when it is connected again.

No event in between is missed.
"""


class Filters(TypedDict, total=False):
    """Filters for lists and events. A breadcrumb must match all of them."""

    session: str | None
    schema_name: str | None
    tags: Iterable[str]
    """Must have all of these tags."""
    any_tags: Iterable[str]
    """Must have at least one of these tags."""


class Listing(Filters, total=False):
    """Filters, order and size of a list."""

    updated_since: datetime | None
    sort: Literal["created_at", "-created_at", "updated_at", "-updated_at"] | None
    """A `-` means newest first. The default is newest first."""
    limit: int | None
    """Maximum number of results. None means all."""
    include_context: bool
    """Default: True. If False, the contexts are empty."""


class EventOptions(Filters, total=False):
    """Filters and start of an event stream."""

    selector: Mapping[str, Any] | None
    """A selector of the HTTP API, for conditions on the context."""
    last_event_id: str | None
    """Continue after this event (`Event.event_id`). None starts with new events."""
    on_connection: OnConnection | None


class Message(TypedDict, total=False):
    """Further fields of a message."""

    tags: Iterable[str]
    """Added to `user:message` and the tag of the session."""
    context: Mapping[str, Any] | None
    """Additional data, stored with the text."""
    to: str | None
    """The only agent that answers this message. None: the agent of the session, or all that the server selects."""
    idempotency_key: str | None
    """A second call with the same key returns the result of the first. None generates a new key."""


class Waiting(TypedDict, total=False):
    """Options for waiting for an answer."""

    timeout: float | None
    """In seconds, 120 by default. None means no timeout."""
    agent: str | None
    """Wait for the answer of this agent, to the message or later in its chain. None waits for the first answer.

    It does not address the message: see `to`."""
    wait_for: str | None
    """`first` (default), `last` or `agent:NAME`: which answer of the chain that the message starts to wait for.

    Not together with `agent`. Unlike `agent`, the wait also ends when the chain has ended without such an answer."""
    on_connection: OnConnection | None


class Saying(Message, Waiting, total=False):
    """Options for posting a message and waiting for its answer."""


class SessionChange(TypedDict, total=False):
    """Changes to a session."""

    title: str | None
    """None removes the title."""
    state: Mapping[str, Any]
    """Merged into the stored state. A value of None removes its key."""
    active: bool
    """False pauses the session: agents stop answering. True resumes it, and waiting messages are answered."""
    model: str | None
    """A model that the server offers (`GET /models`), used from the next message on. None: the agents use their own.

    Requires the role curator."""
    agent: str | None
    """The only agent that answers users' messages from the next message on (`GET /agents/answering`). None: all do.

    Requires the role curator."""


class TokenRequest(TypedDict, total=False):
    """Identity and permissions of a token.

    Missing values default to those of the API key. In development mode the default is a developer with all roles.
    """

    owner_id: str | None
    agent_id: str | None
    roles: Iterable[str] | None
    session_id: str | None
    """Limits the token to this session."""
    user_id: str | None
    """Limits the token to breadcrumbs tagged `user:<user_id>`."""
    ttl_sec: int | None
    """Lifetime in seconds."""
