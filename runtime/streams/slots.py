"""Slots: a limit on concurrent work that holds memory, with a share for each owner and each token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import UUID
from weakref import WeakValueDictionary

import anyio


class Slots:
    """Limits the concurrent holders in this process. Further ones wait; they are never refused.

    Each token and each owner has a limit of its own, so that slow holders mostly delay the same token or owner.
    """

    def __init__(self, *, total: int, per_owner: int, per_token: int) -> None:
        self._total = anyio.Semaphore(total, fast_acquire=True)
        self._per_owner = per_owner
        self._per_token = per_token
        # An entry exists as long as its semaphore is held or waited for.
        self._semaphores: WeakValueDictionary[Hashable, anyio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, owner: UUID, token: Hashable) -> AsyncIterator[None]:
        """Hold a slot. Waits until one is free."""
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
