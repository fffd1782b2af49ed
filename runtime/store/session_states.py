"""Reads and restores the states of all sessions of an owner, for exports.

An import rebuilds a state from the breadcrumbs of the session. A value whose breadcrumb was deleted, and the user that
began the session, would be lost. So an export also contains the stored states.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.store.state import BEGAN_BY
from breadcrumbs.runtime.store.store import Store

_BATCH_SIZE: Final = 100
_RESTORE: Final = Script("restore_state")


@dataclass(frozen=True, slots=True)
class StateEntry:
    """A stored value: when it was set (in microseconds), and its JSON with its readers (see state.py)."""

    name: str
    at: int
    value: bytes


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state of a session."""

    session: str
    created: int
    entries: list[StateEntry]


async def scan_states(store: Store, owner: UUID, *, until: int) -> AsyncIterator[StoredState]:
    """Yield the states of an owner's sessions, without values that were set after a time."""
    keys = store.keys
    for lane in range(keys.lanes):
        names = await store.connection.call(lane, b"ZRANGE", keys.sessions(lane, owner), 0, -1)
        sessions = sorted(name.decode() for name in names)
        for start in range(0, len(sessions), _BATCH_SIZE):
            for state in await _read(store, owner, lane, sessions[start : start + _BATCH_SIZE], until):
                yield state


async def restore_state(store: Store, owner: UUID, state: StoredState) -> bool:
    """Write the values that are newer than those in the store. Return whether something changed.

    A session without breadcrumbs has no state, so nothing is written for it.
    """
    keys = store.keys
    lane = keys.session_lane(owner, state.session)
    arguments: list[bytes | int | str] = [state.created]
    for entry in state.entries:
        arguments += [entry.name, b"%d %s" % (entry.at, entry.value)]
    changed = await store.connection.run(
        lane,
        _RESTORE,
        [
            keys.session(lane, owner, state.session),
            keys.state(lane, owner, state.session),
            keys.users_mark(lane, owner),
        ],
        arguments,
    )
    return bool(changed)


async def _read(
    store: Store, owner: UUID, lane: int, sessions: Sequence[str], until: int
) -> list[StoredState]:
    keys = store.keys
    commands = []
    for session in sessions:
        commands += [
            (lane, (b"HMGET", keys.session(lane, owner, session), b"created", b"closing")),
            (lane, (b"HGETALL", keys.state(lane, owner, session))),
        ]
    replies = await store.connection.call_all(commands)
    found = []
    for session, (created, closing), flat in zip(sessions, replies[::2], replies[1::2], strict=True):
        if created is None or closing is not None or int(created) > until:
            continue
        entries = [
            _entry(name, stored, int(created)) for name, stored in zip(flat[::2], flat[1::2], strict=True)
        ]
        entries = sorted((entry for entry in entries if entry.at <= until), key=lambda entry: entry.name)
        found.append(StoredState(session, int(created), entries))
    return found


def _entry(name: bytes, stored: bytes, created: int) -> StateEntry:
    at, _, value = stored.partition(b" ")
    # Time 0 marks a session that began in this store. In another store it began with its first breadcrumb.
    since = created if name == BEGAN_BY.encode() else int(at)
    return StateEntry(name.decode(), since, value)
