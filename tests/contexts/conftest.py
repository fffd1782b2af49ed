"""A store with a namespace of its own per test, on a real server."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from breadcrumbs.runtime.embedded import EmbeddedServer
from breadcrumbs.runtime.store import Store


@pytest.fixture
async def store(embedded_server: EmbeddedServer) -> AsyncIterator[Store]:
    store = await Store.open(embedded_server.url, namespace=f"c{secrets.token_hex(6)}", lanes=4)
    yield store
    await store.close()
