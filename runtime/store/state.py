"""A session's state: names and JSON values, set by breadcrumbs of the session.

The state is a view. A breadcrumb with one of these schemas changes it by its `context.state_delta` when it is
created, in the same write; an import builds the state again from the same breadcrumbs, whatever their order.
What is known about the session itself (its title, its user, whether it is paused) is kept in the same way, under
names that no state can have. A value is as secret and as private as the breadcrumb that set it, as that was written
and as it is now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from uuid import UUID

import orjson

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.credentials import strip_credentials
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.schema_names import ADK_EVENT, AGENT_RESPONSE, SESSION_RECORD, STATE_CHANGE

STATE_HOLDER: Final = "state/"
"""Prefix of sessions that hold state shared by other sessions. They are not conversations and appear in no list."""

ADK_SESSION: Final = "adk:"
"""Prefix of sessions that are named after their ADK user."""

MAX_STATE_BYTES: Final = 1 << 20
"""How large the state of a session may be, unless the settings say otherwise: names and values as they are stored."""

REMOVED: Final = b""

_NULL_REMOVES: Final = {SESSION_RECORD: True, STATE_CHANGE: True, ADK_EVENT: False, AGENT_RESPONSE: False}
"""ADK keeps a None as a value; elsewhere null takes a name away, as in a merge patch."""

STATEFUL: Final = frozenset(_NULL_REMOVES)
"""The schemas that change the state."""

_OWN: Final = "\0"
"""Before the names of what is known about the session itself."""
_ABOUT: Final[dict[str, dict[str, type]]] = {
    SESSION_RECORD: {"title": str, "user_id": str},
    STATE_CHANGE: {"title": str, "active": bool},
}
ACTIVE: Final = _OWN + "active"
BEGAN_BY: Final = _OWN + "began_by"
"""The user whose breadcrumb began the session, whatever becomes of that breadcrumb: see create.lua and import.lua."""
USER_ID: Final = _OWN + "user_id"

ABOUT_NAMES: Final = (_OWN + "title", USER_ID, ACTIVE, BEGAN_BY)
"""All names of what is known about the session itself."""

ONLY_CREDENTIALS: Final = "only_credentials_are_secret"
"""In the context of a secret breadcrumb: without its credentials, the state that it sets is for everybody."""

SHARED_DELTA: Final = "shared_state_delta"
"""In the record of an ADK session: what it changes of the state that sessions share. Not for narrowed tokens."""

_KEPT: Final = b"!"
"""Before a value that is not for everybody: then `s` = secret, the agent that it is private to, and a space."""

PAUSED: Final = "session-paused"
RESUMED: Final = "session-resumed"
"""Tags of the changes that pause a session and let it go on: workers need not load others."""


@dataclass(frozen=True, slots=True)
class About:
    """What breadcrumbs say about the session that they are in."""

    title: str | None = None
    user_id: str | None = None
    paused_at: int | None = None
    """Since when nobody shall answer here; None: it is active."""
    began_by: str | None = None
    disowned: bool = False
    """Its record says that it is no user's, whoever began it."""


@dataclass(frozen=True, slots=True)
class StateReaders:
    """Says which principals may read a value of the state."""

    secret: bool = False
    private_to: UUID | None = None

    @classmethod
    def of(
        cls, context: Mapping[str, Any], sensitivity: str | None, visibility: str | None, by: UUID | None
    ) -> StateReaders:
        """The one of a breadcrumb's values."""
        secret = sensitivity == "secret" and context.get(ONLY_CREDENTIALS) is not True
        return cls(secret, by if visibility == "private" else None)

    @classmethod
    def of_crumb(cls, crumb: Breadcrumb) -> StateReaders:
        return cls.of(crumb.context, crumb.sensitivity, crumb.visibility, crumb.created_by)

    def joined(self, other: StateReaders) -> StateReaders:
        """Of things that are kept together, all are as secret as one of them."""
        private = other.private_to if self.private_to is None else self.private_to
        return StateReaders(self.secret or other.secret, private)

    def around(self, value: bytes) -> bytes:
        """A value as the store keeps it."""
        if value == REMOVED or self == StateReaders():
            return value
        agent = b"" if self.private_to is None else self.private_to.hex.encode()
        return _KEPT + b"s" * self.secret + agent + b" " + value

    @classmethod
    def opened(cls, held: bytes) -> tuple[StateReaders, bytes]:
        """The guard of a value that the store keeps, and the value."""
        if not held.startswith(_KEPT):
            return cls(), held
        marks, _, value = held[len(_KEPT) :].partition(b" ")
        agent = marks.removeprefix(b"s")
        return cls(marks.startswith(b"s"), UUID(agent.decode()) if agent else None), value


