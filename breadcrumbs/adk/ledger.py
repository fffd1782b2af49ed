"""ADK's sessions on the store, as plain JSON: one core for the routes and for the service that works without them.

    session.v1       the record: one per session, written when it is created
    adk.event.v1     an event, with `context.event` as ADK's servers send it
    adk.event.v1     in a session `state/adk:…`: a change of the state of an app or of a user

A session's state and its events are written together, by one script. The state of apps and users is shared by sessions
that may live in other lanes, so a change of it is a second write. Its id is derived from the event's: a writer that
died between the two, or never heard the answer, delivers its event again; the event is found to be there and the
second write is made then, or found to be there too. Until it does, nobody was told that the event was stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

from breadcrumbs.adk.naming import (
    SessionNames,
    UserNames,
    app_tag,
    names_of,
    new_session_names,
    session_names,
)
from breadcrumbs.adk.wire import (
    APP,
    TEMP,
    USER,
    Deltas,
    Json,
    check_depth,
    completed,
    delta_of,
    line,
    public_event,
    split,
    text_of,
)
from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.access.redaction import redact_event, visible_state
from breadcrumbs.runtime.breadcrumb.breadcrumb import SESSION, Breadcrumb, BreadcrumbCreate, content_of
from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.breadcrumb.json_input import canonical
from breadcrumbs.runtime.breadcrumb.query import Query, SortKey
from breadcrumbs.runtime.errors import (
    AlreadyExists,
    IdempotencyMismatch,
    InvalidInput,
    NotFound,
    SessionGone,
    VersionMismatch,
)
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.batched_reads import NeedsFullScan, recent_of
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.state import (
    ADK_EVENT,
    SESSION_RECORD,
    SHARED_DELTA,
    sensitivity_of,
    what_is_secret,
)
from breadcrumbs.runtime.store.store import Store

_PAGE: Final = 100
"""How many events are read at once where nobody knows how many are wanted."""
_MOST_FIRST_EVENTS: Final = 1_000
"""One write holds them all: while it is made, the server does nothing else."""
_MOST: Final = 1_000
"""How many are read at once at most: the server does nothing else meanwhile."""

_GROUP: Final = 16
"""Sessions whose state, or last event, is in memory at once."""

_T = TypeVar("_T")

_FOR_MODELS: Final = {"include": ["author", "message"]}
"""What a model is shown of an event that a context brings in: who said what, not ADK's bookkeeping."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of an event."""

    event: Json
    repeated: bool
    """It was there already: nothing was written."""
    session_version: int | None
    """The version that this gave to the session."""


@dataclass(frozen=True, slots=True)
class EventRange:
    """Which events of a session are read."""

    recent: int | None = None
    """The last so many; None: all."""
    after: float | None = None
    """Those behind the last one that is older, in seconds since 1970."""
    until: int | None = None
    """Those that were there at this time of the lane's clock: no event of a later session of the same name."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What the store knows of a session."""

    created: int
    state: Json


@dataclass(frozen=True, slots=True)
class Listed:
    """A session in a list."""

    names: SessionNames
    updated: float
    """The time of its last event."""


