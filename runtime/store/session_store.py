"""Reads of sessions: existence, state, user, deletions, and the list of names.

Nothing here checks permissions: see `runtime/sessions/sessions.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from breadcrumbs.runtime.backend.link import Command
from breadcrumbs.runtime.errors import StateTooLarge
from breadcrumbs.runtime.store.batched_reads import Read, read_command
from breadcrumbs.runtime.store.session_facts import (
    FactsRequest,
    SessionFacts,
    flatten_fields,
    read_facts,
    read_first_message,
    session_user,
)
from breadcrumbs.runtime.store.session_users import update_user_indexes
from breadcrumbs.runtime.store.state import BEGAN_BY, USER_ID, About, decode_about
from breadcrumbs.runtime.store.store import Store

_IDENTITY_FIELDS: Final = (b"version", b"created", b"closing", b"entered", b"gone", b"after")
_USER_FIELDS: Final = (USER_ID, BEGAN_BY)
_NAMES_PER_LANE: Final = 8
"""Names that a list reads from each lane, in addition to twice its share of the page."""
_LOWEST: Final = (-1, b"")
"""Comes after all entries of a list of sessions."""
_STAMP_BYTES: Final = 17  # a stored value of the state begins with a time of 16 digits and a space


@dataclass(frozen=True, slots=True)
class Belonging:
    """The user of a session, and the times that identify it among sessions of its name."""

    user: str | None
    created: int
    deleted_before: int = 0
    """Time of the last deletion of an earlier session of this name. 0: there is no record.

    A credential issued at or before this time can belong to that earlier session. The time was recorded when the
    present session began. If the record of the deletion could have been dropped by then, it is the latest possible
    time of the deletion. Records that are dropped later do not change it.
    """


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state of an existing session in its stored form."""

    created: int
    raw_state: list[bytes]


@dataclass(frozen=True, slots=True)
class NamePage:
    """Names of sessions with the time of their last write, the newest first."""

    names: list[tuple[int, bytes]]
    has_more: bool


