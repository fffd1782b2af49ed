"""Merge of several sorted indexes into one order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from breadcrumbs.runtime.breadcrumb.query import SortKey


@dataclass(frozen=True, slots=True)
class Index:
    """Key of a sorted set, and its lane."""

    lane: int
    key: bytes


RangeReader = Callable[[list[tuple[Index, int, int, int]]], Awaitable[list[list[SortKey]]]]
"""Reads several indexes at once. A request is: index, first score, entries to skip, entries to return."""


class Merge:
    """Reads the ids of several indexes in one order, piece by piece."""

    def __init__(
        self, indexes: list[Index], read: RangeReader, *, descending: bool, start: SortKey | None, piece: int
    ) -> None:
        self._readers = [_IndexReader(index, start.score if start else None) for index in indexes]
        self._read = read
        self._descending = descending
        self._start = start
        self._piece = max(8, min(1_000, piece))
        self._last: SortKey | None = None

    async def take(self, count: int) -> list[tuple[SortKey, Index]]:
        """Return the next `count` keys, fewer only at the end."""
        taken: list[tuple[SortKey, Index]] = []
        sign = -1 if self._descending else 1
        while len(taken) < count:
            await self._refill()
            heap = [
                (sign * reader.head.score, _ordered(reader.head.id, self._descending), number)
                for number, reader in enumerate(self._readers)
                if reader.pending
            ]
            if not heap:
                break
            heapify(heap)
            while heap and len(taken) < count:
                number = heap[0][2]
                reader = self._readers[number]
                key = reader.pop()
                if key != self._last:  # a breadcrumb can be in several indexes
                    taken.append((key, reader.index))
                    self._last = key
                if reader.pending:
                    head = reader.head
                    heapreplace(heap, (sign * head.score, _ordered(head.id, self._descending), number))
                elif reader.exhausted:
                    heappop(heap)
                else:
                    break  # the next key of this index can come before the heads of the others
        return taken

    async def _refill(self) -> None:
        """Read the next piece of each index that has no pending keys."""
        first_score = (1 << 60) if self._descending else 0
        # Repeats if a whole piece comes before the start: many breadcrumbs can have the same microsecond.
        while empty := [reader for reader in self._readers if not reader.pending and not reader.exhausted]:
            requests = [
                (
                    reader.index,
                    first_score if reader.score is None else reader.score,
                    reader.skip,
                    self._piece,
                )
                for reader in empty
            ]
            for reader, keys in zip(empty, await self._read(requests), strict=True):
                reader.accept(keys, self._piece, self._start, self._descending)
            # A caller that needs a second piece probably rejects most entries, so the next pieces are larger.
            self._piece = min(1_000, 2 * self._piece)


class _IndexReader:
    """Position in one index, and the keys that were read but not taken yet."""

    def __init__(self, index: Index, score: int | None) -> None:
        self.index = index
        self.score = score
        self.skip = 0
        """Number of entries with exactly `score` that were read already."""
        self.exhausted = False
        self.pending: list[SortKey] = []

    @property
    def head(self) -> SortKey:
        return self.pending[-1]

    def pop(self) -> SortKey:
        return self.pending.pop()

    def accept(self, keys: list[SortKey], requested: int, start: SortKey | None, descending: bool) -> None:
        """Store the keys of a reply, without those before `start`."""
        self.exhausted = len(keys) < requested
        for key in keys:
            if key.score == self.score:
                self.skip += 1
            else:
                self.score, self.skip = key.score, 1
        if start is not None:
            keys = [key for key in keys if (key < start if descending else key > start)]
        self.pending = keys[::-1]


def _ordered(id: bytes, descending: bool) -> int:
    number = int.from_bytes(id)
    return -number if descending else number