class AdkSessions:
    """The sessions of a store, by the names that ADK gives them.

    Every method takes who is asking. A token that is narrowed to a user or a session sees and changes what is theirs:
    no other user's sessions, not the state of the app, which is everybody's, and of the user's state only a user.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sessions = Sessions(store)

    async def create(
        self,
        who: Principal,
        app: str,
        user: str,
        id: str | None = None,
        state: Mapping[str, Any] | None = None,
        *,
        events: Sequence[Json] = (),
        idempotency_key: str | None = None,
    ) -> Json:
        """A new session with the events that it begins with, in one write. `AlreadyExists` where the id is taken.

        Such events change no state. The same again with the same key gives the same session.
        """
        if not (id and id.strip()):
            # The same key a second time means the same session: its id must not be another one.
            key = idempotency_key
            id = str(uuid4() if key is None else derived_id(0, SESSION_RECORD, app, user, key))
        names = new_session_names(app, user, id)
        policy.check_adk_create(who, names.name, user)
        check_depth("state", dict(state or {}))
        deltas = split(state or {})
        _check_shared(who, names, deltas)
        _check_first_events(names, events)
        await self._check_shared_room(who, names.of, deltas)
        now = self._store.now() / 1e6
        first = [
            completed(event, id=_first_id(names, number), now=now) for number, event in enumerate(events)
        ]
        context: Json = {
            "title": line(f"{app} · {user}"),
            "user_id": user,
            "adk": {"app_name": app, "user_id": user, "session_id": names.id},
            "state_delta": deltas.session,
            "null_is_a_value": True,
            **what_is_secret(dict(state or {})),
        }
        if deltas.app or deltas.user:
            context[SHARED_DELTA] = {"app": deltas.app, "user": deltas.user}
        if events:  # so that the key is for these, too
            context["events_digest"] = blake2b(canonical(list(events)), digest_size=16).hexdigest()
        record = BreadcrumbCreate(
            schema_name=SESSION_RECORD,
            title=context["title"],
            tags=[*names.tags, names.of.app_tag, names.of.user_tag],
            context=context,
            sensitivity=sensitivity_of(dict(state or {})),
        )
        try:
            written = await self._store.create(
                who.owner_id,
                record,
                by=who.agent_id,
                idempotency_key=idempotency_key,
                options=CreateOptions(
                    session_version=0,
                    along=[
                        (self._place(who, names, event["id"]), _crumb_of(names, event, {})) for event in first
                    ],
                ),
            )
        except VersionMismatch:
            await self._finish_creation(who, names)
            raise AlreadyExists(f"there is a session {names.id!r} of this user already") from None
        except SessionGone:
            raise AlreadyExists(
                f"the session {names.id!r} is being deleted: create it again in a moment"
            ) from None
        await self._share(who, names, deltas, str(written.id))
        if written.session_version is None:
            # Created before: its events have the times that they got then.
            first = [
                (await self.append(who, app, user, names.id, event, timed="timestamp" in given)).event
                for given, event in zip(events, first, strict=True)
            ]
        shared = await self._shared_state(who, names.of)
        updated = first[-1]["timestamp"] if first else written.created / 1e6
        return _view(names, updated, {**deltas.session, **shared}, first)

    async def get(
        self,
        who: Principal,
        app: str,
        user: str,
        id: str,
        *,
        recent: int | None = None,
        after: float | None = None,
    ) -> Json | None:
        """A session with its events: all, the last `recent`, or those behind the last one before `after`."""
        reading = await self.read(who, app, user, id, recent=recent, after=after)
        if reading is None:
            return None
        events = [event async for event in reading.events()]
        end = await reading.end()
        return None if end is None else {**end, "events": events}

    async def read(
        self,
        who: Principal,
        app: str,
        user: str,
        id: str,
        *,
        recent: int | None = None,
        after: float | None = None,
    ) -> SessionReading | None:
        """The same, for readers that do not want all events in memory at once."""
        names = session_names(app, user, id)
        if not policy.may_see_adk_session(who, names.name, user):
            return None
        crumbs = await self._events_at_once(who, names.name, recent, after)
        if crumbs is not None:
            return SessionReading(self, who, names, crumbs)
        lane = self._sessions.lane(who.owner_id, names.name)
        until = int(await self._store.connection.call(lane, b"GET", self._store.keys.clock(lane)) or 0)
        (began,) = await self._created(who, [names.name])
        if began is None:
            return None
        return SessionReading(self, who, names, None, EventRange(recent, after, until), began)

    async def list_all(self, who: Principal, app: str, user: str | None = None) -> list[Json]:
        """The sessions of an app, or of one user of it, without events; the last one to change comes last."""
        listed = await self.listed(who, app, user)
        return [view async for view in self.views(who, listed)]

    async def listed(self, who: Principal, app: str, user: str | None = None) -> list[Listed]:
        """Which sessions there are, the last one to change last."""
        tag = app_tag(app) if user is None else names_of(app, user).user_tag
        query = policy.restrict_query(
            who, Query(schema_name=SESSION_RECORD, all_tags=(tag,), sort="created_at")
        )
        named = {}
        async for record in self._store.walk(who.owner_id, query):
            names = _names_in(record)
            if names is not None and (names.of.app, user or names.of.user) == (app, names.of.user):
                named[names.name] = names
        found: list[Listed] = []
        for group in _in_groups(list(named.values())):
            created = await self._created(who, [names.name for names in group])
            there = [(names, begun) for names, begun in zip(group, created, strict=True) if begun is not None]
            moments = await asyncio.gather(
                *(self._last_update(who, names.name, begun) for names, begun in there)
            )
            found += [Listed(names, moment) for (names, _), moment in zip(there, moments, strict=True)]
        return sorted(found, key=lambda one: (one.updated, one.names.of.user, one.names.id))

    async def views(self, who: Principal, listed: Sequence[Listed]) -> AsyncIterator[Json]:
        """Sessions with their state, a few in memory at a time. One that was deleted since is left out."""
        for group in _in_groups(listed):
            users = {one.names.of.user: one.names.of for one in group}
            found, states = await asyncio.gather(
                self._found(who, [one.names.name for one in group]),
                asyncio.gather(*(self._shared_state(who, of) for of in users.values())),
            )
            shared = dict(zip(users, states, strict=True))
            for one, facts in zip(group, found, strict=True):
                if facts is not None:
                    yield _view(one.names, one.updated, _joined(facts.state, shared[one.names.of.user]), [])

    async def delete(self, who: Principal, app: str, user: str, id: str) -> None:
        """Remove a session with its events. One that is not there is gone already."""
        names = session_names(app, user, id)
        policy.check_adk_write(who, names.name, user)
        try:
            await self._sessions.delete(who.owner_id, names.name)
        except NotFound:
            pass

    async def append(
        self, who: Principal, app: str, user: str, id: str, event: Json, *, timed: bool = True
    ) -> Appended:
        """Write an event and what it changes of the state. The same event a second time changes nothing.

        `timed`: its time is its writer's. Otherwise it has the time of its first arrival.
        """
        names = session_names(app, user, id)
        policy.check_adk_write(who, names.name, user)
        check_depth("event", event)
        deltas = split(delta_of(event))
        _check_shared(who, names, deltas)
        await self._check_shared_room(who, names.of, deltas)
        store, owner = self._store, who.owner_id
        place = self._place(who, names, event["id"])
        try:
            written = await store.create(
                owner,
                _crumb_of(names, event, deltas.session),
                by=who.agent_id,
                id=place,
                options=CreateOptions(session_version="*"),
            )
        except (NotFound, SessionGone):
            raise NotFound(f"there is no session {names.id!r} of this user") from None
        if written.found:
            stored = (await store.get(owner, place)).context.get("event")
            if not timed and isinstance(stored, dict) and "timestamp" in stored:
                event = {**event, "timestamp": stored["timestamp"]}
            if canonical(stored) != canonical(event):
                raise IdempotencyMismatch(
                    f"another event with the id {event['id']!r} is in this session: give each event an id of its own"
                )
        await self._share(who, names, deltas, event["id"])
        return Appended(event, written.found, written.session_version)

    def _place(self, who: Principal, names: SessionNames, event: str) -> UUID:
        """The breadcrumb that an event of a session becomes."""
        lane = self._sessions.lane(who.owner_id, names.name)
        return derived_id(lane, ADK_EVENT, names.name, event)

    async def user_state(self, who: Principal, app: str, user: str) -> Json:
        """What a user's sessions share, without the `user:`."""
        of = names_of(app, user)
        if not policy.may_read_user_state(who, user):
            raise NotFound("this token does not see the state of this user")
        return await self._sessions.state_for(who, of.user_state)

    # Shared state

    async def _share(self, who: Principal, names: SessionNames, deltas: Deltas, source: str) -> None:
        """Write what a session or an event changes of the state of its app and its user, once."""
        of = names.of
        await asyncio.gather(
            *(
                self._share_one(who, holder, delta, tags, (names.name, source))
                for holder, delta, tags in (
                    (of.app_state, deltas.app, ()),
                    (of.user_state, deltas.user, of.plain_user_tag),
                )
                if delta
            )
        )

    async def _check_shared_room(self, who: Principal, of: UserNames, deltas: Deltas) -> None:
        """Refuse a change of shared state that has no room, before the event that brings it is written."""
        for holder, delta in ((of.app_state, deltas.app), (of.user_state, deltas.user)):
            if delta:
                await self._sessions.check_room(who.owner_id, holder, ADK_EVENT, {"state_delta": delta})

    async def _share_one(
        self, who: Principal, holder: str, delta: Json, tags: Iterable[str], source: tuple[str, str]
    ) -> None:
        # The change itself is part of the id: of a session that was deleted and created again, a new event may
        # have the id of an old one.
        digest = blake2b(canonical(delta), digest_size=16).hexdigest()
        place = derived_id(self._sessions.lane(who.owner_id, holder), ADK_EVENT, holder, *source, digest)
        change = BreadcrumbCreate(
            schema_name=ADK_EVENT,
            title=line(f"state: {', '.join(delta)}"),
            tags=[SESSION + holder, *tags],
            context={"state_delta": delta, "source": list(source), **what_is_secret(delta)},
            sensitivity=sensitivity_of(delta),
        )
        for _ in range(50):
            try:
                await self._store.create(who.owner_id, change, by=who.agent_id, id=place)
            except SessionGone:  # somebody erases all of it, just now: the next state begins with this
                await asyncio.sleep(0.1)
            else:
                return
        raise AlreadyExists(f"the state in {holder!r} is being deleted: try again in a moment")

    async def _finish_creation(self, who: Principal, names: SessionNames) -> None:
        """Somebody who died while creating the session may have left shared state unwritten."""
        first = Query(session_id=names.name, schema_name=SESSION_RECORD, sort="created_at", limit=1)
        if not policy.may_read_app_state(who):
            return  # the next principal that is not narrowed writes it
        for record in (await self._store.list(who.owner_id, first)).items:
            # As it was written: later versions may be anybody's who may write in the session.
            try:
                record = await self._store.get_version(who.owner_id, record.id, 1)
            except NotFound:
                continue
            if (shared := _shared_in(record)) is not None:
                await self._share(who, names, shared, str(record.id))

    async def _shared_state(self, who: Principal, of: UserNames) -> Json:
        """The state of the app and of the user, with their prefixes."""
        asked = []
        if policy.may_read_app_state(who):
            asked.append((APP, of.app_state))
        if policy.may_read_user_state(who, of.user):
            asked.append((USER, of.user_state))
        states = await asyncio.gather(*(self._sessions.state_for(who, holder) for _, holder in asked))
        return {
            prefix + name: value
            for (prefix, _), state in zip(asked, states, strict=True)
            for name, value in state.items()
        }

    # Reading

    async def _found(self, who: Principal, sessions: list[str]) -> list[_Found | None]:
        """Whether sessions exist, since when, and their state: one round trip for all."""
        keys, owner = self._store.keys, who.owner_id
        commands: list[Any] = []
        for session in sessions:
            lane = self._sessions.lane(owner, session)
            commands += [
                (lane, (b"HMGET", keys.session(lane, owner, session), b"version", b"created", b"closing")),
                (lane, (b"HGETALL", keys.state(lane, owner, session))),
            ]
        replies = iter(await self._store.connection.call_all(commands))
        found: list[_Found | None] = []
        for (version, created, closing), state in zip(replies, replies, strict=True):
            there = version is not None and closing is None
            found.append(_Found(int(created or 0), visible_state(who, state)) if there else None)
        return found

    async def _created(self, who: Principal, sessions: list[str]) -> list[int | None]:
        """When sessions began; None: there is no such session."""
        keys, owner = self._store.keys, who.owner_id
        lanes = [self._sessions.lane(owner, session) for session in sessions]
        fields = (b"version", b"created", b"closing")
        replies = await self._store.connection.call_all(
            [
                (lane, (b"HMGET", keys.session(lane, owner, session), *fields))
                for lane, session in zip(lanes, sessions, strict=True)
            ]
        )
        return [
            None if version is None or closing is not None else int(created or 0)
            for version, created, closing in replies
        ]

    async def _last_update(self, who: Principal, session: str, created: int) -> float:
        """ADK's services take the time of the last event; so do we, and not the store's own time of its arrival."""
        last = await self._events_at_once(who, session, 1, None)
        if last is None:
            last = [crumb async for crumb in self._events(who, session, EventRange(recent=1))]
        return _moment(last[0]) if last else created / 1e6

    async def _events_at_once(
        self, who: Principal, session: str, recent: int | None, after: float | None
    ) -> list[Breadcrumb] | None:
        """The breadcrumbs of events in the order in which they arrived, in one round trip; None: it takes more."""
        if recent == 0:
            return []
        most = min(_PAGE if recent is None or after is not None else _MOST, recent or _PAGE)
        read = replace(recent_of(self._store, who.owner_id, session, ADK_EVENT, most), fallback=None)
        try:
            (newest,) = await self._store.read_batch(read)
        except NeedsFullScan:
            return None
        events = newest[::-1]
        if not all(policy.may_see(who, crumb) and _is_event(crumb) for crumb in events):
            return None
        if len(events) == most != recent and not (after is not None and _moment(events[0]) < after):
            return None  # there are more
        return events if after is None else _behind(events, after)

    def _query(self, who: Principal, session: str) -> Query:
        query = policy.restrict_query(who, Query(session_id=session, schema_name=ADK_EVENT))
        return replace(query, keep=lambda crumb: policy.may_see(who, crumb) and _is_event(crumb))

    async def _events(self, who: Principal, session: str, wanted: EventRange) -> AsyncIterator[Breadcrumb]:
        """The breadcrumbs of events in the order in which they arrived, a few in memory at a time."""
        recent, after, owner = wanted.recent, wanted.after, who.owner_id
        query = replace(self._query(who, session), created_until=wanted.until)
        first: SortKey | None = None
        if recent is not None or after is not None:
            # Where to begin is known from the end only: it is read twice.
            count = 0
            async for crumb in self._store.walk(owner, query):
                if count == recent or (after is not None and _moment(crumb) < after):
                    break
                first, count = SortKey(crumb.created, crumb.id.bytes), count + 1
            if first is None:
                return
        since = None if first is None else first.score
        given = 0
        async for crumb in self._store.walk(owner, replace(query, sort="created_at", created_since=since)):
            if given == recent:
                return  # the others came meanwhile
            if first is None or SortKey(crumb.created, crumb.id.bytes) >= first:
                yield crumb
                given += 1


