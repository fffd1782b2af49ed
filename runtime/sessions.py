"""Sessions: views of their breadcrumbs. One exists as soon as something is written into it.

What is kept of a session besides its breadcrumbs (its version, when it began, when it was last active, its
state) is written by the same scripts that write the breadcrumbs, so it is never behind them.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import anyio
import structlog

from breadcrumbs.runtime import record
from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb import SESSION, Breadcrumb, check_session_id
from breadcrumbs.runtime.connection import Script
from breadcrumbs.runtime.dead_letters import DeadLetters
from breadcrumbs.runtime.errors import InvalidCursor, NotFound, VersionMismatch
from breadcrumbs.runtime.ids import lane_for
from breadcrumbs.runtime.query import Query
from breadcrumbs.runtime.questions import Question, plain
from breadcrumbs.runtime.session_state import (
    ACTIVE,
    About,
    decode_about,
    decode_state,
    paused_at,
    shown_state,
)
from breadcrumbs.runtime.store import DELETION_REMEMBERED, Store

_log = structlog.get_logger("breadcrumbs.sessions")

_CLOSE, _BURY = Script("close"), Script("bury")

STATE_HOLDER: Final = "state/"
"""What begins like this holds state that several sessions share: no conversation, and in no list."""

_AT_ONCE: Final = 100

MESSAGE: Final = "user.message.v1"

_MOST_SEEN: Final = 2_000
"""A page ends early (with a cursor) rather than looking at every session for a filter that hardly matches."""


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What the store knows of a session."""

    id: str
    version: int
    created: int
    active: int
    counts: dict[str, int] = field(default_factory=dict)
    """Schema name -> how many breadcrumbs of it are there."""
    held: list[bytes] = field(default_factory=list)
    """The state as the store keeps it."""
    about: About = field(default_factory=About)
    first_message: Breadcrumb | None = None

    @property
    def state(self) -> dict[str, Any]:
        """All of it: not for everybody."""
        return decode_state(self.held)

    def state_for(self, reader: Principal) -> dict[str, Any]:
        return shown_state(self.held, reader)


@dataclass(frozen=True, slots=True)
class SessionPage:
    items: list[SessionFacts]
    next_cursor: str | None


