"""One store and one `crumb serve` on it for all of these tests; each uses an app and users of its own."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from breadcrumbs.adk import BreadcrumbSessionService
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.store.store import Store
from tests.adk.support import crumb_serve, unique


@pytest.fixture(scope="session")
def namespace() -> str:
    return f"a{secrets.token_hex(6)}"


@pytest.fixture(scope="session")
def served(
    embedded_server: EmbeddedServer, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a `crumb serve`, in the development mode."""
    with crumb_serve(tmp_path_factory.mktemp("served"), embedded_server.url, namespace=namespace) as server:
        yield server.url


@pytest.fixture
async def store(embedded_server: EmbeddedServer, namespace: str) -> AsyncIterator[Store]:
    store = await Store.open(embedded_server.url, namespace=namespace)
    yield store
    await store.close()


@pytest.fixture(params=["direct", "over HTTP"])
def address(request: pytest.FixtureRequest, embedded_server: EmbeddedServer, namespace: str) -> str:
    """Where a service finds the store: the same one either way."""
    if request.param == "direct":
        return f"{embedded_server.url}?namespace={namespace}"
    url: str = request.getfixturevalue("served")
    return url


@pytest.fixture
async def service(address: str) -> AsyncIterator[BreadcrumbSessionService]:
    async with BreadcrumbSessionService(address) as service:
        yield service


@pytest.fixture
async def replica(address: str) -> AsyncIterator[BreadcrumbSessionService]:
    """A second service on the same store, as another process would have it."""
    async with BreadcrumbSessionService(address) as service:
        yield service


@pytest.fixture
def user() -> str:
    return unique()


@pytest.fixture
def app() -> str:
    """An app that nobody else uses: for tests that look at the state of all."""
    return unique("app")
