"""GET /operations: lanes, workers, the store and requests for the operations page."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from breadcrumbs.runtime.errors import StoreUnavailable
from breadcrumbs.runtime.store.fence import Lease
from breadcrumbs.runtime.store.lane_counts import MAX_COUNTED
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.leases import Leases
from tests.http.conftest import KEY, OTHER_KEY, WEAK_KEY, Site, problem, running_site
from tests.support.servers import Cluster


async def operations(site: Site, headers: dict[str, str] | None = None) -> dict[str, Any]:
    answer = await site.client.get("/operations", headers=headers)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def shares(document: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [share for lane in document["lanes"] for share in lane["kinds"] if share["kind"] == kind]


def when(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def newest(store: Store, lane: int) -> int:
    return int(await store.connection.call(lane, b"GET", store.keys.clock(lane)))


async def busiest(store: Store) -> int:
    lengths = [
        await store.connection.call(lane, b"XLEN", store.keys.events(lane)) for lane in range(store.lanes)
    ]
    return lengths.index(max(lengths))


@pytest.fixture
def leases(site: Site) -> Leases:
    return Leases(site.store, "contexts", "host-1-abc", seconds=30)


async def taken(leases: Leases, lane: int) -> Lease:
    await leases.register()
    lease = await leases.take(lane)
    assert lease is not None
    return lease


async def test_a_new_store_has_its_lanes_and_nothing_in_them(site: Site) -> None:
    document = await operations(site)
    assert [lane["lane"] for lane in document["lanes"]] == list(range(site.store.lanes))
    assert all(lane["events"] == lane["events_ever"] == 0 for lane in document["lanes"])
    assert (document["kinds"], document["workers"]) == ([], [])
    store = document["store"]
    assert (store["breadcrumbs"], store["sessions"], store["schemas"]) == (0, 0, [])
    (server,) = store["servers"]
    assert server["version"].startswith(("Valkey ", "Redis ")) and server["memory_bytes"] > 100_000
    assert document["process"]["version"]


async def test_breadcrumbs_are_counted_by_schema_in_total_and_recently(site: Site) -> None:
    for number in range(3):
        await site.post(schema_name="user.message.v1", tags=[f"session:s{number % 2}"])
    await site.post(schema_name="note.v1")
    await site.post(title="without a schema")
    store = (await operations(site))["store"]
    assert (store["breadcrumbs"], store["sessions"], store["more_schemas"]) == (5, 2, False)
    counted = {schema.get("schema_name"): schema for schema in store["schemas"]}
    assert {name: schema["count"] for name, schema in counted.items()} == {
        "user.message.v1": 3,
        "note.v1": 1,
        None: 1,
    }
    assert counted["user.message.v1"]["recent"] == 3


async def test_old_breadcrumbs_count_in_total_but_not_as_recent(site: Site) -> None:
    id = (await site.post(schema_name="note.v1"))["id"]
    store = site.store
    crumb = (await site.client.get(f"/breadcrumbs/{id}/full")).json()
    long_ago = int((when(crumb["created_at"]) - timedelta(minutes=5)).timestamp() * 1_000_000)
    for lane in range(store.lanes):
        key = store.keys.by_schema(lane, UUID(crumb["owner_id"]), "note.v1")
        await store.connection.call(lane, b"ZADD", key, b"XX", long_ago, UUID(id).bytes)
    assert (await operations(site))["store"]["schemas"] == [
        {"schema_name": "note.v1", "count": 1, "recent": 0}
    ]


async def test_the_total_of_events_includes_trimmed_events(site: Site) -> None:
    for _ in range(4):
        await site.post(tags=["session:s"])
    store, lane = site.store, await busiest(site.store)
    before = (await operations(site))["lanes"][lane]
    assert (before["events"], before["events_ever"]) == (4, 4)
    assert when(before["newest_event_at"]) > datetime.now().astimezone() - timedelta(minutes=5)
    await store.connection.call(lane, b"XTRIM", store.keys.events(lane), b"MAXLEN", 1)
    after = (await operations(site))["lanes"][lane]
    assert (after["events"], after["events_ever"]) == (1, 4)


async def test_a_lease_shows_its_worker_start_and_end(site: Site, leases: Leases) -> None:
    await taken(leases, 3)
    document = await operations(site)
    assert document["kinds"] == ["contexts"]
    held = {
        lane["lane"]: share["holder"]
        for lane in document["lanes"]
        for share in lane["kinds"]
        if "holder" in share
    }
    assert list(held) == [3]
    assert held[3]["worker"] == "host-1-abc"
    now = when(document["at"])
    assert now - timedelta(seconds=20) < when(held[3]["since"]) <= now + timedelta(seconds=1)
    assert now < when(held[3]["until"]) <= now + timedelta(seconds=31)


async def test_renewing_a_lease_keeps_its_start(site: Site, leases: Leases) -> None:
    lease = await taken(leases, 0)
    before = shares(await operations(site), "contexts")[0]["holder"]
    assert await leases.renew(lease)
    assert shares(await operations(site), "contexts")[0]["holder"]["since"] == before["since"]


async def test_a_lease_of_an_earlier_version_has_a_holder_but_no_start(site: Site, leases: Leases) -> None:
    await leases.register()
    await site.store.connection.call(
        0, b"SET", site.store.keys.lease(0, "contexts"), b"7 an old one", b"PX", 9_000
    )
    holder = shares(await operations(site), "contexts")[0]["holder"]
    assert holder["worker"] == "an old one" and "since" not in holder


async def test_live_and_dead_workers_are_distinguished_and_have_their_lanes(
    site: Site, leases: Leases
) -> None:
    await taken(leases, 1)
    await taken(leases, 5)
    await leases.heartbeat()
    key = site.store.keys.workers("contexts")
    await site.store.connection.call(0, b"ZADD", key, site.store.now() - 1_000_000, "host-2-dead")
    workers = {worker["name"]: worker for worker in (await operations(site))["workers"]}
    assert workers["host-1-abc"]["alive"] and workers["host-1-abc"]["lanes"] == [1, 5]
    assert not workers["host-2-dead"]["alive"] and workers["host-2-dead"]["lanes"] == []
    assert {worker["kind"] for worker in workers.values()} == {"contexts"}


async def test_lag_is_the_age_of_the_oldest_unacknowledged_event(site: Site, leases: Leases) -> None:
    for _ in range(3):
        await site.post(tags=["session:s"])
    store, lane = site.store, await busiest(site.store)
    lease = await taken(leases, lane)
    entries = await store.connection.call(lane, b"XRANGE", store.keys.events(lane), b"-", b"+")
    times = [int(entry[0].partition(b"-")[0]) for entry in entries]
    share = shares(await operations(site), "contexts")[lane]
    assert (share["waiting"], share["more_waiting"]) == (3, False)
    assert "done_until" not in share

    await leases.acknowledge(lease, times[1], 0)  # out of order: the first still waits
    document = await operations(site)
    share = shares(document, "contexts")[lane]
    assert share["waiting"] == 2
    assert abs(share["lag_ms"] - (when(document["at"]).timestamp() * 1000 - times[0] / 1000)) < 2

    await leases.acknowledge(lease, times[0], times[1])
    document = await operations(site)
    share = shares(document, "contexts")[lane]
    assert share["waiting"] == 1
    assert abs(share["lag_ms"] - (when(document["at"]).timestamp() * 1000 - times[2] / 1000)) < 2
    assert int(when(share["done_until"]).timestamp() * 1_000_000) == pytest.approx(times[1], abs=2)

    await leases.acknowledge(lease, times[2], times[2])
    share = shares(await operations(site), "contexts")[lane]
    assert (share["waiting"], share["lag_ms"]) == (0, 0)


async def test_a_long_queue_is_counted_up_to_a_limit(site: Site, leases: Leases) -> None:
    store = site.store
    await site.post(tags=["session:s"])
    lane = await busiest(store)
    (entry,) = await store.connection.call(lane, b"XRANGE", store.keys.events(lane), b"-", b"+")
    at = int(entry[0].partition(b"-")[0])
    await store.connection.call_all(
        [
            (lane, (b"XADD", store.keys.events(lane), b"%d-0" % (at + number), *entry[1]))
            for number in range(1, MAX_COUNTED + 5)
        ]
    )
    await leases.register()
    share = shares(await operations(site), "contexts")[lane]
    assert (share["waiting"], share["more_waiting"]) == (MAX_COUNTED, True)


async def test_dead_letters_are_counted_per_lane(site: Site, leases: Leases) -> None:
    lease = await taken(leases, 2)
    await leases.acknowledge(lease, 17, 0, dead_letter=b"{}")
    document = await operations(site)
    assert [share["dead_letters"] for share in shares(document, "contexts")][:4] == [0, 0, 1, 0]


async def test_request_times_are_by_route_and_failures_show(site: Site) -> None:
    for _ in range(5):
        await site.client.get("/health")
    await site.client.get(f"/breadcrumbs/{uuid4()}")
    http = (await operations(site))["http"]
    routes = {(route["method"], route["route"]): route for route in http["routes"]}
    health = routes["GET", "/health"]
    assert (health["requests"], health["refused"], health["failed"]) == (5, 0, 0)
    assert len(health["counts"]) == len(http["bounds_ms"]) + 1 and sum(health["counts"]) == 5
    assert 0 < health["p50_ms"] <= health["p99_ms"]
    assert routes["GET", "/breadcrumbs/{id}"]["refused"] == 1
    assert http["in_flight"] == 1  # this request


async def test_each_tenant_sees_only_the_number_of_its_own_breadcrumbs(keyed: Site) -> None:
    mine, theirs = {"X-API-Key": KEY}, {"X-API-Key": OTHER_KEY}
    await keyed.post(mine, schema_name="mine.v1", tags=["session:s"])
    assert (await operations(keyed, mine))["store"]["breadcrumbs"] == 1
    store = (await operations(keyed, theirs))["store"]
    assert (store["breadcrumbs"], store["sessions"], store["schemas"]) == (0, 0, [])


async def test_operations_need_a_curator_with_an_unnarrowed_token(keyed: Site) -> None:
    problem(await keyed.client.get("/operations", headers={"X-API-Key": WEAK_KEY}), 403, "forbidden")
    narrow = await keyed.token(KEY, session_id="s")
    problem(await keyed.client.get("/operations", headers=narrow), 403, "forbidden")


async def test_operations_take_two_round_trips_for_any_number_of_kinds_and_schemas(
    site: Site, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        await site.post(schema_name=f"kind{number}.v1", tags=["session:s"])
    for kind in ("agents", "contexts", "guest/one"):
        await Leases(site.store, kind, "w", seconds=9).register()
    connection = site.store.connection
    trips: list[int] = []
    for name in ("call", "call_all", "run"):
        original = getattr(connection, name)

        async def counted(*args: Any, _original: Any = original) -> Any:
            trips.append(len(finished))
            reply = await _original(*args)
            finished.append(None)
            return reply

        monkeypatch.setattr(connection, name, counted)
    finished: list[None] = []
    await operations(site)
    # All commands of the second round trip were sent before the first of its replies arrived.
    assert set(trips) == {0, 1}
    # The kinds, then all lanes, the living workers, their reports and the server. If workers are connected, a third
    # round trip reads their connections.
    assert len(trips) == 1 + 4


async def test_a_server_that_forbids_info_is_omitted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    original = site.store.connection.call

    async def call(lane: int, *command: Any) -> Any:
        if command[0] == b"INFO":
            raise StoreUnavailable("NOPERM")
        return await original(lane, *command)

    monkeypatch.setattr(site.store.connection, "call", call)
    document = await operations(site)
    assert document["store"]["servers"] == []
    assert len(document["lanes"]) == site.store.lanes


async def test_on_a_cluster_every_node_and_lane_is_listed(cluster_server: Cluster) -> None:
    async with running_site(cluster_server.url) as site:
        for number in range(20):
            await site.post(schema_name="note.v1", tags=[f"session:s{number}"])
        await Leases(site.store, "agents", "w", seconds=9).register()
        document = await operations(site)
        assert sum(lane["events_ever"] for lane in document["lanes"]) == 20
        assert document["store"]["breadcrumbs"] == document["store"]["sessions"] == 20
        assert sum(share["waiting"] for share in shares(document, "agents")) == 20
        assert len(document["store"]["servers"]) == 3
