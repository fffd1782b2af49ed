"""Shared memory of the processes of one port. A killed process leaves it readable.

The parent creates it before it forks. Each process writes only its own part, so no locks are needed.
"""

from __future__ import annotations

from collections.abc import Hashable
from mmap import mmap
from typing import Final

_SNAPSHOT_BYTES: Final = 4 << 20  # only pages that were written take memory
_WORD: Final = 8
_HASHES: Final = 3
_COUNTERS: Final = 1 << 15  # per hash and process


class SharedCounts:
    """Counts per key and process.

    A key has one counter per hash. Its count is the lowest of them, so keys that share one counter do not disturb each
    other. Forked processes have the same hash function.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._words = memoryview(mmap(-1, processes * _HASHES * _COUNTERS * _WORD)).cast("q")

    def add(self, process: int, key: Hashable, amount: int) -> None:
        """Change the count of a process. Only this process may call it."""
        first = process * _HASHES * _COUNTERS
        for place in _places(key):
            self._words[first + place] += amount

    def of_others(self, process: int, key: Hashable) -> int:
        """Return the sum of the counts of all other processes."""
        others = [other * _HASHES * _COUNTERS for other in range(self._processes) if other != process]
        return min(sum(self._words[first + place] for first in others) for place in _places(key))

    def clear(self, process: int) -> None:
        """Forget the counts of a process that has ended."""
        first, size = process * _HASHES * _COUNTERS, _HASHES * _COUNTERS
        self._words[first : first + size] = memoryview(bytes(size * _WORD)).cast("q")


def _places(key: Hashable) -> list[int]:
    return [row * _COUNTERS + hash((row, key)) % _COUNTERS for row in range(_HASHES)]


class Snapshot:
    """A document that one process publishes and others read.

    There are two copies, and the number of publications decides which one is valid. A process that is killed while it
    publishes leaves the previous copy valid.
    """

    def __init__(self) -> None:
        self._memory = mmap(-1, 3 * _WORD + 2 * _SNAPSHOT_BYTES)
        self._header = memoryview(self._memory)[: 3 * _WORD].cast("Q")
        """Number of publications, and the lengths of both copies."""

    @property
    def number(self) -> int:
        """Number of publications."""
        return int(self._header[0])

    def publish(self, document: bytes) -> None:
        """Replace the document. Raise `ValueError` if it is too large."""
        if len(document) > _SNAPSHOT_BYTES:
            raise ValueError(f"a snapshot must have at most {_SNAPSHOT_BYTES} bytes")
        number = self.number + 1
        copy = number % 2
        begin = 3 * _WORD + copy * _SNAPSHOT_BYTES
        self._memory[begin : begin + len(document)] = document
        self._header[1 + copy] = len(document)
        self._header[0] = number

    def read(self) -> bytes | None:
        """Return the newest document, or None if none was published."""
        while number := self.number:
            copy = number % 2
            begin = 3 * _WORD + copy * _SNAPSHOT_BYTES
            document = self._memory[begin : begin + int(self._header[1 + copy])]
            if self.number - number < 2:  # otherwise the copy was written while it was read
                return document
        return None
