"""Lists: which indexes hold what a query asks for, and one page out of them.

Every index is sorted by time, so a page is a merge (see query.py): each index gives its ids in order, the
merge takes the next one over all of them, and a body is loaded only for ids that made it. Filters that the
chosen indexes do not answer are checked on the body.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from breadcrumbs.runtime import record
from breadcrumbs.runtime.breadcrumb import SESSION, Breadcrumb
from breadcrumbs.runtime.connection import Run, Script
from breadcrumbs.runtime.ids import lane_for
from breadcrumbs.runtime.multiplexer import Command
from breadcrumbs.runtime.query import (
    Index,
    Merge,
    Page,
    Place,
    Query,
    RangeReader,
    open_cursor,
    sign_cursor,
)

if TYPE_CHECKING:
    from breadcrumbs.runtime.store import Store

MOST_SCANNED: Final = 50_000
"""A page ends early (with a cursor) rather than reading the whole store for a filter that hardly matches."""
MOST_SCANNED_BYTES: Final = 64 << 20
"""The same limit in bytes of stored bodies: large breadcrumbs take time to parse."""

_BODIES = Script("bodies")

_FEW: Final = 16
"""So many bodies are read with one MGET, without looking at their sizes: it is the fastest way to a short page."""


async def page(store: Store, owner: UUID, query: Query, *, with_expired: bool) -> Page:
    """See `Store.list`."""
    query.check()
    start = open_cursor(store.secret, owner, query) or query.start
    indexes = await _plan(store, owner, query)
    wanted = query.offset + query.limit
    collected = _Collected(query)
    began = store.now_at_least()
    scanned, place, more, exhausted = 0, start, bool(indexes), False
    most_bytes = math.inf if query.max_bytes is None else MOST_SCANNED_BYTES
    spread = 1 if len(indexes) <= 1 else 2
    merge = Merge(
        indexes,
        _range_reader(store, query),
        descending=query.descending,
        start=start,
        piece=spread * (wanted + 1) // max(1, len(indexes)) + 1,
    )
    batch = wanted + 1
    taken: list[tuple[Place, Index]] = []
    # The cursor of a page that ends early knows nothing of an offset: that much has to be found first.
    while (
        more
        and not collected.full
        and ((scanned < MOST_SCANNED and collected.read < most_bytes) or collected.skipping)
    ):
        if not taken:
            taken = await merge.take(batch)
            exhausted = len(taken) < batch
            batch = min(1_000, max(64, 2 * batch))
        bodies = await _bodies(
            store, owner, [(index.lane, at.id) for at, index in taken], query.max_bytes or MOST_SCANNED_BYTES
        )
        scanned += len(bodies)
        now = store.now()
        for (at, _), body in zip(taken, bodies, strict=False):
            place = at
            if body is None or at.id in collected.shown:
                continue
            collected.read += len(body)
            crumb = record.decode_raw(owner, at.id, body)
            if (not with_expired and record.is_gone(crumb, now)) or not query.accepts(crumb):
                continue
            # In the order of updates a breadcrumb stands where it was last written, and what is written
            # while we read still stands where we saw it.
            if not query.by_update or at.score == crumb.updated or crumb.updated >= began:
                collected.add(at, crumb)
                if collected.full:
                    break
        taken = taken[len(bodies) :]
        more = bool(taken) or not exhausted
    end = (collected.items[-1][0] if collected.full else place) if more or collected.full else None
    cursor = None if end is None else sign_cursor(store.secret, owner, query, end)
    return Page([crumb for _, crumb in collected.items], cursor)


class _Collected:
    """The breadcrumbs of a page, up to its limit in number and in bytes."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self.items: list[tuple[Place, Breadcrumb]] = []
        self.shown: set[bytes] = set()
        self.full = False
        """True: the next breadcrumb was seen and has no room, so there is another page."""
        self.read = 0
        """Bytes of bodies that were looked at."""
        self._passed_over = 0
        self._bytes = 0

    @property
    def skipping(self) -> bool:
        """Whether it is still passing over what lies before the offset."""
        return self._passed_over < self._query.offset

    def add(self, at: Place, crumb: Breadcrumb) -> None:
        self.shown.add(at.id)
        if self.skipping:
            self._passed_over += 1
            return
        if self._query.without_contexts:
            crumb = crumb.without_context()
        size, budget = len(crumb.json), self._query.max_bytes
        too_large = budget is not None and self._bytes + size > budget
        if len(self.items) == self._query.limit or (too_large and self.items):
            self.full = True
            return
        self._bytes += size
        # A parsed document takes many times the room of its JSON: a page of large ones is parsed one by one.
        self.items.append((at, crumb if budget is None else crumb.unparsed()))


