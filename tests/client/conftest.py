"""Fixtures of the client tests. They share one `crumb up`, and each test uses its own sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.client.support import CrumbUp, client_of

# Delay per word: long enough to observe and cancel an answer, short enough to wait for it.
SLOW_MODEL = '{"offline_delay": 0.02}'


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrumbUp]:
    with CrumbUp(tmp_path_factory.mktemp("up"), CRUMB_MODELS=SLOW_MODEL) as running:
        yield running


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def client(up: CrumbUp, kind: str) -> AsyncIterator[Any]:
    made = client_of(kind, up.url)
    yield made
    await made.close()


@pytest.fixture
def name() -> str:
    """Name of a session that no other test uses."""
    return f"s-{uuid4()}"
