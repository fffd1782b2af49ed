"""Read the events of a session, all at once or page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

from breadcrumbs.adk.naming import SessionNames
from breadcrumbs.adk.records import (
    event_time,
    events_after,
    is_event,
    join_state,
    session_view,
    visible_event,
)
from breadcrumbs.adk.shared_state import SharedState
from breadcrumbs.adk.wire import Json
from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query, SortKey
from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.schema_names import ADK_EVENT
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.store import Store

_PAGE: Final = 100
"""Events per read if their number is unknown."""
_MAX_AT_ONCE: Final = 1_000
"""Maximum number of events per read, because the Redis server is blocked during a read."""


@dataclass(frozen=True, slots=True)
class EventRange:
    """The events of a session to read. All conditions must hold."""

    recent: int | None = None
    """Only this many of the newest events. None for all."""
    after: float | None = None
    """Only events after the last one that is older than this, in seconds since 1970."""
    until: int | None = None
    """Only events written up to this time, in microseconds. Excludes events of a later session with the same name."""


ALL_EVENTS: Final = EventRange()


class AdkEvents:
    """Reads the breadcrumbs of events in the order of their creation."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read_at_once(self, who: Principal, session: str, wanted: EventRange) -> list[Breadcrumb] | None:
        """Return the events, or None if one round trip is not enough."""
        recent, after = wanted.recent, wanted.after
        if recent == 0:
            return []
        limit = min(_PAGE if recent is None or after is not None else _MAX_AT_ONCE, recent or _PAGE)
        newest = await self._store.recent_at_once(who.owner_id, session, ADK_EVENT, limit)
        if newest is None or not all(_is_visible(who, crumb) for crumb in newest):
            return None
        events = newest[::-1]
        is_whole = len(events) < limit or limit == recent
        begins_earlier = bool(events) and after is not None and event_time(events[0]) < after
        if not is_whole and not begins_earlier:
            return None
        return events if after is None else events_after(events, after)

    async def walk(self, who: Principal, session: str, wanted: EventRange) -> AsyncIterator[Breadcrumb]:
        """Yield the events page by page."""
        query = policy.restrict_query(who, Query(session_id=session, schema_name=ADK_EVENT))
        query = replace(query, keep=lambda crumb: _is_visible(who, crumb), created_until=wanted.until)
        first: SortKey | None = None
        if wanted.recent is not None or wanted.after is not None:
            first = await self._find_first(who, query, wanted)
            if first is None:
                return
        query = replace(query, sort="created_at", created_since=None if first is None else first.score)
        count = 0
        async for crumb in self._store.walk(who.owner_id, query):
            if count == wanted.recent:
                return  # later events were written during the read
            if first is None or _sort_key(crumb) >= first:
                yield crumb
                count += 1

    async def last_update(self, who: Principal, session: str, created: int) -> float:
        """Return the time of the last event, in seconds since 1970.

        Without events, it is the creation time of the session: `created`, in microseconds.
        """
        newest = EventRange(recent=1)
        last = await self.read_at_once(who, session, newest)
        if last is None:
            last = [crumb async for crumb in self.walk(who, session, newest)]
        return event_time(last[0]) if last else created / 1e6

    async def _find_first(self, who: Principal, query: Query, wanted: EventRange) -> SortKey | None:
        """Return the sort key of the first event of a range, or None.

        Ranges are defined from the end, so the events are read backwards once.
        """
        first, count = None, 0
        async for crumb in self._store.walk(who.owner_id, query):
            if count == wanted.recent or (wanted.after is not None and event_time(crumb) < wanted.after):
                break
            first, count = _sort_key(crumb), count + 1
        return first


@dataclass(frozen=True, slots=True)
class Sources:
    """The services that a session is read from."""

    sessions: Sessions
    events: AdkEvents
    shared: SharedState


class SessionReading:
    """A read of a session in two steps: first the events, then the other fields."""

    def __init__(self, sources: Sources, who: Principal, names: SessionNames) -> None:
        self._sources = sources
        self._who = who
        self._names = names
        self._crumbs: list[Breadcrumb] | None = None
        self._wanted = ALL_EVENTS
        self._created: int | None = None
        """Creation time of the session, to detect a later session with the same name. It can belong to another user."""
        self._last: float | None = None
        """Time of the last event that was read."""

    async def begin(self, wanted: EventRange) -> bool:
        """Read the events if one round trip is enough. Return False if the session is known not to exist."""
        owner, session = self._who.owner_id, self._names.name
        self._crumbs = await self._sources.events.read_at_once(self._who, session, wanted)
        if self._crumbs is not None:
            return True
        self._wanted = replace(wanted, until=await self._sources.sessions.last_write_time(owner, session))
        (self._created,) = await self._sources.sessions.creation_times(owner, [session])
        return self._created is not None

    @property
    def is_short(self) -> bool:
        """Whether all events are already in memory."""
        return self._crumbs is not None

    async def events(self) -> AsyncIterator[Json]:
        """Yield the events, the oldest first."""
        if self._crumbs is not None:
            for crumb in self._crumbs:
                yield self._visible(crumb)
            return
        async for crumb in self._sources.events.walk(self._who, self._names.name, self._wanted):
            yield self._visible(crumb)

    async def end(self) -> Json | None:
        """Return the session without events, or None if it does not exist.

        Call it after reading the events, so that the state includes their changes.
        """
        who, names = self._who, self._names
        (found,), shared = await gather(
            self._sources.sessions.open_sessions(who, [names.name]), self._sources.shared.read(who, names.of)
        )
        if found is None or self._created not in (None, found.created):
            return None
        updated = self._last
        if updated is None:
            updated = await self._sources.events.last_update(who, names.name, found.created)
        return session_view(names, updated, join_state(found.state, shared), [])

    def _visible(self, crumb: Breadcrumb) -> Json:
        self._last = event_time(crumb)
        return visible_event(self._who, crumb)


def _is_visible(who: Principal, crumb: Breadcrumb) -> bool:
    return policy.may_see(who, crumb) and is_event(crumb)


def _sort_key(crumb: Breadcrumb) -> SortKey:
    return SortKey(crumb.created, crumb.id.bytes)
