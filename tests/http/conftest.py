"""Fixtures with an application on a real server. Each test has its own namespace."""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import httpx
import pytest
import structlog

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.http.api import problems
from breadcrumbs.runtime.http.api.operations import Operation
from breadcrumbs.runtime.http.app import Application, build_app
from breadcrumbs.runtime.http.middleware import metrics
from breadcrumbs.runtime.maintenance.hygiene import Hygiene
from breadcrumbs.runtime.settings.settings import DEVELOPER, Settings
from breadcrumbs.runtime.store.options import StoreOptions
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.streams.hub import EventHub
from tests.support.events import close_with_reader, reader_of
from tests.support.process import Process
from tests.support.servers import free_port

BASE = "http://127.0.0.1:8081"

OWNER = UUID("aaaaaaaa-0000-4000-8000-000000000001")
OTHER = UUID("bbbbbbbb-0000-4000-8000-000000000002")
KEY = "a-key-of-the-first-tenant"
OTHER_KEY = "a-key-of-the-second-tenant"
WEAK_KEY = "a-key-that-may-only-write"

AGENT_A = UUID("aaaaaaaa-0000-4000-8000-00000000000a")
AGENT_B = UUID("aaaaaaaa-0000-4000-8000-00000000000b")
"""Two more agents that the first tenant's key can issue tokens for."""

KEYS: tuple[dict[str, Any], ...] = (
    {"key": KEY, "owner_id": str(OWNER), "agent_ids": [str(AGENT_A), str(AGENT_B)]},
    {"key": OTHER_KEY, "owner_id": str(OTHER)},
    {"key": WEAK_KEY, "owner_id": str(OWNER), "roles": ["emitter"]},
)


@dataclass
class Site:
    """A running application and a client for it."""

    app: Application
    store: Store
    client: httpx.AsyncClient
    url: str = ""
    """URL of the store's server."""

    async def token(self, key: str | None = None, **wanted: Any) -> dict[str, str]:
        """Return headers with a new token."""
        headers = {} if key is None else {"X-API-Key": key}
        answer = await self.client.post("/auth/token", json=wanted, headers=headers)
        assert answer.status_code == 200, answer.text
        return {"Authorization": f"Bearer {answer.json()['token']}"}

    async def post(self, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
        answer = await self.client.post("/breadcrumbs", json=fields, headers=headers)
        assert answer.status_code == 201, answer.text
        created: dict[str, Any] = answer.json()
        return created

    async def count(self, owner: UUID = DEVELOPER) -> int:
        return len([crumb async for crumb in self.store.walk(owner, Query())])


class MakeSite(Protocol):
    def __call__(self, **settings: Any) -> Awaitable[Site]: ...


@asynccontextmanager
async def running_site(
    url: str,
    *,
    namespace: str | None = None,
    extra: Sequence[Operation] = (),
    store_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Site]:
    chosen = Settings(**settings)
    store = await Store.open(
        url,
        namespace=namespace or f"t{secrets.token_hex(6)}",
        options=StoreOptions(ttl_defaults=chosen.expiries, **(store_options or {})),
    )
    hub = EventHub(store, reader_of(store))
    try:
        app = build_app(store, hub, Hygiene(store, chosen), chosen, extra)
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            yield Site(app, store, client, url)
    finally:
        await hub.close()
        await close_with_reader(store)


@pytest.fixture
async def make_site(embedded_server: EmbeddedServer) -> AsyncIterator[MakeSite]:
    """Factory for sites with chosen settings. All are closed at the end of the test."""
    async with AsyncExitStack() as stack:

        async def make(**options: Any) -> Site:
            return await stack.enter_async_context(running_site(embedded_server.url, **options))

        yield make


@pytest.fixture
async def site(make_site: MakeSite) -> Site:
    """Site in the development mode."""
    return await make_site()


@pytest.fixture
async def keyed(make_site: MakeSite) -> Site:
    """Site with API keys of two tenants."""
    return await make_site(api_keys=KEYS)


@pytest.fixture
def printed_logs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Return a function that returns the log of requests and errors so far.

    An earlier test can have configured structlog, which keeps loggers after their first use. The loggers are therefore
    replaced.
    """
    processors = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    for module in (metrics, problems):
        logger = structlog.wrap_logger(structlog.PrintLogger(), processors=processors)
        monkeypatch.setattr(module, "_log", logger)
    return lambda: capsys.readouterr().out


def problem(answer: httpx.Response, status: int, name: str) -> dict[str, Any]:
    """Check that a response is a well-formed problem of this kind and return it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert document["type"] == f"/docs#problem-{name}"
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]
    return document


@pytest.fixture(scope="session")
def served(embedded_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of an application in its own process, in the development mode."""
    port = free_port()
    serving = [sys.executable, "-m", "tests.http.serving"]
    with Process(
        tmp_path_factory.mktemp("served"),
        [*serving, embedded_server.url, str(port), f"t{secrets.token_hex(6)}"],
        port=port,
        ready="/ready",
        PYTHONPATH=str(Path(__file__).parents[2]),
    ) as process:
        yield process.url
