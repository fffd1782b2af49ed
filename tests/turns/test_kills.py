"""Real processes that are killed, frozen and restarted under load.

No message is lost, answered twice, answered in another session or answered out of order.

There are three runners and two builders with short leases. Some kill themselves at a named point: after a read, in
the model, before and after a commit, before and after an acknowledgement. Others are killed from outside at random.
CRUMB_FULL_KILLS=1 selects 200 sessions, 2,000 messages and 200 kills. Durations under load are printed but not
checked, because the machine can be busy.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from uuid import UUID

import anyio
import anyio.to_thread
import pytest

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.store import Store
from tests.support.conversations import ALICE, CONTEXT, RESPONSE, Chat, eventually
from tests.support.fleet import LEASE, LEASED, PATIENCE, Fleet, fleet, shares
from tests.support.killable_worker import POINTS, Kind, Nursery, Running, Trap

FULL = os.environ.get("CRUMB_FULL_KILLS") == "1"
SESSIONS, MESSAGES, KILLS = (200, 2_000, 200) if FULL else (50, 300, 25)
SECONDS_PER_KILL = 0.4
LONG_LEASE = 100.0
KINDS: tuple[Kind, ...] = ("run-agents", "run-agents", "run-agents", "build-contexts", "build-contexts")
OUTSIDE = "from outside"


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    try:
        yield nursery
    finally:
        nursery.close()


@pytest.mark.timeout(900 if FULL else 300)
async def test_P2_P13_killed_workers_lose_duplicate_and_mix_up_nothing(
    embedded_server: EmbeddedServer, nursery: Nursery, tmp_path: Path
) -> None:
    chance = random.Random(20)
    points: Counter[str] = Counter()
    # Alternate between the named points and kills from outside.
    ends = {
        kind: cycle([end for point in points_of for end in (point, OUTSIDE)])
        for kind, points_of in POINTS.items()
    }
    stopped = False
    async with fleet(embedded_server.url, nursery, tmp_path) as running:

        async def slot(kind: Kind) -> None:
            """Keep one worker of this kind running and replace it after each death, until there were enough."""
            while not stopped:
                point = next(ends[kind])
                if len(running.deaths) + len(KINDS) > KILLS:
                    point = "lives"
                life = chance.uniform(0.2, 2.0) * SECONDS_PER_KILL * len(KINDS)
                worker = await running.start(kind, Trap(point, life))
                until = time.monotonic() + life
                while not worker.ended.is_set():
                    if point == OUTSIDE and time.monotonic() > until:
                        running.nursery.send(worker, signal.SIGKILL)
                    await anyio.sleep(0.01)
                    if stopped:
                        return
                assert worker.code == -signal.SIGKILL, worker.code
                points[point] += 1
                running.deaths.append(running.store.now() - int((time.time() - worker.ended_at) * 1e6))

        async with anyio.create_task_group() as tasks:
            for kind in KINDS:
                tasks.start_soon(slot, kind)
            await running.have_lanes()
            began = time.monotonic()
            await running.talk(MESSAGES, SESSIONS, KILLS * SECONDS_PER_KILL, chance)
            while len(running.deaths) < KILLS:
                # Workers reach the points only while they have work.
                await running.say(f"s{chance.randrange(SESSIONS)}")
                await anyio.sleep(0.05)
            await running.all_answered()
            took = time.monotonic() - began
            await running.check()
            stopped = True
        recovery, waits = await running.recoveries(), await running.waits()
        print(
            f"\n{len(running.deaths)} kills ({dict(points)}), {len(waits)} messages in {len(running.said)} "
            f"sessions, {took:.1f} s: 0 lost, 0 doubled, 0 bled\n"
            f"after a kill, all that waited was answered within {shares(recovery)}\n"
            f"a message waited {shares(waits)}"
        )
        assert len(running.deaths) == KILLS
        assert set(points) == {OUTSIDE, *POINTS["run-agents"]}


@pytest.mark.parametrize("kind", ["run-agents", "build-contexts"])
async def test_P13_a_worker_frozen_before_its_commit_is_refused_when_it_wakes_up_after_its_lease(
    embedded_server: EmbeddedServer, nursery: Nursery, tmp_path: Path, kind: Kind
) -> None:
    other: Kind = "build-contexts" if kind == "run-agents" else "run-agents"
    async with fleet(embedded_server.url, nursery, tmp_path) as running:
        await running.start(other)
        frozen = await running.start(kind, Trap("before commit", signal=signal.SIGSTOP))
        await running.have_lanes()
        before = await holders(running, kind)
        await running.say("s1")
        await eventually(exists(tmp_path / f"frozen-{frozen.pid}"), "it was not frozen", PATIENCE)
        await anyio.sleep(1.5 * LEASE)
        assert await running.store.recent(ALICE, "s1", RESPONSE) == []
        await running.start(kind)  # takes over the lanes and the begun message
        await running.all_answered()
        after = await holders(running, kind)
        assert {name for _, name in before}.isdisjoint(name for _, name in after)
        assert all(
            new > old for (old, _), (new, _) in zip(before, after, strict=True)
        )  # the fence has increased
        await running.settled()
        written = await everything(running.store)
        running.nursery.send(frozen, signal.SIGCONT)
        await eventually(exists(tmp_path / f"refused-{frozen.pid}"), "it was not refused", PATIENCE)
        await anyio.sleep(LEASE)
        assert await everything(running.store) == written
        await running.say("s1")  # the resumed worker works normally
        await running.check()
        assert not frozen.ended.is_set()


async def holders(running: Fleet, kind: Kind) -> list[tuple[int, bytes]]:
    """Return the fence and the holder of every lane."""
    held = await running.store.connection.call_all(
        [
            (lane, (b"GET", running.store.keys.lease(lane, LEASED[kind])))
            for lane in range(running.store.lanes)
        ]
    )
    return [(int(value.split()[0]), value.split()[2]) for value in held]


def exists(path: Path) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return await anyio.Path(path).exists()

    return look


async def everything(store: Store) -> list[tuple[UUID, int]]:
    return [(crumb.id, crumb.version) async for crumb in store.walk(ALICE, Query())]


async def test_a_server_killed_and_restarted_under_load_loses_nothing(
    nursery: Nursery, tmp_path: Path
) -> None:
    chance = random.Random(21)
    crashes, messages = (10, 600) if FULL else (2, 160)
    # Every acknowledged write is on the disk. With `everysec` a write can be acknowledged before its sync.
    with EmbeddedServer(tmp_path / "data", appendfsync="always") as server:
        async with fleet(server.url, nursery, tmp_path) as running:
            for kind in KINDS:
                await running.start(kind)
            await running.have_lanes()

            async def crash() -> None:
                for _ in range(crashes):
                    await anyio.sleep(1.5)
                    process = server.process
                    assert process is not None
                    process.kill()
                    await anyio.to_thread.run_sync(process.wait)
                    await anyio.sleep(0.3)
                    await anyio.to_thread.run_sync(server.start)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(crash)
                await running.talk(messages, 40, crashes * 2.0, chance)
            await running.check()
            assert len(running.nursery.living) == len(KINDS)


async def test_P23_a_rolling_restart_of_every_process_under_load_loses_and_repeats_nothing(
    embedded_server: EmbeddedServer, nursery: Nursery, tmp_path: Path
) -> None:
    """Each worker gets SIGTERM, drains and is replaced. The leases outlast the test, so lanes must be released."""
    chance = random.Random(22)
    drained: list[float] = []
    rolling = True
    async with fleet(embedded_server.url, nursery, tmp_path, lease=LONG_LEASE) as running:
        workers = [await running.start(kind) for kind in KINDS]
        await running.have_lanes()

        async def roll() -> None:
            nonlocal rolling
            for _ in range(3 if FULL else 1):
                for place, worker in enumerate(workers):
                    await anyio.sleep(0.2)
                    drained.append(await running.end(worker))
                    workers[place] = await running.start(KINDS[place])
            rolling = False

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(roll)
            while rolling:
                await running.talk(10, 40, 0.2, chance)
        await running.all_answered()
        drained += [await running.end(worker) for worker in workers]
        # Later workers find nothing left to do.
        running.post = replace(running.post, lease_seconds=LEASE)
        for kind in LEASED:
            await running.start(kind)
        await running.check()
        waits = await running.waits()
        print(
            f"\n{len(drained)} drained in at most {max(drained):.2f} s; "
            f"{len(waits)} messages: one waited {shares(waits)}"
        )
        assert max(*drained, *waits) < LONG_LEASE / 2


# Healthy messages are answered although workers die


async def in_flight(running: Fleet, sessions: int) -> None:
    """Wait until each session has a context. The runner begins its turn a moment later."""

    async def look() -> bool:
        found = [await running.store.recent(ALICE, f"s{number}", CONTEXT, 1) for number in range(sessions)]
        return all(found)

    await eventually(look, "no contexts were built", PATIENCE)


async def kill_runner(running: Fleet, worker: Running) -> Running:
    """Kill a runner and start the next one."""
    running.nursery.send(worker, signal.SIGKILL)
    assert await anyio.to_thread.run_sync(worker.ended.wait, PATIENCE)
    return await running.start("run-agents")


@pytest.mark.timeout(300)
async def test_three_kills_and_two_freezes_of_runners_leave_twenty_of_twenty_messages_answered(
    embedded_server: EmbeddedServer, nursery: Nursery, tmp_path: Path
) -> None:
    lease = 1.5
    async with fleet(embedded_server.url, nursery, tmp_path, lease=lease) as running:
        running.post = replace(running.post, think_seconds=1.5)
        await running.start("build-contexts")
        for number in range(20):
            await running.say(f"s{number}")
        await in_flight(running, 20)
        worker = await running.start("run-agents")
        frozen: list[Running] = []
        for hit in ("kill", "kill", "freeze", "kill", "freeze"):
            await all_lanes_held_by(running, worker)
            await anyio.sleep(0.7)  # the model works on all turns, or on one at a time
            if hit == "kill":
                worker = await kill_runner(running, worker)
            else:
                running.nursery.send(worker, signal.SIGSTOP)
                frozen.append(worker)
                worker = await running.start("run-agents")
                await all_lanes_held_by(running, worker)
                running.nursery.send(frozen[-1], signal.SIGCONT)
                await anyio.sleep(0.5)  # it notices the lost leases
                running.nursery.send(frozen[-1], signal.SIGTERM)
                assert await anyio.to_thread.run_sync(frozen[-1].ended.wait, PATIENCE)
        await running.check()


async def all_lanes_held_by(running: Fleet, worker: Running) -> None:
    async def look() -> bool:
        store = running.store
        held = await store.connection.call_all(
            [(lane, (b"GET", store.keys.lease(lane, LEASED[worker.kind]))) for lane in range(store.lanes)]
        )
        return all(value is not None and f"-{worker.pid}-".encode() in value for value in held)

    await eventually(look, f"{worker.pid} did not get the lanes", PATIENCE)


@pytest.mark.timeout(300)
async def test_a_message_that_kills_its_worker_becomes_a_dead_letter_and_others_are_answered(
    embedded_server: EmbeddedServer, nursery: Nursery, tmp_path: Path
) -> None:
    async with fleet(embedded_server.url, nursery, tmp_path, lease=1.5) as running:
        running.post = replace(running.post, think_seconds=0.3, deadly="<s7/")
        await running.start("build-contexts")
        worker = await running.start("run-agents")
        await running.have_lanes()
        for number in range(21):
            await running.say(f"s{number}")
        deadly = running.said.pop("s7")[0]
        chat, deaths = Chat(running.store), 0
        while not await chat.dead_letters("agents"):
            if worker.ended.is_set():
                deaths += 1
                assert deaths < 12, "it is never given up"
                worker = await running.start("run-agents")
            await anyio.sleep(0.05)
        await running.all_answered()
        (letter,) = await chat.dead_letters("agents")
        assert letter["session_id"] == "s7" and letter["error"].startswith("failed after 4 attempts")
        (error,) = await chat.errors("s7")
        assert error.context["trigger_id"] == str(deadly.id)
        assert await chat.answers("s7") == []
        for session in running.said:
            assert await chat.errors(session) == []
        print(f"\ngiven up after {deaths} deaths")
        assert deaths == 8  # one before it was marked, three with others, and four attempts alone


@pytest.mark.timeout(300)
async def test_thirty_turns_take_about_as_long_after_two_deaths_as_after_one(
    embedded_server: EmbeddedServer, nursery: Nursery, tmp_path: Path
) -> None:
    took: dict[int, float] = {}
    for deaths in (1, 2):
        async with fleet(embedded_server.url, nursery, tmp_path, lease=2.0) as running:
            running.post = replace(running.post, think_seconds=1.0)
            await running.start("build-contexts")
            for number in range(30):
                await running.say(f"s{number}")
            await in_flight(running, 30)
            worker = await running.start("run-agents")
            for _ in range(deaths):
                await all_lanes_held_by(running, worker)
                await anyio.sleep(0.6)
                worker = await kill_runner(running, worker)
            await all_lanes_held_by(running, worker)
            began = time.monotonic()
            await running.check()
            took[deaths] = time.monotonic() - began
    print(f"\n30 turns took {took[1]:.1f} s after one death, {took[2]:.1f} s after two")
    assert took[2] < took[1] + 8.0  # one at a time would take 30 s


@pytest.mark.timeout(300)
async def test_messages_of_a_killed_worker_are_answered_before_its_lease_would_have_ended(
    embedded_server: EmbeddedServer, nursery: Nursery, tmp_path: Path
) -> None:
    lease = Settings().lease_seconds
    async with fleet(embedded_server.url, nursery, tmp_path, lease=lease) as running:
        running.post = replace(running.post, think_seconds=0.5)
        await running.start("build-contexts")
        worker = await running.start("run-agents")
        await running.have_lanes()
        for number in range(16):
            await running.say(f"s{number}")
        await in_flight(running, 16)
        began = time.monotonic()
        await kill_runner(running, worker)
        await running.all_answered()
        took = time.monotonic() - began
        print(f"\nanswered {took:.2f} s after the kill")
        # A lease is renewed every sixth of its time, so at least five sixths remained at the kill.
        assert took < lease * 0.8
        await running.check()
