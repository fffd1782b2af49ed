"""Fixtures for tests of the extension: a Chromium with the extension, and servers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest

from tests.client.support import CrumbUp
from tests.support.model_server import ModelServer, Scenario
from tests.web.extension_support import Blackboard, Chrome, chrome_with_extension

# Slow enough to observe a streamed answer, fast enough for a test.
SLOW_MODEL = '{"offline_delay": 0.03}'
MAX_BODY_BYTES = 50_000


@pytest.fixture(scope="package")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrumbUp]:
    folder = tmp_path_factory.mktemp("extension-up")
    with CrumbUp(folder, CRUMB_MODELS=SLOW_MODEL, CRUMB_MAX_BODY_BYTES=str(MAX_BODY_BYTES)) as running:
        yield running


@pytest.fixture(scope="package")
async def installed(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chrome]:
    async with chrome_with_extension(chromium, tmp_path_factory.mktemp("extension-profile")) as running:
        yield running


@pytest.fixture
async def chrome(installed: Chrome, up: CrumbUp) -> AsyncIterator[Chrome]:
    """Chromium with the server in the options of the extension. An error in a page fails the test."""
    await installed.reset()
    await installed.configure(up.url)
    installed.errors.clear()
    yield installed
    for page in installed.context.pages[1:]:
        await page.close()
    assert installed.errors == []


@pytest.fixture
def board(up: CrumbUp) -> Iterator[Blackboard]:
    with Blackboard(up.url) as board:
        yield board


@pytest.fixture
def session() -> str:
    """Session id that only this test uses."""
    return f"s-{uuid4()}"


KEY = "an-api-key-that-is-long-enough"


@dataclass
class Guarded:
    """A server that requires an API key, with a model that a test controls."""

    up: CrumbUp
    model: Scenario


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    keys = json.dumps([{"key": KEY, "owner_id": str(uuid4())}])
    folder = tmp_path_factory.mktemp("extension-guarded")
    with ModelServer() as server:
        model = server.scenario("normal", status=400)
        with CrumbUp(folder, CRUMB_API_KEYS=keys, CRUMB_MODEL=f"{model.url}#test") as running:
            yield Guarded(running, model)
