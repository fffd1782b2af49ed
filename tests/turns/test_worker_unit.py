"""The parts of a worker on a real server: leases, lanes, failures and draining."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from breadcrumbs.runtime.backend import link
from breadcrumbs.runtime.backend.address import parse_address
from breadcrumbs.runtime.backend.connection import LaneChannels
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.backend.link import ChannelHandler
from breadcrumbs.runtime.backend.standalone import StandaloneConnection
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.errors import StoreError, StoreUnavailable
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.store.fence import Fence, Lease, LeaseLost
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.attempts import Attempts
from breadcrumbs.runtime.workers.errors import TurnFailed
from breadcrumbs.runtime.workers.failures import ErrorDetails, leave_error
from breadcrumbs.runtime.workers.leases import Leases
from breadcrumbs.runtime.workers.retries import Reruns, Slot, TurnLimits
from breadcrumbs.runtime.workers.turn import Turn
from breadcrumbs.runtime.workers.worker import Worker
from tests.support.conversations import ALICE, BOB, ERROR, MESSAGE, Chat, eventually, opened
from tests.support.events import reader_of
from tests.turns.stepping import SteppedConnection, SteppedWorker

DONE = "done.v1"


class Recorder:
    """Handler that writes a `done.v1` for each message, with an id derived from the message."""

    kind = "recorders"

    def __init__(self, store: Store, during: Callable[[Turn, str], Awaitable[None]] | None = None) -> None:
        self.store = store
        self.begun: list[str] = []
        self._during = during

    async def wants(self, event: Event) -> bool:
        return event.schema_name == MESSAGE

    def arrived(self, event: Event, running: Turn | None, waiting: Sequence[Event]) -> bool:
        return False

    async def handle(self, turn: Turn) -> None:
        message = await self.store.get_version(turn.event.owner_id, turn.event.id, turn.event.version)
        text = message.context["message"]
        self.begun.append(text)
        if self._during is not None:
            await self._during(turn, text)
        new = BreadcrumbCreate.parse(
            {
                "schema_name": DONE,
                "title": "",
                "tags": [f"session:{message.session_id}"],
                "context": {"text": text},
            }
        )
        id = derived_id(turn.event.lane, "done", str(message.id))
        with anyio.CancelScope(shield=True):
            written = await self.store.create(
                message.owner_id, new, id=id, options=CreateOptions(fence=turn.fence(acknowledge=True))
            )
            if written.found:
                await turn.acknowledge()

    async def give_up(self, turn: Turn, error: Exception) -> None:
        await leave_error(
            self.store, turn, error, ErrorDetails("recorder", turn.event.id, inherited=("session",))
        )


async def done(chat: Chat, session: str) -> list[str]:
    return [crumb.context["text"] for crumb in await chat.all(session, DONE)]


async def all_done(chat: Chat, session: str, count: int) -> bool:
    return len(await done(chat, session)) >= count


@asynccontextmanager
async def running(*workers: Worker) -> AsyncIterator[anyio.abc.TaskGroup]:
    """Run workers until the end of the block, then drain those that were not stopped."""
    problem = None
    async with anyio.create_task_group() as tasks:
        for worker in workers:
            tasks.start_soon(worker.run)
        try:
            yield tasks
        except Exception as error:
            problem = error
        for worker in workers:
            worker.stop()
    if problem is not None:
        raise problem


async def taken(worker: Worker, count: int) -> bool:
    return len(worker.lanes) == count


# Leases


async def lease_of(leases: Leases, lane: int = 0) -> Lease:
    lease = await leases.take(lane)
    assert lease is not None
    return lease


async def test_a_lane_has_one_holder_and_its_fence_only_grows(store: Store) -> None:
    ann, ben = (Leases(store, "kind", name, seconds=30) for name in ("ann", "ben"))
    first = await lease_of(ann)
    assert await ben.take(0) is None and await ann.take(0) is None
    assert await ann.renew(first)
    assert await ben.take(1) is not None  # another lane
    assert await Leases(store, "other kind", "ben", seconds=30).take(0) is not None
    await ann.acknowledge(first, None, 0, release=True)
    second = await lease_of(ben)
    numbers = [int(lease.value.split()[0]) for lease in (first, second)]
    assert numbers[1] > numbers[0]
    assert not await ann.renew(first) and await ben.renew(second)


async def test_an_expired_lease_cannot_be_renewed(store: Store) -> None:
    ann, ben = (Leases(store, "kind", name, seconds=0.2) for name in ("ann", "ben"))
    first = await lease_of(ann)
    await anyio.sleep(0.25)
    assert not await ann.renew(first)
    assert int((await lease_of(ben)).value.split()[0]) == 2


async def test_a_lost_lease_refuses_commits_and_acknowledgements_and_changes_nothing(store: Store) -> None:
    ann, ben = (Leases(store, "kind", name, seconds=30) for name in ("ann", "ben"))
    id = derived_id(0, "something")
    old = await lease_of(ann)
    await store.connection.call(0, b"DEL", store.keys.lease(0, "kind"))
    new = BreadcrumbCreate.parse({"schema_name": "x.v1", "title": "x"})
    for holder in (None, await lease_of(ben)):  # without and with a new holder
        with pytest.raises(LeaseLost):
            await store.create(ALICE, new, id=id, options=CreateOptions(fence=Fence(old, 5, 5, b"{}")))
        with pytest.raises(LeaseLost):
            await ann.acknowledge(old, 5, 5, dead_letter=b"{}", release=True)
        assert holder is None or await ben.renew(holder)
    progress = await ben.progress(0)
    assert progress.acknowledged_up_to == 0 and not progress.done
    assert await Chat(store).dead_letters("kind") == []
    assert not await store.connection.call(0, b"EXISTS", store.keys.body(0, ALICE, id.bytes))


async def test_a_commit_writes_acknowledges_and_stores_a_dead_letter_atomically(store: Store) -> None:
    leases = Leases(store, "kind", "ann", seconds=30)
    lease = await lease_of(leases)
    await leases.store_attempts(lease, {7: Attempts(failures=1)})
    new = BreadcrumbCreate.parse({"schema_name": "x.v1", "title": "x"})
    id = derived_id(0, "x")
    written = await store.create(
        ALICE, new, id=id, options=CreateOptions(fence=Fence(lease, 7, 3, b'{"why": "because"}'))
    )
    progress = await leases.progress(0)
    assert (
        not written.found
        and progress.acknowledged_up_to == 3
        and progress.done == {7}
        and not progress.attempts
    )
    assert await Chat(store).dead_letters("kind") == [{"why": "because"}]
    # An existing id is not written again and acknowledges nothing, because another worker may have written it.
    again = await store.create(ALICE, new, id=id, options=CreateOptions(fence=Fence(lease, 9, 9)))
    assert again.found and (await leases.progress(0)).done == {7}


async def test_the_acknowledged_position_never_decreases(store: Store) -> None:
    """Positions are computed before they are sent, so an older one can arrive last."""
    leases = Leases(store, "kind", "ann", seconds=30)
    lease = await lease_of(leases)
    new = BreadcrumbCreate.parse({"schema_name": "x.v1", "title": "x"})
    await store.create(
        ALICE, new, id=derived_id(0, "late"), options=CreateOptions(fence=Fence(lease, 20, 20))
    )
    await store.create(ALICE, new, id=derived_id(0, "early"), options=CreateOptions(fence=Fence(lease, 8, 5)))
    await leases.acknowledge(lease, 9, 6)
    progress = await leases.progress(0)
    assert progress.acknowledged_up_to == 20 and not progress.done


async def test_live_workers_are_determined_by_the_servers_clock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [Leases(store, "kind", name, seconds=0.3) for name in ("c", "a", "b")]
    for worker in workers:
        assert worker.worker in await worker.heartbeat()
    monkeypatch.setattr(store.clock, "offset", 10**12)  # the clock of this process is far off
    assert await workers[0].heartbeat() == ["a", "b", "c"]
    await workers[1].sign_off()
    assert await workers[0].list_workers() == ["b", "c"]
    await anyio.sleep(0.35)
    assert await workers[0].list_workers() == []


# Lanes


async def test_taking_and_renewing_leases_needs_the_same_round_trips_with_256_lanes(
    embedded_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def round_trips(lanes: int) -> tuple[int, int]:
        async with opened(embedded_server.url, lanes=lanes) as store:
            worker = SteppedWorker(store, Recorder(store), "ann")
            call_all, run = store.connection.call_all, store.connection.run
            sent = 0

            async def counted_call_all(commands: Sequence[Any]) -> list[Any]:
                nonlocal sent
                sent += bool(commands)
                return await call_all(commands)

            async def counted_run(*args: Any) -> Any:
                nonlocal sent
                sent += 1
                return await run(*args)

            monkeypatch.setattr(store.connection, "call_all", counted_call_all)
            monkeypatch.setattr(store.connection, "run", counted_run)
            await worker._lanes.take(range(lanes))
            assert worker.lanes == list(range(lanes))
            taking, sent = sent, 0
            await worker._lanes.renew_all()
            assert len(worker.lanes) == lanes
            return taking, sent

    await round_trips(1)  # loads the scripts
    assert await round_trips(256) == await round_trips(2) == (2, 1)


async def test_one_lost_lease_of_many_ends_only_its_lane(embedded_server: EmbeddedServer) -> None:
    async with opened(embedded_server.url, lanes=256) as store:
        worker = SteppedWorker(store, Recorder(store), "ann")
        await worker._lanes.take(range(200))
        await store.connection.call(7, b"DEL", store.keys.lease(7, Recorder.kind))
        assert await Leases(store, Recorder.kind, "ben", seconds=60).take(7) is not None
        other = await Leases(store, Recorder.kind, "ben", seconds=60).take_all([3, 250])
        assert [lease.lane for lease in other] == [250]
        await worker._lanes.renew_all()
        assert worker.lanes == [lane for lane in range(200) if lane != 7]


async def test_a_worker_takes_256_lanes_of_a_dead_one_and_handles_their_events(
    embedded_server: EmbeddedServer,
) -> None:
    async with opened(embedded_server.url, lanes=256) as store:
        chat = Chat(store)
        dead = Leases(store, Recorder.kind, "dead", seconds=1.0)
        assert len(await dead.take_all(range(256))) == 256
        for number in range(20):
            await chat.say(f"s{number}", "hello")
        worker = Worker(store, reader_of(store), Recorder(store), lease_seconds=2)
        async with running(worker):
            await eventually(lambda: taken(worker, 256), "lanes are missing")
            for number in range(20):
                await eventually(partial(all_done, chat, f"s{number}", 1), "no answer")


async def test_three_workers_share_sixteen_lanes_evenly_and_a_new_one_gets_its_share(
    embedded_server: EmbeddedServer,
) -> None:
    async with opened(embedded_server.url, lanes=16) as store:
        chat = Chat(store)
        recorders = [Recorder(store) for _ in range(4)]
        workers = [Worker(store, reader_of(store), recorder, lease_seconds=1.5) for recorder in recorders]

        async def spread(count: int) -> bool:
            sizes = sorted(len(worker.lanes) for worker in workers[:count])
            return sum(sizes) == 16 and sizes[-1] - sizes[0] <= 1

        async def talk() -> None:
            for number in range(40):
                for session in range(10):
                    await chat.say(f"s{session}", f"{session}/{number}")
                await anyio.sleep(0.05)

        async with running(*workers[:3]) as tasks:
            took = await eventually(lambda: spread(3), "the lanes are not spread evenly")
            assert sorted(len(worker.lanes) for worker in workers[:3]) == [5, 5, 6]
            tasks.start_soon(talk)
            await anyio.sleep(0.5)
            tasks.start_soon(workers[3].run)
            joined = await eventually(lambda: spread(4), "the new worker did not get its share")
            assert sorted(len(worker.lanes) for worker in workers) == [4, 4, 4, 4]
            workers[0].stop()  # one worker leaves
            await eventually(lambda: taken(workers[0], 0), "the stopped worker has kept lanes")
            for session in range(10):
                await eventually(lambda s=session: all_done(chat, f"s{s}", 40), "not all was done")  # type: ignore[misc]
                assert await done(chat, f"s{session}") == [f"{session}/{number}" for number in range(40)]
            for worker in workers:
                worker.stop()
        begun = Counter(text for recorder in recorders for text in recorder.begun)
        assert set(begun.values()) == {1}, "an event was begun twice without a death"
        print(f"\nlanes were even after {took:.2f} s, again after {joined:.2f} s")


async def test_the_lanes_of_a_worker_that_died_are_taken_over_within_its_lease_and_a_second(
    embedded_server: EmbeddedServer,
) -> None:
    """The other worker already has its full share and must first notice that it is alone."""
    lease = 2.0
    async with opened(embedded_server.url, lanes=4) as store:
        chat = Chat(store)
        fallen, heir = (
            Worker(store, reader_of(store), Recorder(store), lease_seconds=lease) for _ in range(2)
        )
        async with running(heir):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fallen.run)
                await eventually(lambda: taken(fallen, 2), "not shared")
                await eventually(lambda: taken(heir, 2), "not shared")
                tasks.cancel_scope.cancel()
            began = time.monotonic()
            messages = [await chat.say(f"s{number}", "hello") for number in range(12)]
            for message in messages:
                await eventually(lambda m=message: all_done(chat, m.session_id or "", 1), "not taken over")  # type: ignore[misc]
            took = time.monotonic() - began
        print(f"\ntaken over after {took:.2f} s with leases of {lease} s")
        assert took <= lease + 1.0


async def test_events_that_finished_out_of_order_are_not_repeated_by_the_next_worker(
    embedded_server: EmbeddedServer,
) -> None:
    async with opened(embedded_server.url, lanes=1) as store:
        chat = Chat(store)

        async def hang(turn: Turn, text: str) -> None:
            if text == "slow":
                await anyio.sleep(60)

        first, second = Recorder(store, hang), Recorder(store)
        dying = Worker(store, reader_of(store), first, lease_seconds=0.5)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dying.run)
            slow = await chat.say("a", "slow")
            for number in range(3):
                await chat.say("b", f"quick {number}")
            await eventually(lambda: all_done(chat, "b", 3), "the quick ones did not finish")
            leases = Leases(store, Recorder.kind, "looking", seconds=1)
            progress = await leases.progress(0)
            assert progress.acknowledged_up_to < slow.created and len(progress.done) == 3
            tasks.cancel_scope.cancel()
        async with running(Worker(store, reader_of(store), second, lease_seconds=0.5)):
            await eventually(lambda: all_done(chat, "a", 1), "no worker took over")
        assert second.begun == ["slow"]
        progress = await leases.progress(0)
        assert progress.acknowledged_up_to > slow.created and not progress.done and not progress.attempts


async def test_returning_a_lane_loses_no_waiting_events(
    embedded_server: EmbeddedServer,
) -> None:
    """A waiting event lies between two running ones. Their acknowledgements must not move the position past it."""
    async with opened(embedded_server.url, lanes=1) as store:
        store.connection = SteppedConnection(store.connection)
        chat = Chat(store)
        recorder = Recorder(store)
        leaving = SteppedWorker(store, recorder, "leaving")
        await leaving.take_free_lanes(1)
        await chat.say("a", "a1")
        await chat.say("a", "a2")
        await chat.say("b", "b1")
        await leaving.read()
        at_work = [leaving.begin(0), leaving.begin(0)]
        for actor in at_work:
            await actor.settle()
        leaving.give_back(0)
        for actor in (*at_work, leaving.actors[-1]):
            await actor.finish()
        assert leaving.lanes == [] and sorted(recorder.begun) == ["a1", "b1"]
        next_one = SteppedWorker(store, recorder, "next")
        await next_one.take_free_lanes(1)
        await next_one.read()
        while next_one.ready:
            await next_one.begin(0).finish()
        assert recorder.begun == ["a1", "b1", "a2"]
        assert await done(chat, "a") == ["a1", "a2"] and await done(chat, "b") == ["b1"]


async def test_a_slow_turn_delays_the_return_of_a_lane_by_one_lease_at_most(
    embedded_server: EmbeddedServer,
) -> None:
    release = anyio.Event()

    async def hang(turn: Turn, text: str) -> None:
        if text == "slow":
            await release.wait()

    async with opened(embedded_server.url, lanes=2) as store:
        chat = Chat(store)
        recorders = [Recorder(store, hang), Recorder(store, hang)]
        first, second = (
            Worker(store, reader_of(store), recorder, lease_seconds=0.6) for recorder in recorders
        )
        async with running(first) as tasks:
            await eventually(lambda: taken(first, 2), "no lanes")
            slow = [await chat.say(f"slow {number}", "slow") for number in range(6)]  # in both lanes
            await eventually(lambda: begun(recorders[0], 6), "not begun")
            tasks.start_soon(second.run)
            await eventually(lambda: taken(second, 1), "the lane was not given back", limit=5)
            await eventually(lambda: begun(recorders[1], 1), "the released event was not begun again")
            release.set()
            for message in slow:
                await eventually(lambda m=message: all_done(chat, m.session_id or "", 1), "lost")  # type: ignore[misc]
            second.stop()
        for message in slow:
            assert await done(chat, message.session_id or "") == ["slow"]
            assert await chat.errors(message.session_id) == []


async def begun(recorder: Recorder, count: int) -> bool:
    return len(recorder.begun) >= count


async def test_P2_a_worker_that_regains_a_lane_continues_with_unacknowledged_events(
    embedded_server: EmbeddedServer,
) -> None:
    """Events of a read that began before the loss are later ones. They must not move the new start position."""
    first_try = True

    async def hang(turn: Turn, text: str) -> None:
        nonlocal first_try
        if text == "first" and first_try:
            first_try = False
            await anyio.sleep_forever()  # until the lane is lost

    async with opened(embedded_server.url, lanes=1) as store:
        chat, recorder = Chat(store), Recorder(store, hang)
        worker = Worker(store, reader_of(store), recorder, lease_seconds=0.6)
        async with running(worker):
            await eventually(lambda: taken(worker, 1), "no lane")
            await chat.say("a", "first")
            await eventually(lambda: begun(recorder, 1), "not begun")
            held = worker._lanes.by_number[0]
            # As after a freeze that was longer than its lease.
            await store.connection.call(0, b"DEL", store.keys.lease(0, recorder.kind))

            async def taken_again() -> bool:
                return worker._lanes.by_number.get(0, held) is not held

            await eventually(taken_again, "the lane was not taken again")
            await chat.say("b", "second")  # arrives in a read that began before the loss
            await eventually(lambda: all_done(chat, "b", 1), "the second was lost")
            await eventually(lambda: all_done(chat, "a", 1), "the first was lost")
        assert recorder.begun.count("second") == 1 and await chat.dead_letters(recorder.kind) == []


async def test_a_turn_that_waits_for_a_retry_frees_its_slot(store: Store) -> None:
    again = anyio.Event()

    async def fail(turn: Turn, text: str) -> None:
        if text == "patience" and not again.is_set():
            raise TurnFailed("too many requests", retry=True, retry_after=60)

    chat, handler = Chat(store, ALICE), Recorder(store, fail)
    worker = Worker(store, reader_of(store), handler, limits=TurnLimits(concurrency=1))
    async with running(worker):
        for number in range(3):
            await chat.say(f"waits {number}", "patience")
        await eventually(lambda: _async(len(handler.begun) == 3), "a waiting turn has stopped the others")
        await chat.say("s", "now")
        await eventually(lambda: all_done(chat, "s", 1), "waiting turns have stopped another one")
        # Each takes a slot for its next attempt and frees it afterwards.
        again.set()
        for lane in worker._lanes.by_number.values():
            for turn in lane.running.values():
                turn.next_attempt.set()
        for number in range(3):
            await eventually(partial(all_done, chat, f"waits {number}", 1), "it was not tried again")
        await chat.say("s", "and then")
        await eventually(lambda: all_done(chat, "s", 2), "a slot was lost")


async def _async(value: bool) -> bool:
    return value


class FarAway(SteppedConnection):
    """Connection with a delay of 0.1 s per request."""

    async def _ask(self, send: Callable[[], Awaitable[Any]]) -> Any:
        await anyio.sleep(0.1)
        return await send()


async def test_a_worker_keeps_all_its_lanes_on_a_slow_connection(
    embedded_server: EmbeddedServer,
) -> None:
    async with opened(embedded_server.url, lanes=64) as store:
        slow = Store(FarAway(store.connection), store.keys, secret=store.secret)
        worker = Worker(slow, reader_of(slow), Recorder(slow), lease_seconds=3)
        async with running(worker):
            await eventually(lambda: taken(worker, 64), "it does not get its lanes")
            await anyio.sleep(4)
            leases = await store.connection.call_all(
                [(lane, (b"GET", store.keys.lease(lane, Recorder.kind))) for lane in range(64)]
            )
            assert all(lease and lease.startswith(b"1 ") for lease in leases), "lanes were lost"
            await Chat(store).say("a", "fine")
            await eventually(lambda: all_done(Chat(store), "a", 1), "not done")


async def test_sessions_of_two_tenants_with_the_same_name_are_two_sessions(
    embedded_server: EmbeddedServer,
) -> None:
    stuck = anyio.Event()

    async def hang(turn: Turn, text: str) -> None:
        if text == "hers":
            await stuck.wait()

    async with opened(embedded_server.url, lanes=1) as store:
        alice, bob = Chat(store, ALICE), Chat(store, BOB)
        async with running(Worker(store, reader_of(store), Recorder(store, hang), lease_seconds=2)):
            await alice.say("1", "hers")
            await bob.say("1", "his")
            await eventually(lambda: all_done(bob, "1", 1), "his waited for hers")
            assert await done(alice, "1") == []
            stuck.set()
            await eventually(lambda: all_done(alice, "1", 1), "hers was lost")


# Failures


class Death(BaseException):
    """Ends a worker at once, like a segmentation fault."""


class Mortal(SteppedConnection):
    """Connection that sends no requests of a dead worker's remaining tasks."""

    dead = False

    async def _ask(self, send: Callable[[], Awaitable[Any]]) -> Any:
        if self.dead:
            await anyio.sleep_forever()
        return await send()


