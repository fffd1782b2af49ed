"""Per-owner cache with a short TTL. Concurrent misses share one load.

Context configs and agent definitions are read before every turn. Caching them for half a second keeps edits live and
removes the reads from the hot path.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar
from uuid import UUID

from breadcrumbs.runtime.telemetry import metrics

T = TypeVar("T")

_TTL_SECONDS: Final = 0.5  # an edit takes effect within this time, without an event
_MAX_OWNERS: Final = 10_000  # the cache is cleared above this size; a refill costs one read per owner


class OwnerCache(Generic[T]):
    """Caches one value per owner, loaded by `load`."""

    def __init__(self, load: Callable[[UUID], Awaitable[T]], *, name: str) -> None:
        """Create an empty cache. `name` is its name in metrics."""
        self._load = load
        self._hits = metrics.CACHE_HITS.labels(name)
        self._misses = metrics.CACHE_MISSES.labels(name)
        # The keys are the integers of the owners, which are hashed and compared much faster than UUIDs.
        self._values: dict[int, tuple[float, T]] = {}
        # These are asyncio tasks, so that a load continues for the other waiters when its first caller is cancelled.
        # anyio's tasks need a task group, and this cache has none.
        self._loading: dict[int, asyncio.Task[T]] = {}

    async def get(self, owner: UUID) -> T:
        """Return the cached value, or load it if it is older than the TTL."""
        cached = self._values.get(owner.int)
        if cached is not None and time.monotonic() - cached[0] <= _TTL_SECONDS:
            self._hits.value += 1
            return cached[1]
        self._misses.value += 1
        loading = self._loading.get(owner.int)
        if loading is None:
            loading = self._loading[owner.int] = asyncio.create_task(self._load_now(owner))
            loading.add_done_callback(_ignore_exception)
        return await asyncio.shield(loading)

    def get_stale(self, owner: UUID) -> T | None:
        """Return the last loaded value regardless of its age, or None."""
        cached = self._values.get(owner.int)
        return None if cached is None else cached[1]

    def put(self, owner: UUID, value: T, *, loaded_at: float | None = None) -> None:
        """Store a value. Its age counts from `loaded_at` (`time.monotonic`), or from now."""
        if len(self._values) > _MAX_OWNERS:
            self._values.clear()
        self._values[owner.int] = (time.monotonic() if loaded_at is None else loaded_at, value)

    def invalidate(self, owner: UUID) -> None:
        """Drop the value.

        The result of a load in flight is not stored, because it may have read the old data.
        """
        self._values.pop(owner.int, None)
        self._loading.pop(owner.int, None)

    async def _load_now(self, owner: UUID) -> T:
        started_at, this_task = time.monotonic(), asyncio.current_task()
        try:
            value = await self._load(owner)
            if self._loading.get(owner.int) is this_task:
                self.put(owner, value, loaded_at=started_at)
            return value
        finally:
            if self._loading.get(owner.int) is this_task:
                del self._loading[owner.int]


def _ignore_exception(loading: asyncio.Task[T]) -> None:
    """Mark the exception as retrieved. Waiters have already received it."""
    if not loading.cancelled():
        loading.exception()