class SessionReading:
    """A session that is being read: first its events, then the rest of it."""

    def __init__(
        self,
        sessions: AdkSessions,
        who: Principal,
        names: SessionNames,
        crumbs: list[Breadcrumb] | None,
        wanted: EventRange | None = None,
        began: int | None = None,
    ) -> None:
        self._sessions = sessions
        self._who = who
        self._names = names
        self._crumbs = crumbs
        self._wanted = wanted or EventRange()
        self._began = began
        """When the session began that is read. A later one of the same name may belong to somebody else."""
        self._last: float | None = None

    @property
    def is_short(self) -> bool:
        """Whether all events are in memory already."""
        return self._crumbs is not None

    async def events(self) -> AsyncIterator[Json]:
        if self._crumbs is not None:
            for crumb in self._crumbs:
                yield self._shown(crumb)
            return
        async for crumb in self._sessions._events(self._who, self._names.name, self._wanted):
            yield self._shown(crumb)

    def _shown(self, crumb: Breadcrumb) -> Json:
        self._last = _moment(crumb)
        return _shown_to(self._who, crumb)

    async def end(self) -> Json | None:
        """The session without its events, once these were read: what they changed is then in the state."""
        sessions, who, names = self._sessions, self._who, self._names
        (found,), shared = await asyncio.gather(
            sessions._found(who, [names.name]), sessions._shared_state(who, names.of)
        )
        if found is None or self._began not in (None, found.created):
            return None
        updated = self._last
        if updated is None:
            updated = await sessions._last_update(who, names.name, found.created)
        return _view(names, updated, _joined(found.state, shared), [])


