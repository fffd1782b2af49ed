"""GET /operations/workers, POST /operations/workers/{id}/drain and GET /operations/history."""

from __future__ import annotations

from typing import Any

from breadcrumbs.runtime.store.load_history import KindLoad, LoadSample, claim_minute, write_sample
from breadcrumbs.runtime.store.worker_reports import WorkerReport
from breadcrumbs.runtime.workers.leases import Heartbeat, Leases
from tests.http.conftest import KEY, OWNER, WEAK_KEY, MakeSite, Site, problem


async def start(site: Site, name: str, kind: str = "agents", id: str | None = None) -> Leases:
    leases = Leases(site.store, kind, id or f"{name}-1", seconds=30)
    await leases.register()
    report = WorkerReport(name, "host-7", 42, "1.2.3", site.store.now(), 30, ("chat",), ("offline",), turns=2)
    await leases.heartbeat(Heartbeat(report.encode(), name=name))
    return leases


async def workers(site: Site, headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    answer = await site.client.get("/operations/workers", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    found: list[dict[str, Any]] = answer.json()["workers"]
    return found


async def test_a_worker_is_listed_with_all_its_facts(site: Site) -> None:
    await start(site, "north")
    (worker,) = await workers(site)
    times = {worker.pop(field) for field in ("started_at", "heartbeat_at", "alive_until")}
    assert len(times) == 3
    assert worker == {
        "kind": "agents",
        "name": "north",
        "id": "north-1",
        "state": "running",
        "alive": True,
        "host": "host-7",
        "pid": 42,
        "version": "1.2.3",
        "lane_count": 0,
        "turns": 2,
        "waiting": 0,
        "agents": ["chat"],
        "models": ["offline"],
        "more_agents": 0,
        "more_models": 0,
    }


async def test_the_operations_page_shows_names_instead_of_ids(site: Site) -> None:
    leases = await start(site, "north")
    assert await leases.take(3) is not None
    document = (await site.client.get("/operations")).json()
    (worker,) = document["workers"]
    assert (worker["name"], worker["state"], worker["lanes"]) == ("north", "running", [3])
    holders = [share["holder"]["worker"] for share in document["lanes"][3]["kinds"] if "holder" in share]
    assert holders == ["north"]


async def test_all_workers_of_a_name_are_drained(site: Site) -> None:
    runner, builder = await start(site, "up-1"), await start(site, "up-1", "contexts")
    other = await start(site, "other")
    reply = (await site.client.post("/operations/workers/up-1/drain")).json()
    assert [(worker["kind"], worker["state"]) for worker in reply["workers"]] == [
        ("agents", "draining"),
        ("contexts", "draining"),
    ]
    assert len(reply["warnings"]) == 1 and "last running worker of kind contexts" in reply["warnings"][0]
    for leases, wanted in ((runner, True), (builder, True), (other, False)):
        await leases.list_workers()
        assert leases.drain_requested is wanted
    again = (await site.client.post("/operations/workers/up-1/drain")).json()
    assert again["workers"] == reply["workers"]


async def test_an_unknown_name_is_not_found_and_lists_the_known_ones(site: Site) -> None:
    await start(site, "north")
    for path in ("nobody", "no%2Fbody", "%00", "x" * 300):
        answer = await site.client.post(f"/operations/workers/{path}/drain")
        assert "Running: north" in problem(answer, 404, "not-found")["detail"]


async def test_a_worker_of_an_older_version_is_not_drained(site: Site) -> None:
    leases = Leases(site.store, "agents", "old-1", seconds=30)
    await leases.register()
    await leases.heartbeat()
    answer = await site.client.post("/operations/workers/old-1/drain")
    assert "stop it with SIGTERM" in answer.json()["detail"]
    assert answer.status_code in (400, 422)


async def test_only_curators_may_list_and_drain_workers(make_site: MakeSite) -> None:
    keys = [
        {"key": KEY, "owner_id": str(OWNER)},
        {"key": WEAK_KEY, "owner_id": str(OWNER), "roles": ["emitter", "subscriber"]},
    ]
    site = await make_site(api_keys=keys)
    await start(site, "north")
    weak, strong = {"x-api-key": WEAK_KEY}, {"x-api-key": KEY}
    for method, path in (
        ("GET", "/operations/workers"),
        ("GET", "/operations/history"),
        ("POST", "/operations/workers/north/drain"),
    ):
        problem(await site.client.request(method, path, headers=weak), 403, "forbidden")
        assert (await site.client.request(method, path, headers=strong)).status_code == 200


async def test_no_tenant_drains_workers_that_it_shares_with_others(keyed: Site) -> None:
    leases = await start(keyed, "north")
    answer = await keyed.client.post("/operations/workers/north/drain", headers={"x-api-key": KEY})
    assert "--redis" in problem(answer, 403, "forbidden")["detail"]
    await leases.list_workers()
    assert not leases.drain_requested


async def test_the_history_has_the_turns_of_each_minute(site: Site) -> None:
    this = site.store.now() // 60_000_000
    for minute, answered in ((this - 3, 10), (this - 2, 14)):
        assert await claim_minute(site.store, minute)
        load = KindLoad(answered=answered, failed=1, lag_ms=2.5, waiting=3, workers=2)
        await write_sample(site.store, LoadSample(minute, answered * 3, {"agents": load}))
    first, second = (await site.client.get("/operations/history")).json()["minutes"]
    assert "events" not in first and "answered" not in first["kinds"][0]
    assert second["events"] == 12
    assert second["kinds"] == [
        {"kind": "agents", "answered": 4, "failed": 0, "lag_ms": 2.5, "waiting": 3, "workers": 2}
    ]
