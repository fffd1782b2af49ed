"""ADK's sessions in the store, as plain JSON. Used by the routes and by the service without a server.

    session.v1       the record of a session, written when it is created
    adk.event.v1     an event, with `context.event` in the format of ADK's servers
    adk.event.v1     in a session `state/adk:…`: a change of the state of an app or of a user

One script writes an event and its change of the session's state. Changes of shared state are a second write (see
shared_state.py). A call returns only after both writes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

from breadcrumbs.adk.naming import SessionNames, app_tag, new_session_names, user_names
from breadcrumbs.adk.reading import ALL_EVENTS, AdkEvents, EventRange, SessionReading, Sources
from breadcrumbs.adk.records import (
    check_first_events,
    event_record,
    first_events,
    join_state,
    read_names,
    read_shared_changes,
    session_record,
    session_view,
)
from breadcrumbs.adk.shared_state import SharedState
from breadcrumbs.adk.wire import Json, StateChanges, check_depth, delta_of, split_changes
from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.breadcrumb.json_input import canonical
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.errors import (
    AlreadyExists,
    IdempotencyMismatch,
    NotFound,
    SessionGone,
    VersionMismatch,
)
from breadcrumbs.runtime.schema_names import ADK_EVENT, SESSION_RECORD
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.placement import derive_id_in_session
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.written import Written

_GROUP_SIZE: Final = 16
"""Number of sessions whose state or last event is in memory at once."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to create."""

    app: str
    user: str
    id: str | None = None
    """None to generate an id."""
    state: Mapping[str, Any] = field(default_factory=dict)
    events: Sequence[Json] = ()
    """The first events of the session. They do not change its state."""
    idempotency_key: str | None = None

    def names(self) -> SessionNames:
        """Return the names of the session, with a generated id if none was given."""
        id = self.id
        if not (id and id.strip()):
            # A repeated key must give the same session, so derive the id from it.
            key = self.idempotency_key
            id = str(uuid4() if key is None else derived_id(0, SESSION_RECORD, self.app, self.user, key))
        return new_session_names(self.app, self.user, id)


@dataclass(frozen=True, slots=True)
class Appended:
    """Result of an append."""

    event: Json
    repeated: bool
    """Whether the event was already stored. Then it was not written again."""
    session_version: int | None
    """The version of the session after the write, or None if the event was already stored."""


@dataclass(frozen=True, slots=True)
class AdkListedSession:
    """A session in a list."""

    names: SessionNames
    updated: float
    """The time of its last event."""


