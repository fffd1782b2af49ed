"""Queries: what to list and in which order, the merge of several indexes into that order, and cursors.

All filters are AND; `any_tags` is an OR inside itself. How a page comes about is in listing.py.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from heapq import heapify, heappop, heapreplace
from typing import Literal
from uuid import UUID

import orjson

from breadcrumbs.runtime.breadcrumb.breadcrumb import SESSION, Breadcrumb
from breadcrumbs.runtime.errors import InvalidCursor, InvalidInput

Sort = Literal["-created_at", "created_at", "-updated_at", "updated_at"]

DEFAULT_LIMIT = 1_000
MAX_LIMIT = 10_000
MAX_OFFSET = 100_000


@dataclass(frozen=True, slots=True)
class Query:
    """What to list. The default is everything, newest first."""

    schema_name: str | None = None
    schema_names: tuple[str, ...] = ()
    """One of these; none: any."""
    session_id: str | None = None
    sessionless: bool = False
    """Only what belongs to no session."""
    all_tags: tuple[str, ...] = ()
    any_tags: tuple[str, ...] = ()
    created_since: int | None = None
    created_until: int | None = None
    updated_since: int | None = None
    sort: Sort | None = None
    """None: newest first; by update time where `updated_since` asks for changes."""
    limit: int = DEFAULT_LIMIT
    offset: int = 0
    cursor: str | None = None
    max_bytes: int | None = None
    """A page ends (with a cursor) before its breadcrumbs exceed so many bytes; it has at least one. None: no limit."""
    without_contexts: bool = False
    """Leave the contexts of large breadcrumbs out, for a reader that does not use them."""
    keep: Callable[[Breadcrumb], bool] | None = field(default=None, compare=False)
    """A last word on each breadcrumb, for what the reader may not see."""

    @property
    def order(self) -> Sort:
        return self.sort or ("-created_at" if self.updated_since is None else "-updated_at")

    @property
    def descending(self) -> bool:
        return self.order.startswith("-")

    @property
    def by_update(self) -> bool:
        return self.order.endswith("updated_at")

    @property
    def sessions(self) -> set[str]:
        """Every session that the filters demand; more than one can never be met."""
        demanded = {tag[len(SESSION) :] for tag in self.all_tags if tag.startswith(SESSION)}
        return demanded | ({self.session_id} if self.session_id is not None else set())

    @property
    def start(self) -> Place | None:
        """Where to begin to read without a cursor; None: at the first."""
        if self.order == "created_at" and self.created_since is not None:
            return Place(self.created_since, b"")
        if self.order == "-created_at" and self.created_until is not None:
            return Place(self.created_until + 1, b"")
        return None

    def accepts(self, crumb: Breadcrumb) -> bool:
        tags = crumb.tags
        return (
            (self.schema_name is None or crumb.schema_name == self.schema_name)
            and (not self.schema_names or crumb.schema_name in self.schema_names)
            and (self.session_id is None or crumb.session_id == self.session_id)
            and (not self.sessionless or crumb.session_id is None)
            and all(tag in tags for tag in self.all_tags)
            and (not self.any_tags or any(tag in tags for tag in self.any_tags))
            and (self.created_since is None or crumb.created >= self.created_since)
            and (self.created_until is None or crumb.created <= self.created_until)
            and (self.updated_since is None or crumb.updated >= self.updated_since)
            and (self.keep is None or self.keep(crumb))
        )

    def check(self) -> None:
        check_limit(self.limit)
        if not 0 <= self.offset <= MAX_OFFSET:
            raise InvalidInput(
                f"offset must be from 0 to {MAX_OFFSET}: use cursor beyond that", where="offset"
            )
        if self.cursor is not None and self.offset:
            raise InvalidInput("cursor and offset exclude each other", where="cursor")


def check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput(f"limit must be from 1 to {MAX_LIMIT}", where="limit")


@dataclass(frozen=True, slots=True)
class Page:
    items: list[Breadcrumb]
    next_cursor: str | None
    """None: this was the end."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a breadcrumb stands in an order."""

    score: int
    id: bytes


@dataclass(frozen=True, slots=True)
class Index:
    """One sorted set to read from."""

    lane: int
    key: bytes


RangeReader = Callable[[list[tuple[Index, int, int, int]]], Awaitable[list[list[Place]]]]
"""Reads (index, from score, how many to pass over, how many to give) for several indexes at once."""


