"""Slots: limits on concurrent work that holds memory, per process, owner and token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import UUID
from weakref import WeakValueDictionary

import anyio


class Slots:
    """Limits the number of concurrent holders in this process.

    Further callers wait and are never refused. Each token and each owner also has its own limit. So slow holders mostly
    delay callers of the same token or owner.
    """

    def __init__(self, *, total: int, per_owner: int, per_token: int) -> None:
        self._total = anyio.Semaphore(total, fast_acquire=True)
        self._per_owner = per_owner
        self._per_token = per_token
        # An entry exists while its semaphore is held or waited for.
        self._semaphores: WeakValueDictionary[Hashable, anyio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, owner: UUID, token: Hashable) -> AsyncIterator[None]:
        """Wait for a free slot and hold it."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._semaphore((owner, token), self._per_token))
            await stack.enter_async_context(self._semaphore(owner, self._per_owner))
            await stack.enter_async_context(self._total)
            yield

    def _semaphore(self, key: Hashable, limit: int) -> anyio.Semaphore:
        semaphore = self._semaphores.get(key)
        if semaphore is None:
            semaphore = self._semaphores[key] = anyio.Semaphore(limit, fast_acquire=True)
        return semaphore
