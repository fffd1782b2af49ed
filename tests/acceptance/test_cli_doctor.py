"""Faults that `crumb doctor` finds and repairs, on real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import anyio
import pytest

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.ids import lane_for
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.maintenance import checks
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.housekeeping import RunCounts, count_run
from breadcrumbs.runtime.store.options import StoreOptions
from breadcrumbs.runtime.store.quotas import Quotas
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import crumb as new_crumb
from tests.support.servers import Cluster

OWNER = uuid4()
HOUR = 3_600_000_000
SCHEDULE = checks.HygieneSchedule()


@pytest.fixture(params=["embedded_server", "cluster_server"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    server: EmbeddedServer | Cluster = request.getfixturevalue(request.param)
    store = await Store.open(server.url, lanes=6, namespace=f"d{uuid4().hex[:8]}")
    yield store
    await store.close()


async def fill(store: Store, count: int = 40) -> list[UUID]:
    ids = []
    for number in range(count):
        new = BreadcrumbCreate.parse(
            {
                "schema_name": f"s{number % 3}.v1",
                "tags": ["blue", f"session:{number % 4}"] if number % 2 else ["blue"],
                "context": {"n": number},
                **({"ttl_config": {"duration": "1h"}} if number % 5 == 0 else {}),
            }
        )
        written = await store.create(OWNER, new)
        if number % 4 == 0:
            await store.update(OWNER, written.id, BreadcrumbUpdate(title="changed"))
        ids.append(written.id)
    return ids


async def listed(store: Store, **filters: Any) -> set[UUID]:
    return {crumb.id async for crumb in store.walk(OWNER, Query(**filters))}


async def test_a_healthy_store_passes_all_checks(store: Store) -> None:
    await fill(store)
    findings = [
        await checks.check_layout(store),
        await checks.check_scripts(store),
        *await checks.check_events(store, SCHEDULE, window=HOUR),
        await checks.check_expired(store, SCHEDULE),
        await checks.check_indexes(store),
        await checks.check_indexes(store, fix=True),
        await checks.check_sessions(store),
        await checks.check_sessions(store, fix=True),
    ]
    assert [finding.status for finding in findings] == ["ok"] * 8
    assert findings[5].details["breadcrumbs"] == 40 and findings[5].details["mended"] == 0
    assert findings[7].details == {"sessions": 2, "wrong": 0}


async def test_every_node_is_checked_once(store: Store, request: pytest.FixtureRequest) -> None:
    findings = await checks.check_server(store)
    nodes = 3 if "cluster" in request.node.name else 1
    assert sum(finding.id == "clock" for finding in findings) == nodes
    assert all(finding.status == "ok" for finding in findings if finding.id != "persistence")


async def test_a_breadcrumb_missing_from_an_index_is_found_and_restored(store: Store) -> None:
    ids = set(await fill(store))
    for lane in range(store.lanes):
        await store.connection.call(lane, b"DEL", store.keys.by_tag(lane, OWNER, "blue"))
        await store.connection.call(lane, b"DEL", store.keys.schemas(lane, OWNER))
        await store.connection.call(lane, b"DEL", store.keys.expiries(lane))
    assert await listed(store, all_tags=("blue",)) == set()
    finding = await checks.check_indexes(store)
    assert finding.status == "error" and "--fix" in finding.advice
    await checks.check_indexes(store, fix=True)
    assert await listed(store, all_tags=("blue",)) == await listed(store) == ids
    assert (await checks.check_indexes(store)).status == "ok"


async def test_a_stray_index_entry_is_found_and_removed(store: Store) -> None:
    await fill(store)
    crumb = (await store.list(OWNER, Query(session_id="1", limit=1))).items[0]
    lane = crumb.id.int >> 64 & 0xFFF
    stray = store.keys.by_tag(lane, OWNER, "red")
    await store.connection.call(lane, b"ZADD", stray, 1, uuid4().bytes)
    await store.connection.call(lane, b"ZADD", stray, 1, crumb.id.bytes)
    finding = await checks.check_indexes(store)
    assert finding.status == "error" and finding.details["stray"] == 2
    mended = await checks.check_indexes(store, fix=True)
    assert mended.details["mended"] == 2
    assert not await store.connection.call(lane, b"EXISTS", stray)
    assert crumb.id in await listed(store, session_id="1")


async def test_an_imported_breadcrumb_without_its_signpost_is_repaired(store: Store) -> None:
    await store.create(OWNER, BreadcrumbCreate(tags=["session:x"]))
    crumb = (await store.list(OWNER, Query())).items[0]
    lane = crumb.id.int >> 64 & 0xFFF
    elsewhere = (lane + 1) % store.lanes
    moved = replace(crumb, id=UUID(int=crumb.id.int & ~(0xFFF << 64) | elsewhere << 64))
    await store.restore(moved, [])
    await store.connection.call(elsewhere, b"DEL", store.keys.signpost(elsewhere, OWNER, moved.id.bytes))
    with pytest.raises(NotFound):
        await store.get(OWNER, moved.id)
    assert (await checks.check_indexes(store)).status == "error"
    await checks.check_indexes(store, fix=True)
    assert (await store.get(OWNER, moved.id)).json == crumb.json


async def test_sessions_that_could_not_be_compared_do_not_count_as_correct(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store)
    run = store.connection.run

    async def changes_all_the_time(lane: int, script: Any, keys: Any, args: Any) -> Any:
        return -1 if args[:1] == ["3"] else await run(lane, script, keys, args)

    monkeypatch.setattr(store.connection, "run", changes_all_the_time)
    finding = await checks.check_sessions(store)
    assert finding.status == "unknown" and "1 changed too fast" in finding.message
    assert finding.details == {"sessions": 1, "wrong": 0, "not_compared": 1}


async def test_concurrent_writes_are_not_reported_as_index_faults(store: Store) -> None:
    ids = await fill(store, 30)
    done = anyio.Event()

    async def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            change = BreadcrumbUpdate(tags=[f"t{number % 3}"], schema_name=f"s{number % 3}.v1")
            await store.update(OWNER, ids[number % len(ids)], change)
            written = await store.create(OWNER, BreadcrumbCreate(tags=["coming", "going"]))
            await store.delete(OWNER, written.id)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(write)
        for number in range(6):
            finding = await checks.check_indexes(store, fix=bool(number % 2))
            assert finding.status == "ok" and finding.details["mended"] == 0, finding
        done.set()


async def test_sessions_that_differ_from_their_breadcrumbs_are_found_and_repaired(store: Store) -> None:
    await fill(store)
    sessions, keys = Sessions(store), store.keys
    await store.create(OWNER, BreadcrumbCreate(tags=["session:whole"]))
    before = {name: await sessions.get(OWNER, name) for name in ("1", "3", "whole")}
    lanes = {name: store.keys.session_lane(OWNER, name) for name in ("1", "3", "whole", "ghost")}
    call = store.connection.call
    await call(
        lanes["1"], b"DEL", keys.session(lanes["1"], OWNER, "1")
    )  # like a store that is older than session records
    await call(lanes["1"], b"ZREM", keys.sessions(lanes["1"], OWNER), "1")
    await call(lanes["3"], b"HINCRBY", keys.session(lanes["3"], OWNER, "3"), "size", 7)
    await call(lanes["whole"], b"ZREM", keys.sessions(lanes["whole"], OWNER), "whole")
    await call(lanes["ghost"], b"HSET", keys.session(lanes["ghost"], OWNER, "ghost"), "version", 3, "size", 2)
    await call(lanes["ghost"], b"ZADD", keys.sessions(lanes["ghost"], OWNER), 5, "ghost")
    finding = await checks.check_sessions(store)
    assert finding.status == "error" and finding.details["wrong"] == 4 and "--fix" in finding.advice
    assert (await checks.check_sessions(store, fix=True)).details["wrong"] == 4
    assert (await checks.check_sessions(store)).status == "ok"
    assert {facts.id for facts in (await sessions.page(OWNER)).items} == {"1", "3", "whole"}
    for name, facts in before.items():
        mended = await sessions.get(OWNER, name)
        assert (mended.counts, mended.created) == (facts.counts, facts.created)
    for crumb_id in [crumb.id async for crumb in store.walk(OWNER, Query(session_id="3"))]:
        await store.delete(OWNER, crumb_id)
    with pytest.raises(NotFound):
        await sessions.get(OWNER, "3")


async def test_concurrent_writes_are_not_reported_as_session_faults(store: Store) -> None:
    done = anyio.Event()

    async def write(name: str) -> None:
        number = 0
        while not done.is_set():
            number += 1
            new = BreadcrumbCreate(tags=[f"session:{name}"], schema_name=f"s{number % 5}.v1")
            written = await store.create(OWNER, new)
            if number % 3:
                await store.delete(OWNER, written.id)
            elif number % 9 == 0:
                await Sessions(store).delete(OWNER, name)

    async with anyio.create_task_group() as tasks:
        for name in "abcd":
            tasks.start_soon(write, name)
        for number in range(8):
            finding = await checks.check_sessions(store, fix=bool(number % 2))
            assert finding.status == "ok" and finding.details["wrong"] == 0, finding
        done.set()


async def test_a_consumer_group_behind_the_window_is_reported(store: Store) -> None:
    await store.create(OWNER, BreadcrumbCreate(tags=["session:a"]))
    lane = (await store.list(OWNER, Query())).items[0].id.int >> 64 & 0xFFF
    await store.connection.call(lane, b"XGROUP", b"CREATE", store.keys.events(lane), b"sleepy", b"0")
    (fresh,) = await checks.check_events(store, SCHEDULE, window=HOUR)
    assert fresh.status == "ok"
    (finding,) = await checks.check_events(store, SCHEDULE, window=-1)
    assert finding.status == "warning" and "sleepy" in finding.message and "XGROUP DESTROY" in finding.advice


async def test_a_kind_of_worker_behind_the_window_is_reported(store: Store) -> None:
    await store.create(OWNER, BreadcrumbCreate())
    await store.connection.call(0, b"SADD", store.keys.worker_kinds(), "builder")
    (finding,) = await checks.check_events(store, SCHEDULE, window=-1)
    assert finding.status == "warning" and "builder" in finding.message


async def test_expired_breadcrumbs_that_were_not_removed_are_found_and_removed(store: Store) -> None:
    written = await store.create(OWNER, BreadcrumbCreate())
    crumb = await store.get(OWNER, written.id)
    await store.delete(OWNER, crumb.id)
    await store.restore(replace(crumb, created=1_000_000, updated=1_000_000, expires=2_000_000), [])
    assert (await checks.check_expired(store, SCHEDULE)).details["expired"] == 1
    fixed = await checks.check_expired(store, SCHEDULE, fix=True)
    assert fixed.details["removed"] == 1
    assert (await checks.check_expired(store, SCHEDULE)).details["expired"] == 0


async def expire(store: Store, *, count: int = 1) -> None:
    """Store breadcrumbs that expired long ago, as they are in a store after a long downtime."""
    for _ in range(count):
        crumb = await store.get(OWNER, (await store.create(OWNER, BreadcrumbCreate())).id)
        await store.delete(OWNER, crumb.id)
        await store.restore(replace(crumb, created=1_000_000, updated=1_000_000, expires=2_000_000), [])


@pytest.mark.parametrize("uptime", [None, 5.0, 100.0])
async def test_expired_breadcrumbs_are_no_problem_before_hygiene_could_run(
    store: Store, uptime: float | None
) -> None:
    await expire(store, count=3)
    finding = await checks.check_expired(store, checks.HygieneSchedule(30, uptime))
    assert (finding.status, finding.details["overdue"]) == ("ok", 3)
    # An old run, from before the downtime, changes nothing.
    await count_run(store, RunCounts(0, 0, 1.0, 0))
    await store.connection.call(0, b"HSET", store.keys.hygiene(), b"at", 1_500_000)
    finding = await checks.check_expired(store, checks.HygieneSchedule(30, uptime))
    assert (finding.status, finding.advice) == ("ok", "")


async def test_expired_breadcrumbs_that_hygiene_left_are_reported(store: Store) -> None:
    await expire(store, count=2)
    await count_run(store, RunCounts(0, 0, 1.0, 3))
    finding = await checks.check_expired(store, SCHEDULE)
    assert finding.status == "warning" and finding.details["left_by_hygiene"] == 2
    assert "--fix" in finding.advice


async def test_hygiene_that_does_not_run_is_reported(store: Store) -> None:
    await expire(store)
    finding = await checks.check_expired(store, checks.HygieneSchedule(30, 121))
    assert finding.status == "warning" and "never ran" in finding.message


async def test_old_events_are_no_problem_before_hygiene_could_run(store: Store) -> None:
    await store.create(OWNER, BreadcrumbCreate())
    (finding,) = await checks.check_events(store, checks.HygieneSchedule(30, 5), window=1)
    assert finding.status == "ok"
    (finding,) = await checks.check_events(store, checks.HygieneSchedule(30, 121), window=1)
    assert finding.status == "warning" and "hygiene" in finding.message


async def test_an_agent_of_a_program_that_ended_keeps_no_events(store: Store) -> None:
    await store.create(OWNER, BreadcrumbCreate())
    await store.connection.call(0, b"SADD", store.keys.worker_kinds(), "agents/poet")
    (finding,) = await checks.check_events(store, SCHEDULE, window=-1)
    assert finding.status == "ok"


async def test_a_number_of_lanes_other_than_in_the_settings_is_reported(store: Store) -> None:
    finding = await checks.check_layout(store, wanted_lanes=16)
    assert finding.status == "error" and "6 lanes" in finding.message


def test_a_directory_that_cannot_hold_data_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert checks.check_data_directory(file / "below", holder=None).status == "error"
    assert checks.check_data_directory(tmp_path / "new", holder=None).status == "ok"
    assert "17" in checks.check_data_directory(tmp_path, holder=17).message


async def test_quotas_are_shown_and_wrong_counters_are_found_and_repaired(store: Store) -> None:
    limited = Store(
        store.connection,
        store.keys,
        secret=store.secret,
        options=StoreOptions(quotas=Quotas(breadcrumbs=100)),
    )
    for number in range(20):
        await limited.create(OWNER, new_crumb(str(number), session=str(number)))
    assert await checks.check_quotas(store) == []
    (finding,) = await checks.check_quotas(limited)
    assert (finding.status, finding.message) == ("ok", "20 of 100 breadcrumbs")
    await store.create(OWNER, new_crumb("by a process without quotas"))
    (finding,) = await checks.check_quotas(limited)
    assert finding.status == "warning" and "counters are wrong in 1 lanes" in finding.message
    (finding,) = await checks.check_quotas(limited, fix=True)
    assert (finding.status, finding.message) == ("ok", "21 of 100 breadcrumbs")
    assert [finding.status for finding in await checks.check_quotas(limited)] == ["ok"]


async def test_a_wrong_size_of_a_state_is_found_and_repaired(store: Store) -> None:
    delta = {"state_delta": {"a": "x" * 100}}
    await store.create(OWNER, new_crumb(schema="session.state.v1", session="s", context=delta))
    lane = lane_for(OWNER, "session", "s", store.lanes)
    session = store.keys.session(lane, OWNER, "s")
    assert (await checks.check_sessions(store)).status == "ok"
    await store.connection.call(lane, b"HSET", session, b"state", b"7 0")
    assert (await checks.check_sessions(store)).status == "error"
    assert (await checks.check_sessions(store, fix=True)).status == "ok"
    assert (await checks.check_sessions(store)).status == "ok"