# Which indexes


async def _plan(store: Store, owner: UUID, query: Query) -> list[Index]:
    """The smallest set of indexes that holds everything the query can find."""
    sessions = query.sessions
    if len(sessions) > 1:
        return []
    if query.sessionless:
        base = [] if sessions else await _sessionless_indexes(store, owner, query.schema_name)
        lanes = list(range(store.lanes))
    elif sessions:
        base = await _session_indexes(
            store, owner, next(iter(sessions)), query.schema_name, query.schema_names
        )
        lanes = [lane_for(owner, "session", next(iter(sessions)), store.lanes)]
    else:
        base = await _smallest(store, await _alternatives(store, owner, query))
        lanes = sorted({index.lane for index in base}) if not query.by_update else list(range(store.lanes))
    if query.by_update:
        base = base + [Index(lane, store.keys.updated(lane, owner)) for lane in lanes]
    return base


async def _alternatives(store: Store, owner: UUID, query: Query) -> list[list[Index]]:
    lanes, keys = range(store.lanes), store.keys
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
                union += await _session_indexes(store, owner, tag[len(SESSION) :], query.schema_name)
            else:
                union += [Index(lane, keys.by_tag(lane, owner, tag)) for lane in lanes]
        choices.append(union)
    if not choices:
        schemas = await store.schemas(owner, list(lanes))
        choices.append(
            [
                Index(lane, keys.by_schema(lane, owner, schema))
                for lane, names in schemas.items()
                for schema in names
            ]
        )
    return choices


async def _smallest(store: Store, choices: list[list[Index]]) -> list[Index]:
    if len(choices) == 1:
        return choices[0]
    flat = [index for choice in choices for index in choice]
    sizes = iter(await store.connection.call_all([(index.lane, (b"ZCARD", index.key)) for index in flat]))
    totals = [sum(next(sizes) for _ in choice) for choice in choices]
    return choices[totals.index(min(totals))]


async def _session_indexes(
    store: Store, owner: UUID, session: str, schema: str | None, schemas: Sequence[str] = ()
) -> list[Index]:
    lane, keys = lane_for(owner, "session", session, store.lanes), store.keys
    if schema is not None:
        return [Index(lane, keys.by_session(lane, owner, session, schema))]
    names = schemas or (await store.schemas(owner, [lane]))[lane]
    return [Index(lane, keys.by_session(lane, owner, session, name)) for name in names]


async def _sessionless_indexes(store: Store, owner: UUID, schema: str | None) -> list[Index]:
    lanes, keys = list(range(store.lanes)), store.keys
    if schema is not None:
        return [Index(lane, keys.by_session(lane, owner, "", schema)) for lane in lanes]
    schemas = await store.schemas(owner, lanes)
    return [Index(lane, keys.by_session(lane, owner, "", name)) for lane in lanes for name in schemas[lane]]


# What they hold


def _range_reader(store: Store, query: Query) -> RangeReader:
    # An update since T means a creation since T, or an entry among the updates since T: both are ranges.
    floor = query.updated_since if query.by_update and query.updated_since is not None else 0

    async def read(asked: list[tuple[Index, int, int, int]]) -> list[list[Place]]:
        command, lowest = (b"ZREVRANGEBYSCORE", floor) if query.descending else (b"ZRANGEBYSCORE", None)
        replies = await store.connection.call_all(
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
    store: Store, owner: UUID, places: list[tuple[int, bytes]], budget: int
) -> list[bytes | None]:
    """The bodies of the first of these places, one command per lane: all that fit into the budget, at least one."""
    keys = [store.keys.body(lane, owner, id) for lane, id in places]
    by_lane: dict[int, list[int]] = defaultdict(list)
    for position, (lane, _) in enumerate(places):
        by_lane[lane].append(position)
    few = len(places) <= _FEW and len(places) * store.max_content_bytes <= 4 * budget
    commands: list[tuple[int, Command | Run]] = []
    for lane, positions in by_lane.items():
        names = [keys[at] for at in positions]
        share = budget // len(by_lane)
        commands.append((lane, (b"MGET", *names) if few else Run(_BODIES, names, [share])))
    found: dict[int, bytes | None] = {}
    for positions, bodies in zip(by_lane.values(), await store.connection.call_all(commands), strict=True):
        found.update(zip(positions, bodies, strict=False))
    # Where one lane has used up its share, what lies behind that in the other lanes is read again.
    first_missing = next((at for at in range(len(places)) if at not in found), len(places))
    return [found[at] for at in range(first_missing)]
