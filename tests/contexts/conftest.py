"""Fixtures: a store with its own namespace per test on a real server, and the API in its own process."""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import AsyncIterator, Iterator

import pytest

from breadcrumbs.context_builder import builder, past
from breadcrumbs.context_builder.tokens import TokenEstimator
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.store.store import Store
from tests.contexts.support import SHIPPED
from tests.support.process import Process
from tests.support.servers import free_port


@pytest.fixture(autouse=True)
def estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the token estimate, so that numbers do not depend on an installed tokenizer."""
    monkeypatch.setattr(builder, "token_counter", TokenEstimator)
    monkeypatch.setattr(past, "token_counter", TokenEstimator)


@pytest.fixture
async def store(embedded_server: EmbeddedServer) -> AsyncIterator[Store]:
    store = await Store.open(embedded_server.url, namespace=f"c{secrets.token_hex(6)}", lanes=4)
    yield store
    await store.close()


@pytest.fixture(scope="session")
def served(embedded_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a `crumb serve` in the development mode."""
    folder, port = tmp_path_factory.mktemp("served"), free_port()
    shutil.copy(SHIPPED, folder / "context.json")
    crumb = [sys.executable, "-c", "from breadcrumbs.cli import main; main()"]
    with Process(
        folder,
        [*crumb, "serve", "--redis", embedded_server.url, "--port", str(port)],
        port=port,
        ready="/ready",
        CRUMB_NAMESPACE=f"t{secrets.token_hex(6)}",
        CRUMB_CONTEXT_CONFIG="context.json",
    ) as process:
        yield process.url