def _joined(own: Json, shared: Json) -> Json:
    """The state that ADK sees. A shared name in the session's own state was not set by ADK and is left out."""
    return {name: value for name, value in own.items() if not name.startswith((APP, USER, TEMP))} | shared


def _in_groups(things: Sequence[_T]) -> Iterator[Sequence[_T]]:
    for start in range(0, len(things), _GROUP):
        yield things[start : start + _GROUP]


def _behind(crumbs: list[Breadcrumb], after: float) -> list[Breadcrumb]:
    """What arrived after the last event that is older, as ADK's own service in memory has it."""
    for place in range(len(crumbs) - 1, -1, -1):
        if _moment(crumbs[place]) < after:
            return crumbs[place + 1 :]
    return crumbs


def _is_event(crumb: Breadcrumb) -> bool:
    """Anybody may post breadcrumbs of this schema: what holds no event is none."""
    event = crumb.context.get("event")
    return isinstance(event, dict) and isinstance(event.get("timestamp"), int | float)


def _moment(crumb: Breadcrumb) -> float:
    return float(crumb.context["event"]["timestamp"])


def _shown_to(who: Principal, crumb: Breadcrumb) -> Json:
    event: Json = redact_event(who, crumb.context["event"])
    return event if policy.may_read_content(who, crumb) else public_event(event)