async def test_an_event_that_kills_its_worker_fails_without_affecting_others(
    embedded_server: EmbeddedServer,
) -> None:
    healed = anyio.Event()

    async def die(turn: Turn, text: str) -> None:
        if text != "poison":
            await healed.wait()
            return
        await anyio.sleep(0.05)  # the other turns are running
        mortal.dead = True
        raise Death

    async with opened(embedded_server.url, lanes=1) as store:
        chat = Chat(store)
        poison = await chat.say("bad", "poison")
        for number in range(5):
            await chat.say(f"good {number}", "fine")
        deaths = 0

        async def given_up() -> bool:
            return bool(await chat.errors("bad"))

        async def neighbours_done() -> bool:
            return all([await done(chat, f"good {number}") for number in range(5)])

        while not await given_up():
            assert deaths < 12, "it is never given up"
            mortal = Mortal(store.connection)
            theirs = Store(mortal, store.keys, secret=store.secret)
            worker = Worker(
                theirs,
                reader_of(theirs),
                Recorder(theirs, die),
                lease_seconds=0.3,
                limits=TurnLimits(attempts=3),
            )
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(worker.run)
                    await eventually(given_up, "it neither dies nor gives up")
                    healed.set()
                    await eventually(neighbours_done, "another event was lost")
                    tasks.cancel_scope.cancel()
            except BaseExceptionGroup as group:
                assert group.subgroup(Death)
                deaths += 1
        assert deaths == 6  # three with others, which are not attempts, and three alone
        (error,) = await chat.errors("bad")
        assert error.context["error"] == "failed after 3 attempts that did not complete"
        (letter,) = await chat.dead_letters(Recorder.kind)
        assert letter["breadcrumb_id"] == str(poison.id) and letter["session_id"] == "bad"
        assert [await chat.errors(f"good {number}") for number in range(5)] == [[]] * 5


