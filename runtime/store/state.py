"""State of a session: names with JSON values, set by breadcrumbs of the session.

The state is a view. A breadcrumb with a stateful schema changes it through `context.state_delta`, in the same write
that creates the breadcrumb. An import rebuilds the state from the same breadcrumbs, in any order.

Facts about the session itself (title, user, whether it is paused) are stored in the same hash, under names that a
`state_delta` cannot use. A value is as secret and as private as the breadcrumb that set it. The
restrictions of its first version and of its newest version both apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from uuid import UUID

import orjson

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.credentials import strip_credentials
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.schema_names import ADK_EVENT, AGENT_RESPONSE, SESSION_RECORD, STATE_CHANGE

STATE_HOLDER: Final = "state/"
"""Prefix of sessions that store state for other sessions. They are not conversations and are not listed."""

ADK_SESSION: Final = "adk:"
"""Prefix of sessions that are named after their ADK user."""

MAX_STATE_BYTES: Final = 1 << 20
"""Default size limit of a session's state, in bytes of stored names and values."""

REMOVED: Final = b""
"""Value of a name that is removed from the state."""

_NULL_REMOVES: Final = {SESSION_RECORD: True, STATE_CHANGE: True, ADK_EVENT: False, AGENT_RESPONSE: False}
"""Whether null removes a name, as in a merge patch. ADK stores None as a value instead."""

STATEFUL: Final = frozenset(_NULL_REMOVES)
"""Schemas whose breadcrumbs change the state."""

_ABOUT_PREFIX: Final = "\0"
"""Prefix of the names of facts about the session itself."""

_ABOUT_FIELDS: Final[dict[str, dict[str, type]]] = {
    SESSION_RECORD: {"title": str, "user_id": str, "model": str, "agent": str},
    STATE_CHANGE: {"title": str, "active": bool, "model": str, "agent": str},
}
"""Facts about the session by schema: the key in the context, and its type."""

ABOUT_SCHEMAS: Final = frozenset(_ABOUT_FIELDS)
"""Schemas whose breadcrumbs change the facts about their session."""

ACTIVE: Final = _ABOUT_PREFIX + "active"
BEGAN_BY: Final = _ABOUT_PREFIX + "began_by"
"""The user whose breadcrumb began the session. Stays if that breadcrumb is deleted. See create.lua and import.lua."""
USER_ID: Final = _ABOUT_PREFIX + "user_id"
MODEL: Final = _ABOUT_PREFIX + "model"
AGENT: Final = _ABOUT_PREFIX + "agent"

ABOUT_NAMES: Final = (_ABOUT_PREFIX + "title", USER_ID, ACTIVE, BEGAN_BY, MODEL, AGENT)
"""Names of all facts about the session itself."""

_TEXT_FACTS: Final = ("title", "user_id", "began_by", "model", "agent")

ONLY_CREDENTIALS: Final = "only_credentials_are_secret"
"""Context key of a breadcrumb that is secret only because of credentials.

Every principal may read the state values that the breadcrumb sets, except for the credentials in them.
"""

SHARED_DELTA: Final = "shared_state_delta"
"""Context key in the record of an ADK session: its changes of shared state. Hidden from narrowed tokens."""

_RESTRICTED: Final = b"!"
"""Prefix of a stored value with restricted readers. It is followed by `s` if the value is secret, by the id of the
agent that the value is private to (if any), and by a space."""

PAUSED: Final = "session-paused"
RESUMED: Final = "session-resumed"
"""Tags of the state changes that pause and resume a session. Workers need not load other changes."""


@dataclass(frozen=True, slots=True)
class About:
    """Facts about a session that its breadcrumbs set."""

    title: str | None = None
    user_id: str | None = None
    paused_at: int | None = None
    """Time since which the session is paused. None: it is active."""
    began_by: str | None = None
    """The user whose breadcrumb began the session."""
    model: str | None = None
    """The model that a curator chose for the session. None: agents use their own."""
    agent: str | None = None
    """The agent that a curator chose for the session. None: all agents answer that react to a message."""
    disowned: bool = False
    """The record of the session removes its user. `began_by` does not count then."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The model and the agent that a curator chose for a session."""

    model: str | None = None
    """None: agents use their own."""
    agent: str | None = None
    """None: all agents answer that react to a message."""
    agent_since: int = 0
    """Time of the last choice of an agent, or of its removal. 0: there was none."""


NO_CHOICES: Final = Choices()


@dataclass(frozen=True, slots=True)
class StateReaders:
    """The principals that may read a value of the state."""

    secret: bool = False
    private_to: UUID | None = None

    @classmethod
    def of(
        cls, context: Mapping[str, Any], sensitivity: str | None, visibility: str | None, by: UUID | None
    ) -> StateReaders:
        """Return the readers of the values that a breadcrumb sets. `by`: the agent that created it."""
        secret = sensitivity == "secret" and context.get(ONLY_CREDENTIALS) is not True
        return cls(secret, by if visibility == "private" else None)

    @classmethod
    def of_crumb(cls, crumb: Breadcrumb) -> StateReaders:
        return cls.of(crumb.context, crumb.sensitivity, crumb.visibility, crumb.created_by)

    def joined(self, other: StateReaders) -> StateReaders:
        """Combine two restrictions. The result is secret or private if one of them is.

        A value that is private to two different agents is secret, because neither may read it alone.
        """
        both_private = self.private_to is not None and other.private_to is not None
        conflict = both_private and self.private_to != other.private_to
        return StateReaders(self.secret or other.secret or conflict, self.private_to or other.private_to)

    def wrap(self, value: bytes) -> bytes:
        """Return a value with its readers, in its stored form."""
        if value == REMOVED or self == StateReaders():
            return value
        agent = b"" if self.private_to is None else self.private_to.hex.encode()
        return _RESTRICTED + b"s" * self.secret + agent + b" " + value

    @classmethod
    def unwrap(cls, stored: bytes) -> tuple[StateReaders, bytes]:
        """Return the readers and the value from a stored value."""
        if not stored.startswith(_RESTRICTED):
            return cls(), stored
        marks, _, value = stored[len(_RESTRICTED) :].partition(b" ")
        agent = marks.removeprefix(b"s")
        return cls(marks.startswith(b"s"), UUID(agent.decode()) if agent else None), value


