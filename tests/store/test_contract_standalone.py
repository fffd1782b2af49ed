from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.store.contract import StoreContract
from tests.store.contract.base import Opener
from tests.store.opening import opener_of
from tests.support.servers import Server


class TestOnAStandaloneServer(StoreContract):
    @pytest.fixture
    async def opener(self, standalone_server: Server) -> AsyncIterator[Opener]:
        standalone_server.flush()
        async with opener_of(standalone_server.url) as opener:
            yield opener
