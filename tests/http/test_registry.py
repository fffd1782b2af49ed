"""Selectors, agents, tenants, hygiene: the routes around breadcrumbs."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import anyio
import pytest

from breadcrumbs.runtime.http.auth import DEVELOPER_AGENT
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store.records import MAX_SELECTORS
from tests.http.conftest import AGENT_A, AGENT_B, KEY, OTHER, OTHER_KEY, OWNER, Site, problem, running_site
from tests.support.servers import Server

SELECTOR: dict[str, Any] = {
    "schema_name": "tool.response.v1",
    "any_tags": ["a", "b"],
    "context_match": [{"path": "$.requestedBy", "op": "eq", "value": "me"}],
}


# Selectors


async def test_a_selector_is_saved_listed_replaced_and_deleted(site: Site) -> None:
    saved = await site.client.post("/subscriptions/selectors", json=SELECTOR)
    assert saved.status_code == 200
    record = saved.json()
    assert record == {
        "id": record["id"],
        "owner_id": str(DEVELOPER),
        "agent_id": str(DEVELOPER_AGENT),
        "selector": SELECTOR,
    }
    assert (await site.client.get("/subscriptions/selectors")).json() == [record]
    path = f"/subscriptions/selectors/{record['id']}"
    assert (await site.client.put(path, json={"all_tags": ["c"]})).json() == {"ok": True}
    assert (await site.client.get("/subscriptions/selectors")).json()[0]["selector"] == {"all_tags": ["c"]}
    assert (await site.client.delete(path)).json() == {"ok": True}
    assert (await site.client.get("/subscriptions/selectors")).json() == []
    problem(await site.client.delete(path), 404, "not-found")
    problem(await site.client.put(path, json={}), 404, "not-found")


@pytest.mark.parametrize(
    "body",
    [
        {"tags": ["a"]},
        {"any_tags": "a"},
        {"any_tags": [""]},
        {"schema_name": ""},
        {"owner_id": "me"},
        {"context_match": [{"path": "no path", "op": "eq", "value": 1}]},
        {"context_match": [{"path": "$.a", "op": "like", "value": 1}]},
        {"context_match": [{"path": "$.a", "op": "contains_any", "value": 1}]},
        [],
        "x",
    ],
)
async def test_a_bad_selector_is_422_and_not_saved(site: Site, body: Any) -> None:
    problem(await site.client.post("/subscriptions/selectors", json=body), 422, "invalid-input")
    assert (await site.client.get("/subscriptions/selectors")).json() == []


async def test_a_selector_exists_for_its_own_agent_only(keyed: Site) -> None:
    ann = await keyed.token(KEY, agent_id=str(AGENT_A))
    record = (await keyed.client.post("/subscriptions/selectors", json=SELECTOR, headers=ann)).json()
    path = f"/subscriptions/selectors/{record['id']}"
    for other in (await keyed.token(KEY, agent_id=str(AGENT_B)), {"X-API-Key": OTHER_KEY}):
        assert (await keyed.client.get("/subscriptions/selectors", headers=other)).json() == []
        problem(await keyed.client.put(path, json={}, headers=other), 404, "not-found")
        problem(await keyed.client.delete(path, headers=other), 404, "not-found")
    assert (await keyed.client.get("/subscriptions/selectors", headers=ann)).json() == [record]


@pytest.mark.parametrize("kind", ["session_id", "user_id"])
async def test_tokens_of_one_agent_that_are_narrowed_apart_do_not_share_selectors(
    keyed: Site, kind: str
) -> None:
    a, b, all_of_it = (
        await keyed.token(KEY, **{kind: "a"}),
        await keyed.token(KEY, **{kind: "b"}),
        await keyed.token(KEY),
    )
    record = (await keyed.client.post("/subscriptions/selectors", json=SELECTOR, headers=a)).json()
    assert set(record) == {"id", "owner_id", "agent_id", "selector"}
    assert (await keyed.client.get("/subscriptions/selectors", headers=b)).json() == []
    path = f"/subscriptions/selectors/{record['id']}"
    problem(await keyed.client.delete(path, headers=b), 404, "not-found")
    assert (await keyed.client.get("/subscriptions/selectors", headers=a)).json() == [record]
    assert (await keyed.client.get("/subscriptions/selectors", headers=all_of_it)).json() == [record]


@pytest.mark.parametrize("narrowing", [{}, {"user_id": "eve"}, {"session_id": "s"}], ids=str)
async def test_the_number_of_saved_selectors_per_principal_is_limited(
    site: Site, narrowing: dict[str, str]
) -> None:
    eve, ann = await site.token(**narrowing), await site.token(user_id="ann")
    path, key = "/subscriptions/selectors", site.store.keys.selectors(DEVELOPER)
    saved = (await site.client.post(path, json=SELECTOR, headers=eve)).json()
    record = await site.store.connection.call(0, b"HGET", key, saved["id"])
    for n in range(MAX_SELECTORS - 1):
        await site.store.connection.call(0, b"HSET", key, f"{n}", record)
    refused = await site.client.post(path, json=SELECTOR, headers=eve)
    assert "delete" in problem(refused, 422, "invalid-input")["detail"]
    assert (await site.client.post(path, json=SELECTOR, headers=ann)).status_code == 200


# Agents


async def test_an_agent_is_written_read_listed_and_deleted(site: Site) -> None:
    id = str(uuid4())
    written = await site.client.post(f"/agents/{id}", json={"roles": ["subscriber", "emitter", "emitter"]})
    assert (written.status_code, written.json()) == (200, {"ok": True})
    agent = (await site.client.get(f"/agents/{id}")).json()
    assert agent == {"id": id, "roles": ["emitter", "subscriber"], "created_at": agent["created_at"]}
    assert (await site.client.get("/agents")).json() == [agent]
    assert (await site.client.delete(f"/agents/{id}")).json() == {"ok": True}
    problem(await site.client.get(f"/agents/{id}"), 404, "not-found")
    problem(await site.client.delete(f"/agents/{id}"), 404, "not-found")


@pytest.mark.parametrize(
    "body", [{}, {"roles": ["root"]}, {"roles": "emitter"}, {"roles": None}, {"roles": [], "name": "x"}, []]
)
async def test_a_bad_agent_is_422_and_not_written(site: Site, body: Any) -> None:
    problem(await site.client.post(f"/agents/{uuid4()}", json=body), 422, "invalid-input")
    assert (await site.client.get("/agents")).json() == []


async def test_an_agent_can_write_its_own_record_and_a_curator_any(keyed: Site) -> None:
    own = str(AGENT_A)
    emitter, curator = await keyed.token(KEY, agent_id=own, roles=["emitter"]), await keyed.token(KEY)
    assert (await keyed.client.post(f"/agents/{own}", json={"roles": []}, headers=emitter)).status_code == 200
    answer = await keyed.client.post(f"/agents/{uuid4()}", json={"roles": []}, headers=emitter)
    problem(answer, 403, "forbidden")
    problem(await keyed.client.delete(f"/agents/{own}", headers=emitter), 403, "forbidden")
    assert (
        await keyed.client.post(f"/agents/{uuid4()}", json={"roles": []}, headers=curator)
    ).status_code == 200


async def test_the_agents_of_another_tenant_do_not_exist(keyed: Site) -> None:
    id = str(uuid4())
    await keyed.client.post(f"/agents/{id}", json={"roles": []}, headers={"X-API-Key": OTHER_KEY})
    mine = {"X-API-Key": KEY}
    assert (await keyed.client.get("/agents", headers=mine)).json() == []
    problem(await keyed.client.get(f"/agents/{id}", headers=mine), 404, "not-found")
    problem(await keyed.client.delete(f"/agents/{id}", headers=mine), 404, "not-found")


# Tenants


async def test_a_tenant_names_renames_and_reads_itself(site: Site) -> None:
    path = f"/tenants/{DEVELOPER}"
    problem(await site.client.get(path), 404, "not-found")
    problem(await site.client.put(path, json={"name": "too early"}), 404, "not-found")
    assert (await site.client.get("/tenants")).json() == []
    assert (await site.client.post(path, json={"name": "Acme"})).json() == {"ok": True}
    tenant = (await site.client.get(path)).json()
    assert tenant == {"id": str(DEVELOPER), "name": "Acme", "created_at": tenant["created_at"]}
    assert (await site.client.put(path, json={"name": "Acme & sons"})).json() == {"ok": True}
    assert (await site.client.get("/tenants")).json() == [tenant | {"name": "Acme & sons"}]


@pytest.mark.parametrize(
    "body", [{}, {"name": ""}, {"name": 5}, {"name": "a\nb"}, {"name": "x" * 501}, {"name": "x", "id": "y"}]
)
async def test_a_bad_name_is_422(site: Site, body: Any) -> None:
    for method in ("POST", "PUT"):
        problem(await site.client.request(method, f"/tenants/{DEVELOPER}", json=body), 422, "invalid-input")
    assert (await site.client.get("/tenants")).json() == []


async def test_another_tenant_does_not_exist(keyed: Site) -> None:
    mine, theirs = {"X-API-Key": KEY}, {"X-API-Key": OTHER_KEY}
    await keyed.client.post(f"/tenants/{OTHER}", json={"name": "theirs"}, headers=theirs)
    await keyed.post(theirs, title="theirs")
    assert (await keyed.client.get("/tenants", headers=mine)).json() == []
    for method in ("GET", "POST", "PUT", "DELETE"):
        body: dict[str, Any] = {"json": {"name": "mine"}} if method in ("POST", "PUT") else {}
        problem(
            await keyed.client.request(method, f"/tenants/{OTHER}", headers=mine, **body), 404, "not-found"
        )
    assert (await keyed.client.get(f"/tenants/{OTHER}", headers=theirs)).json()["name"] == "theirs"
    assert await keyed.count(OTHER) == 1


async def test_deleting_a_tenant_deletes_everything_it_has_and_nothing_of_others(keyed: Site) -> None:
    mine, theirs = {"X-API-Key": KEY}, {"X-API-Key": OTHER_KEY}
    for headers in (mine, theirs):
        for n in range(30):
            await keyed.post(headers, title=f"{n}", tags=[f"session:{n % 4}"], schema_name=f"s{n % 3}.v1")
        await keyed.post(headers, title="secret", sensitivity="secret", visibility="private")
        await keyed.client.post("/subscriptions/selectors", json=SELECTOR, headers=headers)
        await keyed.client.post(f"/agents/{uuid4()}", json={"roles": []}, headers=headers)
    await keyed.client.post(f"/tenants/{OWNER}", json={"name": "mine"}, headers=mine)
    answer = await keyed.client.delete(f"/tenants/{OWNER}", headers=mine)
    assert (answer.status_code, answer.json()) == (200, {"ok": True, "deleted": 31})
    for path in ("/breadcrumbs", "/subscriptions/selectors", "/agents", "/tenants"):
        assert (await keyed.client.get(path, headers=mine)).json() == []
    problem(await keyed.client.delete(f"/tenants/{OWNER}", headers=mine), 404, "not-found")
    assert await keyed.count(OTHER) == 31
    assert len((await keyed.client.get("/agents", headers=theirs)).json()) == 1
    assert len((await keyed.client.get("/subscriptions/selectors", headers=theirs)).json()) == 1


async def test_a_store_that_fails_while_a_tenant_is_deleted_is_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server() as server:
        async with running_site(server.url) as site:
            for n in range(50):
                await site.post(title=f"{n}")
            real = site.store.delete

            async def delete_and_then_die(*args: Any, **options: Any) -> None:
                await real(*args, **options)
                if server.alive:
                    server.kill()

            monkeypatch.setattr(site.store, "delete", delete_and_then_die)
            problem(await site.client.delete(f"/tenants/{DEVELOPER}"), 503, "store-unavailable")


# Narrowed tokens


@pytest.mark.parametrize("kind", ["session_id", "user_id"])
async def test_a_narrowed_token_cannot_access_records_of_the_tenant(keyed: Site, kind: str) -> None:
    narrow = await keyed.token(KEY, **{kind: "a"})
    own = (await keyed.client.post("/auth/token", json={}, headers={"X-API-Key": KEY})).json()["agent_id"]
    other = str(uuid4())
    await keyed.client.post(f"/agents/{other}", json={"roles": []}, headers={"X-API-Key": KEY})
    for method, path in (
        ("POST", f"/agents/{own}"),
        ("POST", f"/agents/{other}"),
        ("DELETE", f"/agents/{other}"),
        ("GET", "/tenants"),
        ("GET", f"/tenants/{OWNER}"),
        ("POST", f"/tenants/{OWNER}"),
        ("PUT", f"/tenants/{OWNER}"),
        ("DELETE", f"/tenants/{OWNER}"),
        ("POST", "/hygiene/run"),
        ("GET", "/hygiene/stats"),
    ):
        body: dict[str, Any] = {"json": {"roles": [], "name": "x"}} if method in ("POST", "PUT") else {}
        problem(await keyed.client.request(method, path, headers=narrow, **body), 403, "forbidden")
    assert [agent["id"] for agent in (await keyed.client.get("/agents", headers=narrow)).json()] == [own]
    problem(await keyed.client.get(f"/agents/{other}", headers=narrow), 404, "not-found")


# Hygiene


async def test_hygiene_can_be_run_and_counts_what_it_did(site: Site) -> None:
    await site.post(title="x", ttl_type="duration", ttl_config={"duration": 0.1})
    await anyio.sleep(0.2)
    answer = await site.client.post("/hygiene/run")
    assert answer.status_code == 200
    report = answer.json()
    assert set(report) == {"ok", "purged", "trimmed", "duration_ms"}
    assert (report["ok"], report["purged"]) == (True, 1)
    stats = await site.client.get("/hygiene/stats")
    assert stats.status_code == 200
    assert stats.json()["total_breadcrumbs_purged"] == 1
