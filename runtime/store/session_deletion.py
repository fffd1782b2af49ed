"""Deletion of a session in three steps: close it, remove its breadcrumbs, remove its record.

Nothing can be written into a closed session. `runtime/sessions/sessions.py` removes its breadcrumbs and dead letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.store import record, script_calls
from breadcrumbs.runtime.store.script_replies import decode_close
from breadcrumbs.runtime.store.store import Store

_CLOSE, _BURY = Script("close", inside="deletions"), Script("bury")


@dataclass(frozen=True, slots=True)
class ClosedSession:
    """A session whose deletion has begun."""

    owner: UUID
    session: str


async def close_session(
    store: Store, owner: UUID, session: str, *, tags: Sequence[str], expected_version: int | None
) -> int:
    """Begin the deletion of a session and return the time that identifies the deletion.

    `tags`: tags of the deletion event.
    """
    keys, lane = store.keys, store.keys.session_lane(owner, session)
    reply = await store.connection.run(
        lane,
        _CLOSE,
        [
            keys.session(lane, owner, session),
            keys.sessions(lane, owner),
            keys.closing(lane),
            keys.events(lane),
            keys.clock(lane),
            keys.deletions(lane, owner),
            keys.running(lane, owner, session),
        ],
        [
            owner.bytes,
            session,
            record.event_note("", list(tags), None),
            "" if expected_version is None else expected_version,
            script_calls.MAX_DELETIONS,
            script_calls.DELETION_RECORD_SECONDS,
        ],
    )
    return decode_close(reply, session, expected_version)


async def bury_session(store: Store, owner: UUID, session: str, deletion: int) -> None:
    """Remove the record and the state of an emptied session and end its deletion."""
    keys, lane = store.keys, store.keys.session_lane(owner, session)
    await store.connection.run(
        lane,
        _BURY,
        [
            keys.session(lane, owner, session),
            keys.closing(lane),
            keys.state(lane, owner, session),
            keys.deletions(lane, owner),
        ],
        [owner.bytes, session, deletion],
    )


async def list_closed_sessions(store: Store, lane: int) -> list[ClosedSession]:
    """Return the sessions of a lane whose deletion has not ended."""
    members = await store.connection.call(lane, b"SMEMBERS", store.keys.closing(lane))
    return [ClosedSession(UUID(bytes=member[:16]), member[16:].decode()) for member in members]


async def deletion_time(store: Store, closed: ClosedSession) -> int | None:
    """Return the start time of a deletion, or None if it has ended."""
    owner, session = closed.owner, closed.session
    lane = store.keys.session_lane(owner, session)
    time = await store.connection.call(lane, b"HGET", store.keys.session(lane, owner, session), b"closing")
    return None if time is None else int(time)
