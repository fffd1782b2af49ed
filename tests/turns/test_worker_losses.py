"""Workers that die, freeze or are disconnected: counted losses and the time until others take over."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import pytest

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.attempts import Attempts
from breadcrumbs.runtime.workers.errors import TurnFailed
from breadcrumbs.runtime.workers.leases import Leases
from breadcrumbs.runtime.workers.liveness import Liveness
from breadcrumbs.runtime.workers.retries import TurnLimits
from breadcrumbs.runtime.workers.turn import Turn
from breadcrumbs.runtime.workers.worker import Worker
from tests.support.conversations import Chat, eventually, opened
from tests.support.events import reader_of
from tests.support.servers import Cluster, Server
from tests.turns.test_worker_unit import Recorder, all_done, begun, done, running, taken

KIND = Recorder.kind


async def stored_attempts(store: Store) -> dict[int, Attempts]:
    flat = await store.connection.call(0, b"HGETALL", store.keys.attempts(0, KIND))
    return {int(at): Attempts.decode(raw) for at, raw in zip(flat[::2], flat[1::2], strict=True)}


async def take_over(store: Store) -> None:
    """End the lease of lane 0 and take the lane, as another worker does after a freeze."""
    await store.connection.call(0, b"DEL", store.keys.lease(0, KIND))
    assert await Leases(store, KIND, "another", seconds=60).take(0) is not None


async def test_a_resumed_worker_starts_and_counts_nothing_in_a_lost_lane(
    embedded_server: EmbeddedServer,
) -> None:
    thaw = anyio.Event()

    async def freeze(turn: Turn, text: str) -> None:
        if text == "first":
            await thaw.wait()

    async with opened(embedded_server.url, lanes=1) as store:
        chat, recorder = Chat(store), Recorder(store, freeze)
        await chat.say("a", "first")
        second = await chat.say("b", "second")  # waits for the only slot
        worker = Worker(store, reader_of(store), recorder, lease_seconds=60, limits=TurnLimits(concurrency=1))
        async with running(worker):
            await eventually(partial(begun, recorder, 1), "not begun")
            await take_over(store)
            thaw.set()
            await eventually(partial(taken, worker, 0), "the lost lane was not noticed")
            await anyio.sleep(0.2)
            raw = await store.connection.call(0, b"HGET", store.keys.attempts(0, KIND), str(second.created))
            assert raw is None, "an attempt was counted for an event of a lost lane"
            assert recorder.begun == ["first"], "a handler was started in a lost lane"


async def test_a_process_frozen_beyond_its_lease_checks_it_before_starting_a_handler(
    embedded_server: EmbeddedServer,
) -> None:
    entered: list[int] = []
    frozen: list[Event] = []

    class Frozen(Recorder):
        async def wants(self, event: Event) -> bool:
            if event.operation == "created" and not frozen:
                frozen.append(event)
                time.sleep(0.8)  # noqa: ASYNC251 - blocks the whole process until the lease expires
            return await super().wants(event)

        async def handle(self, turn: Turn) -> None:
            entered.append(int(turn.lane.lease.value.split()[0]))
            await super().handle(turn)

    async with opened(embedded_server.url, lanes=1) as store:
        chat = Chat(store)
        worker = Worker(store, reader_of(store), Frozen(store), lease_seconds=0.4)
        async with running(worker):
            await eventually(partial(taken, worker, 1), "no lane")
            await chat.say("s", "hello")
            await eventually(partial(all_done, chat, "s", 1), "not done")
        assert entered == [2], "a handler was started under the lease that was over"


async def test_a_lost_lane_stops_its_handlers_at_once(embedded_server: EmbeddedServer) -> None:
    stopped = anyio.Event()

    async def hang(turn: Turn, text: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    async with opened(embedded_server.url, lanes=1) as store:
        recorder = Recorder(store, hang)
        worker = Worker(store, reader_of(store), recorder, lease_seconds=1)
        async with running(worker):
            await eventually(partial(taken, worker, 1), "no lane")
            await Chat(store).say("s", "hello")
            await eventually(partial(begun, recorder, 1), "not begun")
            (lane,) = worker._lanes.by_number.values()
            await take_over(store)
            with anyio.fail_after(2):
                await stopped.wait()
            assert not lane.unfinished


async def test_failures_are_stored_when_their_worker_dies(embedded_server: EmbeddedServer) -> None:
    async def fail(turn: Turn, text: str) -> None:
        raise TurnFailed("not now", retry=True)

    async with opened(embedded_server.url, lanes=1) as store:
        chat = Chat(store)
        recorders = [Recorder(store, fail), Recorder(store, fail)]
        dying = Worker(
            store,
            reader_of(store),
            recorders[0],
            lease_seconds=0.5,
            limits=TurnLimits(attempts=3, backoff=lambda n: 0.0 if n == 1 else 60),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dying.run)
            await eventually(partial(taken, dying, 1), "no lane")
            message = await chat.say("s", "hello")
            await eventually(partial(begun, recorders[0], 2), "it was not tried twice")
            await eventually(partial(_failed, store, 2), "the failures were not stored")
            tasks.cancel_scope.cancel()
        limits = TurnLimits(attempts=3)
        async with running(Worker(store, reader_of(store), recorders[1], lease_seconds=0.5, limits=limits)):
            error = await chat.error_about(message)
        assert error.context["error"] == "not now" and error.context["attempts"] == 3
        assert len(recorders[1].begun) == 1
        assert await stored_attempts(store) == {}


async def _failed(store: Store, times: int) -> bool:
    return [one.failures for one in (await stored_attempts(store)).values()] == [times]


@pytest.mark.parametrize("dies", [True, False])
async def test_deaths_and_stalls_are_counted_separately(embedded_server: EmbeddedServer, dies: bool) -> None:
    """Only the event with a running handler gets a loss. The waiting one does not."""
    release = anyio.Event()

    async def hang(turn: Turn, text: str) -> None:
        await release.wait()

    async with opened(embedded_server.url, lanes=1) as store:
        chat = Chat(store)
        at_work = await chat.say("s", "running")
        await chat.say("s", "waiting")
        # The event is already a suspect, so it runs alone and losses of its worker are counted.
        suspect = Attempts(shared_losses=3).encode()
        await store.connection.call(0, b"HSET", store.keys.attempts(0, KIND), at_work.created, suspect)
        recorder = Recorder(store, hang)
        alone = TurnLimits(concurrency=1)
        lost = Worker(store, reader_of(store), recorder, lease_seconds=1.0, limits=alone)
        heir = Worker(store, reader_of(store), Recorder(store, hang), lease_seconds=1.0, limits=alone)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lost.run)
            await eventually(partial(begun, recorder, 1), "not begun")
            await eventually(partial(_visible, store, lost), "its connection is not known")
            if dies:
                tasks.cancel_scope.cancel()
            else:
                # The worker keeps its connection and does not renew its leases.
                lost._lanes.renew_all = lost._balance = anyio.sleep_forever  # type: ignore[method-assign]
                await anyio.sleep(1.2)
                async with running(heir):
                    await _check_blame(store, heir, at_work.created, Attempts(shared_losses=3, stalls=1))
                    release.set()
                tasks.cancel_scope.cancel()
        if dies:
            async with running(heir):
                await _check_blame(store, heir, at_work.created, Attempts(shared_losses=3, deaths=1))
                release.set()
                await eventually(partial(all_done, chat, "s", 2), "not done")
            assert await stored_attempts(store) == {}, "an event that is done is no suspect"


async def _visible(store: Store, worker: Worker) -> bool:
    key = store.keys.visible_workers(KIND)
    return bool(await store.connection.call(0, b"SISMEMBER", key, worker.name))


async def _check_blame(store: Store, heir: Worker, at: int, blame: Attempts) -> None:
    async def begun_again() -> bool:
        found = await stored_attempts(store)
        mark = found[at].mark if at in found else None
        return mark is not None and mark.worker == heir.name

    await eventually(begun_again, "the event was not begun again")
    assert {other: one.ended() for other, one in (await stored_attempts(store)).items()} == {at: blame}


async def test_returning_an_unfinished_lane_blames_no_event(embedded_server: EmbeddedServer) -> None:
    async def hang(turn: Turn, text: str) -> None:
        await anyio.sleep_forever()

    async with opened(embedded_server.url, lanes=1) as store:
        chat, recorder = Chat(store), Recorder(store, hang)
        await chat.say("s", "hello")
        async with running(Worker(store, reader_of(store), recorder, lease_seconds=0.3)):
            await eventually(partial(begun, recorder, 1), "not begun")
        assert await stored_attempts(store) == {}


# Taking over


async def dies_and_is_replaced(store: Store, *, lease: float) -> float:
    """Let one of two workers die. Return the time that its lanes were without a worker."""
    chat = Chat(store)
    fallen, heir = (Worker(store, reader_of(store), Recorder(store), lease_seconds=lease) for _ in range(2))
    async with running(heir):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fallen.run)
            await eventually(partial(taken, fallen, store.lanes // 2), "not shared")
            await eventually(partial(taken, heir, store.lanes // 2), "not shared")
            await eventually(partial(_visible, store, fallen), "its connection is not known")
            tasks.cancel_scope.cancel()
        took = await eventually(partial(taken, heir, store.lanes), "not taken over")
        messages = [await chat.say(f"s{number}", "hello") for number in range(8)]
        for message in messages:
            await eventually(partial(all_done, chat, message.session_id or "", 1), "not done")
    return took


async def test_the_lanes_of_a_dead_worker_are_taken_over_long_before_its_leases_end(
    embedded_server: EmbeddedServer,
) -> None:
    async with opened(embedded_server.url) as store:
        assert await dies_and_is_replaced(store, lease=100.0) < 10.0


async def test_a_dead_worker_is_detected_on_a_redis_server(standalone_server: Server) -> None:
    async with opened(standalone_server.url) as store:
        assert await dies_and_is_replaced(store, lease=100.0) < 10.0


async def test_a_dead_worker_is_detected_on_a_cluster(cluster_server: Cluster) -> None:
    async with opened(cluster_server.url) as store:
        assert await dies_and_is_replaced(store, lease=100.0) < 10.0


async def test_without_pubsub_permission_dead_workers_are_replaced_when_their_leases_expire() -> None:
    with Server() as server:
        rights = ["~*", "resetchannels", "&bc:deltas", "+@all", "-pubsub"]
        server.command("ACL", "SETUSER", "crumb", "on", ">password", *rights)
        async with opened(f"redis://crumb:password@{server.host}:{server.port}/0") as store:
            chat = Chat(store)
            fallen, heir = (
                Worker(store, reader_of(store), Recorder(store), lease_seconds=1.0) for _ in range(2)
            )
            async with running(heir):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(fallen.run)
                    await eventually(partial(taken, fallen, 2), "not shared")
                    await eventually(partial(taken, heir, 2), "not shared")
                    tasks.cancel_scope.cancel()
                await eventually(partial(taken, heir, 4), "not taken over")
                await chat.say("s", "hello")
                await eventually(partial(all_done, chat, "s", 1), "not done")
                assert await done(chat, "s") == ["hello"]


async def test_a_connected_worker_is_never_evicted(store: Store) -> None:
    """A frozen or overloaded worker keeps its lanes until its leases end."""
    observer = Liveness(store, KIND, "observer", grace=1)
    silent = Liveness(store, KIND, "silent", grace=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(observer.stay_visible)
        async with anyio.create_task_group() as connection:
            connection.start_soon(silent.stay_visible)
            await eventually(_announced(silent, store, 1), "it is not visible")
            await eventually(_announced(observer, store, 2), "it is not visible")
            for _ in range(8):
                assert await observer.dead_peers() == []
                await anyio.sleep(0.1)
            connection.cancel_scope.cancel()
        assert await observer.dead_peers() == []  # a broken connection can be opened again
        await eventually(partial(_sees_dead, observer, ["silent"]), "the death was not noticed")
        tasks.cancel_scope.cancel()


def _announced(liveness: Liveness, store: Store, count: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        await liveness.dead_peers()
        return int(await store.connection.call(0, b"SCARD", store.keys.visible_workers(KIND))) == count

    return look


async def _sees_dead(liveness: Liveness, names: list[str]) -> bool:
    return await liveness.dead_peers() == names


async def test_an_unregistered_worker_evicts_no_other(store: Store) -> None:
    """After a restart of the server no worker is subscribed for a moment."""
    await store.connection.call(0, b"SADD", store.keys.visible_workers(KIND), "peer")
    observer = Liveness(store, KIND, "observer", grace=1)
    for _ in range(8):
        assert await observer.dead_peers() == []
        await anyio.sleep(0.1)
