from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.store.store import Store
from tests.support.conversations import opened


@pytest.fixture
async def store(embedded_server: EmbeddedServer) -> AsyncIterator[Store]:
    """Store for one test, on a real server."""
    async with opened(embedded_server.url) as store:
        yield store