class AdkSessions:
    """The ADK sessions of a store.

    Every method takes the principal. A token that is limited to a user or to a session has access only to their
    sessions. It cannot read or change the state of the app. It has access to the state of the user only if it is
    limited to that user.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sessions = Sessions(store)
        self._shared = SharedState(store, self._sessions)
        self._events = AdkEvents(store)

    # Writing

    async def create(self, who: Principal, new: NewSession) -> Json:
        """Create a session with its first events, in one write. Raises `AlreadyExists` if the id is taken.

        A repeated request with the same idempotency key returns the same session.
        """
        names, state = new.names(), dict(new.state)
        policy.check_adk_create(who, names.name, new.user)
        check_depth("state", state)
        deltas = split_changes(state)
        self._shared.check_access(who, names.of, deltas)
        check_first_events(names, new.events)
        await self._shared.check_room(who, names.of, deltas)
        events = first_events(names, new.events, self._store.now() / 1e6)
        written = await self._write_session(who, names, new, events)
        await self._shared.write(who, names, deltas, str(written.id))
        if written.session_version is None:  # created before
            events = await self._stored_first_events(who, names, new.events, events)
        shared = await self._shared.read(who, names.of)
        updated = events[-1]["timestamp"] if events else written.created / 1e6
        return session_view(names, updated, {**deltas.session, **shared}, events)

    async def append(
        self, who: Principal, names: SessionNames, event: Json, *, timed: bool = True
    ) -> Appended:
        """Write an event and its state changes. A repeated event changes nothing.

        `timed` is whether the client set the timestamp. Otherwise a repeated event gets the timestamp of the first.
        """
        policy.check_adk_write(who, names.name, names.of.user)
        check_depth("event", event)
        deltas = split_changes(delta_of(event))
        self._shared.check_access(who, names.of, deltas)
        await self._shared.check_room(who, names.of, deltas)
        id = self._event_id(who, names, event["id"])
        record = event_record(names, event, deltas.session)
        try:
            written = await self._store.create(
                who.owner_id, record, by=who.agent_id, id=id, options=CreateOptions(session_version="*")
            )
        except (NotFound, SessionGone):
            raise NotFound(f"session {names.id!r} of this user not found") from None
        if written.found:
            event = await self._stored_event(who, id, event, timed=timed)
        await self._shared.write(who, names, deltas, event["id"])
        return Appended(event, written.found, written.session_version)

    async def delete(self, who: Principal, names: SessionNames) -> None:
        """Delete a session with its events. A missing session is not an error."""
        policy.check_adk_write(who, names.name, names.of.user)
        try:
            await self._sessions.delete(who.owner_id, names.name)
        except NotFound:
            pass

    # Reading

    async def get(self, who: Principal, names: SessionNames, wanted: EventRange = ALL_EVENTS) -> Json | None:
        """Return a session with its events, or None if it does not exist."""
        reading = await self.read(who, names, wanted)
        if reading is None:
            return None
        events = [event async for event in reading.events()]
        end = await reading.end()
        return None if end is None else {**end, "events": events}

    async def read(
        self, who: Principal, names: SessionNames, wanted: EventRange = ALL_EVENTS
    ) -> SessionReading | None:
        """Start a read of a session that does not need all events in memory. None if it does not exist."""
        if not policy.may_see_adk_session(who, names.name, names.of.user):
            return None
        reading = SessionReading(Sources(self._sessions, self._events, self._shared), who, names)
        return reading if await reading.begin(wanted) else None

    async def list_all(self, who: Principal, app: str, user: str | None = None) -> list[Json]:
        """Return the sessions of an app, or of one of its users, without events. The last changed is last."""
        listed = await self.listed(who, app, user)
        return [view async for view in self.views(who, listed)]

    async def listed(self, who: Principal, app: str, user: str | None = None) -> list[AdkListedSession]:
        """Return the names and times of the sessions. The last changed is last."""
        found: list[AdkListedSession] = []
        for group in _in_groups(await self._recorded_names(who, app, user)):
            created = await self._sessions.creation_times(who.owner_id, [names.name for names in group])
            existing = [(names, time) for names, time in zip(group, created, strict=True) if time is not None]
            times = await gather(
                *(self._events.last_update(who, names.name, time) for names, time in existing)
            )
            found += [AdkListedSession(names, time) for (names, _), time in zip(existing, times, strict=True)]
        return sorted(found, key=lambda one: (one.updated, one.names.of.user, one.names.id))

    async def views(self, who: Principal, listed: Sequence[AdkListedSession]) -> AsyncIterator[Json]:
        """Yield sessions with their state, group by group. Sessions deleted meanwhile are left out."""
        for group in _in_groups(listed):
            users = {one.names.of.user: one.names.of for one in group}
            found, states = await gather(
                self._sessions.open_sessions(who, [one.names.name for one in group]),
                gather(*(self._shared.read(who, of) for of in users.values())),
            )
            shared = dict(zip(users, states, strict=True))
            for one, session in zip(group, found, strict=True):
                if session is not None:
                    state = join_state(session.state, shared[one.names.of.user])
                    yield session_view(one.names, one.updated, state, [])

    async def user_state(self, who: Principal, app: str, user: str) -> Json:
        """Return the state that a user's sessions share, without the prefix `user:`."""
        of = user_names(app, user)
        if not policy.may_read_user_state(who, user):
            raise NotFound("the token has no access to the state of this user")
        return await self._sessions.state_for(who, of.user_state)

    # Steps

    async def _write_session(
        self, who: Principal, names: SessionNames, new: NewSession, events: Sequence[Json]
    ) -> Written:
        state = dict(new.state)
        along = [
            (self._event_id(who, names, event["id"]), event_record(names, event, {})) for event in events
        ]
        try:
            return await self._store.create(
                who.owner_id,
                session_record(names, state, split_changes(state), new.events),
                by=who.agent_id,
                idempotency_key=new.idempotency_key,
                options=CreateOptions(session_version=0, along=along),
            )
        except VersionMismatch:
            await self._finish_creation(who, names)
            raise AlreadyExists(f"session {names.id!r} of this user already exists") from None
        except SessionGone:
            raise AlreadyExists(f"session {names.id!r} is being deleted: retry in a moment") from None

    async def _finish_creation(self, who: Principal, names: SessionNames) -> None:
        """Write the shared state of an existing session again. Its creator can have died before that write."""
        if not policy.may_read_app_state(who):
            return  # leave it to a principal with access to the app's state
        first = Query(session_id=names.name, schema_name=SESSION_RECORD, sort="created_at", limit=1)
        for record in (await self._store.list(who.owner_id, first)).items:
            # Read version 1: every client with write access to the session can have written a later version.
            try:
                record = await self._store.get_version(who.owner_id, record.id, 1)
            except NotFound:
                continue
            deltas: StateChanges | None = read_shared_changes(record)
            if deltas is not None:
                await self._shared.write(who, names, deltas, str(record.id))

    async def _stored_first_events(
        self, who: Principal, names: SessionNames, given: Sequence[Json], events: list[Json]
    ) -> list[Json]:
        """Return the first events of a session that was created before, with their stored times."""
        return [
            (await self.append(who, names, event, timed="timestamp" in original)).event
            for original, event in zip(given, events, strict=True)
        ]

    async def _stored_event(self, who: Principal, id: UUID, event: Json, *, timed: bool) -> Json:
        """Return the event with its stored time. Raises `IdempotencyMismatch` if another event has its id."""
        stored = (await self._store.get(who.owner_id, id)).context.get("event")
        if not timed and isinstance(stored, dict) and "timestamp" in stored:
            event = {**event, "timestamp": stored["timestamp"]}
        if canonical(stored) != canonical(event):
            raise IdempotencyMismatch(
                f"another event of this session has the id {event['id']!r}: use a different id"
            )
        return event

    async def _recorded_names(self, who: Principal, app: str, user: str | None) -> list[SessionNames]:
        tag = app_tag(app) if user is None else user_names(app, user).user_tag
        query = Query(schema_name=SESSION_RECORD, all_tags=(tag,), sort="created_at")
        found: dict[str, SessionNames] = {}
        async for record in self._store.walk(who.owner_id, policy.restrict_query(who, query)):
            names = read_names(record)
            if names is not None and (names.of.app, user or names.of.user) == (app, names.of.user):
                found[names.name] = names
        return list(found.values())

    def _event_id(self, who: Principal, names: SessionNames, event: str) -> UUID:
        """Return the id of the breadcrumb of an event."""
        return derive_id_in_session(self._store, who.owner_id, names.name, ADK_EVENT, names.name, event)


def _in_groups(things: Sequence[_T]) -> Iterator[Sequence[_T]]:
    for start in range(0, len(things), _GROUP_SIZE):
        yield things[start : start + _GROUP_SIZE]
