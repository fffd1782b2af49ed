"""Indexes of the sessions of each user.

The scripts that write do not maintain them, so writes cost nothing more. Each write into a session raises its score in
the list of sessions (`N` in keys.py). All sessions above a mark are therefore those that began or changed since the
indexes were last brought up to date, whatever process wrote them, also one of an earlier version. A reader adds these
sessions to the indexes and then raises the mark. An import can write below the mark, so it removes the mark, and the
indexes are built again.

A reader still checks the user of each session that it finds. An index can contain sessions too many: an earlier version
does not remove a deleted session from it. It never misses one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from breadcrumbs.runtime.backend.connection import Script, ScriptCall
from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.store.scan import FoundKey
from breadcrumbs.runtime.store.session_facts import FactsRequest, flatten_fields, read_facts, session_user
from breadcrumbs.runtime.store.state import BEGAN_BY, USER_ID, decode_about
from breadcrumbs.runtime.store.store import Store

_STEP_SESSIONS: Final = 2_000
"""Sessions of all lanes that are added in one step, about."""
_MAX_STEPS: Final = 3
"""Steps that one request makes. The indexes of a large store are complete after several requests."""

_FIRST_MESSAGES: Final = 32
"""First messages that are read at a time."""

_PENDING: Final = Script("users_pending")
_INDEX: Final = Script("users_index")


class _Pending(NamedTuple):
    """Sessions of a lane that are not in the indexes yet."""

    lane: int
    mark: bytes | None
    """None: there was no mark."""
    until: bytes = b""
    """The time up to which these are all."""
    entries: Sequence[tuple[bytes, bytes, bytes | None, bytes | None]] = ()
    """Name, score, stored user, and stored user that began it."""


async def update_user_indexes(store: Store, owner: UUID) -> bool:
    """Bring the indexes of an owner up to date. Return whether they are complete now.

    False: there is more to do than one request may do, or the store cannot be written. List all sessions then.
    """
    lanes: Sequence[int] = range(store.lanes)
    count = max(8, _STEP_SESSIONS // store.lanes)
    try:
        for _ in range(_MAX_STEPS):
            replies = await store.connection.call_all(
                [(lane, _pending_call(store, owner, lane, count)) for lane in lanes]
            )
            found = [_decode(lane, reply) for lane, reply in zip(lanes, replies, strict=True)]
            added = await gather(*(_add(store, owner, pending) for pending in found))
            lanes = [
                pending.lane
                for pending, is_added in zip(found, added, strict=True)
                if not is_added or len(pending.entries) >= count
            ]
            if not lanes:
                return True
    except StoreError:
        pass  # the store is full, or a lane moves to another node
    return False


def _pending_call(store: Store, owner: UUID, lane: int, count: int) -> ScriptCall:
    keys = store.keys
    return ScriptCall(
        _PENDING,
        [keys.sessions(lane, owner), keys.users_mark(lane, owner), keys.clock(lane)],
        [count, keys.state(lane, owner, "")],
    )


def _decode(lane: int, reply: list[Any] | None) -> _Pending:
    if reply is None:
        return _Pending(lane, None)
    mark, until, *flat = reply
    return _Pending(lane, mark, until, list(zip(*[iter(flat)] * 4, strict=True)))


async def _add(store: Store, owner: UUID, pending: _Pending) -> bool:
    """Add sessions to the indexes. Return False if they have to be read again."""
    keys, lane = store.keys, pending.lane
    mark = keys.users_mark(lane, owner)
    if pending.mark is None:
        # Two marks never have the same end. Sessions that were read with a removed mark are therefore not added.
        await store.connection.call(lane, b"SET", mark, b"0 " + os.urandom(8).hex().encode(), b"NX")
        return False
    if not pending.entries:
        return True
    users = await _users(store, owner, pending)
    names = [keys.sessions(lane, owner), mark]
    arguments: list[bytes | str | int] = [
        pending.mark,
        pending.until + b" " + pending.mark.partition(b" ")[2],
    ]
    for (name, score, *_), user in zip(pending.entries, users, strict=True):
        session = keys.session(lane, owner, name.decode())
        names += [session, session if user is None else keys.sessions_of_user(lane, owner, user)]
        arguments += [name, score, "" if user is None else f"={user}"]
    return bool(await store.connection.run(lane, _INDEX, names, arguments))


async def _users(store: Store, owner: UUID, pending: _Pending) -> list[str | None]:
    """Return the users of sessions."""
    users: dict[bytes, str | None] = {}
    unknown: list[bytes] = []
    for name, _, user_id, began_by in pending.entries:
        if user_id is None and began_by is None:
            unknown.append(name)  # an earlier version stored the user only in the first message
        else:
            about = decode_about(flatten_fields((USER_ID, BEGAN_BY), [user_id, began_by]))
            users[name] = session_user(about, 0, None)
    # First messages can be large, so few are read at a time.
    for start in range(0, len(unknown), _FIRST_MESSAGES):
        batch = unknown[start : start + _FIRST_MESSAGES]
        request = FactsRequest(owner, [name.decode() for name in batch], first_message=True, with_state=False)
        for name, facts in zip(batch, await read_facts(store, request), strict=True):
            users[name] = None if facts is None else facts.user
    return [users[name] for name, *_ in pending.entries]


# Checks of the indexes. Too slow for the path of a request.


async def is_missing(store: Store, lane: int, owner: UUID, session: str) -> bool:
    """Return whether the index of its user should have a session, but does not have it."""
    keys, name = store.keys, session.encode()
    for _ in range(2):  # a session can change between two reads
        mark, score, users = await store.connection.call_all(
            [
                (lane, (b"GET", keys.users_mark(lane, owner))),
                (lane, (b"ZSCORE", keys.sessions(lane, owner), name)),
                (lane, (b"HMGET", keys.state(lane, owner, session), USER_ID, BEGAN_BY)),
            ]
        )
        if mark is None or score is None or float(score) > int(mark.partition(b" ")[0]):
            return False
        (user,) = await _users(store, owner, _Pending(lane, mark, entries=[(name, score, *users)]))
        if user is None:
            return False
        indexed = await store.connection.call(lane, b"ZSCORE", keys.sessions_of_user(lane, owner, user), name)
        if indexed is not None and float(indexed) == float(score):
            return False
    return True


async def count_strays(store: Store, index: FoundKey, *, remove: bool) -> int:
    """Return the number of sessions in the index of a user that do not exist. Optionally remove them."""
    owner, call = UUID(bytes=index.name[:16]), store.connection.call
    names = await call(index.lane, b"ZRANGE", index.key, 0, -1)
    if not names:
        return 0
    scores = await call(index.lane, b"ZMSCORE", store.keys.sessions(index.lane, owner), *names)
    strays = [name for name, score in zip(names, scores, strict=True) if score is None]
    if strays and remove:
        await call(index.lane, b"ZREM", index.key, *strays)
        await rebuild(store, index.lane, owner)  # one of them can have begun again in the meantime
    return len(strays)


async def rebuild(store: Store, lane: int, owner: UUID) -> None:
    """Let the next reader build the indexes of an owner in a lane again."""
    await store.connection.call(lane, b"DEL", store.keys.users_mark(lane, owner))