async def test_error_dead_letter_and_acknowledgement_are_one_write(embedded_server: EmbeddedServer) -> None:
    """A kill after the write leaves all three. A kill before it leaves none, and the turn runs again."""

    async def fail(turn: Turn, text: str) -> None:
        raise TurnFailed("no")

    async with opened(embedded_server.url, lanes=1) as store:
        store.connection = SteppedConnection(store.connection)
        chat = Chat(store)
        await chat.say("s", "hello")
        for after_sending in (False, True):
            recorder = Recorder(store, fail)
            worker = SteppedWorker(store, recorder, f"worker {after_sending}")
            await worker.take_free_lanes(1)
            await worker.read()
            actor = worker.begin(0)
            await actor.settle()
            while not recorder.begun:
                await actor.step()
            await worker.crash(after_sending=after_sending)  # during the write of the error
            assert len(await chat.errors("s")) == len(await chat.dead_letters(Recorder.kind)) == after_sending
        third = SteppedWorker(store, Recorder(store, fail), "third")
        await third.take_free_lanes(1)
        await third.read()
        assert third.ready == []


async def test_a_handler_whose_error_report_fails_leaves_a_dead_letter(store: Store) -> None:
    class Speechless(Recorder):
        async def handle(self, turn: Turn) -> None:
            raise TurnFailed("no")

        async def give_up(self, turn: Turn, error: Exception) -> None:
            raise RuntimeError("words fail me")

    chat = Chat(store)
    async with running(Worker(store, reader_of(store), Speechless(store), lease_seconds=2)):
        await chat.say("s", "hello")

        async def buried() -> bool:
            return bool(await chat.dead_letters(Recorder.kind))

        await eventually(buried, "no dead letter")
    (letter,) = await chat.dead_letters(Recorder.kind)
    assert letter["error"] == "no" and letter["attempts"] == 1