def _crumb_of(names: SessionNames, event: Json, delta: Json) -> BreadcrumbCreate:
    context: Json = {
        "event": event,
        "state_delta": delta,
        "author": event.get("author", ""),
        **what_is_secret(event),
    }
    if text := text_of(event):
        context["message"] = text
    return BreadcrumbCreate(
        schema_name=ADK_EVENT,
        title=line(event.get("author", "")),
        tags=names.tags,
        context=context,
        sensitivity=sensitivity_of(event),
        llm_hints=_FOR_MODELS,
    )


def _first_id(names: SessionNames, number: int) -> str:
    """The id of an event that a session begins with, where it came without one."""
    return str(derived_id(0, ADK_EVENT, names.name, str(number)))


def _check_first_events(names: SessionNames, events: Sequence[Json]) -> None:
    """That all events of a new session can be stored, which are written with it."""
    if len(events) > _MOST_FIRST_EVENTS:
        raise InvalidInput(
            f"a session begins with at most {_MOST_FIRST_EVENTS} events: append the others", where="events"
        )
    ids: set[str] = set()
    for number, event in enumerate(events):
        check_depth(f"events.{number}", event)
        content_of(_crumb_of(names, event, {}))
        id = event.get("id") or _first_id(names, number)
        if id in ids:
            raise InvalidInput(
                f"another event of this session has the id {id!r}: give each an id of its own",
                where=f"events.{number}.id",
            )
        ids.add(id)


