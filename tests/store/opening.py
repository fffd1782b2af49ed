"""Stores for tests: opened on an empty server, closed when the test is over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from breadcrumbs.runtime.backend.connection import Connection
from breadcrumbs.runtime.store.options import StoreOptions
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import Opener


@asynccontextmanager
async def opener_of(url: str | Callable[[int], Connection]) -> AsyncIterator[Opener]:
    async with AsyncExitStack() as stack:

        async def open_store(*, lanes: int | None = None, namespace: str = "bc", **options: Any) -> Store:
            store = await Store.open(url, lanes=lanes, namespace=namespace, options=StoreOptions(**options))
            stack.push_async_callback(store.close)
            return store

        yield open_store