def stored_changes(schema_name: str, context: Mapping[str, Any], readers: StateReaders) -> dict[str, bytes]:
    """Return the state changes of a new breadcrumb in their stored form."""
    return {
        name: value if is_about_session(name) else readers.wrap(value)
        for name, value in state_changes(schema_name, context).items()
    }


def sensitivity_of(value: Any) -> Literal["secret"] | None:
    """Return "secret" if a value contains credentials.

    Credentials are for the agent that requested them. No context, list or stream shows a secret breadcrumb.
    """
    return "secret" if strip_credentials(value) is not value else None


def secrecy_flags(value: Any) -> dict[str, Any]:
    """Return the context keys to add if credentials in a value make its breadcrumb secret."""
    return {} if sensitivity_of(value) is None else {ONLY_CREDENTIALS: True}


def may_set_state(schema_name: str) -> bool:
    """Return whether breadcrumbs of this schema can change the state of their session."""
    return schema_name in _NULL_REMOVES


def state_changes(schema_name: str, context: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the state changes of a new breadcrumb: name -> JSON, or `REMOVED`."""
    if not may_set_state(schema_name):
        return {}
    delta = context.get("state_delta", {})
    if not isinstance(delta, dict):
        raise InvalidInput(
            "state_delta must be an object with names and their new values", where="context.state_delta"
        )
    if any(name.startswith(_ABOUT_PREFIX) for name in delta):
        raise InvalidInput(
            "a name in state_delta must not begin with a null character", where="context.state_delta"
        )
    changes = {
        name: REMOVED if value is None and _null_removes(schema_name, context, name) else orjson.dumps(value)
        for name, value in delta.items()
    }
    for name, type in _ABOUT_FIELDS.get(schema_name, {}).items():
        if name in context and isinstance(context[name], type | None):
            changes[_ABOUT_PREFIX + name] = REMOVED if context[name] is None else orjson.dumps(context[name])
    return changes


def _null_removes(schema_name: str, context: Mapping[str, Any], name: str) -> bool:
    """Return whether null removes a name.

    `null_is_a_value` lists names for which it does not (in the record of a fork). True means all names (in the record
    of an ADK session).
    """
    kept = context.get("null_is_a_value")
    return _NULL_REMOVES[schema_name] and not (kept is True or (isinstance(kept, list) and name in kept))


def is_about_session(name: str) -> bool:
    """Return whether a name is a fact about the session, not part of its state."""
    return name.startswith(_ABOUT_PREFIX)


def decode_state(flat: list[bytes], *, keep: Callable[[StateReaders], bool] | None = None) -> dict[str, Any]:
    """Decode a stored state: name, `<time> <JSON>`, name, …. `keep` selects values by their readers."""
    state = {}
    for name, stored in zip(flat[::2], flat[1::2], strict=True):
        readers, value = StateReaders.unwrap(stored.partition(b" ")[2])
        if (
            value != REMOVED
            and not name.startswith(_ABOUT_PREFIX.encode())
            and (keep is None or keep(readers))
        ):
            state[name.decode()] = orjson.loads(value)
    return state


def decode_about(flat: list[bytes]) -> About:
    """Decode the facts about the session from a stored state."""
    facts = {
        name[len(_ABOUT_PREFIX) :].decode(): value
        for name, value in zip(flat[::2], flat[1::2], strict=True)
        if name.startswith(_ABOUT_PREFIX.encode())
    }
    values = {name: facts.get(name, b"").partition(b" ")[2] for name in _TEXT_FACTS}
    return About(
        **{name: orjson.loads(value) for name, value in values.items() if value != REMOVED},
        paused_at=paused_at(facts.get("active")),
        disowned="user_id" in facts and values["user_id"] == REMOVED,
    )


def decode_choices(stored: Sequence[bytes | None]) -> Choices:
    """Return the choices of a session, from the stored values of `MODEL` and `AGENT`."""
    if stored[0] is None and stored[1] is None:
        return NO_CHOICES
    (_, _, model), (since, _, agent) = [(value or b"").partition(b" ") for value in stored]
    return Choices(
        None if model == REMOVED else str(orjson.loads(model)),
        None if agent == REMOVED else str(orjson.loads(agent)),
        int(since or 0),
    )


def paused_at(stored: bytes | None) -> int | None:
    """Return the time since which a session is paused, from the stored value of `ACTIVE`. None: it is active."""
    since, _, value = (stored or b"").partition(b" ")
    return int(since) if value == b"false" else None
