"""Sessions: views of their breadcrumbs. One exists as soon as something is written into it.

What is kept of a session besides its breadcrumbs (its version, when it began, when it was last active, its
state) is written by the same scripts that write the breadcrumbs, so it is never behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

import anyio
import orjson
import structlog

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.access.redaction import visible_state
from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.breadcrumb.breadcrumb import (
    LARGE_BYTES,
    SESSION,
    USER,
    USER_MESSAGE,
    Breadcrumb,
    BreadcrumbCreate,
    check_session_id,
    session_of,
    user_in,
    user_tags,
)
from breadcrumbs.runtime.breadcrumb.ids import derived_id, lane_for
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import (
    AnotherSession,
    NotFound,
    StateTooLarge,
    StoreUnavailable,
)
from breadcrumbs.runtime.sessions.messages import text_of
from breadcrumbs.runtime.store import record, script_calls
from breadcrumbs.runtime.store.batched_reads import Read, read_command
from breadcrumbs.runtime.store.cursors import decrypt_session_cursor, encrypt_session_cursor
from breadcrumbs.runtime.store.lookup import WALK_BYTES
from breadcrumbs.runtime.store.options import CreateOptions, SessionVersion
from breadcrumbs.runtime.store.script_replies import decode_close
from breadcrumbs.runtime.store.state import (
    ABOUT_NAMES,
    ACTIVE,
    BEGAN_BY,
    STATE_HOLDER,
    USER_ID,
    About,
    decode_about,
    decode_state,
    paused_at,
    state_changes,
)
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.written import Written
from breadcrumbs.runtime.workers.dead_letters import DeadLetters

_log = structlog.get_logger("breadcrumbs.sessions")

_CLOSE, _BURY = Script("close", inside="deletions"), Script("bury")

_AT_ONCE: Final = 100

_MOST_LOOKS: Final = 50
"""How often a write looks again because its session has ended or begun meanwhile."""

MESSAGE: Final = "user.message.v1"

_MOST_SEEN: Final = 2_000
"""A page ends early (with a cursor) rather than looking at every session for a filter that hardly matches."""


_SESSION_FIELDS: Final = (b"version", b"created", b"closing", b"entered", b"gone", b"after")
_STAMP: Final = 17
"""Bytes before a value of the state: when it was set, and a space."""

_LOADED_AT_ONCE: Final = 32
"""Sessions of a list that are looked at together."""
_BEGINNING: Final = 400
"""Characters of a large message that a list keeps."""


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
        return visible_state(reader, self.held)

    @property
    def user(self) -> str | None:
        """Whose session it is; None: no user's."""
        return _user_of(self.about, self.created, self.first_message)


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session that exists, with the part of its state that one reader may see."""

    created: int
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Belonging:
    """Whose a session is, and which of those that had its name."""

    user: str | None
    created: int
    deleted_before: int = 0
    """Time of the last deletion of an earlier session of this name, 0 = none is known.

    A credential issued at or before this time may be meant for that earlier session. The time is as it was known when
    the present session began: if the record of the deletion may have been dropped by then, it is the latest time at
    which the deletion can have happened. Records that are dropped later do not change it.
    """


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

    def derived_id(self, owner: UUID, session: str, *parts: str) -> UUID:
        """Return the id of a breadcrumb of a session. The same parts always give the same id."""
        return derived_id(self.lane(owner, session), *parts)

    async def last_write_time(self, owner: UUID, session: str) -> int:
        """Return the newest time that the clock of a session's lane has given to a write."""
        lane = self.lane(owner, session)
        return int(await self._store.connection.call(lane, b"GET", self._store.keys.clock(lane)) or 0)

    async def creation_times(self, owner: UUID, sessions: list[str]) -> list[int | None]:
        """Return when sessions began, in one round trip; None for a session that does not exist."""
        return [
            _created_in(reply)
            for reply in await self._store.connection.call_all(
                [self._existence_read(owner, session) for session in sessions]
            )
        ]

    async def open_sessions(self, reader: Principal, sessions: list[str]) -> list[OpenSession | None]:
        """Return sessions with their state, in one round trip; None for a session that does not exist."""
        owner, keys = reader.owner_id, self._store.keys
        commands: list[Any] = []
        for session in sessions:
            lane = self.lane(owner, session)
            state_read = (lane, (b"HGETALL", keys.state(lane, owner, session)))
            commands += [self._existence_read(owner, session), state_read]
        replies = iter(await self._store.connection.call_all(commands))
        found: list[OpenSession | None] = []
        for existence, state in zip(replies, replies, strict=True):
            created = _created_in(existence)
            found.append(None if created is None else OpenSession(created, visible_state(reader, state)))
        return found

    def _existence_read(self, owner: UUID, session: str) -> tuple[int, tuple[bytes, ...]]:
        lane = self.lane(owner, session)
        key = self._store.keys.session(lane, owner, session)
        return lane, (b"HMGET", key, b"version", b"created", b"closing")

    async def get(self, owner: UUID, session: str, *, first_message: bool = False) -> SessionFacts:
        """What is known of a session; `first_message`: with the first thing that a user said in it."""
        check_session_id(session)
        (facts,) = await self._facts(owner, [session], first_message=first_message)
        if facts is None:
            raise NotFound(f"there is no session {session!r}")
        return facts

    async def belonging(self, owner: UUID, session: str) -> Belonging | None:
        """Whose a session is, in one round trip for all but the oldest; None: there is no such session."""
        check_session_id(session)
        keys, lane = self._store.keys, self.lane(owner, session)
        held, about, deletions = await self._store.connection.call_all(
            [
                (lane, (b"HMGET", keys.session(lane, owner, session), *_SESSION_FIELDS)),
                (lane, (b"HMGET", keys.state(lane, owner, session), USER_ID, BEGAN_BY)),
                (lane, (b"ZMSCORE", keys.deletions(lane, owner), session, b"")),
            ]
        )
        version, created, closing, entered, gone, after = held
        if version is None or closing is not None:
            return None
        fields = zip((USER_ID, BEGAN_BY), about, strict=True)
        known = decode_about(
            [part for name, held in fields if held is not None for part in (name.encode(), held)]
        )
        first = {}
        if about == [None, None]:
            first = await self._first_messages(owner, [(lane, session)])
        began = int(created or 0)
        if after is not None:
            deleted_before = int(after)
        else:  # it began before the field existed. A dropped record is older than the present session.
            recorded, horizon = _deletion_times(deletions, gone)
            deleted_before = recorded or min(horizon, max(0, int(entered or began) - 1))
        return Belonging(_user_of(known, began, first.get(session)), began, deleted_before)

    async def last_deletion(self, owner: UUID, session: str) -> int | None:
        """Time of the last deletion of a session of this name, whether or not one exists now; None: none is known.

        If the name is not recorded but records were dropped, this is the time of the newest dropped record, so a
        caller that compares times fails closed. In microseconds, by the clock of the session's lane.
        """
        check_session_id(session)
        keys, lane = self._store.keys, self.lane(owner, session)
        deletions, gone = await self._store.connection.call_all(
            [
                (lane, (b"ZMSCORE", keys.deletions(lane, owner), session, b"")),
                (lane, (b"HGET", keys.session(lane, owner, session), b"gone")),
            ]
        )
        recorded, horizon = _deletion_times(deletions, gone)
        return recorded or horizon or None

    async def check_token(self, principal: Principal, *, missing_is_fine: bool = False) -> None:
        """Check that the session of a narrowed token was not deleted since the token was issued.

        `missing_is_fine`: a read of a session that does not exist shows nothing. A write would begin the next one.
        """
        if principal.session_id is None:
            return
        held = await self.belonging(principal.owner_id, principal.session_id)
        if held is not None or not missing_is_fine:
            await self._check_not_deleted(principal, principal.session_id, held)

    async def _check_not_deleted(self, principal: Principal, session: str, held: Belonging | None) -> None:
        deleted = (
            await self.last_deletion(principal.owner_id, session) if held is None else held.deleted_before
        )
        policy.check_session_not_deleted(principal, deleted or 0)

    async def create_as(
        self,
        principal: Principal,
        new: BreadcrumbCreate,
        *,
        idempotency_key: str | None = None,
        session_version: SessionVersion = None,
    ) -> Written:
        """Write a breadcrumb of a principal into a session that exists for it, or begin a session with it.

        A context of another session, made for the new message, would show a narrowed token what others said there.
        `session_version`: see `CreateOptions`.
        """

        async def write(began: int | None) -> Written:
            return await self._store.create(
                principal.owner_id,
                new,
                by=principal.agent_id,
                idempotency_key=idempotency_key,
                options=CreateOptions(session_version=session_version, session_began=began),
            )

        session = session_of(new.tags) or new.context.get("session_id")
        # A narrowed token writes into the session that was checked, or into none. `BreadcrumbCreate` checks the name.
        if not principal.is_narrowed or not isinstance(session, str):
            return await write(None)
        for _ in range(_MOST_LOOKS):
            held = await self.belonging(principal.owner_id, session)
            if held is None:
                visible = session_version is None and policy.may_begin_session(principal, session)
            else:
                visible = policy.may_see_session(principal, session, held.user)
            if not visible:
                raise NotFound(f"there is no session {session!r}")
            if principal.session_id is not None:
                await self._check_not_deleted(principal, session, held)
            try:
                return await write(0 if held is None else held.created)
            except AnotherSession:
                continue  # the session ended or began meanwhile: check the new one
        raise StoreUnavailable(f"session {session!r} begins and ends all the time: try again")

    async def state_for(self, reader: Principal, session: str) -> dict[str, Any]:
        """Return what a principal may read of a session's state; empty if there is none."""
        owner, lane = reader.owner_id, self.lane(reader.owner_id, session)
        held = await self._store.connection.call(
            lane, b"HGETALL", self._store.keys.state(lane, owner, session)
        )
        return visible_state(reader, held)

    async def check_room(self, owner: UUID, session: str, schema: str, context: dict[str, Any]) -> None:
        """Raise `StateTooLarge` if a breadcrumb would make a state too large. The write itself decides in the end."""
        store, keys, lane = self._store, self._store.keys, self.lane(owner, session)
        changes = state_changes(schema, context)
        state = keys.state(lane, owner, session)
        noted, *sizes = await store.connection.call_all(
            [
                (lane, (b"HGET", keys.session(lane, owner, session), b"state")),
                *((lane, (b"HSTRLEN", state, name)) for name in changes),
            ]
        )
        total, removed = (int(part) for part in (noted or b"0 0").split())
        growth = sum(
            _STAMP + len(value) - size + (0 if size else len(name.encode()))
            for (name, value), size in zip(changes.items(), sizes, strict=True)
        )
        if growth > 0 and total - removed + growth > store.max_state_bytes:
            raise StateTooLarge(session, total + growth, store.max_state_bytes)

    async def earlier_session_until(self, principal: Principal) -> int:
        """Time up to which events may belong to an earlier session with the name of the token's session; 0: none."""
        owner, session = principal.owner_id, principal.session_id
        if session is None:
            return 0
        held = await self.belonging(owner, session)
        if held is not None:
            # The breadcrumbs of a deleted session are removed after the deletion was noted: until the next one begins.
            return max(held.deleted_before, held.created - 1) if held.deleted_before else 0
        deleted = await self.last_deletion(owner, session) or 0
        # A token from before the deletion is for the deleted session: it may see that session's last events.
        return principal.issued if principal.issued > deleted > 0 else 0

    def paused_at(self, owner: UUID, session: str) -> Read[int | None]:
        """Read since when a session is paused; None: it is not."""
        lane = self.lane(owner, session)
        key = self._store.keys.state(lane, owner, session)
        return read_command(lane, (b"HGET", key, ACTIVE), paused_at)

    async def page(
        self,
        owner: UUID,
        *,
        limit: int = 50,
        cursor: str | None = None,
        keep: Callable[[SessionFacts], bool] | None = None,
    ) -> SessionPage:
        """The sessions, the last active one first, without their state.

        `next_cursor` is there exactly as long as there is more.
        """
        secret = self._store.secret
        place = None if cursor is None else decrypt_session_cursor(secret, owner, cursor)
        found: list[SessionFacts] = []
        seen = 0
        while True:
            # A filter may reject most sessions: fetch at least 100 at a time.
            wanted = limit + 1 - len(found) if keep is None else max(_AT_ONCE, limit + 1 - len(found))
            names, more = await self._names(owner, place, wanted)
            seen += len(names)
            talks = [(score, name) for score, name in names if not name.startswith(STATE_HOLDER.encode())]
            all_facts = await self._listed_facts(owner, [name.decode() for _, name in talks])
            for here, facts in zip(talks, all_facts, strict=True):
                if facts is not None and (keep is None or keep(facts)):
                    if len(found) == limit and place is not None:
                        return SessionPage(found, encrypt_session_cursor(secret, owner, *place))
                    found.append(facts)
                place = here
            if not more:
                return SessionPage(found, None)
            place = names[-1]
            if seen >= _MOST_SEEN:
                return SessionPage(found, encrypt_session_cursor(secret, owner, *place))

    async def delete(self, owner: UUID, session: str, *, expected_version: int | None = None) -> int:
        """Remove a session with everything in it. Nothing can be written into it from the first moment on.

        Returns how many breadcrumbs went. Killed halfway, it is finished by the housekeeping, or by asking again.
        """
        check_session_id(session)
        store, keys = self._store, self._store.keys
        lane = self.lane(owner, session)
        held = await self.belonging(owner, session)
        # Who listens with a token for a user hears only of what carries that user's tag.
        tags = [SESSION + session, *user_tags(None if held is None else held.user)]
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
            ],
            [
                owner.bytes,
                session,
                record.event_note("", tags, None),
                "" if expected_version is None else expected_version,
                script_calls.MAX_DELETIONS,
                script_calls.DELETION_REMEMBERED,
            ],
        )
        return await self._clear(lane, owner, session, decode_close(reply, session, expected_version))

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

        everything = Query(session_id=session, limit=_AT_ONCE, max_bytes=WALK_BYTES, without_contexts=True)
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
            [
                keys.session(lane, owner, session),
                keys.closing(lane),
                keys.state(lane, owner, session),
                keys.deletions(lane, owner),
            ],
            [owner.bytes, session, deletion],
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

    async def _listed_facts(self, owner: UUID, sessions: list[str]) -> list[SessionFacts | None]:
        """Return the facts that a list shows. First messages may be large, so few are loaded at a time."""
        found: list[SessionFacts | None] = []
        for start in range(0, len(sessions), _LOADED_AT_ONCE):
            group = sessions[start : start + _LOADED_AT_ONCE]
            for facts in await self._facts(owner, group, first_message=True, with_state=False):
                message = None if facts is None else facts.first_message
                if facts is not None and message is not None and len(message.json) > LARGE_BYTES:
                    facts = replace(facts, first_message=_beginning_of(message))
                found.append(facts)
        return found

    async def _facts(
        self, owner: UUID, sessions: list[str], *, first_message: bool = False, with_state: bool = True
    ) -> list[SessionFacts | None]:
        """What is known of some sessions, in three round trips; None: there is no such session."""
        store, keys = self._store, self._store.keys
        lanes = [self.lane(owner, session) for session in sessions]
        about = () if with_state else ABOUT_NAMES
        commands: list[Any] = []
        for lane, session in zip(lanes, sessions, strict=True):
            commands += [
                (lane, (b"HMGET", keys.session(lane, owner, session), b"version", b"created", b"closing")),
                (lane, (b"ZSCORE", keys.sessions(lane, owner), session)),
                (lane, (b"HGETALL" if with_state else b"HMGET", keys.state(lane, owner, session), *about)),
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
            if not with_state:
                pairs = zip(about, state, strict=True)
                state = [part for name, held in pairs if held is not None for part in (name.encode(), held)]
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


def _created_in(reply: list[Any]) -> int | None:
    """Return when a session began; None if it does not exist or is being deleted."""
    version, created, closing = reply
    return None if version is None or closing is not None else int(created or 0)


def _beginning_of(message: Breadcrumb) -> Breadcrumb:
    """A large message as a list needs it: with the beginning of its text, and nothing else in its context."""
    text = text_of(message)[:_BEGINNING]
    return replace(message, json=orjson.dumps({**message.document, "context": {"message": text}}))


def _deletion_times(scores: list[Any], gone: bytes | None) -> tuple[int, int]:
    """Time of the last recorded deletion of a name, and the horizon; 0 = none. `gone`: the record of an older store."""
    recorded, horizon = (int(float(score or 0)) for score in scores)
    return max(recorded, int(gone or 0)), horizon


def _user_of(about: About, created: int, first_message: Breadcrumb | None) -> str | None:
    """What its record says, or who began it."""
    if about.disowned:
        return None
    user = about.began_by if about.user_id is None else about.user_id
    if user is not None:
        return user if USER + user != USER_MESSAGE else None
    # From before it was kept who began it. Only what began it counts: others may have spoken since.
    if first_message is not None and first_message.created == created:
        return user_in(first_message.tags)
    return None
