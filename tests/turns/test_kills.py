"""Real processes, killed, frozen and restarted under load: none lost, none doubled, none bled, all in order.

Three runners and two builders with short leases. Some kill themselves at a named point (after they have read, in
the model, before and after a commit, before and after an acknowledgement), others are killed from outside at any
moment. CRUMB_FULL_KILLS=1 makes it 200 sessions, 2,000 messages and 200 kills. How long things take is printed;
what is demanded is that they come out right, also on a machine that is busy with something else.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from secrets import token_hex
from uuid import UUID

import anyio
import anyio.to_thread
import pytest

from breadcrumbs.context_builder.references import recorded
from breadcrumbs.runtime.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.embedded import EmbeddedServer
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.ids import home_lane
from breadcrumbs.runtime.leasing import Leases
from breadcrumbs.runtime.query import Query
from breadcrumbs.runtime.store import Store
from breadcrumbs.runtime.worker import INTERNAL
from tests.support.killable_worker import POINTS, Kind, Nursery, Post, Running, Trap
from tests.support.turns import ALICE, CONTEXT, ERROR, MESSAGE, RESPONSE, Chat, eventually

FULL = os.environ.get("CRUMB_FULL_KILLS") == "1"
SESSIONS, MESSAGES, KILLS = (200, 2_000, 200) if FULL else (50, 300, 25)
SECONDS_PER_KILL = 0.4
LEASE = 0.8
LONG_LEASE = 100.0
PATIENCE = 90.0
"""Seconds after which something has failed, and is not just slow."""

KINDS: tuple[Kind, ...] = ("run-agents", "run-agents", "run-agents", "build-contexts", "build-contexts")
LEASED: dict[Kind, str] = {"run-agents": "agents", "build-contexts": "contexts"}
OUTSIDE = "from outside"


@dataclass
class Fleet:
    """The workers, the messages, and the account of what came of them."""

    store: Store
    nursery: Nursery
    post: Post
    said: dict[str, list[Breadcrumb]] = field(default_factory=dict)
    deaths: list[int] = field(default_factory=list)
    """When, by the server's clock."""

    async def start(self, kind: Kind, trap: Trap | None = None) -> Running:
        return await anyio.to_thread.run_sync(self.nursery.start, kind, self.post, trap)

    async def end(self, worker: Running) -> float:
        """Ask a worker to stop, once it is at work; how long that took."""

        async def at_work() -> bool:
            leases = Leases(self.store, LEASED[worker.kind], "", seconds=1)
            return any(f"-{worker.pid}-" in name for name in await leases.living(beat=False))

        await eventually(at_work, "it does not begin", PATIENCE)
        began = time.monotonic()
        self.nursery.send(worker, signal.SIGTERM)
        assert await anyio.to_thread.run_sync(worker.ended.wait, PATIENCE), "it does not end"
        assert worker.code == 0
        return time.monotonic() - began

    async def have_lanes(self) -> None:
        async def look() -> bool:
            return all(await self._of_lanes(self.store.keys.lease, b"EXISTS"))

        await eventually(look, "the lanes were not taken", PATIENCE)

    async def say(self, session: str) -> Breadcrumb:
        messages = self.said.setdefault(session, [])
        number = len(messages)
        new = BreadcrumbCreate.parse(
            {
                "schema_name": MESSAGE,
                "title": "m",
                "tags": ["user:message", f"session:{session}"],
                "context": {"message": f"<{session}/{number}>"},
            }
        )
        while True:
            try:
                written = await self.store.create(ALICE, new, idempotency_key=f"{session}/{number}")
                message = await self.store.get(ALICE, written.id)
                break
            except StoreError:  # the server is away: again, with the same key
                await anyio.sleep(0.05)
        messages.append(message)
        return message

    async def talk(self, messages: int, sessions: int, seconds: float, chance: random.Random) -> None:
        """Messages at random moments in random sessions, often several before the first is answered."""
        began = time.monotonic()
        for number in range(messages):
            await self.say(f"s{chance.randrange(sessions)}")
            ahead = seconds * number / messages - (time.monotonic() - began)
            if ahead > 0:
                await anyio.sleep(ahead)

    async def all_answered(self) -> None:
        waiting = {session: len(messages) for session, messages in self.said.items()}
        deadline = time.monotonic() + PATIENCE
        while waiting:
            for session, messages in list(waiting.items()):
                answers = await self.store.recent(ALICE, session, RESPONSE, 1_000)
                if len({answer.context["trigger_id"] for answer in answers}) >= messages:
                    del waiting[session]
            assert time.monotonic() < deadline, await self._what_waits(list(waiting))
            await anyio.sleep(0.05)

    async def _what_waits(self, sessions: list[str]) -> str:
        """All that helps to understand why."""
        chat, keys = Chat(self.store), self.store.keys
        found = [f"living: {[(worker.kind, worker.pid) for worker in self.nursery.living]}"]
        for session in sessions:
            messages = self.said[session]
            answered = {answer.context["trigger_id"] for answer in await chat.answers(session)}
            built = [
                (version.version, version.context["trigger_id"], version.tags, version.updated)
                for context in await chat.all(session, CONTEXT)
                for version in await self.store.history(ALICE, context.id)
            ]
            found += [
                f"{session}: {[(str(m.id), m.created) for m in messages if str(m.id) not in answered]}",
                f"  contexts, the newest first: {built[:5]}",
                f"  errors: {[error.context['error'] for error in await chat.errors(session)]}",
            ]
            lane = home_lane(messages[0].id, self.store.lanes)
            for kind in LEASED.values():
                state = await self.store.connection.call_all(
                    [
                        (lane, (b"GET", keys.lease(lane, kind))),
                        (lane, (b"GET", keys.low(lane, kind))),
                        (lane, (b"GET", keys.clock(lane))),
                        (lane, (b"ZRANGE", keys.done(lane, kind), 0, -1)),
                        (lane, (b"HGETALL", keys.attempts(lane, kind))),
                        (lane, (b"HVALS", keys.dead_letters(lane, kind))),
                    ]
                )
                found.append(
                    f"  lane {lane}, {kind}: lease, low, clock, done, attempts, dead letters: {state}"
                )
        return "not answered\n" + "\n".join(found)

    async def settled(self) -> None:
        """Wait until everybody is done with everything, so that nobody would answer once more."""

        async def look() -> bool:
            low = await self._of_lanes(self.store.keys.low, b"GET")
            ends = await self._of_lanes(lambda lane, _: self.store.keys.clock(lane), b"GET")
            return all(int(done or 0) >= int(end or 0) for done, end in zip(low, ends, strict=True))

        await eventually(look, "they do not come to rest", PATIENCE)

    async def _of_lanes(self, key: Callable[[int, str], bytes], command: bytes) -> list[bytes]:
        places = [(lane, kind) for lane in range(self.store.lanes) for kind in LEASED.values()]
        return await self.store.connection.call_all(
            [(lane, (command, key(lane, kind))) for lane, kind in places]
        )

    async def check(self) -> None:
        """0 lost, 0 doubled, 0 bled, every session in order; one context for each message; no errors."""
        await self.all_answered()
        await self.settled()
        chat = Chat(self.store)
        for session, messages in self.said.items():
            ids = [str(message.id) for message in messages]
            answers = await chat.answers(session)
            assert [answer.context["trigger_id"] for answer in answers] == ids, f"{session}: lost or doubled"
            texts = [answer.context["message"] for answer in answers]
            assert texts == [f"re <{session}/{number}> saw {session}" for number in range(len(messages))]
            (context,) = await chat.all(session, CONTEXT)
            mine = {crumb.id for crumb in (*messages, *answers)}
            history = await self.store.history(ALICE, context.id)
            assert all({item.id for item in recorded(version).items} <= mine for version in history)
            built = [version.context["trigger_id"] for version in history if INTERNAL not in version.tags]
            assert built[::-1] == ids, f"{session}: contexts built twice or not at all"
        page = await self.store.list(ALICE, Query(schema_name=ERROR))
        assert [error.context["error"] for error in page.items] == []
        for kind in LEASED.values():
            assert await chat.dead_letters(kind) == []

    async def spans(self) -> list[tuple[int, int]]:
        """When each message was posted, and when it was answered."""
        spans = []
        for session, messages in self.said.items():
            answers = (await self.store.recent(ALICE, session, RESPONSE, 1_000))[::-1]
            pairs = zip(messages, answers, strict=True)
            spans += [(message.created, answer.created) for message, answer in pairs]
        return spans

    async def recoveries(self) -> list[float]:
        """For each death: how long until all that was waiting at that moment had its answer."""
        spans = await self.spans()
        return sorted(
            max((end - death for begin, end in spans if begin <= death < end), default=0) / 1e6
            for death in self.deaths
        )

    async def waits(self) -> list[float]:
        """How long messages have waited for their answers."""
        return sorted((end - begin) / 1e6 for begin, end in await self.spans())


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    try:
        yield nursery
    finally:
        nursery.close()