class Merge:
    """The ids of several indexes in one order, read in pieces."""

    def __init__(
        self, indexes: list[Index], read: RangeReader, *, descending: bool, start: Place | None, piece: int
    ) -> None:
        self._sources = [_Source(index, start.score if start else None) for index in indexes]
        self._read = read
        self._descending = descending
        self._start = start
        self._piece = max(8, min(1_000, piece))
        self._last: Place | None = None

    async def take(self, count: int) -> list[tuple[Place, Index]]:
        """The next `count` places; fewer mean that there are no more."""
        taken: list[tuple[Place, Index]] = []
        sign = -1 if self._descending else 1
        while len(taken) < count:
            await self._refill()
            heap = [
                (sign * source.head.score, _ordered(source.head.id, self._descending), number)
                for number, source in enumerate(self._sources)
                if source.pending
            ]
            if not heap:
                break
            heapify(heap)
            while heap and len(taken) < count:
                number = heap[0][2]
                source = self._sources[number]
                place = source.pop()
                if place != self._last:  # the same breadcrumb may stand in several indexes
                    taken.append((place, source.index))
                    self._last = place
                if source.pending:
                    head = source.head
                    heapreplace(heap, (sign * head.score, _ordered(head.id, self._descending), number))
                elif source.exhausted:
                    heappop(heap)
                else:
                    break  # the next of this index may come before the heads of the others
        return taken

    async def _refill(self) -> None:
        edge = (1 << 60) if self._descending else 0
        # More than once where a whole piece lies before the start, among breadcrumbs of the same microsecond.
        while empty := [source for source in self._sources if not source.pending and not source.exhausted]:
            asked = [
                (source.index, edge if source.score is None else source.score, source.passed, self._piece)
                for source in empty
            ]
            for source, places in zip(empty, await self._read(asked), strict=True):
                source.accept(places, self._piece, self._start, self._descending)
            # Who needs a second piece looks for something rare: do not ask for it in small coin.
            self._piece = min(1_000, 2 * self._piece)


class _Source:
    def __init__(self, index: Index, score: int | None) -> None:
        self.index = index
        self.score = score
        self.passed = 0
        """How many entries with exactly `score` were read already."""
        self.exhausted = False
        self.pending: list[Place] = []

    @property
    def head(self) -> Place:
        return self.pending[-1]

    def pop(self) -> Place:
        return self.pending.pop()

    def accept(self, places: list[Place], asked: int, start: Place | None, descending: bool) -> None:
        self.exhausted = len(places) < asked
        for place in places:
            if place.score == self.score:
                self.passed += 1
            else:
                self.score, self.passed = place.score, 1
        if start is not None:
            places = [place for place in places if (place < start if descending else place > start)]
        self.pending = places[::-1]


def _ordered(id: bytes, descending: bool) -> int:
    number = int.from_bytes(id)
    return -number if descending else number


# Cursors: opaque, signed, and good for the query that they came from only.


def sign_cursor(secret: bytes, owner: UUID, query: Query, place: Place) -> str:
    payload = place.score.to_bytes(8) + place.id
    return _spell(payload + _seal(secret, owner, query, payload))


def open_cursor(secret: bytes, owner: UUID, query: Query) -> Place | None:
    if query.cursor is None:
        return None
    try:
        raw = base64.b64decode(query.cursor + "=" * (-len(query.cursor) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raw = b""
    payload, seal = raw[:24], raw[24:]
    # Base64 has several spellings of the same bytes: ours is the only one that is unchanged.
    if _spell(raw) != query.cursor or not hmac.compare_digest(seal, _seal(secret, owner, query, payload)):
        raise InvalidCursor(
            "this cursor was not given for this query: take it unchanged from the last answer, "
            "and keep the filters the same",
            where="cursor",
        )
    return Place(int.from_bytes(payload[:8]), payload[8:])


def _spell(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _seal(secret: bytes, owner: UUID, query: Query, payload: bytes) -> bytes:
    filters = orjson.dumps(
        [
            query.schema_name,
            query.schema_names,
            query.session_id,
            query.sessionless,
            query.all_tags,
            query.any_tags,
            query.created_since,
            query.created_until,
            query.updated_since,
            query.order,
        ]
    )
    digest = blake2b(filters, digest_size=16, key=owner.bytes).digest()
    return hmac.new(secret, b"cursor" + digest + payload, sha256).digest()[:16]
