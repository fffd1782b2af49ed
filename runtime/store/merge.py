"""Merges the ids of several sorted indexes into one order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from breadcrumbs.runtime.breadcrumb.query import SortKey


@dataclass(frozen=True, slots=True)
class Index:
    """One sorted set to read from."""

    lane: int
    key: bytes


RangeReader = Callable[[list[tuple[Index, int, int, int]]], Awaitable[list[list[SortKey]]]]
"""Reads (index, from score, how many to pass over, how many to give) for several indexes at once."""


class Merge:
    """The ids of several indexes in one order, read in pieces."""

    def __init__(
        self, indexes: list[Index], read: RangeReader, *, descending: bool, start: SortKey | None, piece: int
    ) -> None:
        self._sources = [_Source(index, start.score if start else None) for index in indexes]
        self._read = read
        self._descending = descending
        self._start = start
        self._piece = max(8, min(1_000, piece))
        self._last: SortKey | None = None

    async def take(self, count: int) -> list[tuple[SortKey, Index]]:
        """The next `count` places; fewer mean that there are no more."""
        taken: list[tuple[SortKey, Index]] = []
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
        self.pending: list[SortKey] = []

    @property
    def head(self) -> SortKey:
        return self.pending[-1]

    def pop(self) -> SortKey:
        return self.pending.pop()

    def accept(self, places: list[SortKey], asked: int, start: SortKey | None, descending: bool) -> None:
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
