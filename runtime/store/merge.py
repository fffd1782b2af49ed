"""Merge of several sorted indexes into one order.

Indexes that one script can read are merged by the server, so that the cost of a page does not grow with the number of
lanes. On a cluster each index is read by a script of its own, and the results are merged here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import Final, TypeAlias

from breadcrumbs.runtime.backend.connection import Connection, Script, ScriptCall
from breadcrumbs.runtime.breadcrumb.query import SortKey

_RANGES, _SIZES = Script("ranges"), Script("sizes")
_MAX_KEYS: Final = 1_000  # of one script, which should not block the server for long


@dataclass(frozen=True, slots=True)
class Index:
    """Key of a sorted set, and its lane."""

    lane: int
    key: bytes


Entry: TypeAlias = tuple[SortKey, Index]
RangeReader: TypeAlias = Callable[
    [list[tuple[list[Index], SortKey | None, int]]], Awaitable[list[list[Entry]]]
]
"""Reads several groups of indexes at once, each in one order. A request is: the indexes, the key before the first entry
(None: begin with the first), and how many entries to return."""


def group_indexes(connection: Connection, indexes: Sequence[Index]) -> list[list[Index]]:
    """Return indexes in groups that one script can read.

    On a cluster each index is alone, although those of a lane could be read together: while a lane moves, a script with
    a missing key would be delayed.
    """
    groups = connection.reader_groups()
    if all(len(group) == 1 for group in groups):
        return [[index] for index in indexes]
    number_of = {lane: number for number, group in enumerate(groups) for lane in group}
    together: dict[int, list[Index]] = {}
    for index in indexes:
        together.setdefault(number_of[index.lane], []).append(index)
    return [
        group[start : start + _MAX_KEYS]
        for group in together.values()
        for start in range(0, len(group), _MAX_KEYS)
    ]


def range_reader(connection: Connection, *, descending: bool, floor: int) -> RangeReader:
    """Return a function that reads entries with a score of at least `floor`."""

    async def read(requests: list[tuple[list[Index], SortKey | None, int]]) -> list[list[Entry]]:
        calls: list[tuple[int, ScriptCall]] = []
        for indexes, after, count in requests:
            first: bytes | int = b"+inf" if descending else floor
            if after is not None:
                first = after.score if descending else max(after.score, floor)
            # A key below the floor has no member to begin after.
            member = b"" if after is None or after.score != first else after.id
            last: bytes | int = floor if descending else b"+inf"
            arguments: list[bytes | str | int] = [int(descending), first, member, last, count]
            calls.append((indexes[0].lane, ScriptCall(_RANGES, [index.key for index in indexes], arguments)))
        replies = await connection.call_all(calls)
        return [
            [
                (SortKey(int(float(score)), id), indexes[number - 1])
                for id, score, number in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
            ]
            for (indexes, _, _), flat in zip(requests, replies, strict=True)
        ]

    return read


async def total_sizes(connection: Connection, choices: Sequence[Sequence[Index]]) -> list[int]:
    """Return the number of entries of each set of indexes."""
    groups = [
        (number, group)
        for number, choice in enumerate(choices)
        for group in group_indexes(connection, choice)
    ]
    replies = await connection.call_all(
        [(group[0].lane, ScriptCall(_SIZES, [index.key for index in group], [])) for _, group in groups]
    )
    totals = [0] * len(choices)
    for (number, _), size in zip(groups, replies, strict=True):
        totals[number] += size
    return totals


class Merge:
    """Reads the ids of several groups of indexes in one order, piece by piece."""

    def __init__(
        self,
        groups: list[list[Index]],
        read: RangeReader,
        *,
        descending: bool,
        start: SortKey | None,
        piece: int,
    ) -> None:
        self._readers = [_GroupReader(group, start) for group in groups]
        self._read = read
        self._descending = descending
        self._piece = max(8, min(1_000, piece))
        self._last: SortKey | None = None

    async def take(self, count: int) -> list[Entry]:
        """Return the next `count` keys, fewer only at the end."""
        taken: list[Entry] = []
        while len(taken) < count:
            await self._refill()
            heap = [self._head(reader) for reader in self._readers if reader.pending]
            if not heap:
                break
            heapify(heap)
            while heap and len(taken) < count:
                reader = heap[0].reader
                entry = reader.pending.pop()
                if entry[0] != self._last:  # a breadcrumb can be in several indexes
                    taken.append(entry)
                    self._last = entry[0]
                if reader.pending:
                    heapreplace(heap, self._head(reader))
                elif reader.exhausted:
                    heappop(heap)
                else:
                    break  # the next key of this group can come before the heads of the others
        return taken

    def _head(self, reader: _GroupReader) -> _Head:
        return _Head(reader.pending[-1][0], reader, self._descending)

    async def _refill(self) -> None:
        """Read the next piece of each group that has no pending keys."""
        if empty := [reader for reader in self._readers if not reader.pending and not reader.exhausted]:
            requests = [(reader.indexes, reader.after, self._piece) for reader in empty]
            for reader, entries in zip(empty, await self._read(requests), strict=True):
                reader.accept(entries, self._piece)
            # A caller that needs a second piece probably rejects most entries, so the next pieces are larger.
            self._piece = min(1_000, 2 * self._piece)


class _GroupReader:
    """Position in a group of indexes, and the entries that were read but not taken yet."""

    def __init__(self, indexes: list[Index], start: SortKey | None) -> None:
        self.indexes = indexes
        self.after = start
        self.exhausted = False
        self.pending: list[Entry] = []
        """The next entry is the last."""

    def accept(self, entries: list[Entry], requested: int) -> None:
        self.exhausted = len(entries) < requested
        if entries:
            self.after = entries[-1][0]
        self.pending = entries[::-1]


class _Head:
    """The next key of a group. The one that comes first is the smallest."""

    __slots__ = ("_descending", "_key", "reader")

    def __init__(self, key: SortKey, reader: _GroupReader, descending: bool) -> None:
        self._key = key
        self._descending = descending
        self.reader = reader

    def __lt__(self, other: _Head) -> bool:
        return other._key < self._key if self._descending else self._key < other._key