def _shared_in(record: Breadcrumb) -> Deltas | None:
    """What a record says of the state of the app and of the user."""
    shared = record.context.get(SHARED_DELTA)
    if record.schema_name != SESSION_RECORD or not isinstance(shared, dict):
        return None
    app, user = shared.get("app"), shared.get("user")
    return Deltas(app, user) if isinstance(app, dict) and isinstance(user, dict) else None


def _names_in(record: Breadcrumb) -> SessionNames | None:
    said = record.context.get("adk")
    if not isinstance(said, dict):
        return None
    parts = [said.get(name) for name in ("app_name", "user_id", "session_id")]
    try:
        names = session_names(*(part if isinstance(part, str) else "" for part in parts))
    except InvalidInput:
        return None
    # Anybody may post a record: one that stands in another session speaks for none.
    return names if names.name == record.session_id else None


def _view(names: SessionNames, updated: float, state: Json, events: list[Json]) -> Json:
    """A session as ADK's servers send it."""
    return {
        "id": names.id,
        "appName": names.of.app,
        "userId": names.of.user,
        "state": state,
        "events": events,
        "lastUpdateTime": updated,
    }


def _check_shared(who: Principal, names: SessionNames, deltas: Deltas) -> None:
    policy.check_shared_delta(
        who, names.of.user, app_changes=bool(deltas.app), user_changes=bool(deltas.user)
    )
