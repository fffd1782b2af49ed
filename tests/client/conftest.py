"""One `crumb up` for all of these tests; each uses sessions of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.client.support import CrumbUp, client_of

# Slow enough to see an answer being made and to stop it, fast enough to wait for.
SLOWLY = '{"offline_delay": 0.02}'


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrumbUp]:
    with CrumbUp(tmp_path_factory.mktemp("up"), CRUMB_MODELS=SLOWLY) as running:
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
    """Of a session that nobody else uses."""
    return f"s-{uuid4()}"