def held_changes(schema_name: str, context: Mapping[str, Any], guard: StateReaders) -> dict[str, bytes]:
    """What a new breadcrumb changes of its session's state, as the store keeps it."""
    return {
        name: value if is_about_session(name) else guard.around(value)
        for name, value in state_changes(schema_name, context).items()
    }


def sensitivity_of(value: Any) -> Literal["secret"] | None:
    """A credential is for the agent that asked for it: no context, list or stream shows what holds one."""
    return "secret" if strip_credentials(value) is not value else None


def what_is_secret(value: Any) -> dict[str, Any]:
    """What the context of a breadcrumb with such a sensitivity says besides."""
    return {} if sensitivity_of(value) is None else {ONLY_CREDENTIALS: True}


def state_changes(schema_name: str, context: Mapping[str, Any]) -> dict[str, bytes]:
    """What a new breadcrumb changes of its session's state: name -> JSON, `REMOVED` where it goes."""
    if schema_name not in _NULL_REMOVES:
        return {}
    delta = context.get("state_delta", {})
    if not isinstance(delta, dict):
        raise InvalidInput(
            "state_delta must be an object: names and their new values", where="context.state_delta"
        )
    if any(name.startswith(_OWN) for name in delta):
        raise InvalidInput("a name in state_delta begins with no null character", where="context.state_delta")
    changes = {
        name: REMOVED if value is None and _null_removes(schema_name, context, name) else orjson.dumps(value)
        for name, value in delta.items()
    }
    for name, type in _ABOUT.get(schema_name, {}).items():
        if name in context and isinstance(context[name], type | None):
            changes[_OWN + name] = REMOVED if context[name] is None else orjson.dumps(context[name])
    return changes


def _null_removes(schema_name: str, context: Mapping[str, Any], name: str) -> bool:
    """The record of an ADK session says that none does, because ADK keeps a None; that of a fork says which do not."""
    kept = context.get("null_is_a_value")
    return _NULL_REMOVES[schema_name] and not (kept is True or (isinstance(kept, list) and name in kept))


def is_about_session(name: str) -> bool:
    """Whether this is no state, but known about the session itself."""
    return name.startswith(_OWN)


def decode_state(flat: list[bytes], *, keep: Callable[[StateReaders], bool] | None = None) -> dict[str, Any]:
    """Decode the state as the store keeps it: name, `<time> <JSON>`, name, …. `keep` selects values by their guard."""
    state = {}
    for name, held in zip(flat[::2], flat[1::2], strict=True):
        guard, value = StateReaders.opened(held.partition(b" ")[2])
        if value != REMOVED and not name.startswith(_OWN.encode()) and (keep is None or keep(guard)):
            state[name.decode()] = orjson.loads(value)
    return state


def decode_about(flat: list[bytes]) -> About:
    """What is known about the session, from the same reply."""
    held = {
        name[len(_OWN) :].decode(): value
        for name, value in zip(flat[::2], flat[1::2], strict=True)
        if name.startswith(_OWN.encode())
    }
    words = {name: held.get(name, b"").partition(b" ")[2] for name in ("title", "user_id", "began_by")}
    return About(
        **{name: orjson.loads(word) for name, word in words.items() if word != REMOVED},
        paused_at=paused_at(held.get("active")),
        disowned="user_id" in held and words["user_id"] == REMOVED,
    )


def paused_at(held: bytes | None) -> int | None:
    """Since when a session is paused, from what is kept under `ACTIVE`."""
    when, _, value = (held or b"").partition(b" ")
    return int(when) if value == b"false" else None
