"""Random interleavings of requests, workers and failures.

In any order of events, each message of a session is answered once, in order, by agents that saw only that session.

A schedule is a string of bytes. Each byte is one event. A user posts a message, cancels or deletes the session. A
worker reads, begins a session, makes a round trip, loses a reply, is killed before or after its request reaches the
server, loses its leases without notice, releases a lane, takes lanes, or gets an edited config. At the end all
workers run until nothing is left to do. Then the results are checked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from uuid import UUID

import anyio
import pytest
import structlog
import uvloop
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from breadcrumbs.agents.models.base import ModelRequest
from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.references import read_record
from breadcrumbs.runtime.backend.address import parse_address
from breadcrumbs.runtime.backend.standalone import StandaloneConnection
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.keys import Keys
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.turn import INTERNAL
from tests.support.conversations import (
    ALICE,
    ASSISTANT,
    BOB,
    CONTEXT,
    ERROR,
    MESSAGE,
    RESPONSE,
    Chat,
    Handlers,
    agent,
    compose,
    config,
    events_of,
    last_words,
)
from tests.support.servers import Server
from tests.turns.stepping import Crew, SteppedConnection, SteppedWorker

# Each part runs at most 250 schedules, about 4 s of CPU time. So a part ends in time on a loaded machine too.
SCHEDULES, PARTS = (10_000, 40) if os.environ.get("CI") == "true" else (1_000, 10)
PER_EXAMPLE = 20
"""Number of concurrent schedules, each in its own store, to use the server fully."""

PEOPLE = [(ALICE, "1"), (ALICE, "1"), (BOB, "1"), (ALICE, "2")]
"""Two tenants use the same name for their session."""

ECHO = "echo"
MARK = re.compile(r"<(\w+)/(\w+)/(\d+)>")


@dataclass
class World:
    """State of one schedule: its store, workers and messages."""

    store: Store
    chats: dict[UUID, Chat]
    said: dict[tuple[UUID, str], list[Breadcrumb]] = field(default_factory=dict)
    deletions: Counter[tuple[UUID, str]] = field(default_factory=Counter)
    may_stop: set[str] = field(default_factory=set)
    """Messages that were cancelled."""
    must_stop: set[str] = field(default_factory=set)
    """Cancelled messages without a running turn: the cancellation is stored before their turn begins."""
    bled: list[str] = field(default_factory=list)
    """Prompts that contained another session."""
    crew: Crew = field(default_factory=Crew)
    hands: list[Handlers] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)

    def answer(self, request: ModelRequest) -> str:
        found = MARK.findall("\n".join(message.content for message in request.messages))
        if len({(owner, session) for owner, session, _ in found}) != 1:
            self.bled.append(repr(request.messages))
        # Two agents share the role of the assistant in this prompt, so count distinct texts.
        known = {message.content for message in request.messages if message.role == "assistant"}
        return f"re {last_words(request)} after {len(known)}"

    def mark(self, owner: UUID, session: str, number: int) -> str:
        """Return a text that differs from those of deleted sessions with the same name."""
        place = f"{session}_{self.deletions[owner, session]}"
        return f"<{'alice' if owner == ALICE else 'bob'}/{place}/{number}>"

    async def say(self, owner: UUID, session: str) -> None:
        messages = self.said.setdefault((owner, session), [])
        text = self.mark(owner, session, len(messages))
        messages.append(await self.chats[owner].say(session, text))

    def at_work(self, workers: Sequence[SteppedWorker] | None = None) -> list[tuple[UUID, str]]:
        """Return the owners and sessions with running turns."""
        return [
            (UUID(int=owner), str(session))
            for worker in workers or self.crew.workers
            for lane in worker._lanes.by_number.values()
            for owner, session in lane.running
        ]

    async def cancel(self, owner: UUID, session: str) -> None:
        messages = {str(message.id) for message in self.said.get((owner, session), ())}
        answers = await self.store.recent(owner, session, RESPONSE, 1_000)
        unanswered = messages - {answer.context["trigger_id"] for answer in answers}
        self.may_stop |= unanswered
        if (owner, session) not in self.at_work(self.crew.workers[1::2]):
            self.must_stop |= unanswered
        await self.chats[owner].cancel(session)

    async def delete(self, owner: UUID, session: str) -> None:
        if self.said.get((owner, session)):
            await Sessions(self.store).delete(owner, session)
            self.said[owner, session] = []
            self.deletions[owner, session] += 1


@dataclass
class Machine:
    """Connection and configs that all schedules share, because their creation is slow."""

    connection: StandaloneConnection
    numbers: Iterator[int] = field(default_factory=count)
    configs: tuple[tuple[ContextConfig, ...], ...] = ()

    def world(self, *, two_agents: bool, lanes: int) -> World:
        keys = Keys(f"w{next(self.numbers)}", lanes)
        store = Store(SteppedConnection(self.connection), keys, secret=b"not used" * 4)
        world = World(store, {owner: Chat(store, owner) for owner in (ALICE, BOB)})
        # Both agents answer the same context. A retry for one must not repeat the answer of the other.
        same = {"selectors": [{"schema_name": CONTEXT, "all_tags": [f"consumer:{ASSISTANT}"]}]}
        agents = [agent(), *([agent(ECHO, subscriptions=same)] if two_agents else ())]
        world.agents = [agent.definition.agent_id for agent in agents]
        for number in range(2):
            handlers = compose(store, FunctionModel(world.answer), agents=agents, configs=())
            for book in (handlers.configs, handlers.runner_configs):
                book._from_file = self.configs[0]
            # No agents, configs or hints are posted here. Filling the caches doubles the speed.
            for owner in (ALICE, BOB):
                for configs in (handlers.configs, handlers.runner_configs):
                    configs._own._cache.put(owner, ())
                handlers.agents._own._cache.put(owner, ())
                for hints in handlers.hints:
                    hints._cached.update(
                        {(owner, name): (1e9, None) for name in (MESSAGE, RESPONSE, "note.v1")}
                    )
            world.hands.append(handlers)
            for handler in (handlers.builder, handlers.runner):
                worker = SteppedWorker(store, handler, f"{handler.kind} {number}")
                world.crew.workers.append(worker)
        return world


async def play(machine: Machine, schedule: bytes) -> World:
    """Run a schedule, then let all workers finish."""
    world = machine.world(two_agents=schedule[0] % 3 == 1, lanes=2 if schedule[0] & 2 else 1)
    for worker in world.crew.workers:
        await worker.take_free_lanes(1)
    for byte in schedule[1:]:
        await happen(machine, world, byte & 15, byte >> 4)
    await world.crew.finish()
    return world


async def happen(machine: Machine, world: World, kind: int, which: int) -> None:
    workers = world.crew.workers
    at_work = [worker for worker in workers if any(not actor.over for actor in worker.actors)]
    under_way = [actor for worker in at_work for actor in worker.actors if not actor.over]
    match kind:
        case 0 if which >= 12:
            # Prefer sessions with running turns.
            places = world.at_work() or PEOPLE
            await world.delete(*places[which % len(places)])
        case 0 if which >= 8 and len(world.agents) == 1:
            await world.cancel(*PEOPLE[which % len(PEOPLE)])
        case 0 | 1 | 2:
            await world.say(*PEOPLE[which % len(PEOPLE)])
            if kind:  # build its context at once, if a builder has the lane
                for builder in workers[::2]:
                    await builder.read()
                    await builder.handle_all()
        case 3 | 4 | 5 | 6:
            worker = workers[which % len(workers)]
            await worker.take_free_lanes(world.store.lanes)
            await worker.read()
            if worker.ready:
                await worker.begin(which // len(workers) % len(worker.ready)).settle()
        case 7 | 8 | 9 | 10 if under_way:
            actor = under_way[which % len(under_way)]
            for _ in range((1, 2, 4, 8)[kind - 7]):
                if not actor.over:
                    await actor.step()
        case 11 if under_way:
            await under_way[which % len(under_way)].step(lose_replies=True)
        case 12 | 13 if at_work:
            await at_work[which % len(at_work)].crash(after_sending=kind == 13)
        case 14 if at_work:
            # A worker is frozen for longer than its leases. Another one takes its lanes, and it continues later.
            frozen = at_work[which % len(at_work)]
            await frozen.lose_leases()
            for other in workers:
                if other is not frozen and other.handler.kind == frozen.handler.kind:
                    await other.take_free_lanes(world.store.lanes)
        case 15 if which % 2:
            worker = workers[which // 2 % len(workers)]
            worker.give_back(which)
            for actor in worker.actors:
                await actor.settle()
        case 15:
            # Workers see an edit at different times.
            books = [book for hands in world.hands for book in (hands.configs, hands.runner_configs)]
            books[which // 2 % len(books)]._from_file = machine.configs[which // 4]


async def check(world: World) -> None:
    """Check for one answer per message and agent, in order and in its session, without failures."""
    store = world.store
    assert not world.bled, world.bled
    for (owner, session), messages in world.said.items():
        ids = [str(message.id) for message in messages]
        answers = (await store.recent(owner, session, RESPONSE, 1_000))[::-1]
        errors = await store.recent(owner, session, ERROR, 1_000)
        assert all(error.context["cancelled"] for error in errors)
        stopped = [error.context["trigger_id"] for error in errors]
        assert len(stopped) == len(set(stopped))
        assert world.must_stop & set(ids) <= set(stopped) <= world.may_stop
        for name in world.agents:
            given_answers = [crumb for crumb in answers if crumb.context["creator"]["agent_id"] == name]
            to_answer = [(n, id) for n, id in enumerate(ids) if id not in stopped]
            assert [answer.context["trigger_id"] for answer in given_answers] == [id for _, id in to_answer]
            texts = [answer.context["message"] for answer in given_answers]
            # Each prompt contained all earlier answers.
            assert texts == [
                f"re {world.mark(owner, session, n)} after {known}" for known, (n, _) in enumerate(to_answer)
            ]
        assert len(answers) == (len(messages) - len(stopped)) * len(world.agents)
        contexts = await store.recent(owner, session, CONTEXT)
        assert len(contexts) == min(1, len(messages))
        mine = {crumb.id for crumb in (*messages, *answers)}
        built: list[str] = []
        for context in contexts:
            for version in await store.history(owner, context.id):
                assert {item.id for item in read_record(version).items} <= mine
                if INTERNAL not in version.tags:
                    built.append(version.context["trigger_id"])
        assert built[::-1] == ids  # one context per message, without those rebuilt by a turn
    for owner in (ALICE, BOB):
        written: set[tuple[UUID, int]] = set()
        for event in await events_of(store, owner):
            if event.operation == "deleted":  # the next session of that name reuses the id of its context
                written = {other for other in written if other[0] != event.id}
            elif event.operation != "session_deleted":
                assert (event.id, event.version) not in written
                written.add((event.id, event.version))
    for kind in ("contexts", "agents"):
        assert await Chat(store).dead_letters(kind) == []


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def quiet() -> Iterator[None]:
    """Disable logging, which would take half of the time."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(PARTS))
