"""Lines of an export for the small records of an owner, and for the states of its sessions.

    {"record": {"owner_id", "kind": "agent" | "selector" | "tenant", "value": {"id", …}}}
    {"session": {"owner_id", "session_id", "created_at", "state": [[name, time in microseconds, stored value], …]}}

See `export_import.py` for the lines of breadcrumbs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args
from uuid import UUID

import orjson

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import parse_time
from breadcrumbs.runtime.breadcrumb.ids import parse_id
from breadcrumbs.runtime.breadcrumb.json_input import MAX_DEPTH, parse_json
from breadcrumbs.runtime.breadcrumb.selectors import parse_selector
from breadcrumbs.runtime.breadcrumb.session_rule import check_name
from breadcrumbs.runtime.errors import InvalidInput, NotFound
from breadcrumbs.runtime.store.records import RecordKind, Registry
from breadcrumbs.runtime.store.session_states import StateEntry, StoredState, restore_state, scan_states
from breadcrumbs.runtime.store.state import ABOUT_NAMES, REMOVED, StateReaders, is_about_session
from breadcrumbs.runtime.store.store import Store

RECORD: Final = b'{"record":'
SESSION: Final = b'{"session":'
RECORD_LINES: Final = (RECORD, SESSION)
"""Beginnings of the lines of this module."""

_MAX_NAME: Final = 1_000
_FIELDS: Final[Mapping[RecordKind, frozenset[str]]] = {
    "agent": frozenset(("id", "roles", "created_at")),
    "selector": frozenset(("id", "owner_id", "agent_id", "selector", "session_id", "user_id")),
    "tenant": frozenset(("id", "name", "created_at")),
}


@dataclass(frozen=True, slots=True)
class RecordLine:
    """A line with a record."""

    owner: UUID
    kind: RecordKind
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SessionLine:
    """A line with the state of a session."""

    owner: UUID
    state: StoredState


async def record_lines(store: Store, owner: UUID, *, until: int) -> AsyncIterator[bytes]:
    """Yield the lines of an owner's records and of the states that its sessions had at a time."""
    registry = Registry(store)
    for agent in await registry.agents(owner):
        yield _encode(owner, "agent", agent)
    for selector in await registry.selectors(owner):
        yield _encode(owner, "selector", selector)
    try:
        yield _encode(owner, "tenant", await registry.tenant(owner))
    except NotFound:
        pass  # the owner has no name
    async for state in scan_states(store, owner, until=until):
        entries = [[entry.name, entry.at, entry.value.decode()] for entry in state.entries]
        fields = {
            "owner_id": str(owner),
            "session_id": state.session,
            "created_at": times.to_text(state.created),
            "state": entries,
        }
        yield orjson.dumps({"session": fields})


def _encode(owner: UUID, kind: RecordKind, value: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"record": {"owner_id": str(owner), "kind": kind, "value": value}})


def decode_record(raw: bytes, *, owner: UUID | None = None) -> RecordLine | SessionLine:
    """Decode a line, or raise `InvalidInput`. `owner` replaces the owner in the line."""
    line = parse_json(raw, levels=MAX_DEPTH + 2)
    name = "session" if raw.lstrip().startswith(SESSION) else "record"
    fields = line.get(name) if isinstance(line, dict) else None
    if not isinstance(fields, dict):
        raise InvalidInput(f'a line must be an object {{"{name}": {{…}}}}', where="line")
    owned_by = owner or parse_id(_text(fields, "owner_id", name), what=f"{name}.owner_id")
    return _session_line(fields, owned_by) if name == "session" else _record_line(fields, owned_by)


async def restore_line(store: Store, line: RecordLine | SessionLine, *, dry_run: bool) -> bool:
    """Write a record or a state, unless the store has a newer one. Return whether it was written.

    A dry run cannot tell whether a state would change, because the breadcrumbs of the session are missing.
    """
    if isinstance(line, SessionLine):
        return not dry_run and await restore_state(store, line.owner, line.state)
    registry = Registry(store)
    if dry_run:
        return not await registry.exists(line.owner, line.kind, line.value["id"])
    return await registry.restore(line.owner, line.kind, line.value)


def _record_line(fields: dict[str, Any], owner: UUID) -> RecordLine:
    kind = next((one for one in get_args(RecordKind) if one == fields.get("kind")), None)
    value = fields.get("value")
    if kind is None or not isinstance(value, dict):
        raise InvalidInput("a record needs a kind (agent, selector, tenant) and a value", where="record")
    if unknown := value.keys() - _FIELDS[kind]:
        raise InvalidInput(f"unknown field {sorted(unknown)[0]!r}: remove it", where="record.value")
    id = parse_id(_text(value, "id", "record.value"), what="record.value.id")
    checked = value | {"id": str(id)}
    if kind == "selector":
        parse_selector(value.get("selector", {}))
        agent = parse_id(_text(value, "agent_id", "record.value"), what="record.value.agent_id")
        checked |= {"owner_id": str(owner), "agent_id": str(agent)}
        for name in ("session_id", "user_id"):
            if name in value:
                _text(value, name, "record.value")
        return RecordLine(owner, kind, checked)
    parse_time(_text(value, "created_at", "record.value"), where="record.value.created_at")
    if kind == "tenant":
        checked["id"] = str(owner)
        if not 0 < len(_text(value, "name", "record.value")) <= _MAX_NAME:
            raise InvalidInput(f"a name has 1 to {_MAX_NAME} characters", where="record.value.name")
    elif not _are_texts(value.get("roles")):
        raise InvalidInput("roles must be a list of names", where="record.value.roles")
    return RecordLine(owner, kind, checked)


def _session_line(fields: dict[str, Any], owner: UUID) -> SessionLine:
    session = _text(fields, "session_id", "session")
    try:
        check_name(session)
    except ValueError as error:
        raise InvalidInput(
            f"the name of the session is invalid: {error}", where="session.session_id"
        ) from None
    created = parse_time(_text(fields, "created_at", "session"), where="session.created_at")
    state = fields.get("state")
    if not isinstance(state, list):
        raise InvalidInput("state must be a list", where="session.state")
    entries = [_decode_entry(entry, f"session.state.{n}") for n, entry in enumerate(state)]
    return SessionLine(owner, StoredState(session, created, entries))


def _decode_entry(entry: Any, where: str) -> StateEntry:
    match entry:
        case [str() as name, int() as at, str() as value] if 0 <= at <= times.LATEST:
            raw = value.encode()
        case _:
            raise InvalidInput("an entry must be [name, time, stored value]", where=where)
    if is_about_session(name) and name not in ABOUT_NAMES:
        raise InvalidInput("a name must not begin with a null character", where=where)
    try:
        _, json = StateReaders.unwrap(raw)
    except ValueError:
        raise InvalidInput("the readers of the value are invalid", where=where) from None
    if json != REMOVED:
        parse_json(json)
    return StateEntry(name, at, raw)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _text(fields: Mapping[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise InvalidInput(f"{name} is required and must be a string", where=f"{where}.{name}")
    return value