@asynccontextmanager
async def fleet(url: str, nursery: Nursery, folder: Path, *, lease: float = LEASE) -> AsyncIterator[Fleet]:
    namespace = f"t{token_hex(6)}"
    store = await Store.open(url, namespace=namespace)
    logged = len(nursery.log.read_text())
    try:
        yield Fleet(store, nursery, Post(url, namespace, lease, str(folder)))
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(nursery.clear)
            await store.close()
    complaints = nursery.log.read_text()[logged:]
    assert "Traceback" not in complaints, complaints[-4_000:]


def share(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(len(values) * part))]


def shares(values: list[float]) -> str:
    return f"p50 {share(values, 0.5):.3f} s, p99 {share(values, 0.99):.2f} s, at most {values[-1]:.2f} s"


@pytest.mark.timeout(900 if FULL else 300)
async def test_P2_P13_workers_killed_at_named_points_and_at_random_lose_double_and_mix_up_nothing(
    embedded_server: EmbeddedServer, nursery: Nursery, tmp_path: Path
) -> None:
    chance = random.Random(20)
    points: Counter[str] = Counter()
    # One of each named point in turn, and between them one that is killed from outside.
    ends = {
        kind: cycle([end for point in points_of for end in (point, OUTSIDE)])
        for kind, points_of in POINTS.items()
    }
    stopped = False
    async with fleet(embedded_server.url, nursery, tmp_path) as running:

        async def slot(kind: Kind) -> None:
            """One place in the fleet: whoever dies there has a successor, until there were enough deaths."""
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
                # The points are only come to while there is work.
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
        await running.start(kind)  # takes over, with the message that was begun
        await running.all_answered()
        after = await holders(running, kind)
        assert {name for _, name in before}.isdisjoint(name for _, name in after)
        assert all(new > old for (old, _), (new, _) in zip(before, after, strict=True))  # the fence has grown
        await running.settled()
        written = await everything(running.store)
        running.nursery.send(frozen, signal.SIGCONT)
        await eventually(exists(tmp_path / f"refused-{frozen.pid}"), "it was not refused", PATIENCE)
        await anyio.sleep(LEASE)
        assert await everything(running.store) == written
        await running.say("s1")  # it is a worker like any other again
        await running.check()
        assert not frozen.ended.is_set()


async def holders(running: Fleet, kind: Kind) -> list[tuple[int, bytes]]:
    """The fence and the holder of every lane."""
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


async def test_a_server_killed_and_started_again_under_load_changes_nothing(
    nursery: Nursery, tmp_path: Path
) -> None:
    chance = random.Random(21)
    crashes, messages = (10, 600) if FULL else (2, 160)
    # Every reply is on the disk. With `everysec` a write may be answered while an earlier one is being synced.
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
    """SIGTERM, wait, start the next one: with leases so long that a lane which is not given back is never taken."""
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
        # Whoever comes after them finds nothing to do again.
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