class SessionStore:
    """Reads the stored data of sessions."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def last_write_time(self, owner: UUID, session: str) -> int:
        """Return the time of the last write in the lane of a session. 0: there was none."""
        lane = self._store.keys.session_lane(owner, session)
        (time,) = await self._store.read_batch(
            read_command(lane, (b"GET", self._store.keys.clock(lane)), lambda time: int(time or 0))
        )
        return time

    async def creation_times(self, owner: UUID, sessions: Sequence[str]) -> list[int | None]:
        """Return when sessions began, in one round trip. None for a session that does not exist."""
        return list(
            await self._store.read_batch(*(self._creation_time(owner, session) for session in sessions))
        )

    async def states(self, owner: UUID, sessions: Sequence[str]) -> list[StoredState | None]:
        """Return the states of sessions in one round trip. None for a session that does not exist."""
        times = [self._creation_time(owner, session) for session in sessions]
        states = [self._state(owner, session) for session in sessions]
        results = await self._store.read_batch(*times, *states)
        return [
            None if created is None else StoredState(created, raw_state)
            for created, raw_state in zip(results[: len(times)], results[len(times) :], strict=True)
        ]

    async def state(self, owner: UUID, session: str) -> list[bytes]:
        """Return the state of a session in its stored form. Empty: there is none."""
        (raw_state,) = await self._store.read_batch(self._state(owner, session))
        return raw_state

    async def facts(self, request: FactsRequest) -> list[SessionFacts | None]:
        """Return the facts of sessions in two round trips. None for a session that does not exist."""
        return await read_facts(self._store, request)

    async def belonging(self, owner: UUID, session: str) -> Belonging | None:
        """Return the user of a session, or None if the session does not exist.

        Takes one round trip, or up to three for a session of an older version: its user is in its first message.
        """
        # Sent directly: every write of a narrowed token needs this, and a `ReadBatch` adds CPU time.
        replies = await self._store.connection.call_all(self._identity_commands(owner, session))
        identity = _decode_identity(replies)
        if identity is None:
            return None
        about, first = identity.about, None
        if about is None:
            about, first = About(), await read_first_message(self._store, owner, session)
        return Belonging(
            session_user(about, identity.created, first), identity.created, identity.deleted_before
        )

    async def last_deletion(self, owner: UUID, session: str) -> int | None:
        """Return the time of the last deletion of a name. None: there is no record.

        If the name has no record but records were dropped, this is the time of the newest dropped record.
        """
        keys, lane = self._store.keys, self._store.keys.session_lane(owner, session)

        def decode(replies: list[Any]) -> int | None:
            recorded, horizon = _deletion_times(*replies)
            return recorded or horizon or None

        commands: list[tuple[int, Command]] = [
            (lane, (b"ZMSCORE", keys.deletions(lane, owner), session, b"")),
            (lane, (b"HGET", keys.session(lane, owner, session), b"gone")),
        ]
        (deleted,) = await self._store.read_batch(Read(commands, decode))
        return deleted

    async def check_state_size(self, owner: UUID, session: str, changes: Mapping[str, bytes]) -> None:
        """Raise `StateTooLarge` if changes would make the state of a session too large.

        This is an early check. It passes if the size is not recorded, and create.lua checks again.
        """
        keys, limit = self._store.keys, self._store.max_state_bytes
        lane = keys.session_lane(owner, session)
        state = keys.state(lane, owner, session)
        commands: list[tuple[int, Command]] = [
            (lane, (b"HGET", keys.session(lane, owner, session), b"state")),
            *((lane, (b"HSTRLEN", state, name)) for name in changes),
        ]
        stored_size, *sizes = await self._store.connection.call_all(commands)
        total, removed = (int(part) for part in (stored_size or b"0 0").split())
        growth = sum(
            _STAMP_BYTES + len(value) - size + (0 if size else len(name.encode()))
            for (name, value), size in zip(changes.items(), sizes, strict=True)
        )
        if growth > 0 and total - removed + growth > limit:
            raise StateTooLarge(session, total + growth, limit)

    async def names_after(
        self, owner: UUID, after: tuple[int, bytes] | None, count: int, *, user: str | None = None
    ) -> NamePage:
        """Return up to `count` names that follow `after` in the list. None: from the beginning.

        `user`: read the list of this user. Call `update_user_indexes` before. The list can have a few sessions of
        other users.
        """
        keys, lanes = self._store.keys, range(self._store.lanes)
        lists = [
            keys.sessions(lane, owner) if user is None else keys.sessions_of_user(lane, owner, user)
            for lane in lanes
        ]
        # The sessions are spread over the lanes, so a small part of each list is usually enough.
        for piece in (_NAMES_PER_LANE + 2 * count // len(lanes), count + 1):
            found, bound = await self._read_lists(lists, after, min(piece, count + 1))
            following = sorted(
                (entry for entry in found if entry >= bound and (after is None or entry < after)),
                reverse=True,
            )
            if len(following) > count or bound == _LOWEST:
                break
        return NamePage(following[:count], len(following) > count)

    async def _read_lists(
        self, lists: list[bytes], after: tuple[int, bytes] | None, count: int
    ) -> tuple[list[tuple[int, bytes]], tuple[int, bytes]]:
        """Return the next names of each lane, and the entry down to which these are all."""
        highest = b"+inf" if after is None else b"(%d" % after[0]
        commands: list[tuple[int, Command]] = [
            (lane, (b"ZREVRANGEBYSCORE", key, highest, b"-inf", b"WITHSCORES", b"LIMIT", 0, count))
            for lane, key in enumerate(lists)
        ]
        if after is not None:
            # Also all sessions that were active in the same microsecond: an import can write many of them.
            commands += [
                (lane, (b"ZREVRANGEBYSCORE", key, after[0], after[0], b"WITHSCORES"))
                for lane, key in enumerate(lists)
            ]
        found: list[tuple[int, bytes]] = []
        bound = _LOWEST
        for number, flat in enumerate(await self._store.connection.call_all(commands)):
            entries = [(int(float(score)), name) for name, score in zip(flat[::2], flat[1::2], strict=True)]
            found += entries
            if number < len(lists) and len(entries) == count:
                bound = max(bound, entries[-1])
        return found, bound

    async def update_user_indexes(self, owner: UUID) -> bool:
        """Bring the lists of users up to date. Return whether they are complete. See session_users.py."""
        return await update_user_indexes(self._store, owner)

    def _creation_time(self, owner: UUID, session: str) -> Read[int | None]:
        lane = self._store.keys.session_lane(owner, session)
        key = self._store.keys.session(lane, owner, session)
        return read_command(lane, (b"HMGET", key, b"version", b"created", b"closing"), _decode_creation_time)

    def _state(self, owner: UUID, session: str) -> Read[list[bytes]]:
        lane = self._store.keys.session_lane(owner, session)
        return read_command(lane, (b"HGETALL", self._store.keys.state(lane, owner, session)), list)

    def _identity_commands(self, owner: UUID, session: str) -> list[tuple[int, Command]]:
        keys, lane = self._store.keys, self._store.keys.session_lane(owner, session)
        return [
            (lane, (b"HMGET", keys.session(lane, owner, session), *_IDENTITY_FIELDS)),
            (lane, (b"HMGET", keys.state(lane, owner, session), *_USER_FIELDS)),
            (lane, (b"ZMSCORE", keys.deletions(lane, owner), session, b"")),
        ]


@dataclass(frozen=True, slots=True)
class _Identity:
    """The stored fields that a `Belonging` is built from."""

    created: int
    about: About | None
    """None: an older version of Breadcrumbs wrote the session without its user."""
    deleted_before: int


def _decode_identity(replies: list[Any]) -> _Identity | None:
    (version, created, closing, entered, gone, after), users, deletions = replies
    if version is None or closing is not None:
        return None
    began = int(created or 0)
    if after is not None:
        deleted_before = int(after)
    else:  # the session began before the field existed; a dropped record is older than the session
        recorded, horizon = _deletion_times(deletions, gone)
        deleted_before = recorded or min(horizon, max(0, int(entered or began) - 1))
    about = None if users == [None, None] else decode_about(flatten_fields(_USER_FIELDS, users))
    return _Identity(began, about, deleted_before)


def _decode_creation_time(reply: list[Any]) -> int | None:
    version, created, closing = reply
    return None if version is None or closing is not None else int(created or 0)


def _deletion_times(scores: list[Any], gone: bytes | None) -> tuple[int, int]:
    """Return the last recorded deletion of a name, and the horizon. 0: none. `gone`: the record of an older store."""
    recorded, horizon = (int(float(score or 0)) for score in scores)
    return max(recorded, int(gone or 0)), horizon
