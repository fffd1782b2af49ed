from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.store.contract import StoreContract
from tests.store.contract.base import Opener
from tests.store.opening import opener_of
from tests.support.servers import Cluster


class TestOnACluster(StoreContract):
    @pytest.fixture
    async def opener(self, cluster_server: Cluster) -> AsyncIterator[Opener]:
        cluster_server.flush()
        async with opener_of(cluster_server.url) as opener:
            yield opener
