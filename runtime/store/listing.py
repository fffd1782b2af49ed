"""Lists: which indexes hold what a query asks for, and one page out of them.

Every index is sorted by time, so a page is a merge (see query.py): each index gives its ids in order, the
merge takes the next one over all of them, and a body is loaded only for ids that made it. Filters that the
chosen indexes do not answer are checked on the body.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from breadcrumbs.runtime.backend.connection import Run, Script
from breadcrumbs.runtime.breadcrumb.breadcrumb import SESSION, Breadcrumb
from breadcrumbs.runtime.breadcrumb.ids import lane_for
from breadcrumbs.runtime.breadcrumb.query import (
    Index,
    Merge,
    Page,
    Place,
    Query,
    RangeReader,
    open_cursor,
    sign_cursor,
)
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.lookup import ReadContext, list_schemas

MOST_SCANNED: Final = 50_000
"""A page ends early (with a cursor) rather than reading the whole store for a filter that hardly matches."""
MOST_SCANNED_BYTES: Final = 64 << 20
"""The same limit in bytes of stored bodies: large breadcrumbs take time to parse."""

_BODIES = Script("bodies")

_FEW: Final = 16
"""So many bodies are read with one MGET, without looking at their sizes: it is the fastest way to a short page."""


async def page(context: ReadContext, owner: UUID, query: Query, *, with_expired: bool = False) -> Page:
    """See `Store.list`."""
    query.check()
    start = open_cursor(context.secret, owner, query) or query.start
    indexes = await _plan(context, owner, query)
    wanted = query.offset + query.limit
    spread = 1 if len(indexes) <= 1 else 2
    merge = Merge(
        indexes,
        _range_reader(context, query),
        descending=query.descending,
        start=start,
        piece=spread * (wanted + 1) // max(1, len(indexes)) + 1,
    )
    page = _PageInTheMaking(query, began=context.clock.now_at_least(), with_expired=with_expired, place=start)
    batch, exhausted = wanted + 1, not indexes
    taken: list[tuple[Place, Index]] = []
    while (taken or not exhausted) and page.goes_on:
        if not taken:
            taken = await merge.take(batch)
            exhausted = len(taken) < batch
            batch = min(1_000, max(64, 2 * batch))
        bodies = await _bodies(context, owner, taken, query.max_bytes or MOST_SCANNED_BYTES)
        page.look_at(owner, taken, bodies, context.clock.now())
        taken = taken[len(bodies) :]
    end = page.place if taken or not exhausted else None
    if page.full:
        end = page.found[-1][0]
    cursor = None if end is None else sign_cursor(context.secret, owner, query, end)
    return Page([crumb for _, crumb in page.found], cursor)


class _PageInTheMaking:
    """The breadcrumbs of a page, up to its limit in number and in bytes."""

    def __init__(self, query: Query, *, began: int, with_expired: bool, place: Place | None) -> None:
        self._query = query
        self._began = began
        self._with_expired = with_expired
        self.place = place
        """How far the indexes were looked at."""
        self.found: list[tuple[Place, Breadcrumb]] = []
        self.full = False
        """True: the next breadcrumb was seen and has no room, so there is another page."""
        self._shown: set[bytes] = set()
        self._passed_over = 0
        self._bytes = 0
        self._scanned = 0
        self._scanned_bytes = 0
        self._most_bytes = math.inf if query.max_bytes is None else MOST_SCANNED_BYTES

    @property
    def goes_on(self) -> bool:
        if self.full:
            return False
        # The cursor of a page that ends early knows nothing of an offset: that much has to be found first.
        return self._passed_over < self._query.offset or (
            self._scanned < MOST_SCANNED and self._scanned_bytes < self._most_bytes
        )

    def look_at(
        self, owner: UUID, taken: list[tuple[Place, Index]], bodies: list[bytes | None], now: int
    ) -> None:
        """Take what fits the query out of some bodies."""
        query, shown, with_expired = self._query, self._shown, self._with_expired
        self._scanned += len(bodies)
        # There are fewer bodies than places where the byte budget is used up.
        for (at, _), body in zip(taken, bodies, strict=False):
            self.place = at
            if body is None or at.id in shown:
                continue
            self._scanned_bytes += len(body)
            crumb = record.decode_raw(owner, at.id, body)
            if (not with_expired and record.is_gone(crumb, now)) or not query.accepts(crumb):
                continue
            # In the order of updates a breadcrumb stands where it was last written, and what is written
            # while we read still stands where we saw it.
            if query.by_update and at.score != crumb.updated and crumb.updated < self._began:
                continue
            shown.add(at.id)
            if self._passed_over < query.offset:
                self._passed_over += 1
            elif not self._add(at, crumb):
                return

    def _add(self, at: Place, crumb: Breadcrumb) -> bool:
        """False: it has no room."""
        query = self._query
        if query.max_bytes is None:
            self.full = len(self.found) == query.limit
        else:
            # A parsed document takes many times the room of its JSON, so a large one is not kept parsed.
            crumb = crumb.without_context() if query.without_contexts else crumb.unparsed()
            self._bytes += len(crumb.json)
            self.full = bool(self.found) and (len(self.found) == query.limit or self._bytes > query.max_bytes)
        if not self.full:
            self.found.append((at, crumb))
        return not self.full


# Which indexes


async def _plan(context: ReadContext, owner: UUID, query: Query) -> list[Index]:
    """The smallest set of indexes that holds everything the query can find."""
    sessions = query.sessions
    if len(sessions) > 1:
        return []
    if query.sessionless:
        base = [] if sessions else await _sessionless_indexes(context, owner, query.schema_name)
        lanes = list(range(context.keys.lanes))
    elif sessions:
        base = await _session_indexes(
            context, owner, next(iter(sessions)), query.schema_name, query.schema_names
        )
        lanes = [lane_for(owner, "session", next(iter(sessions)), context.keys.lanes)]
    else:
        base = await _smallest(context, await _alternatives(context, owner, query))
        lanes = (
            sorted({index.lane for index in base}) if not query.by_update else list(range(context.keys.lanes))
        )
    if query.by_update:
        base = base + [Index(lane, context.keys.updated(lane, owner)) for lane in lanes]
    return base


async def _alternatives(context: ReadContext, owner: UUID, query: Query) -> list[list[Index]]:
    lanes, keys = range(context.keys.lanes), context.keys
    choices = [
        [Index(lane, keys.by_tag(lane, owner, tag)) for lane in lanes]
        for tag in dict.fromkeys(query.all_tags)
    ]
    if query.schema_name is not None:
        choices.append([Index(lane, keys.by_schema(lane, owner, query.schema_name)) for lane in lanes])
    if query.any_tags:
        union: list[Index] = []
        for tag in dict.fromkeys(query.any_tags):
            if tag.startswith(SESSION):
                union += await _session_indexes(context, owner, tag[len(SESSION) :], query.schema_name)
            else:
                union += [Index(lane, keys.by_tag(lane, owner, tag)) for lane in lanes]
        choices.append(union)
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


async def _smallest(context: ReadContext, choices: list[list[Index]]) -> list[Index]:
    if len(choices) == 1:
        return choices[0]
    flat = [index for choice in choices for index in choice]
    sizes = iter(await context.connection.call_all([(index.lane, (b"ZCARD", index.key)) for index in flat]))
    totals = [sum(next(sizes) for _ in choice) for choice in choices]
    return choices[totals.index(min(totals))]


async def _session_indexes(
    context: ReadContext, owner: UUID, session: str, schema: str | None, schemas: Sequence[str] = ()
) -> list[Index]:
    lane, keys = lane_for(owner, "session", session, context.keys.lanes), context.keys
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


# What they hold


def _range_reader(context: ReadContext, query: Query) -> RangeReader:
    # An update since T means a creation since T, or an entry among the updates since T: both are ranges.
    floor = query.updated_since if query.by_update and query.updated_since is not None else 0

    async def read(asked: list[tuple[Index, int, int, int]]) -> list[list[Place]]:
        command, lowest = (b"ZREVRANGEBYSCORE", floor) if query.descending else (b"ZRANGEBYSCORE", None)
        replies = await context.connection.call_all(
            [
                (
                    index.lane,
                    (
                        command,
                        index.key,
                        max(score, floor) if lowest is None else score,
                        b"+inf" if lowest is None else lowest,
                        b"WITHSCORES",
                        b"LIMIT",
                        passed,
                        count,
                    ),
                )
                for index, score, passed, count in asked
            ]
        )
        return [
            [Place(int(float(score)), id) for id, score in zip(flat[::2], flat[1::2], strict=True)]
            for flat in replies
        ]

    return read


async def _bodies(
    context: ReadContext, owner: UUID, places: list[tuple[Place, Index]], budget: int
) -> list[bytes | None]:
    """The bodies of the first of these places, one command per lane: all that fit into the budget, at least one."""
    if not places:
        return []
    body, few = context.keys.body, _FEW * context.max_content_bytes <= 4 * budget and len(places) <= _FEW
    by_lane: dict[int, list[bytes]] = {}
    for at, index in places:
        by_lane.setdefault(index.lane, []).append(body(index.lane, owner, at.id))
    share = budget // len(by_lane)
    replies = await context.connection.call_all(
        [(lane, (b"MGET", *keys) if few else Run(_BODIES, keys, [share])) for lane, keys in by_lane.items()]
    )
    if len(by_lane) == 1:
        return list(replies[0])
    found = {lane: iter(bodies) for lane, bodies in zip(by_lane, replies, strict=True)}
    bodies: list[bytes | None] = []
    for _, index in places:
        one = next(found[index.lane], _CUT)
        if one is _CUT:
            break  # what lies behind this in the other lanes is read again
        bodies.append(one)
    return bodies


_CUT: Final = b""
"""Stands for the bodies that a lane has not given, because its share of the budget is used up. No body is empty."""
