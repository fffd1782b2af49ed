from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.store.store import Store
from tests.support.adk_backend import FakeAdk, fake_adk
from tests.support.conversations import opened
from tests.support.model_server import ModelServer


@pytest.fixture
async def store(embedded_server: EmbeddedServer) -> AsyncIterator[Store]:
    """A store with its own namespace on a real server."""
    async with opened(embedded_server.url) as store:
        yield store


@pytest.fixture
def fake() -> Iterator[FakeAdk]:
    """An ADK server with scripted behaviour."""
    with fake_adk() as backend:
        yield backend


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    """An HTTP server of models. Each test chooses a scenario."""
    with ModelServer() as running:
        yield running
