"""GET /operations/checks: findings for operators, shared by requests, within limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from breadcrumbs.composition.system_checks import check_routes
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.errors import StoreUnavailable
from breadcrumbs.runtime.http.routes import checks as route
from breadcrumbs.runtime.http.routes.checks import CheckRoutes
from breadcrumbs.runtime.maintenance.check_catalogue import CHECKS
from breadcrumbs.runtime.maintenance.checks import Check, Finding, Selection, run_checks
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.store import Store
from tests.http.conftest import Site, problem, running_site

PATH = "/operations/checks"


class Counted:
    """Findings that count how often they are made."""

    def __init__(self, *findings: Finding, delay: float = 0) -> None:
        self.findings = list(findings)
        self.delay = delay
        self.runs = 0

    async def __call__(self) -> list[Finding]:
        self.runs += 1
        await anyio.sleep(self.delay)
        return self.findings


@asynccontextmanager
async def serving(url: str, system: Counted, models: Counted) -> AsyncIterator[Site]:
    async with running_site(url, extra=CheckRoutes(system, models).operations) as site:
        yield site


async def read(site: Site, query: str = "") -> dict[str, Any]:
    reply = await site.client.get(PATH + query)
    assert reply.status_code == 200, reply.text
    assert reply.headers["cache-control"] == "no-store"
    document: dict[str, Any] = reply.json()
    return document


async def test_requests_share_one_run_for_some_seconds(
    embedded_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "SYSTEM_SECONDS", 0.5)
    system = Counted(Finding("memory", "ok", "fine"), delay=0.2)
    models = Counted(Finding("models", "ok", "fine"))
    async with serving(embedded_server.url, system, models) as site:
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(read, site)
        assert (system.runs, models.runs) == (1, 0)
        await anyio.sleep(0.6)
        system.findings = [Finding("memory", "error", "full")]
        assert (await read(site))["status"] == "error"
        assert system.runs == 2


async def test_models_are_checked_only_on_request_and_the_order_is_that_of_the_report(
    embedded_server: EmbeddedServer,
) -> None:
    system = Counted(Finding("expiry", "ok", "fine"), Finding("memory", "warning", "high", "add some"))
    models = Counted(Finding("models", "error", "silent", "start it", {"url": "http://x", "n": 1}, "m"))
    async with serving(embedded_server.url, system, models) as site:
        assert (await read(site))["status"] == "warning" and models.runs == 0
        document = await read(site, "?models=true")
        assert document["status"] == "error"
        assert [one["id"] for one in document["findings"]] == ["memory", "models", "expiry"]
        shown = document["findings"][1]
        assert (shown["subject"], shown["details"]) == ("m", {"n": 1}), "no addresses"
        problem(await site.client.get(f"{PATH}?models=perhaps"), 422, "invalid-input")
        problem(await site.client.get(f"{PATH}?other=1"), 422, "invalid-input")


async def test_the_checks_of_a_server_are_those_of_doctor(embedded_server: EmbeddedServer) -> None:
    store = await Store.open(embedded_server.url, namespace="checksroute")
    try:
        routes = check_routes(store, Settings(redis=embedded_server.url), workers=False)
        async with running_site(
            embedded_server.url, namespace="checksroute", extra=routes.operations
        ) as site:
            document = await read(site, "?models=true")
    finally:
        await store.close()
    found = {one["id"]: one for one in document["findings"]}
    assert set(found) <= set(CHECKS)
    assert found["workers"]["status"] == "warning" and "crumb" in found["workers"]["advice"]
    assert found["models"]["status"] == "skipped"
    assert found["versions"]["status"] == "ok"


async def test_a_check_that_fails_shows_the_address_of_the_store_to_the_operator_only() -> None:
    async def fail() -> list[Finding]:
        raise StoreUnavailable("cannot reach 192.0.2.7:6379")

    (finding,) = await run_checks([Check(("memory",), fail)], Selection(), seconds=5)
    assert "192.0.2.7" in finding.as_dict()["message"]
    public = finding.as_public_dict()
    assert (public["status"], public["message"]) == ("unknown", "the check failed")
    assert "192.0.2.7" not in str(public)


async def test_a_store_that_is_down_is_a_503(
    embedded_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Counted(Finding("memory", "ok", "fine"))
    async with serving(embedded_server.url, system, system) as site:

        async def fail() -> None:
            raise StoreUnavailable("no reply for 10.0 s")

        monkeypatch.setattr(site.store, "ping", fail)
        problem(await site.client.get(PATH), 503, "store-unavailable")
        assert system.runs == 0
