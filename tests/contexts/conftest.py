"""A store with a namespace of its own per test, on a real server; and the whole API as a process of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from breadcrumbs.context_builder import builder
from breadcrumbs.context_builder.tokens import Estimate
from breadcrumbs.runtime.embedded import EmbeddedServer
from breadcrumbs.runtime.store import Store
from tests.contexts.support import SHIPPED
from tests.support.servers import free_port


@pytest.fixture(autouse=True)
def estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers whether a tokenizer is installed or not."""
    monkeypatch.setattr(builder, "token_counter", Estimate)


@pytest.fixture
async def store(embedded_server: EmbeddedServer) -> AsyncIterator[Store]:
    store = await Store.open(embedded_server.url, namespace=f"c{secrets.token_hex(6)}", lanes=4)
    yield store
    await store.close()


@pytest.fixture(scope="session")
def served(embedded_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `crumb serve`, in the development mode."""
    folder, port = tmp_path_factory.mktemp("served"), free_port()
    shutil.copy(SHIPPED, folder / "context.json")
    with (folder / "log").open("wb") as log:
        crumb = (sys.executable, "-c", "from breadcrumbs.cli import main; main()")
        process = subprocess.Popen(
            [*crumb, "serve", "--redis", embedded_server.url, "--port", str(port)],
            env=os.environ
            | {"CRUMB_NAMESPACE": f"t{secrets.token_hex(6)}", "CRUMB_CONTEXT_CONFIG": "context.json"},
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    base = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 30
        while not _is_ready(base):
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield base
    finally:
        process.terminate()
        process.wait(timeout=15)


def _is_ready(base: str) -> bool:
    try:
        return httpx.get(f"{base}/ready").status_code == 200
    except httpx.TransportError:
        return False
