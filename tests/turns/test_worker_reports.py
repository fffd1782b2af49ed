"""Reports of workers: listed states, names, bounds, draining and counted turns."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import anyio
import pytest

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.maintenance.load_history import read_history, sample_minute
from breadcrumbs.runtime.maintenance.worker_drain import drain_workers
from breadcrumbs.runtime.store import worker_reports
from breadcrumbs.runtime.store.load_history import (
    HISTORY_MINUTES,
    KindLoad,
    LoadSample,
    claim_minute,
    read_turn_counters,
    write_sample,
)
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_reports import (
    LOST_SECONDS,
    MAX_ENDED,
    MAX_NAMES,
    STOPPED_SECONDS,
    ListedWorker,
    WorkerReport,
    list_workers,
    remove_old_reports,
)
from breadcrumbs.runtime.version import VERSION
from breadcrumbs.runtime.workers.leases import Heartbeat, Leases
from breadcrumbs.runtime.workers.retries import TurnLimits
from breadcrumbs.runtime.workers.turn import Turn
from breadcrumbs.runtime.workers.worker import Worker
from breadcrumbs.runtime.workers.worker_info import NameInUse, WorkerInfo
from tests.support.conversations import Chat, eventually, opened
from tests.support.events import reader_of
from tests.turns.test_worker_unit import Recorder, all_done, begun, running, taken

KIND = Recorder.kind
SECOND = 1_000_000


def worker_of(store: Store, name: str | None = None, *, lease: float = 1.5, drain: float = 30.0) -> Worker:
    return Worker(
        store,
        reader_of(store),
        Recorder(store),
        lease_seconds=lease,
        limits=TurnLimits(drain_seconds=drain),
        info=WorkerInfo.create(name).running(("chat", "critic"), ("offline",)),
    )


async def listed(store: Store, name: str) -> ListedWorker:
    return next(worker for worker in await list_workers(store) if worker.name == name)


async def has_state(store: Store, name: str, state: str) -> bool:
    return any(worker.name == name and worker.state == state for worker in await list_workers(store))


async def age(store: Store, id: str, seconds: float) -> None:
    """Move the last heartbeat of a worker into the past, as if it had sent none since."""
    key = store.keys.worker_reports(KIND)
    at, _, raw = (await store.connection.call(0, b"HGET", key, id)).partition(b" ")
    await store.connection.call(0, b"HSET", key, id, b"%d %s" % (int(at) - int(seconds * SECOND), raw))
    await store.connection.call(0, b"ZINCRBY", store.keys.workers(KIND), -int(seconds * SECOND), id)


async def pretend(store: Store, name: str, state: str = "running", *, ago: float = 0) -> None:
    """Store the report of a worker that sent its last heartbeat some time ago."""
    report = WorkerReport(name, "host", 1, VERSION, store.now(), 6.0)
    leases = Leases(store, KIND, name, seconds=6)
    await leases.register()
    beat = Heartbeat(report.encode().replace(b'"running"', f'"{state}"'.encode()), name=name)
    await (leases.sign_off(beat) if state == "stopped" else leases.heartbeat(beat))
    if ago:
        await age(store, name, ago)


# States


async def test_a_running_worker_reports_itself_with_its_heartbeat(store: Store) -> None:
    worker = worker_of(store, "north")
    async with running(worker):
        await eventually(partial(taken, worker, store.lanes), "not started")

        async def reported() -> bool:
            report = (await listed(store, "north")).report
            return report is not None and report.lanes == store.lanes

        await eventually(reported, "the lanes are not reported")
        found = await listed(store, "north")
        assert (found.kind, found.state, found.ended) == (KIND, "running", False)
        assert found.id.startswith("north-") and found.id == worker.info.id
        report = found.report
        assert report is not None
        assert (report.agents, report.models, report.version) == (("chat", "critic"), ("offline",), VERSION)
        assert abs(report.started_at - store.now()) < 60 * SECOND
    assert (await listed(store, "north")).state == "stopped"


async def test_current_turns_are_reported_and_answers_are_counted(store: Store) -> None:
    release = anyio.Event()

    async def wait(turn: Turn, text: str) -> None:
        await release.wait()

    worker = Worker(
        store, reader_of(store), Recorder(store, wait), lease_seconds=0.6, info=WorkerInfo.create("busy")
    )
    chat = Chat(store)
    async with running(worker):
        await eventually(partial(taken, worker, store.lanes), "not started")
        for number in range(3):
            await chat.say(f"s{number}", "hello")

        async def busy() -> bool:
            report = (await listed(store, "busy")).report
            return report is not None and report.turns == 3

        await eventually(busy, "the turns are not reported")
        release.set()
        for number in range(3):
            await eventually(partial(all_done, chat, f"s{number}", 1), "not done")
    assert await read_turn_counters(store, [KIND]) == [(3, 0)]


async def test_a_worker_without_heartbeats_is_lost_at_the_time_of_the_last_one(store: Store) -> None:
    await pretend(store, "silent", ago=7)
    found = await listed(store, "silent")
    assert found.state == "lost"
    assert found.heartbeat_at is not None
    assert 6 < (store.now() - found.heartbeat_at) / SECOND < 60


async def test_a_killed_worker_is_lost_long_before_its_heartbeat_expires(
    embedded_server: EmbeddedServer,
) -> None:
    """Its connection is closed. No other worker is there to notice it."""
    async with opened(embedded_server.url) as store:
        killed = worker_of(store, "killed", lease=60)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(killed.run)
            await eventually(partial(taken, killed, store.lanes), "not started")
            await eventually(partial(has_state, store, "killed", "running"), "not listed")

            async def visible() -> bool:
                key = store.keys.visible_workers(KIND)
                return bool(await store.connection.call(0, b"SISMEMBER", key, killed.info.id))

            await eventually(visible, "its connection is not known")
            tasks.cancel_scope.cancel()
        assert (await listed(store, "killed")).state == "running", "one missing heartbeat is not a death"
        # Two missing heartbeats, and no connection.
        await age(store, killed.info.id, 21)
        await eventually(partial(has_state, store, "killed", "lost"), "not noticed")
        assert (await listed(store, "killed")).alive_until > store.now()


async def test_a_worker_of_an_older_version_is_listed_by_its_id(store: Store) -> None:
    leases = Leases(store, KIND, "old-1", seconds=6)
    await leases.register()
    await leases.heartbeat()
    found = await listed(store, "old-1")
    assert (found.state, found.report) == ("running", None)


# Bounds


@pytest.mark.parametrize("raw", [b"not JSON", b"[]", b'{"name": "odd"}'])
async def test_a_damaged_report_does_not_hide_the_other_workers(store: Store, raw: bytes) -> None:
    await pretend(store, "sound")
    await pretend(store, "odd")
    await store.connection.call(
        0, b"HSET", store.keys.worker_reports(KIND), "odd", b"%d " % store.now() + raw
    )
    workers = {worker.id: worker for worker in await list_workers(store)}
    assert {"odd", "sound"} == set(workers) and workers["odd"].report is None
    await remove_old_reports(store)


async def test_ended_workers_are_listed_for_a_limited_time(store: Store) -> None:
    await pretend(store, "lost", ago=LOST_SECONDS - 60)
    await pretend(store, "long-lost", ago=LOST_SECONDS + 60)
    await pretend(store, "stopped", "stopped", ago=STOPPED_SECONDS - 60)
    await pretend(store, "long-stopped", "stopped", ago=STOPPED_SECONDS + 60)
    assert {worker.name for worker in await list_workers(store)} == {"lost", "stopped"}
    await remove_old_reports(store)
    call, keys = store.connection.call, store.keys
    assert set(await call(0, b"HKEYS", keys.worker_reports(KIND))) == {b"lost", b"stopped"}
    assert set(await call(0, b"HKEYS", keys.worker_names(KIND))) <= {b"lost", b"stopped"}


async def test_the_number_of_ended_workers_is_limited(store: Store) -> None:
    for number in range(MAX_ENDED + 10):
        await pretend(store, f"w{number}", ago=1_000 - number)
    await pretend(store, "running")
    await remove_old_reports(store)
    names = {worker.name for worker in await list_workers(store)}
    assert len(names) == MAX_ENDED + 1
    assert {"running", f"w{MAX_ENDED + 9}"} <= names, "the newest are kept"
    assert "w0" not in names


async def test_a_new_worker_removes_old_reports(store: Store) -> None:
    await pretend(store, "long-lost", ago=LOST_SECONDS + 60)
    worker = worker_of(store)
    async with running(worker):
        await eventually(partial(taken, worker, store.lanes), "not started")
    assert b"long-lost" not in await store.connection.call(0, b"HKEYS", store.keys.worker_reports(KIND))


def test_a_report_has_a_limited_size() -> None:
    report = WorkerReport("n", "h", 1, VERSION, 0, 6.0)
    names = [f"{number:03}{'x' * 500}" for number in range(1_000)]
    large = report.with_names(names, names)
    assert (len(large.agents), large.more_agents) == (MAX_NAMES, 1_000 - MAX_NAMES)
    assert len(large.encode()) < 8_192
    assert replace(WorkerReport.decode(large.encode()), clock=0) == large


# Names


async def test_two_running_workers_of_a_kind_cannot_have_the_same_name(store: Store) -> None:
    first, second = worker_of(store, "twin"), worker_of(store, "twin")
    async with running(first):
        await eventually(partial(has_state, store, "twin", "running"), "not started")
        with pytest.raises(ExceptionGroup) as raised:
            await second.run()
        assert raised.group_contains(NameInUse, match="twin is running: choose another name with --name")
        assert second.lanes == []
    async with running(worker_of(store, "twin")) as _:
        await eventually(partial(has_state, store, "twin", "running"), "a free name is not given again")


async def test_the_name_of_a_killed_worker_is_free_long_before_its_heartbeat_expires(store: Store) -> None:
    killed, heir = worker_of(store, "phoenix", lease=60), worker_of(store, "phoenix", lease=60)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(killed.run)
        await eventually(partial(taken, killed, store.lanes), "not started")

        async def visible() -> bool:
            key = store.keys.visible_workers(KIND)
            return bool(await store.connection.call(0, b"SISMEMBER", key, killed.info.id))

        await eventually(visible, "its connection is not known")
        tasks.cancel_scope.cancel()
    async with running(heir):
        await eventually(partial(taken, heir, store.lanes), "the lanes were not taken", 30)
    states = {worker.id: worker.state for worker in await list_workers(store)}
    assert states == {killed.info.id: "lost", heir.info.id: "stopped"}


async def test_a_worker_registers_again_on_an_emptied_store(store: Store) -> None:
    worker = worker_of(store, "back")
    async with running(worker):
        await eventually(partial(has_state, store, "back", "running"), "not started")
        keys = store.keys
        await store.connection.call(
            0, b"DEL", keys.worker_reports(KIND), keys.worker_names(KIND), keys.worker_kinds()
        )
        assert await worker.register()
        await eventually(partial(has_state, store, "back", "running"), "not registered again")
        assert await store.connection.call(0, b"HGET", keys.worker_names(KIND), "back") is not None


async def test_a_worker_that_stops_while_it_registers_sends_no_later_heartbeat(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = worker_of(store, "late", lease=0.6)
    register, forget = worker.leases.register, worker._liveness.forget

    async def stop_meanwhile() -> None:
        await register()
        if worker.at_work.is_set():
            worker.stop()
            await eventually(partial(has_state, store, "late", "stopped"), "not stopped")

    async def forget_later(id: str) -> None:
        await anyio.sleep(0.3)
        await forget(id)

    monkeypatch.setattr(worker.leases, "register", stop_meanwhile)
    monkeypatch.setattr(worker._liveness, "forget", forget_later)
    with anyio.fail_after(30):
        await worker.run()
    assert (await listed(store, "late")).state == "stopped"


# Draining


async def test_a_drained_worker_finishes_a_turn_that_is_longer_than_a_lease(store: Store) -> None:
    release = anyio.Event()

    async def wait(turn: Turn, text: str) -> None:
        await release.wait()

    chat, recorder, other = Chat(store), Recorder(store, wait), Recorder(store)
    draining = Worker(
        store,
        reader_of(store),
        recorder,
        lease_seconds=0.5,
        limits=TurnLimits(drain_seconds=60),
        info=WorkerInfo.create("leaving"),
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(draining.run)
        await eventually(partial(taken, draining, store.lanes), "not started")
        await chat.say("long", "hello")
        await eventually(partial(begun, recorder, 1), "not begun")
        staying = Worker(store, reader_of(store), other, lease_seconds=0.5, info=WorkerInfo.create("staying"))
        async with running(staying):
            await eventually(partial(has_state, store, "staying", "running"), "not started")
            drain = await drain_workers(store, "leaving")
            assert [worker.state for worker in drain.workers] == ["draining"]
            assert drain.warnings == []
            # Only the lane of the running turn stays.
            await eventually(partial(taken, staying, store.lanes - 1), "the lanes were not taken over")
            assert (await drain_workers(store, "leaving")).workers[0].state == "draining", (
                "repeating it is harmless"
            )
            await anyio.sleep(1.5)  # three times the duration of a lease
            assert not draining.ended.is_set()
            assert (await listed(store, "leaving")).state == "draining"
            release.set()
            await eventually(partial(taken, staying, store.lanes), "the last lane was not taken over")
            await eventually(partial(all_done, chat, "long", 1), "not answered")
            await draining.ended.wait()
            await chat.say("long", "again")
            await eventually(partial(all_done, chat, "long", 2), "not answered")
    assert (recorder.begun, other.begun) == (["hello"], ["again"])
    assert (await listed(store, "leaving")).state == "stopped"


async def test_draining_the_last_worker_of_a_kind_warns(store: Store) -> None:
    worker = worker_of(store, "only")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await eventually(partial(has_state, store, "only", "running"), "not started")
        drain = await drain_workers(store, "only")
        assert drain.warnings == [
            f"only is the last running worker of kind {KIND}: its events wait until another one starts"
        ]
    assert worker.ended.is_set()
    again = await drain_workers(store, "only")
    assert again.warnings == ["only is not running any more (stopped): there is nothing to drain"]
    assert not await store.connection.call(0, b"HLEN", store.keys.drain_requests(KIND))


async def test_an_unknown_name_lists_the_running_workers(store: Store) -> None:
    with pytest.raises(NotFound, match=r"no worker has the name 'nobody'\. No worker is running"):
        await drain_workers(store, "nobody")
    await pretend(store, "west")
    await pretend(store, "gone", ago=60)
    with pytest.raises(NotFound, match=r"'nobody'\. Running: west$"):
        await drain_workers(store, "nobody")


async def test_a_new_worker_with_the_name_of_a_drained_one_is_not_drained(store: Store) -> None:
    await pretend(store, "same", ago=60)
    lost = (await list_workers(store))[0]
    await worker_reports.request_drain(store, lost)
    worker = worker_of(store, "same")
    async with running(worker):
        await eventually(partial(taken, worker, store.lanes), "not started")
        await anyio.sleep(0.6)
        assert not worker.stopping


# History


async def test_one_process_samples_a_minute_and_the_history_has_a_fixed_size(store: Store) -> None:
    await pretend(store, "west")
    assert await sample_minute(store)
    assert not await claim_minute(store, (await read_history(store))[-1].end // (60 * SECOND) - 1)
    newest = (await read_history(store))[-1]
    assert [(kind.kind, kind.workers, kind.answered) for kind in newest.kinds] == [(KIND, 1, None)]
    this = store.now() // (60 * SECOND)
    assert not await claim_minute(store, this - 1 - HISTORY_MINUTES), (
        "a late process does not replace a newer minute"
    )
    await store.connection.call(0, b"DEL", store.keys.load_history())
    for minute in range(this - 3 * HISTORY_MINUTES, this):
        assert await claim_minute(store, minute)
        load = KindLoad(answered=minute * 5, failed=minute, lag_ms=1.5, waiting=2, workers=1)
        await write_sample(store, LoadSample(minute, minute * 20, {KIND: load}))
    assert int(await store.connection.call(0, b"HLEN", store.keys.load_history())) == HISTORY_MINUTES
    history = await read_history(store)
    assert len(history) in (HISTORY_MINUTES - 1, HISTORY_MINUTES)
    one = history[-3]
    assert (one.events, one.kinds[0].answered, one.kinds[0].failed) == (20, 5, 1)
    assert [later.end - earlier.end for earlier, later in pairwise(history)] == [60 * SECOND] * (
        len(history) - 1
    )


async def test_a_minute_that_was_claimed_and_not_measured_is_a_gap(store: Store) -> None:
    this = store.now() // (60 * SECOND)
    for minute in (this - 4, this - 2):
        assert await claim_minute(store, minute)
        load = KindLoad(answered=minute, failed=0, lag_ms=0, waiting=0, workers=1)
        await write_sample(store, LoadSample(minute, 0, {KIND: load}))
    assert await claim_minute(store, this - 3)
    history = await read_history(store)
    assert len(history) == 2
    assert history[1].kinds[0].answered is None, "the minute before is not known"
