"""Slides over the turns of a session: each turn finds the breadcrumbs of its time without a read of its own.

The breadcrumbs of a session are read once, the oldest first. Each source keeps only as many of them as it can find, so
the memory does not depend on the length of the session.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias
from uuid import UUID

from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.past import PastTurn, deleted_definitions, make_turn, pinned_versions
from breadcrumbs.context_builder.references import ContextRecord
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.session_rule import user_tags
from breadcrumbs.runtime.retrieval.histories import HistoryReader
from breadcrumbs.runtime.retrieval.past import History, Pool, SourcePools, matches
from breadcrumbs.runtime.retrieval.sources import Source
from breadcrumbs.runtime.sessions.sessions import Sessions

_PoolKey: TypeAlias = tuple[str | None, tuple[str, ...], tuple[str, ...]]
"""Schema, any_tags and all_tags of a source."""

_SPARE: Final = 500
"""Breadcrumbs that a source keeps beyond its limit, because waiting messages and old versions do not count."""
_KNOWN: Final = 4_096
"""Histories that are kept by id for the references of contexts."""
_SHARED_ITEMS: Final = 5_000
_SHARED_BYTES: Final = 32 << 20
"""Maximum number of breadcrumbs of a source that reads other sessions, and maximum size of those of all these sources.
Turns that need older ones read them from the store."""


def _key(source: Source) -> _PoolKey:
    return source.schema_name, source.any_tags, source.all_tags


class SharedPools:
    """Pools of breadcrumbs of other sessions and of no session. All sessions of a run use them."""

    def __init__(self, reader: HistoryReader) -> None:
        self.reader = reader
        self._pools: dict[Query, Pool] = {}
        self._definitions: Pool | None = None
        self._included: OrderedDict[UUID, History] = OrderedDict()
        self._sizes: dict[Query, int] = {}

    async def get(self, query: Query) -> Pool:
        """Return the breadcrumbs that a query finds, at most the newest ones."""
        if query not in self._pools:
            while len(self._pools) >= 64:  # for example many users
                oldest = next(iter(self._pools))
                del self._pools[oldest], self._sizes[oldest]
            pool = self._pools[query] = await self._read(query)
            for history in self._included.values():
                _include(pool, query, history)
        return self._pools[query]

    def include(self, history: History) -> None:
        """Add a breadcrumb that a context refers to, if an older version of it matches a query."""
        self._included[history.id] = history
        if len(self._included) > _KNOWN:
            self._included.popitem(last=False)
        for query, pool in self._pools.items():
            _include(pool, query, history)

    async def definitions(self) -> Pool:
        if self._definitions is None:
            self._definitions = await self.reader.definitions()
        return self._definitions

    async def _read(self, query: Query) -> Pool:
        reader = self.reader
        found: list[History] = []
        size = complete_since = 0
        room = _SHARED_BYTES - sum(self._sizes.values())
        if room <= 0:
            self._sizes[query] = 0
            return Pool(complete_since=reader.store.now() + 1)
        async for crumb in reader.store.walk(reader.owner, replace(query, limit=500)):
            if len(found) >= _SHARED_ITEMS or size >= room:
                complete_since = crumb.created + 1
                break
            found.append(await reader.load(crumb, 0))
            size += len(crumb.json)
        self._sizes[query] = size
        if not query.sessionless:
            await reader.note_forks([history.newest for history in found], None)
        return Pool(found, complete_since=complete_since)


def _include(pool: Pool, query: Query, history: History) -> None:
    if any(query.accepts(version) for version in history.versions):
        pool.include(history)


class SessionTimeline:
    """The breadcrumbs of one session, up to a time that only increases."""

    def __init__(self, shared: SharedPools, session: str, configs: Iterable[ContextConfig]) -> None:
        self._shared = shared
        self._reader = shared.reader
        self._session = session
        self._walk: AsyncIterator[Breadcrumb] = self._reader.store.walk(
            self._reader.owner, Query(session_id=session, sort="created_at", limit=500)
        )
        self._next: Breadcrumb | None = None
        self._ended = False
        self._own: dict[_PoolKey, Pool] = {}
        self._examples: dict[_PoolKey, Source] = {}
        self._sizes: dict[_PoolKey, int] = {}
        self._known: OrderedDict[UUID, History] = OrderedDict()
        self._pools: dict[str, list[SourcePools]] = {}
        self._user: tuple[str, ...] | None = None
        for config in configs:
            for source in config.full_sources:
                self._add_source(source)

    def _add_source(self, source: Source) -> None:
        if source.fetch.method == "event_data":
            return
        key = _key(source)
        self._own.setdefault(key, Pool())
        self._examples.setdefault(key, source)
        self._sizes[key] = max(self._sizes.get(key, 0), source.fetch.max_items + _SPARE)

    async def advance(self, until: int) -> None:
        """Read the breadcrumbs of the session that were created up to a time."""
        while not self._ended:
            if self._next is None:
                self._next = await anext(self._walk, None)
                if self._next is None:
                    self._ended = True
                    return
            if self._next.created > until:
                return
            self._add(await self._reader.load(self._next, 0))
            self._next = None

    def _add(self, history: History) -> None:
        self._known[history.id] = history
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        for key, pool in self._own.items():
            source = self._examples[key]
            if any(matches(source, version) for version in history.versions):
                pool.add(history)
                pool.trim(self._sizes[key])

    async def turn(self, context: Breadcrumb, record: ContextRecord) -> PastTurn:
        """Return the turn of a version of a context. Raise `TriggerGone` if its trigger no longer exists."""
        await self.advance(max(record.as_of, context.updated))
        wanted = pinned_versions(record)
        hints = dict(record.hints.values())
        missing = [
            (id, version) for id, version in (*wanted.items(), *hints.items()) if id not in self._known
        ]
        loaded = await self._reader.load_pinned(missing) if missing else {}
        for id, history in loaded.items():
            if history.newest.session_id != self._session:
                loaded[id] = await self._whole(history)
        histories = {id: self._known[id] for id in (*wanted, *hints) if id in self._known} | loaded
        if any(id not in histories for id in hints):
            deleted = await deleted_definitions(self._reader, record, histories)
            self._known |= deleted
            histories |= deleted
        return make_turn(context, record, histories)

    async def _whole(self, history: History) -> History:
        """Return a history with all versions, and keep it. Breadcrumbs of other sessions are found again and again."""
        whole = await self._reader.load(history.newest, 0)
        self._known[whole.id] = whole
        self._shared.include(whole)
        return whole

    async def pools(self, config: ContextConfig) -> list[SourcePools]:
        """Return the pools of the sources of a config. The same ones can be used for all turns."""
        if config.digest not in self._pools:
            self._pools[config.digest] = [await self._source_pools(source) for source in config.full_sources]
        return self._pools[config.digest]

    async def _source_pools(self, source: Source) -> SourcePools:
        if source.fetch.method == "event_data":
            return SourcePools(Pool())
        base = Query(schema_name=source.schema_name, any_tags=source.any_tags, all_tags=source.all_tags)
        match source.fetch.scope:
            case "all":
                return SourcePools(await self._shared.get(base))
            case "user":
                tags = await self._user_tags()
                if not tags:
                    note = "the session has no user, so there is no user to search for"
                    return SourcePools(Pool(), extra_tags=None, note=note)
                query = replace(base, all_tags=(*source.all_tags, *tags))
                return SourcePools(await self._shared.get(query), extra_tags=tags)
        shared = None
        if source.fetch.includes_shared:
            shared = await self._shared.get(replace(base, sessionless=True))
        return SourcePools(self._own[_key(source)], shared)

    async def _user_tags(self) -> tuple[str, ...]:
        if self._user is None:
            belonging = await Sessions(self._reader.store).belonging(self._reader.owner, self._session)
            self._user = tuple(user_tags(None if belonging is None else belonging.user))
        return self._user


@dataclass(frozen=True, slots=True)
class ContextVersions:
    """Reads the versions of a context in ascending order, in pages."""

    reader: HistoryReader
    context: Breadcrumb
    """The newest version."""

    async def since(self, version: int, page: int = 100) -> AsyncIterator[Breadcrumb]:
        """Yield the stored versions from a number on, the oldest first."""
        store, owner, id = self.reader.store, self.reader.owner, self.context.id
        for start in range(version, self.context.version + 1, page):
            before, found = start + page, list[Breadcrumb]()
            while before > start:
                part = await store.history_page(owner, id, before=before, limit=page)
                found += [entry for entry in part.versions if entry.version >= start]
                if part.next_before is None or part.versions[-1].version <= start:
                    break
                before = part.next_before
            for entry in reversed(found):
                yield entry
