from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fakeredis import FakeServer

from tests.store.contract import StoreContract
from tests.store.contract.base import Opener
from tests.store.opening import opener_of
from tests.support.fake import FakeConnection


class TestOnFakeredis(StoreContract):
    @pytest.fixture
    async def opener(self) -> AsyncIterator[Opener]:
        server = FakeServer()
        async with opener_of(lambda lanes: FakeConnection(lanes, server)) as opener:
            yield opener
