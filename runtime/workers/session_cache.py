"""Cache of active sessions in the worker that holds their lane.

Each turn reads the last breadcrumbs of its session. The holder of a lane receives all events of the lane in order, so
it can keep the results of these reads and update them with the events.

Rules:

- All events up to the event of a turn are applied before the turn begins. So a turn sees everything that was written
  to its session before its event. Later writes may or may not be visible, as with a read.
- A session in the cache belongs to one lease. After the lease is lost, or the lane is taken again, it is not used.
- Only new breadcrumbs and new versions are applied. Each other event of a session, such as a deletion or an import,
  drops the session from the cache. The next turn reads it again.
- The commits of the worker are applied at once, because the next turn can begin before their events arrive. If the
  result of a commit is unknown, the session is dropped.
- An event can arrive after a read that already includes its write. So each update can be applied twice.
- The content comes from the write cache of the process, or is read with the other reads of the next turn.

Two kinds of writes have no events: repairs by `crumb doctor`, and the last step of an import. Because of them, sessions
in the cache have a maximum age. The commit checks the lease, that the trigger exists, and the version of shared
breadcrumbs.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, cast
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.store.batched_reads import (
    ChoicesRead,
    CountRead,
    LastWriteRead,
    NewestRead,
    PauseRead,
    Read,
    RecentRead,
    SessionRead,
    SharedRead,
    VersionRead,
    build_reads,
)
from breadcrumbs.runtime.store.fence import NO_CACHED_INPUTS, CachedInputs, Lease
from breadcrumbs.runtime.store.state import ABOUT_SCHEMAS
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry import metrics

_MAX_SESSIONS: Final = 4_096
_MAX_BYTES: Final = 32 << 20
"""JSON of all breadcrumbs in the cache. As Python objects they take about five times as much."""
_MAX_SESSION_BYTES: Final = 1 << 20
"""Larger sessions are not cached: a few of them would displace all others."""
_MAX_AGE_SECONDS: Final = 60.0
"""Longest time that a write without an event can stay unnoticed."""

_HITS: Final = metrics.CACHE_HITS.labels("sessions")
_MISSES: Final = metrics.CACHE_MISSES.labels("sessions")

AnyRead: TypeAlias = Read[Any] | SessionRead
_SessionKey: TypeAlias = tuple[UUID, str]
"""Owner and session."""

_MISSING: Final = object()

_SESSION_READS: Final = (RecentRead, CountRead, NewestRead, PauseRead, ChoicesRead)
"""Reads that a session in the cache can answer alone."""


class Results(NamedTuple):
    """Results of reads, in their order."""

    values: list[Any]
    cached: CachedInputs
    """Inputs that the commit must check."""


@dataclass(eq=False, slots=True)
class _Lane:
    """A lane under one lease."""

    lease: Lease
    position: int
    """Time of the last event that was applied."""


class _Unread(NamedTuple):
    """A new breadcrumb whose content is not read yet."""

    id: UUID
    version: int
    at: int


@dataclass(slots=True)
class _Head:
    """The newest breadcrumbs of one schema in a session."""

    crumbs: list[Breadcrumb]
    """The newest first."""
    limit: int
    older: int | None
    """Number of breadcrumbs of the schema that are older than these. None: unknown, at least 0."""
    unread: list[_Unread] = field(default_factory=list)
    """New breadcrumbs that are not in `crumbs` yet, the oldest first."""
    expires: int = 0
    """Time when the first of them expires. 0: none does."""
    versions: dict[int, int] = field(init=False)
    """The versions of `crumbs` by their ids. An integer is hashed and compared much faster than a UUID."""
    bytes: int = field(init=False)
    """JSON of `crumbs`."""

    def __post_init__(self) -> None:
        self.versions = {crumb.id.int: crumb.version for crumb in self.crumbs}
        self.bytes = sum([len(crumb.json) for crumb in self.crumbs])

    def insert(self, crumb: Breadcrumb) -> None:
        """Insert a breadcrumb by its time, or replace an older version of it."""
        position, crumbs = 0, self.crumbs
        for other in crumbs:
            if other.created <= crumb.created:
                break
            position += 1
        if position < len(crumbs) and crumbs[position].id == crumb.id:
            if crumb.version > crumbs[position].version:
                self._forget(crumbs.pop(position))
                self._insert(position, crumb)
        elif position < len(crumbs) or self.older == 0:  # else it is one of the older ones
            self._insert(position, crumb)
        self.note_expiry(crumb)
        if len(crumbs) > self.limit:
            self._forget(crumbs.pop())
            self.older = None if self.older is None else self.older + 1

    def _insert(self, position: int, crumb: Breadcrumb) -> None:
        self.crumbs.insert(position, crumb)
        self.versions[crumb.id.int] = crumb.version
        self.bytes += len(crumb.json)

    def _forget(self, crumb: Breadcrumb) -> None:
        self.versions.pop(crumb.id.int, None)
        self.bytes -= len(crumb.json)

    def note_expiry(self, crumb: Breadcrumb) -> None:
        if crumb.expires and (self.expires == 0 or crumb.expires < self.expires):
            self.expires = crumb.expires

    def note_created(self, new: _Unread) -> None:
        # Commits of this worker are applied before their events. All other events are newer than these breadcrumbs.
        is_newest = not self.crumbs or new.at > self.crumbs[0].created
        if (is_newest and not self.unread) or self.version_of(new.id) is None:
            self.unread.append(new)

    def version_of(self, id: UUID) -> int | None:
        """Return the version of a breadcrumb, or None if it is not among them."""
        version = self.versions.get(id.int)
        if version is None and self.unread:
            return next((new.version for new in self.unread if new.id == id), None)
        return version

    def recent(self, limit: int) -> list[Breadcrumb] | None:
        """Return the newest breadcrumbs. None: there can be more than those in the cache."""
        return self.crumbs[:limit] if limit <= self.limit or self.older == 0 else None

    def count(self, before: int) -> int | None:
        """Return the number of breadcrumbs of the schema that are older than a time. None: unknown."""
        newer = self._newer_than(before)
        if self.older is None or (self.older and newer == len(self.crumbs)):
            return None
        return self.older + len(self.crumbs) - newer

    def learn_count(self, before: int, count: int) -> None:
        """Take a count that was read."""
        newer = self._newer_than(before)
        if self.older is None and newer < len(self.crumbs):
            self.older = count - (len(self.crumbs) - newer)

    def _newer_than(self, time: int) -> int:
        newer = 0
        for crumb in self.crumbs:
            if crumb.created < time:
                break
            newer += 1
        return newer


@dataclass(eq=False, slots=True)
class _Session:
    """A session in the cache."""

    lane: _Lane
    loaded_at: float
    heads: dict[str, _Head] = field(default_factory=dict)
    """By schema name."""
    newest: dict[UUID, Breadcrumb | None] = field(default_factory=dict)
    """The newest versions of single breadcrumbs, such as contexts. None: it does not exist."""
    facts: dict[type[SessionRead], Any] = field(default_factory=dict)
    """Facts about the session: whether it is paused, and the choices for it."""
    unconfirmed: int = 0
    """Commits whose results are not known yet."""
    reading: int = 0
    """Number of reads whose replies have not arrived."""
    log: list[Event] = field(default_factory=list)
    """Events since the first of these reads was sent."""
    is_dropped: bool = False
    bytes: int = 0

    def apply(self, event: Event) -> bool:
        """Apply an event. Return False if that is not possible."""
        if event.operation == "retried":
            return True
        if event.imported or event.schema_name is None:
            return False
        if event.operation == "created":
            if event.schema_name in ABOUT_SCHEMAS:
                self.facts.clear()
            if event.id in self.newest and self.newest[event.id] is None:
                del self.newest[event.id]
            if (head := self.heads.get(event.schema_name)) is not None:
                head.note_created(_Unread(event.id, event.version, event.at))
            return True
        return event.operation == "updated" and self._apply_update(event)

    def _apply_update(self, event: Event) -> bool:
        schema, known = event.schema_name or "", self.newest.get(event.id)
        if known is not None and known.version < event.version:
            del self.newest[event.id]
        is_found = known is not None and known.schema_name == schema
        for name, head in list(self.heads.items()):
            version = head.version_of(event.id)
            if version is None:
                continue
            if name != schema:
                return False  # the schema of the breadcrumb has changed
            if version < event.version:
                del self.heads[name]
            is_found = True
        if not is_found:
            # The breadcrumb is older than all in the cache. It can have had another schema before.
            self.heads.pop(schema, None)
            for head in self.heads.values():
                head.older = 0 if head.older == 0 else None
        return True

    def add(self, crumb: Breadcrumb) -> None:
        """Apply a commit of the worker."""
        if crumb.id in self.newest:
            self.newest[crumb.id] = crumb
        if (head := self.heads.get(crumb.schema_name or "")) is not None:
            head.unread = [new for new in head.unread if new.id != crumb.id]
            head.insert(crumb)
        if crumb.schema_name in ABOUT_SCHEMAS:
            self.facts.clear()

    def insert_read(self, crumbs: Mapping[UUID, Breadcrumb | None]) -> bool:
        """Insert new breadcrumbs that were read. Return False if one is not as its event describes it."""
        for schema, head in self.heads.items():
            unread, head.unread = head.unread, []
            for new in unread:
                if new.id not in crumbs:  # its event arrived during the read
                    head.unread.append(new)
                    continue
                crumb = crumbs[new.id]
                if crumb is None or crumb.max_reads or crumb.schema_name != schema:
                    return False
                head.insert(crumb)
        return True

    def keep(self, read: AnyRead, value: Any, events: Sequence[Event]) -> None:
        """Keep the result of a read. `events` arrived after it was sent."""
        if isinstance(read, RecentRead) and value.is_head:
            self._keep_head(read, value.crumbs, events)
        elif isinstance(read, NewestRead):
            version = 0 if value is None else value.version
            has_newer = any(event.id == read.id and event.version > version for event in events)
            if not has_newer and (value is None or not value.max_reads):
                self.newest[read.id] = value
        elif isinstance(read, PauseRead | ChoicesRead) and not any(
            event.schema_name in ABOUT_SCHEMAS for event in events
        ):
            self.facts[type(read)] = value

    def _keep_head(self, read: RecentRead, crumbs: list[Breadcrumb], events: Sequence[Event]) -> None:
        old = self.heads.get(read.schema_name)
        if any(crumb.max_reads for crumb in crumbs) or (old is not None and old.limit >= read.limit):
            return
        head = _Head(list(crumbs), read.limit, 0 if len(crumbs) < read.limit else None)
        for crumb in crumbs:
            head.note_expiry(crumb)
        self.heads[read.schema_name] = head
        for event in events:
            self.apply(event)

    def answer(self, read: AnyRead, now: int) -> Any:
        """Return the result of a read, or `_MISSING`."""
        if isinstance(read, (RecentRead, CountRead)):
            head = self.heads.get(read.schema_name)
            if head is None:
                return _MISSING
            if head.expires and head.expires <= now:
                del self.heads[read.schema_name]
                return _MISSING
            found = head.recent(read.limit) if isinstance(read, RecentRead) else head.count(read.before)
            return _MISSING if found is None else found
        if isinstance(read, NewestRead):
            return self.newest.get(read.id, _MISSING)
        if isinstance(read, (PauseRead, ChoicesRead)):
            return self.facts.get(type(read), _MISSING)
        return _MISSING

    def count_bytes(self) -> int:
        heads = sum([head.bytes for head in self.heads.values()])
        return heads + sum([len(crumb.json) for crumb in self.newest.values() if crumb is not None])


class SessionCache:
    """Sessions of the lanes that one worker holds."""

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane] = {}
        self._sessions: OrderedDict[_SessionKey, _Session] = OrderedDict()
        self._bytes = 0

    # Events and commits

    def apply(self, lease: Lease, event: Event) -> None:
        """Apply the next event of a lane that this worker holds."""
        lane = self._lanes.get(event.lane)
        if lane is None or lane.lease != lease or event.operation == "unknown":
            # An unreadable event can belong to any session of the lane.
            self._lanes[event.lane] = _Lane(lease, event.at)
            return
        if event.at <= lane.position:
            return
        lane.position = event.at
        if event.session_id is None:
            return
        key = event.owner_id, event.session_id
        session = self._sessions.get(key)
        if session is None:
            return
        if session.reading:
            session.log.append(event)
        if session.lane is not lane or not session.apply(event):
            self._drop(key)

    def begin_commit(self, event: Event) -> None:
        """Note that a turn commits a breadcrumb to the session of its event."""
        if (session := self._find(event)) is not None:
            session.unconfirmed += 1

    def end_commit(self, store: Store, event: Event, *crumbs: Breadcrumb) -> None:
        """Apply the result of a commit: all breadcrumbs that it wrote."""
        session = self._find(event)
        if session is None:
            return
        for crumb in crumbs:
            cached = store.write_cache.get_permanent(crumb.owner_id, crumb.id, crumb.version, crumb.updated)
            if cached is None:
                return  # it can expire, and its stored form has to be read
        session.unconfirmed -= 1
        for crumb in crumbs:
            session.add(crumb)

    def _find(self, event: Event) -> _Session | None:
        return None if event.session_id is None else self._sessions.get((event.owner_id, event.session_id))

    def _drop(self, key: _SessionKey) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.is_dropped = True
            self._bytes -= session.bytes

    # Reads

    async def read_batch(self, store: Store, lease: Lease, event: Event, reads: Sequence[AnyRead]) -> Results:
        """Return the results of reads for the turn of an event. Send only those that are not in the cache."""
        lane = self._lanes.get(event.lane)
        if event.session_id is None or lane is None or lane.lease != lease:
            return Results(list(await store.read_batch(*build_reads(store, reads))), NO_CACHED_INPUTS)
        key = event.owner_id, event.session_id
        session = self._sessions.get(key)
        if session is not None and not _is_usable(session, lane):
            self._drop(key)
            session = None
        if session is None:
            session = self._sessions[key] = _Session(lane, time.monotonic())
            turn = _TurnReads(store, event, session, as_of=None)
        else:
            self._sessions.move_to_end(key)
            turn = _TurnReads(store, event, session, as_of=lane.position)
        values = await turn.results(reads)
        self._limit_memory(key, session)
        return Results(values, turn.cached)

    def _limit_memory(self, key: _SessionKey, session: _Session) -> None:
        if session.is_dropped:
            if self._sessions.get(key) is session:
                self._drop(key)
            return
        before, session.bytes = session.bytes, session.count_bytes()
        self._bytes += session.bytes - before
        if session.bytes > _MAX_SESSION_BYTES:
            self._drop(key)
        while self._bytes > _MAX_BYTES or len(self._sessions) > _MAX_SESSIONS:
            self._drop(next(iter(self._sessions)))


def _is_usable(session: _Session, lane: _Lane) -> bool:
    return (
        session.lane is lane
        and not session.unconfirmed
        and time.monotonic() - session.loaded_at < _MAX_AGE_SECONDS
    )


class _TurnReads:
    """Reads of one turn."""

    def __init__(self, store: Store, event: Event, session: _Session, *, as_of: int | None) -> None:
        """`as_of`: time of the last event that was applied. None: the session was not in the cache."""
        self._store = store
        self._event = event
        self._session = session
        self._as_of = as_of
        self.cached = NO_CACHED_INPUTS

    async def results(self, reads: Sequence[AnyRead]) -> list[Any]:
        """Return the results of the reads."""
        unread = self._take_written()
        now = self._store.clock.now()
        values = [self._answer(read, now) for read in reads]
        missing = [number for number, value in enumerate(values) if value is _MISSING]
        if len(missing) < len(values):
            _HITS.inc(len(values) - len(missing))
        if not missing and not unread:
            return values
        found = await self._read(unread, [reads[number] for number in missing])
        if found is None:
            return await self._read_all(reads)
        for number, value in zip(missing, found, strict=True):
            values[number] = value
        if unread:
            for number in set(range(len(reads))).difference(missing):
                if isinstance(reads[number], RecentRead | CountRead):
                    values[number] = self._session.answer(reads[number], now)
            if any(value is _MISSING for value in values):  # the cache has become shorter
                return await self._read_all(reads)
        return values

    async def _read_all(self, reads: Sequence[AnyRead]) -> list[Any]:
        self.cached = NO_CACHED_INPUTS
        return list(await self._store.read_batch(*build_reads(self._store, reads)))

    def _answer(self, read: AnyRead, now: int) -> Any:
        if self._as_of is None:
            return _MISSING
        if isinstance(read, _SESSION_READS):
            return self._session.answer(read, now)
        if isinstance(read, LastWriteRead):
            return self._as_of
        if isinstance(read, VersionRead):
            return self._find_trigger(read)
        return self._find_shared(read) if isinstance(read, SharedRead) else _MISSING

    def _find_trigger(self, read: VersionRead) -> Any:
        event = self._event
        is_written = event.operation == "created" or event.operation == "updated"
        if not is_written or (read.id, read.version) != (event.id, event.version):
            return _MISSING
        crumb = self._store.write_cache.get_permanent(event.owner_id, event.id, event.version, event.at)
        if crumb is None:
            return _MISSING
        self.cached = CachedInputs((event.owner_id, event.id), self.cached.shared)
        return crumb

    def _find_shared(self, read: SharedRead) -> Any:
        if not self._store.is_one_server:
            return _MISSING  # the commit cannot check it: the version is in another lane
        found = read.find(self._store)
        if found is None:
            return _MISSING
        crumbs, version = found
        if self.cached.shared not in (None, (read.owner, version)):
            return _MISSING
        self.cached = CachedInputs(self.cached.trigger, (read.owner, version))
        return crumbs

    def _take_written(self) -> list[NewestRead]:
        """Take the new breadcrumbs that this process wrote. Return reads for the others."""
        owner, written = self._event.owner_id, self._store.write_cache
        reads: list[NewestRead] = []
        for head in self._session.heads.values():
            if not head.unread:
                continue
            unread, head.unread = head.unread, []
            for new in unread:
                crumb = written.get_permanent(owner, new.id, new.version, new.at)
                if crumb is not None:
                    head.insert(crumb)
                else:
                    head.unread.append(new)
                    reads.append(NewestRead(owner, new.id))
        return reads

    async def _read(self, unread: list[NewestRead], sent: list[AnyRead]) -> list[Any] | None:
        """Read new breadcrumbs, and values that are not in the cache. Keep both.

        Return the values, or None if new breadcrumbs are not as their events describe them.
        """
        session = self._session
        # The trigger can be a new breadcrumb too.
        triggers = {read.id: number for number, read in enumerate(sent) if isinstance(read, VersionRead)}
        bodies = [read for read in unread if read.id not in triggers]
        _MISSES.inc(len(bodies) + len(sent))
        first_event = len(session.log)
        session.reading += 1
        try:
            found = await self._store.read_batch(*(_build(self._store, read) for read in (*bodies, *sent)))
        finally:
            session.reading -= 1
            events = session.log[first_event:]
            if not session.reading:
                session.log.clear()
        results = list(found[len(bodies) :])
        values = [value.crumbs if isinstance(value, _ReadHead) else value for value in results]
        if session.is_dropped:
            return None if unread else values
        crumbs = {read.id: crumb for read, crumb in zip(bodies, found, strict=False)}
        crumbs |= {id: results[number] for id, number in triggers.items()}
        if unread and not session.insert_read(crumbs):
            session.is_dropped = True
            return None
        for read, value in zip(sent, results, strict=True):
            session.keep(read, value, events)
        for read, value in zip(sent, results, strict=True):
            if isinstance(read, CountRead) and (head := session.heads.get(read.schema_name)) is not None:
                head.learn_count(read.before, value)
        return values


class _ReadHead(NamedTuple):
    """Result of a `RecentRead`, and whether it is the head of its index."""

    crumbs: list[Breadcrumb]
    is_head: bool
    """False: entries of the index were left out, because they have expired or are too large."""


def _build(store: Store, read: AnyRead) -> Read[Any]:
    if isinstance(read, Read):
        return read
    built = read.build(store)
    if not isinstance(read, RecentRead):
        return built
    decode, fallback = built.decode, cast(Callable[[], Awaitable[list[Breadcrumb]]], built.fallback)

    def decode_head(replies: list[Any]) -> _ReadHead:
        crumbs = decode(replies)
        return _ReadHead(crumbs, 2 * len(crumbs) == len(replies[0]))

    async def fall_back() -> _ReadHead:
        return _ReadHead(await fallback(), is_head=False)

    return Read(built.commands, decode_head, fall_back)
