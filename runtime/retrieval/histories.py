"""Loads the versions of breadcrumbs, and the breadcrumbs that sources could have found at a past time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

import anyio

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import MAX_LIMIT, Query
from breadcrumbs.runtime.breadcrumb.session_rule import user_tags
from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.retrieval.past import ContextHistory, History, Moment, Pool, SourcePools
from breadcrumbs.runtime.retrieval.schema_hints import DEFINES_PREFIX, applies_to_all_sessions
from breadcrumbs.runtime.retrieval.sources import Source
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT, SCHEMA_DEFINITION, SESSION_RECORD
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.batched_reads import count_of
from breadcrumbs.runtime.store.edits import updated_since
from breadcrumbs.runtime.store.store import Store

_PAGE_BYTES: Final = 2 << 20
"""Maximum size of one page of a pool."""
_AT_ONCE: Final = 4
"""Number of pages that are read at the same time. A config can have many sources, and other requests must not wait."""
_POOLS_BYTES: Final = 128 << 20
"""Maximum size of all pools of a turn. Deeper searches are incomplete, and a note says so."""
_MAX_POOL: Final = 20_000
"""Maximum number of breadcrumbs in a pool. Deeper searches are incomplete, and a note says so."""
_MAX_EDITS: Final = 1_000
"""Maximum number of updated breadcrumbs of a session that are searched for old tags."""
_MAX_DEFINITIONS: Final = 1_000
_DEFINITIONS_BYTES: Final = 16 << 20
_MAX_FORKS: Final = 10_000
"""Maximum number of sessions whose time of forking is cached."""


class HistoryReader:
    """Loads histories of one owner. It caches nothing that can change, except the times of forks."""

    def __init__(self, store: Store, owner: UUID) -> None:
        self.store = store
        self.owner = owner
        self._forked: dict[str, int] = {}
        """Time when a session was created as a fork, 0 for other sessions."""

    async def load(self, crumb: Breadcrumb, since: int) -> History:
        """Return the versions of a breadcrumb that were current at some time since `since`.

        `crumb` is the newest version. Most breadcrumbs are never updated, so they need no read.
        """
        if crumb.schema_name == AGENT_CONTEXT:
            return ContextHistory([crumb.without_context()])
        versions = [crumb]
        if crumb.version > 1 and crumb.updated > since:
            try:
                async for version in self.store.versions(self.owner, crumb.id):
                    if version.version < versions[0].version:
                        versions.insert(0, version)
                        if version.updated <= since:
                            break
            except NotFound:
                pass  # deleted just now
        return History(versions)

    async def load_pinned(self, pinned: Iterable[tuple[UUID, int]]) -> dict[UUID, History]:
        """Return the histories of pinned versions, by id. Breadcrumbs that no longer exist are missing."""
        wanted = list(dict(pinned).items())
        loaded = await gather(*(self._load_pinned(id, version) for id, version in wanted))
        return {history.id: history for history in loaded if history is not None}

    async def _load_pinned(self, id: UUID, version: int) -> History | None:
        try:
            newest = await self.store.get(self.owner, id, count_read=False)
        except NotFound:
            return None
        if newest.schema_name == AGENT_CONTEXT:
            return ContextHistory([newest.without_context()])
        if newest.version == version:
            return History([newest])
        try:
            return History([await self.store.get_version(self.owner, id, version), newest])
        except NotFound:
            return History([newest])

    async def definitions(self, since: int = 0) -> Pool:
        """Return the schema definitions of the owner that apply to all sessions."""
        query = Query(schema_name=SCHEMA_DEFINITION, max_bytes=_DEFINITIONS_BYTES, limit=_MAX_DEFINITIONS)
        page = await self.store.list(self.owner, query)
        return Pool(await gather(*(self.load(crumb, since) for crumb in page.items)))

    async def note_forks(self, crumbs: Iterable[Breadcrumb], own: str | None) -> None:
        """Remember which sessions of these breadcrumbs were created as forks, and when."""
        sessions = {crumb.session_id for crumb in crumbs} - {None, own} - self._forked.keys()
        wanted = [session for session in sessions if session is not None]
        for session, time in zip(
            wanted, await gather(*(self._fork_time(session) for session in wanted)), strict=True
        ):
            if len(self._forked) < _MAX_FORKS:
                self._forked[session] = time

    async def _fork_time(self, session: str) -> int:
        query = Query(
            session_id=session,
            schema_name=SESSION_RECORD,
            sort="created_at",
            limit=1,
            keep=lambda crumb: isinstance(crumb.context.get("forked_from"), dict),
        )
        found = (await self.store.list(self.owner, query)).items
        return found[0].created if found else 0

    def existed(self, crumb: Breadcrumb, time: int) -> bool:
        """Return whether a breadcrumb existed at a time. A fork keeps the times of the originals."""
        return self._forked.get(crumb.session_id or "", 0) <= time


class StorePools:
    """Pools for one moment, read from the store.

    Each pool contains the newest breadcrumbs up to the moment. `deepen` reads older ones if they were not enough.
    """

    def __init__(
        self, reader: HistoryReader, session: str | None, moment: Moment, pinned: dict[UUID, History]
    ) -> None:
        self._reader = reader
        self._session = session
        self._moment = moment
        self._pinned = pinned
        self._factor = 1
        self._room = _POOLS_BYTES
        self._reads = anyio.Semaphore(_AT_ONCE, fast_acquire=True)
        self._user: tuple[str, ...] | None = None
        self._edited: list[History] | None = None
        self.notes: list[str] = []

    async def read(
        self, sources: Sequence[Source], counted: Collection[int] = (), until: int = 0
    ) -> list[SourcePools]:
        """Return the pools of each source. `counted` are the indexes of sources to count up to a time."""
        if self._edited is None:
            self._edited = await self._load_edited()
        self._room = _POOLS_BYTES
        pools = await gather(*(self._read_source(source) for source in sources))
        counts = await self._count(sources, counted, until)
        return [replace(pool, counted=counts.get(number)) for number, pool in enumerate(pools)]

    async def _count(self, sources: Sequence[Source], counted: Collection[int], until: int) -> dict[int, int]:
        store, owner, session = self._reader.store, self._reader.owner, self._session
        if session is None or not counted:
            return {}
        numbers = sorted(counted)
        reads = [
            count_of(store, owner, session, sources[number].schema_name or "", before=until + 1)
            for number in numbers
        ]
        return dict(zip(numbers, await store.read_batch(*reads), strict=True))

    def deepen(self) -> bool:
        """Make the next `read` go further back. Return False if a limit is reached."""
        self._factor *= 8
        return self._factor <= _MAX_POOL and self._room > 0

    async def _load_edited(self) -> list[History]:
        """Return breadcrumbs of the session whose schema or tags can have been different at the moment."""
        if self._session is None:
            return []
        reader = self._reader
        # The contexts of a session change with each turn, and keep their schema and tags.
        crumbs, complete = await updated_since(
            reader.store,
            reader.owner,
            self._session,
            self._moment.time,
            limit=_MAX_EDITS,
            without=frozenset((AGENT_CONTEXT,)),
        )
        if not complete:
            self.notes.append(
                f"only the last {_MAX_EDITS} edits of this session were searched for earlier tags and schemas"
            )
        return list(await gather(*(reader.load(crumb, self._moment.time) for crumb in crumbs)))

    async def _read_source(self, source: Source) -> SourcePools:
        if source.fetch.method == "event_data":
            return SourcePools(Pool())
        base = Query(schema_name=source.schema_name, any_tags=source.any_tags, all_tags=source.all_tags)
        session = self._session
        shared = None
        if source.fetch.includes_shared:
            shared = await self._read_pool(source, replace(base, sessionless=True))
        match source.fetch.scope:
            case "all":
                return SourcePools(await self._read_pool(source, base))
            case "current" if session is not None:
                own = await self._read_pool(source, replace(base, session_id=session))
                return SourcePools(own, shared)
            case "current" if shared is not None:
                return SourcePools(Pool(), shared)
            case "user" if session is not None:
                tags = await self._user_tags(session)
                if not tags:
                    note = "the session has no user, so there is no user to search for"
                    return SourcePools(Pool(), extra_tags=None, note=note)
                query = replace(base, all_tags=(*source.all_tags, *tags))
                return SourcePools(await self._read_pool(source, query), extra_tags=tags)
        missing = "conversation to read" if source.fetch.scope == "current" else "user to search for"
        return SourcePools(
            Pool(), extra_tags=None, note=f"the trigger has no session, so there is no {missing}"
        )

    async def _read_pool(self, source: Source, query: Query) -> Pool:
        reader, moment = self._reader, self._moment
        wanted = min(_MAX_POOL, (2 * source.fetch.max_items + 8) * self._factor)
        query = replace(query, created_until=moment.time, max_bytes=_PAGE_BYTES)
        found: list[Breadcrumb] = []
        cursor: str | None = None
        while len(found) < wanted and (self._room > 0 or not found):
            limit = min(MAX_LIMIT, wanted - len(found))
            async with self._reads:
                page = await reader.store.list(reader.owner, replace(query, limit=limit, cursor=cursor))
            found += page.items
            self._room -= sum(len(crumb.json) for crumb in page.items)
            cursor = page.next_cursor
            if cursor is None:
                break
        if source.fetch.scope != "current":
            await reader.note_forks(found, self._session)
        histories = {
            history.id: history
            for history in await gather(*(reader.load(crumb, moment.time) for crumb in found))
        }
        bounds = query if query.schema_name is None else replace(query, schema_name=None)
        for history in (*(self._edited or ()), *self._pinned.values()):
            if _may_be_in(history, bounds):
                histories[history.id] = history
        since = 0 if cursor is None else found[-1].created if found else moment.time
        return Pool(histories.values(), complete_since=since)

    async def _user_tags(self, session: str) -> tuple[str, ...]:
        if self._user is None:
            belonging = await Sessions(self._reader.store).belonging(self._reader.owner, session)
            self._user = tuple(user_tags(None if belonging is None else belonging.user))
        return self._user


def _may_be_in(history: History, query: Query) -> bool:
    """Return whether a breadcrumb is of the session that a query names, or of no session. This never changes."""
    session = history.newest.session_id
    if query.sessionless:
        return session is None
    return query.session_id is None or session == query.session_id


def definition_at(pool: Pool, schema: str, moment: Moment) -> Breadcrumb | None:
    """Return the definition of a schema at a moment."""
    tag = DEFINES_PREFIX + schema
    for history in pool.newest_first(moment.time):
        version = history.current_at(moment.time)
        if version is not None and tag in version.tags and applies_to_all_sessions(version):
            return version
    return None