class Sessions:
    """The sessions of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def lane(self, owner: UUID, session: str) -> int:
        return lane_for(owner, "session", session, self._store.lanes)

    async def get(self, owner: UUID, session: str, *, first_message: bool = False) -> SessionFacts:
        """What is known of a session; `first_message`: with the first thing that a user said in it."""
        check_session_id(session)
        (facts,) = await self._facts(owner, [session], first_message=first_message)
        if facts is None:
            raise NotFound(f"there is no session {session!r}")
        return facts

    async def state(self, owner: UUID, session: str, *, reader: Principal | None = None) -> dict[str, Any]:
        """The state alone, or what a reader may read of it; empty where there is none."""
        lane = self.lane(owner, session)
        return decode_state(
            await self._store.connection.call(lane, b"HGETALL", self._store.keys.state(lane, owner, session)),
            reader=reader,
        )

    def paused_at(self, owner: UUID, session: str) -> Question[int | None]:
        """Since when a session is paused; None: it is not. One small read."""
        lane = self.lane(owner, session)
        return plain(lane, (b"HGET", self._store.keys.state(lane, owner, session), ACTIVE), paused_at)

    async def page(
        self,
        owner: UUID,
        *,
        limit: int = 50,
        cursor: str | None = None,
        keep: Callable[[SessionFacts], bool] | None = None,
    ) -> SessionPage:
        """The sessions, the last active one first. `next_cursor` is there exactly as long as there is more."""
        place = None if cursor is None else _open_cursor(cursor)
        found: list[SessionFacts] = []
        seen = 0
        while True:
            # Who is choosy looks at many: not in small coin.
            wanted = limit + 1 - len(found) if keep is None else max(_AT_ONCE, limit + 1 - len(found))
            names, more = await self._names(owner, place, wanted)
            seen += len(names)
            talks = [(score, name) for score, name in names if not name.startswith(STATE_HOLDER.encode())]
            all_facts = await self._facts(owner, [name.decode() for _, name in talks], first_message=True)
            for here, facts in zip(talks, all_facts, strict=True):
                if facts is not None and (keep is None or keep(facts)):
                    if len(found) == limit:
                        return SessionPage(found, _spell_cursor(place))
                    found.append(facts)
                place = here
            if not more:
                return SessionPage(found, None)
            place = names[-1]
            if seen >= _MOST_SEEN:
                return SessionPage(found, _spell_cursor(place))

    async def delete(self, owner: UUID, session: str, *, expected_version: int | None = None) -> int:
        """Remove a session with everything in it. Nothing can be written into it from the first moment on.

        Returns how many breadcrumbs went. Killed halfway, it is finished by the housekeeping, or by asking again.
        """
        check_session_id(session)
        store, keys = self._store, self._store.keys
        lane = self.lane(owner, session)
        reply = await store.connection.run(
            lane,
            _CLOSE,
            [
                keys.session(lane, owner, session),
                keys.sessions(lane, owner),
                keys.closing(lane),
                keys.events(lane),
                keys.clock(lane),
            ],
            [
                owner.bytes,
                session,
                record.event_note("", [SESSION + session], None),
                "" if expected_version is None else expected_version,
            ],
        )
        match int(reply[0]):
            case 1:
                raise VersionMismatch(int(reply[1]), expected_version or 0)
            case 2:
                raise NotFound(f"there is no session {session!r}")
        return await self._clear(lane, owner, session, int(reply[2]))

    async def finish_deletions(self, lane: int) -> int:
        """Go on with deletions whose process died. Safe to run in several processes at once."""
        call, keys = self._store.connection.call, self._store.keys
        members = await call(lane, b"SMEMBERS", keys.closing(lane))
        for member in members:
            owner, session = UUID(bytes=member[:16]), member[16:].decode()
            deletion = await call(lane, b"HGET", keys.session(lane, owner, session), b"closing")
            if deletion is not None:  # None: somebody has just finished it
                await self._clear(lane, owner, session, int(deletion))
        return len(members)

    async def _clear(self, lane: int, owner: UUID, session: str, deletion: int) -> int:
        """Remove everything from a session whose deletion began then; how many breadcrumbs went.

        Several may be at it. Once one of them has ended the deletion, the name may be used again: then the others stop.
        """
        store, keys = self._store, self._store.keys
        gone: list[bool] = []

        async def delete(crumb: Breadcrumb) -> None:
            gone.append(await store.delete_with_session(lane, crumb, deletion))

        everything = Query(session_id=session, limit=_AT_ONCE)
        # Again until nothing is left: what was on its way while the session closed has landed meanwhile. What has
        # expired goes too: it would count as one of the next session of this name when it is swept.
        while page := (await store.list(owner, everything, with_expired=True)).items:
            async with anyio.create_task_group() as tasks:
                for crumb in page:
                    tasks.start_soon(delete, crumb)
            if not all(gone):
                return gone.count(True)
        letters = DeadLetters(store)
        for letter in await letters.all(owner, lane=lane):
            if letter.session_id == session and letter.event <= deletion:
                try:
                    await letters.discard(letter)
                except NotFound:
                    pass  # somebody else deletes the same session
        await store.connection.run(
            lane,
            _BURY,
            [keys.session(lane, owner, session), keys.closing(lane), keys.state(lane, owner, session)],
            [owner.bytes, session, DELETION_REMEMBERED, deletion],
        )
        return gone.count(True)

    async def _names(
        self, owner: UUID, after: tuple[int, bytes] | None, count: int
    ) -> tuple[list[tuple[int, bytes]], bool]:
        """Some sessions after a place, the last active first, and whether there are more behind them."""
        store = self._store

        def read(lane: int, highest: bytes | int, lowest: bytes | int, *limit: bytes | int) -> Any:
            key = store.keys.sessions(lane, owner)
            return (lane, (b"ZREVRANGEBYSCORE", key, highest, lowest, b"WITHSCORES", *limit))

        highest = b"+inf" if after is None else b"(%d" % after[0]
        commands = [read(lane, highest, b"-inf", b"LIMIT", 0, count + 1) for lane in range(store.lanes)]
        if after is not None:
            # All that were active in the very same microsecond: an import may bring many of them.
            commands += [read(lane, after[0], after[0]) for lane in range(store.lanes)]
        found = [
            (int(float(score)), name)
            for flat in await store.connection.call_all(commands)
            for name, score in zip(flat[::2], flat[1::2], strict=True)
        ]
        behind = sorted((place for place in found if after is None or place < after), reverse=True)
        return behind[:count], len(behind) > count

    async def _facts(
        self, owner: UUID, sessions: list[str], *, first_message: bool = False
    ) -> list[SessionFacts | None]:
        """What is known of some sessions, in three round trips; None: there is no such session."""
        store, keys = self._store, self._store.keys
        lanes = [self.lane(owner, session) for session in sessions]
        commands: list[Any] = []
        for lane, session in zip(lanes, sessions, strict=True):
            commands += [
                (lane, (b"HMGET", keys.session(lane, owner, session), b"version", b"created", b"closing")),
                (lane, (b"ZSCORE", keys.sessions(lane, owner), session)),
                (lane, (b"HGETALL", keys.state(lane, owner, session))),
            ]
        distinct = sorted(set(lanes))
        replies, schemas, firsts = await asyncio.gather(
            store.connection.call_all(commands),
            store.schemas(owner, distinct),
            self._first_messages(owner, list(zip(lanes, sessions, strict=True)) if first_message else []),
        )
        known = iter(replies)
        sizes = iter(
            await store.connection.call_all(
                [
                    (lane, (b"ZCARD", keys.by_session(lane, owner, session, schema)))
                    for lane, session in zip(lanes, sessions, strict=True)
                    for schema in schemas[lane]
                ]
            )
        )
        facts: list[SessionFacts | None] = []
        for lane, session in zip(lanes, sessions, strict=True):
            (version, created, closing), active, state = next(known), next(known), next(known)
            counts = {schema: int(next(sizes)) for schema in schemas[lane]}
            if version is None or closing is not None:
                facts.append(None)
                continue
            facts.append(
                SessionFacts(
                    session,
                    int(version),
                    int(created or float(active or 0)),
                    int(float(active or created or 0)),
                    {schema: number for schema, number in counts.items() if number},
                    state,
                    decode_about(state),
                    firsts.get(session),
                )
            )
        return facts

    async def _first_messages(self, owner: UUID, places: list[tuple[int, str]]) -> dict[str, Breadcrumb]:
        """What a user said first in some sessions, where that is still there."""
        store, keys = self._store, self._store.keys
        ids = await store.connection.call_all(
            [
                (lane, (b"ZRANGE", keys.by_session(lane, owner, session, MESSAGE), 0, 0))
                for lane, session in places
            ]
        )
        found = [(place, id) for place, first in zip(places, ids, strict=True) for id in first]
        bodies = await store.connection.call_all(
            [(lane, (b"GET", keys.body(lane, owner, id))) for (lane, _), id in found]
        )
        now = store.now()
        crumbs = {
            session: record.decode(owner, UUID(bytes=id), body)
            for ((_, session), id), body in zip(found, bodies, strict=True)
            if body is not None
        }
        return {session: crumb for session, crumb in crumbs.items() if not record.is_gone(crumb, now)}


def _spell_cursor(place: tuple[int, bytes] | None) -> str:
    assert place is not None  # noqa: S101 - a full page has a last item
    return base64.urlsafe_b64encode(place[0].to_bytes(8) + place[1]).decode().rstrip("=")


def _open_cursor(text: str) -> tuple[int, bytes]:
    # Not signed: it says where to go on in the caller's own list, and every place is a good one.
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raw = b""
    if len(raw) < 9:
        raise InvalidCursor(
            "this cursor was not given out here: take it unchanged from the last answer", where="cursor"
        )
    return int.from_bytes(raw[:8]), raw[8:]
