from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis import Redis

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from tests.store.contract import StoreContract
from tests.store.contract.base import Opener
from tests.store.opening import opener_of


class TestOnTheEmbeddedServer(StoreContract):
    @pytest.fixture
    async def opener(self, embedded_server: EmbeddedServer) -> AsyncIterator[Opener]:
        with Redis.from_url(embedded_server.url) as client:
            client.flushall()
        async with opener_of(embedded_server.url) as opener:
            yield opener
