"""GET /workers: which kinds of workers are running, for clients that wait for an answer."""

from __future__ import annotations

from breadcrumbs.agents.runner import AgentRunner
from breadcrumbs.context_builder.builder import ContextBuilder
from breadcrumbs.runtime.workers.leases import Leases
from tests.http.conftest import WEAK_KEY, Site


async def running(site: Site, headers: dict[str, str] | None = None) -> dict[str, bool]:
    answer = await site.client.get("/workers", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    found: dict[str, bool] = answer.json()
    return found


async def test_a_store_without_workers_says_so(site: Site) -> None:
    assert await running(site) == {"contexts": False, "agents": False}


async def start_worker(site: Site, kind: str) -> Leases:
    leases = Leases(site.store, kind, f"worker of {kind}", seconds=30)
    await leases.register()
    await leases.heartbeat()
    return leases


async def test_a_worker_is_reported_until_it_ends_or_dies(site: Site) -> None:
    builder = await start_worker(site, ContextBuilder.kind)
    assert await running(site) == {"contexts": True, "agents": False}
    await start_worker(site, AgentRunner.kind)
    assert await running(site) == {"contexts": True, "agents": True}
    await builder.sign_off()
    assert await running(site) == {"contexts": False, "agents": True}
    # A killed worker sends no heartbeat, so its time passes.
    await site.store.connection.call(
        0, b"ZINCRBY", site.store.keys.workers(AgentRunner.kind), -60_000_000, b"worker of agents"
    )
    assert await running(site) == {"contexts": False, "agents": False}


async def test_an_agent_that_a_program_runs_itself_counts_as_an_agent_runner(site: Site) -> None:
    await start_worker(site, f"{AgentRunner.kind}/own-agent")
    assert await running(site) == {"contexts": False, "agents": True}


async def test_a_key_with_one_role_may_read_it(keyed: Site) -> None:
    assert await running(keyed, {"x-api-key": WEAK_KEY}) == {"contexts": False, "agents": False}
