"""Fixtures: one store and one `crumb serve` for all ADK tests. Each test uses its own users or app."""

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
    """URL of a `crumb serve` in the development mode."""
    with crumb_serve(tmp_path_factory.mktemp("served"), embedded_server.url, namespace=namespace) as server:
        yield server.url


@pytest.fixture
async def store(embedded_server: EmbeddedServer, namespace: str) -> AsyncIterator[Store]:
    store = await Store.open(embedded_server.url, namespace=namespace)
    yield store
    await store.close()


@pytest.fixture(params=["direct", "over HTTP"])
def address(request: pytest.FixtureRequest, embedded_server: EmbeddedServer, namespace: str) -> str:
    """Address of the same store, either directly or over HTTP."""
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
    """A second service on the same store, like in another process."""
    async with BreadcrumbSessionService(address) as service:
        yield service


@pytest.fixture
def user() -> str:
    return unique()


@pytest.fixture
def app() -> str:
    """Name of an unused app, for tests that read shared state."""
    return unique("app")
