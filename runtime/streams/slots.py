"""Slots: a limit on concurrent work that holds memory, with a share for each owner and each token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import UUID
from weakref import WeakValueDictionary


class Slots:
    """Limits how many holders there are in this process. One too many waits; it is never refused.

    A token and an owner have a share each, so that holders that take long delay mostly their own kind.
    """

    def __init__(self, *, total: int, per_owner: int, per_token: int) -> None:
        self._total = asyncio.Semaphore(total)
        self._per_owner = per_owner
        self._per_token = per_token
        # A semaphore exists as long as somebody holds it or waits for it.
        self._shares: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def held(self, owner: UUID, token: Hashable) -> AsyncIterator[None]:
        """Hold a slot of a token."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._share((owner, token), self._per_token))
            await stack.enter_async_context(self._share(owner, self._per_owner))
            await stack.enter_async_context(self._total)
            yield

    def _share(self, key: Hashable, limit: int) -> asyncio.Semaphore:
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = asyncio.Semaphore(limit)
        return share