async def test_a_server_error_that_is_not_an_outage_is_not_retried_forever(store: Store) -> None:
    async def wrong(turn: Turn, text: str) -> None:
        raise StoreError("WRONGTYPE Operation against a key holding the wrong kind of value")

    chat = Chat(store)
    worker = Worker(
        store,
        reader_of(store),
        Recorder(store, wrong),
        lease_seconds=2,
        limits=TurnLimits(attempts=3, backoff=lambda attempt: 0.01),
    )
    async with running(worker):
        error = await chat.error_about(await chat.say("s", "hello"))
        assert "WRONGTYPE" in error.context["error"] and error.context["attempts"] == 3


async def test_a_worker_continues_when_its_filter_fails(store: Store) -> None:
    class Confused(Recorder):
        async def wants(self, event: Event) -> bool:
            if "confusing:yes" in event.tags:
                raise RuntimeError("what is this?")
            return await super().wants(event)

    chat = Chat(store)
    async with running(Worker(store, reader_of(store), Confused(store), lease_seconds=2)):
        await chat.say("s", "odd", tags=["confusing:yes"])
        await chat.say("s", "plain")
        await eventually(lambda: all_done(chat, "s", 2), "it has stopped")
    assert await done(chat, "s") == ["odd", "plain"]


async def test_an_outage_during_filtering_loses_no_events_of_the_batch(
    store: Store,
) -> None:
    class OutOfReach(Recorder):
        looks = 0

        async def wants(self, event: Event) -> bool:
            wanted = await super().wants(event)
            self.looks += wanted
            if wanted and self.looks in (2, 5):
                raise StoreUnavailable("away")
            return wanted

    chat = Chat(store)
    for number in range(4):  # before the worker starts, so that all are read together
        await chat.say("s", str(number))
    async with running(Worker(store, reader_of(store), OutOfReach(store), lease_seconds=2)):
        await eventually(lambda: all_done(chat, "s", 4), "some are lost")
        await chat.say("s", "4")
        await eventually(lambda: all_done(chat, "s", 5), "it has stopped")
    assert await done(chat, "s") == ["0", "1", "2", "3", "4"]


