"""What holds for an owner, read from the store and remembered for a moment.

An edit holds within half a second, and nobody is asked more often than that. Who wants to know at the same time
waits for one reading.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar
from uuid import UUID

T = TypeVar("T")

_FRESH_SECONDS: Final = 0.5
_MOST: Final = 10_000


class Remembered(Generic[T]):
    """By owner, what `read` finds."""

    def __init__(self, read: Callable[[UUID], Awaitable[T]]) -> None:
        self._read = read
        self._known: dict[UUID, tuple[float, T]] = {}
        self._reading: dict[UUID, asyncio.Task[T]] = {}

    def last(self, owner: UUID) -> T | None:
        """What was last read, however long ago."""
        known = self._known.get(owner)
        return None if known is None else known[1]

    async def get(self, owner: UUID) -> T:
        known = self._known.get(owner)
        if known is not None and time.monotonic() - known[0] <= _FRESH_SECONDS:
            return known[1]
        reading = self._reading.get(owner)
        if reading is None:
            reading = self._reading[owner] = asyncio.create_task(self._read_now(owner))
            reading.add_done_callback(_forgive)
        return await asyncio.shield(reading)

    def note(self, owner: UUID, found: T, *, at: float | None = None) -> None:
        if len(self._known) > _MOST:
            self._known.clear()
        self._known[owner] = (time.monotonic() if at is None else at, found)

    def forget(self, owner: UUID) -> None:
        """It has changed. What is being read just now may not know of that."""
        self._known.pop(owner, None)
        self._reading.pop(owner, None)

    async def _read_now(self, owner: UUID) -> T:
        began, mine = time.monotonic(), asyncio.current_task()
        try:
            found = await self._read(owner)
            if self._reading.get(owner) is mine:
                self.note(owner, found, at=began)
            return found
        finally:
            if self._reading.get(owner) is mine:
                del self._reading[owner]


def _forgive(reading: asyncio.Task[T]) -> None:
    """Whoever waited was told; where nobody waits any more, it does not matter."""
    if not reading.cancelled():
        reading.exception()
