"""Lists of breadcrumbs: choose the indexes of a query and read one page.

Every index is sorted by time, so a page is a merge of indexes (see merge.py). Bodies are loaded only for ids
that the merge returns. Filters without an index are checked on the body.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from breadcrumbs.runtime.backend.connection import Script, ScriptCall
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Page, Query, SortKey
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.errors import StoreUnavailable
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.cursors import open_cursor, sign_cursor
from breadcrumbs.runtime.store.lookup import ReadContext, list_schemas
from breadcrumbs.runtime.store.merge import (
    Index,
    Merge,
    RangeReader,
    group_indexes,
    range_reader,
    total_sizes,
)
from breadcrumbs.runtime.store.tag_index import schema_in, unindexed_range

MAX_SCANNED: Final = 50_000
"""Breadcrumbs scanned per page. After that a page ends early (with a cursor), so that a filter that rarely matches does
not read the whole store."""

MAX_SCANNED_BYTES: Final = 64 << 20
"""The same limit in bytes of stored bodies, because large breadcrumbs take time to parse."""

_BODIES, _NEWEST = Script("bodies"), Script("newest")

_MAX_NEWEST: Final = 128
"""Up to this many breadcrumbs of a session are read with one script. A script blocks the server, so it is limited."""

_SMALL_BATCH: Final = 16
"""Up to this many bodies are read with one MGET without a size limit. This makes short pages fast."""

_NOT_RETURNED: Final = b""
"""Marks a body that a lane did not return. Its share of the byte budget is used up. A real body is not empty."""


async def page(context: ReadContext, owner: UUID, query: Query, *, with_expired: bool = False) -> Page:
    """See `Store.list`."""
    query.check()
    start = open_cursor(context.secret, owner, query) or query.start
    scan = _Scan(context, owner, query, start)
    builder = _PageBuilder(query, began=context.clock.now_at_least(), with_expired=with_expired)
    while scan.has_more and builder.wants_more:
        keys, bodies = await scan.read()
        builder.add(owner, keys, bodies, context.clock.now())
    end = builder.end(has_more=scan.has_more)
    cursor = None if end is None else sign_cursor(context.secret, owner, query, end)
    return Page([crumb for _, crumb in builder.found], cursor, scan.unindexed_tags)


class _Scan:
    """Reads the breadcrumbs in several indexes, in the order of a query."""

    def __init__(self, context: ReadContext, owner: UUID, query: Query, start: SortKey | None) -> None:
        self._context = context
        self._owner = owner
        self._query = query
        self._start = start
        self._budget = query.max_bytes or MAX_SCANNED_BYTES
        self._batch = query.offset + query.limit + 1  # one more shows whether there is another page
        self._merge: Merge | None = None
        self._reads_newest = start is None and _is_of_one_session(query) and self._batch <= _MAX_NEWEST
        self._exhausted = False
        self.unindexed_tags: tuple[str, ...] = ()
        self._pending: list[tuple[SortKey, Index]] = []

    @property
    def has_more(self) -> bool:
        return bool(self._pending) or not self._exhausted

    async def read(self) -> tuple[list[SortKey], list[bytes | None]]:
        """Return the next sort keys and their bodies, at least one before the end."""
        bodies = None
        if self._reads_newest:
            self._reads_newest = False
            bodies = await self._read_newest()
        if bodies is None:
            if not self._pending:
                await self._find_next()
            bodies = await _bodies(self._context, self._owner, self._pending, self._budget)
        # With a used-up byte budget there are fewer bodies than keys.
        keys = [key for key, _ in self._pending[: len(bodies)]]
        self._pending = self._pending[len(bodies) :]
        return keys, bodies

    async def _read_newest(self) -> list[bytes | None] | None:
        """Read the first keys and bodies of a session in one round trip.

        None: it has too many schemas for one script, or its keys are on two nodes while its lane moves. Each key is
        then read with a command of its own.
        """
        try:
            found = await _newest(self._context, self._owner, self._query, self._batch, self._budget)
        except StoreUnavailable:
            return None
        if found is None:
            return None
        self._pending, bodies = found
        self._exhausted = len(self._pending) < self._batch
        if self._pending:
            self._start = self._pending[-1][0]
        return bodies

    async def _find_next(self) -> None:
        if self._merge is None:
            self._merge = await self._open_merge()
        self._pending = await self._merge.take(self._batch)
        self._exhausted = len(self._pending) < self._batch
        self._batch = min(1_000, max(64, 2 * self._batch))

    async def _open_merge(self) -> Merge:
        indexes, self.unindexed_tags = await _plan(self._context, self._owner, self._query)
        groups = group_indexes(self._context.connection, indexes)
        spread = 1 if len(groups) <= 1 else 2
        return Merge(
            groups,
            _range_reader(self._context, self._query),
            descending=self._query.descending,
            start=self._start,
            piece=spread * self._batch // max(1, len(groups)) + 1,
        )


class _PageBuilder:
    """Collects the breadcrumbs of a page, up to its limit in number and in bytes."""

    def __init__(self, query: Query, *, began: int, with_expired: bool) -> None:
        self._query = query
        self._began = began
        self._with_expired = with_expired
        self.reached: SortKey | None = None
        """The last scanned key."""
        self.found: list[tuple[SortKey, Breadcrumb]] = []
        self.full = False
        """True: the next breadcrumb does not fit, so there is another page."""
        self._shown: set[bytes] = set()
        self._skipped = 0
        self._bytes = 0
        self._scanned = 0
        self._scanned_bytes = 0
        self._max_scanned_bytes = math.inf if query.max_bytes is None else MAX_SCANNED_BYTES

    @property
    def wants_more(self) -> bool:
        if self.full:
            return False
        # A cursor does not contain the rest of an offset, so a page ends early only after its offset.
        return self._skipped < self._query.offset or (
            self._scanned < MAX_SCANNED and self._scanned_bytes < self._max_scanned_bytes
        )

    def add(self, owner: UUID, keys: list[SortKey], bodies: list[bytes | None], now: int) -> None:
        """Add the breadcrumbs that the query accepts, until the page is full."""
        self._scanned += len(bodies)
        for key, body in zip(keys, bodies, strict=True):
            self.reached = key
            if body is None or key.id in self._shown:
                continue
            self._scanned_bytes += len(body)
            crumb = record.decode_raw(owner, key.id, body)
            if not self._accepts(key, crumb, now):
                continue
            self._shown.add(key.id)
            if self._skipped < self._query.offset:
                self._skipped += 1
            elif not self._append(key, crumb):
                return

    def _accepts(self, key: SortKey, crumb: Breadcrumb, now: int) -> bool:
        query = self._query
        if not self._with_expired and record.is_gone(crumb, now):
            return False
        if not query.accepts(crumb):
            return False
        # In the order of updates a breadcrumb counts at its last update, and older entries of it are skipped. If it
        # is updated during the read, the entry that was read counts.
        return not (query.by_update and key.score != crumb.updated and crumb.updated < self._began)

    def _append(self, key: SortKey, crumb: Breadcrumb) -> bool:
        """Add a breadcrumb. Return False if it does not fit."""
        query = self._query
        if query.max_bytes is None:
            self.full = len(self.found) == query.limit
        else:
            # A parsed document takes many times the memory of its JSON, so it is not kept in parsed form.
            crumb = crumb.without_context() if query.without_contexts else crumb.without_parsed_json()
            self._bytes += len(crumb.json)
            self.full = bool(self.found) and (len(self.found) == query.limit or self._bytes > query.max_bytes)
        if not self.full:
            self.found.append((key, crumb))
        return not self.full

    def end(self, *, has_more: bool) -> SortKey | None:
        """Return the key after which the next page begins, or None on the last page."""
        if self.full:
            return self.found[-1][0]
        return self.reached if has_more else None


# Choice of indexes


class _TagPlan(NamedTuple):
    """Indexes that together contain all breadcrumbs with a tag."""

    own: list[Index]
    """The index of the tag, in all lanes."""
    schemas: list[Index]
    """Indexes of the schemas for which the tag is not indexed: see tag_index.py."""


async def _plan(context: ReadContext, owner: UUID, query: Query) -> tuple[list[Index], tuple[str, ...]]:
    """Return the smallest set of indexes that contains all results of the query, and its unindexed tags."""
    sessions = query.sessions
    unindexed: tuple[str, ...] = ()
    if len(sessions) > 1:
        return [], unindexed
    if query.sessionless:
        base = [] if sessions else await _sessionless_indexes(context, owner, query.schema_name)
        lanes = list(range(context.keys.lanes))
    elif sessions:
        base = await _session_indexes(
            context, owner, next(iter(sessions)), query.schema_name, query.schema_names
        )
        lanes = [context.keys.session_lane(owner, next(iter(sessions)))]
    else:
        by_tag = await _tag_plans(context, owner, query)
        base = await _smallest(context, await _alternatives(context, owner, query, by_tag))
        unindexed = tuple(tag for tag, plan in by_tag.items() if not set(base).isdisjoint(plan.schemas))
        lanes = list(range(context.keys.lanes))
    if query.by_update:
        base = base + [Index(lane, context.keys.updated(lane, owner)) for lane in lanes]
    return base, unindexed


async def _alternatives(
    context: ReadContext, owner: UUID, query: Query, by_tag: Mapping[str, _TagPlan]
) -> list[list[Index]]:
    """Return sets of indexes. Each set contains all results of the query."""
    lanes, keys = range(context.keys.lanes), context.keys
    choices = [by_tag[tag].own + by_tag[tag].schemas for tag in dict.fromkeys(query.all_tags)]
    if query.schema_name is not None:
        choices.append([Index(lane, keys.by_schema(lane, owner, query.schema_name)) for lane in lanes])
    if query.any_tags:
        union: list[Index] = []
        for tag in dict.fromkeys(query.any_tags):
            if tag.startswith(SESSION):
                union += await _session_indexes(context, owner, tag[len(SESSION) :], query.schema_name)
            else:
                union += by_tag[tag].own + by_tag[tag].schemas
        choices.append(list(dict.fromkeys(union)))
    if not choices:
        schemas = await list_schemas(context, owner, list(lanes))
        choices.append(
            [
                Index(lane, keys.by_schema(lane, owner, schema))
                for lane, names in schemas.items()
                for schema in names
            ]
        )
    return choices


async def _tag_plans(context: ReadContext, owner: UUID, query: Query) -> dict[str, _TagPlan]:
    """Return the indexes for each tag of a query, without session tags."""
    keys, lanes = context.keys, range(context.keys.lanes)
    tags = list(
        dict.fromkeys(tag for tag in (*query.all_tags, *query.any_tags) if not tag.startswith(SESSION))
    )
    places = [(tag, lane) for tag in tags for lane in lanes]
    replies = await context.connection.call_all(
        [
            (lane, (b"ZRANGEBYLEX", keys.unindexed_tags(lane, owner), *unindexed_range(tag)))
            for tag, lane in places
        ]
    )
    found = {tag: _TagPlan([], []) for tag in tags}
    for (tag, lane), members in zip(places, replies, strict=True):
        found[tag].own.append(Index(lane, keys.by_tag(lane, owner, tag)))
        for schema in map(schema_in, members):
            if query.schema_name in (None, schema):
                found[tag].schemas.append(Index(lane, keys.by_schema(lane, owner, schema)))
    return found


async def _smallest(context: ReadContext, choices: list[list[Index]]) -> list[Index]:
    """Return the set of indexes with the fewest entries."""
    if len(choices) == 1:
        return choices[0]
    totals = await total_sizes(context.connection, choices)
    return choices[totals.index(min(totals))]


async def _session_indexes(
    context: ReadContext, owner: UUID, session: str, schema: str | None, schemas: Sequence[str] = ()
) -> list[Index]:
    lane, keys = context.keys.session_lane(owner, session), context.keys
    if schema is not None:
        return [Index(lane, keys.by_session(lane, owner, session, schema))]
    names = schemas or (await list_schemas(context, owner, [lane]))[lane]
    return [Index(lane, keys.by_session(lane, owner, session, name)) for name in names]


async def _sessionless_indexes(context: ReadContext, owner: UUID, schema: str | None) -> list[Index]:
    lanes, keys = list(range(context.keys.lanes)), context.keys
    if schema is not None:
        return [Index(lane, keys.by_session(lane, owner, "", schema)) for lane in lanes]
    schemas = await list_schemas(context, owner, lanes)
    return [Index(lane, keys.by_session(lane, owner, "", name)) for lane in lanes for name in schemas[lane]]


# Reading of indexes and bodies


def _is_of_one_session(query: Query) -> bool:
    """Return whether a query lists the newest breadcrumbs of one session."""
    return len(query.sessions) == 1 and query.order == "-created_at" and not query.sessionless


async def _newest(
    context: ReadContext, owner: UUID, query: Query, count: int, budget: int
) -> tuple[list[tuple[SortKey, Index]], list[bytes | None]] | None:
    """Return the newest keys of a session, and the first bodies. None: too many schemas for one script."""
    (session,) = query.sessions
    keys, lane = context.keys, context.keys.session_lane(owner, session)
    schemas = (query.schema_name,) if query.schema_name is not None else query.schema_names
    indexes = [keys.by_session(lane, owner, session, name) for name in dict.fromkeys(schemas)]
    reply = await context.connection.run(
        lane,
        _NEWEST,
        [keys.schemas(lane, owner), *indexes],
        [
            keys.by_session(lane, owner, session, ""),
            keys.body(lane, owner, b""),
            count,
            query.created_since or 0,
            budget,
        ],
    )
    if reply is None:
        return None
    flat, bodies = reply
    index = Index(lane, b"")  # bodies are found by their lane
    found = [(SortKey(int(float(score)), id), index) for id, score in zip(flat[::2], flat[1::2], strict=True)]
    return found, bodies


def _range_reader(context: ReadContext, query: Query) -> RangeReader:
    # A breadcrumb updated since T was created since T, or has an entry since T in the index of updates. Both are
    # ranges of an index.
    floor = (query.updated_since if query.by_update else query.created_since) or 0
    return range_reader(context.connection, descending=query.descending, floor=floor)


async def _bodies(
    context: ReadContext, owner: UUID, keys: list[tuple[SortKey, Index]], budget: int
) -> list[bytes | None]:
    """Return the bodies of the first keys that fit into the budget, at least one. Sends one command per lane."""
    if not keys:
        return []
    body = context.keys.body
    is_small = len(keys) <= _SMALL_BATCH and _SMALL_BATCH * context.max_content_bytes <= 4 * budget
    by_lane: dict[int, list[bytes]] = {}
    for key, index in keys:
        by_lane.setdefault(index.lane, []).append(body(index.lane, owner, key.id))
    share = budget // len(by_lane)
    replies = await context.connection.call_all(
        [
            (lane, (b"MGET", *names) if is_small else ScriptCall(_BODIES, names, [share]))
            for lane, names in by_lane.items()
        ]
    )
    if len(by_lane) == 1:
        return list(replies[0])
    found = {lane: iter(bodies) for lane, bodies in zip(by_lane, replies, strict=True)}
    bodies: list[bytes | None] = []
    for _, index in keys:
        next_body = next(found[index.lane], _NOT_RETURNED)
        if next_body is _NOT_RETURNED:
            break  # bodies that other lanes returned after this one are read again
        bodies.append(next_body)
    return bodies