async def test_a_reader_reconnects_when_its_server_is_silent(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that vanishes does not close its connections."""
    monkeypatch.setattr(link, "SILENCE_SECONDS", 0.3)
    silent = socket.create_server(("127.0.0.1", 0))  # the kernel accepts connections, and no process replies
    host, port = silent.getsockname()
    elsewhere = StandaloneConnection(parse_address(f"redis://{host}:{port}"), lanes=1)
    open_channels = store.connection.open_channels
    opened_links = 0

    async def first_one_is_silent(lane: int, on_message: ChannelHandler) -> LaneChannels:
        nonlocal opened_links
        opened_links += 1
        return await (open_channels if opened_links > 1 else elsewhere.open_channels)(lane, on_message)

    monkeypatch.setattr(store.connection, "open_channels", first_one_is_silent)
    chat = Chat(store)
    async with running(Worker(store, reader_of(store), Recorder(store), lease_seconds=2)):
        await chat.say("s", "hello")
        await eventually(lambda: all_done(chat, "s", 1), "it waits for ever")

        async def opened_again() -> bool:
            return opened_links == 2

        await eventually(opened_again, "it listens to a silent server")
    silent.close()


async def test_an_outage_while_lanes_are_returned_does_not_end_the_worker(
    embedded_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(embedded_server.url, lanes=4) as store:
        chat = Chat(store)
        worker = Worker(store, reader_of(store), Recorder(store), lease_seconds=0.5)
        async with running(worker):
            await eventually(lambda: taken(worker, 4), "no lanes")
            acknowledge = worker.leases.acknowledge

            async def away(*args: Any, **options: Any) -> None:
                raise StoreUnavailable("away")

            monkeypatch.setattr(worker.leases, "acknowledge", away)
            other = Leases(store, Recorder.kind, "another", seconds=0.8)
            await other.heartbeat()  # another worker joins, so half of the lanes must be released
            await eventually(lambda: taken(worker, 2), "it did not give lanes back")
            monkeypatch.setattr(worker.leases, "acknowledge", acknowledge)
            await eventually(lambda: taken(worker, 4), "it did not take them again")
            await chat.say("s", "hello")
            await eventually(lambda: all_done(chat, "s", 1), "it does not work any more")


# Draining


async def test_P23_a_stopping_worker_finishes_running_turns_and_hands_over_the_rest(
    embedded_server: EmbeddedServer,
) -> None:
    go_on = anyio.Event()

    async def wait(turn: Turn, text: str) -> None:
        if text == "first":
            await go_on.wait()

    async with opened(embedded_server.url, lanes=1) as store:
        chat = Chat(store)
        stopping, following = Recorder(store, wait), Recorder(store)
        worker = Worker(store, reader_of(store), stopping, lease_seconds=5)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await chat.say("s", "first")
            await chat.say("s", "second")
            await eventually(lambda: begun(stopping, 1), "not begun")
            worker.stop()
            await anyio.sleep(0.2)
            await chat.say("s", "third")  # new events are not handled any more
            go_on.set()
            began = time.monotonic()
        assert time.monotonic() - began < 1.0
        assert await done(chat, "s") == ["first"] and worker.lanes == []
        assert await Leases(store, Recorder.kind, "x", seconds=1).free_lanes() == [0]
        async with running(Worker(store, reader_of(store), following, lease_seconds=5)):
            await eventually(lambda: all_done(chat, "s", 3), "a waiting event was lost")
        assert following.begun == ["second", "third"]
        assert await done(chat, "s") == ["first", "second", "third"]


async def test_P23_unfinished_turns_are_handed_over_after_the_timeout(
    embedded_server: EmbeddedServer,
) -> None:
    async def hang(turn: Turn, text: str) -> None:
        await anyio.sleep(60)

    async with opened(embedded_server.url, lanes=1) as store:
        chat = Chat(store)
        slow = Recorder(store, hang)
        worker = Worker(store, reader_of(store), slow, lease_seconds=0.5)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await chat.say("s", "hello")
            await eventually(lambda: begun(slow, 1), "not begun")
            worker.stop()
            began = time.monotonic()
        assert 0.4 < time.monotonic() - began < 2.0
        async with running(Worker(store, reader_of(store), Recorder(store), lease_seconds=0.5)):
            took = await eventually(lambda: all_done(chat, "s", 1), "it was lost")
        assert took < 1.0  # the lane was released, so no lease had to expire
        assert await chat.errors("s") == [] and await chat.all("s", ERROR) == []


async def test_a_worker_stops_even_if_its_store_is_unavailable(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(store, reader_of(store), Recorder(store), lease_seconds=0.5)

    async def gone(*args: Any, **options: Any) -> Any:
        raise StoreUnavailable("gone")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await eventually(lambda: taken(worker, store.lanes), "no lanes")
        with monkeypatch.context() as patch:
            for name in ("acknowledge", "renew", "sign_off", "heartbeat", "list_workers"):
                patch.setattr(worker.leases, name, gone)
            worker.stop()
            await eventually(lambda: taken(worker, 0), "it does not stop", limit=5)


async def test_a_freed_slot_is_not_freed_twice() -> None:
    """A task cancelled while it waits for its next attempt holds no slot. A second release would exceed the limit."""
    permits = anyio.Semaphore(1)
    async with Slot(permits) as slot:
        slot.release()
    async with Slot(permits) as slot:
        assert permits.value == 0
        slot.release()
        await slot.acquire()
    await permits.acquire()
    assert permits.value == 0


async def test_events_that_run_again_start_a_few_at_a_time_and_suspects_between_them_alone() -> None:
    reruns = Reruns(20)
    started: list[str] = []

    async def start(name: str, places: Any) -> None:
        await places.acquire()
        started.append(name)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start, "suspect 1", reruns.alone)
        await settled()
        assert started == ["suspect 1"]  # no other turn is waiting
        tasks.start_soon(start, "suspect 2", reruns.alone)
        for number in range(20):
            tasks.start_soon(start, f"other {number}", reruns.together)
        await settled()
        assert len(started) == 1  # it runs alone
        reruns.alone.release()
        await settled()
        assert len(started) == 1 + 16  # a full window of other turns
        for _ in range(15):
            reruns.together.release()
            await settled()
        assert len(started) == 1 + 16  # the next suspect waits until they have ended
        reruns.together.release()
        await settled()
        assert started[-1] == "suspect 2" and len(started) == 1 + 16 + 1
        reruns.alone.release()
        await settled()
        assert len(started) == 1 + 16 + 1 + 4


async def test_a_cancelled_waiting_rerun_does_not_block_others() -> None:
    reruns = Reruns(1)
    await reruns.alone.acquire()
    async with anyio.create_task_group() as waiting:
        waiting.start_soon(reruns.together.acquire)
        waiting.start_soon(reruns.alone.acquire)
        await settled()
        waiting.cancel_scope.cancel()
        reruns.alone.release()  # at the same time
    with anyio.fail_after(1):
        await reruns.together.acquire()
        reruns.together.release()
        await reruns.alone.acquire()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