def test_any_interleaving_answers_every_message_once_in_order_and_in_its_session(
    server: Server, quiet: None, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(delay: float) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(anyio, "sleep", at_once)
    # Caches do not expire here: a worker sees an edit when the schedule contains it.
    monkeypatch.setattr("breadcrumbs.context_builder.configs_in_force._CHECK_SECONDS", 1e9)
    monkeypatch.setattr("breadcrumbs.runtime.workers.owner_cache._TTL_SECONDS", 1e9)
    monkeypatch.setattr("breadcrumbs.runtime.retrieval.schema_hints._TTL_SECONDS", 1e9)
    whole = [
        {"key": "conversation", "schema_name": schema, "fetch": {"method": "recent", "limit": 100}}
        for schema in (MESSAGE, RESPONSE)
    ]
    edits = [
        config(sources=whole),
        config(sources=whole, exclude={"tags": ["nothing"]}),
        config(sources=whole, formatting={"max_tokens": 100_000}),
        config(sources=[*whole, {"key": "notes", "schema_name": "note.v1"}]),
    ]
    played = 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def connect() -> Machine:
            server.flush()
            machine = Machine(StandaloneConnection(parse_address(server.url), lanes=2))
            machine.configs = tuple((ContextConfig.model_validate(edit),) for edit in edits)
            return machine

        machine = runner.run(connect())

        async def one(schedule: bytes) -> None:
            try:
                await check(await play(machine, schedule))
            except Exception as error:
                raise AssertionError(f"in schedule {schedule!r}: {error}") from error

        async def example(schedules: list[bytes]) -> None:
            nonlocal played
            async with asyncio.TaskGroup() as group:
                for schedule in schedules:
                    group.create_task(one(schedule))
            played += len(schedules)
            await machine.connection.call(0, b"FLUSHALL")

        @seed(part)  # the same schedules in each run, so that failures can be reproduced
        @settings(
            max_examples=-(-SCHEDULES // PARTS // PER_EXAMPLE),
            deadline=None,
            phases=[Phase.generate],  # no shrinking: schedules are short, and it would take minutes
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(
            st.lists(
                st.binary(min_size=6, max_size=18), min_size=PER_EXAMPLE, max_size=PER_EXAMPLE, unique=True
            )
        )
        def schedules(drawn: list[bytes]) -> None:
            runner.run(example(drawn))

        try:
            schedules()
        finally:
            runner.run(machine.connection.close())
    print(f"\n{played} interleavings")
    assert played >= SCHEDULES // PARTS
