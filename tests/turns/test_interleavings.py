"""Random interleavings: whatever order things happen in, and whoever dies, a session's messages are answered
once each, in order, by agents that saw that session and nothing else.

A schedule is a string of bytes; each byte is one thing that happens: somebody says something, a worker reads,
begins with a session, comes one round trip further, hears of a broken link instead of its reply, is killed
before or after its request reached the server, loses its leases without knowing, gives a lane back, takes
lanes, or gets an edited config. At its end everybody works until nothing is left to do; then all is counted.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import UUID

import anyio
import pytest
import uvloop
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from breadcrumbs.agents.models.base import ModelRequest
from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.runtime.breadcrumb import Breadcrumb
from breadcrumbs.runtime.connection import StandaloneConnection, parse_address
from breadcrumbs.runtime.keys import Keys
from breadcrumbs.runtime.store import Store
from tests.support.servers import Server
from tests.support.turns import (
    ALICE,
    ASSISTANT,
    BOB,
    CONTEXT,
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
from tests.turns.stepping import Crew, SteppedConnection, SteppedWorker

SCHEDULES = int(os.environ["N"]) if "N" in os.environ else 10_000 if os.environ.get("CI") == "true" else 1_000
PER_EXAMPLE = 10
"""Schedules that run side by side, each in a store of its own: that keeps the server busy."""

LANES = 2
PEOPLE = [(ALICE, "1"), (BOB, "1"), (ALICE, "2"), (ALICE, "3")]
"""Two tenants use the same name for their session."""

ECHO = "echo"
MARK = re.compile(r"<(\w+)/(\w+)/(\d+)>")


def mark(owner: UUID, session: str, number: int) -> str:
    return f"<{'alice' if owner == ALICE else 'bob'}/{session}/{number}>"


@dataclass
class World:
    """One schedule: a store of its own, workers, and what was said."""

    store: Store
    chats: dict[UUID, Chat]
    said: dict[tuple[UUID, str], list[Breadcrumb]] = field(default_factory=dict)
    bled: list[str] = field(default_factory=list)
    """What a model saw that it must not see."""
    crew: Crew = field(default_factory=Crew)
    happened: list[str] = field(default_factory=list)

    def answer(self, request: ModelRequest) -> str:
        found = MARK.findall("\n".join(message.content for message in request.messages))
        if len({(owner, session) for owner, session, _ in found}) != 1:
            self.bled.append(repr(request.messages))
        return "re " + last_words(request)

    async def say(self, owner: UUID, session: str) -> None:
        messages = self.said.setdefault((owner, session), [])
        text = mark(owner, session, len(messages))
        messages.append(await self.chats[owner].say(session, text))


@dataclass
class Machine:
    """What all schedules share, because it is slow to make."""

    connection: StandaloneConnection
    numbers: Iterator[int] = field(default_factory=count)
    configs: tuple[tuple[ContextConfig, ...], ...] = ()

    def world(self, *, two_agents: bool) -> World:
        keys = Keys(f"w{next(self.numbers)}", LANES)
        store = Store(SteppedConnection(self.connection), keys, secret=b"not used" * 4)
        world = World(store, {owner: Chat(store, owner) for owner in (ALICE, BOB)})
        agents = [agent()]
        if two_agents:
            direct = [{"schema_name": MESSAGE}, *config()["sources"]]
            for source in direct[1:]:
                source["role"] = "context"
            agents.append(agent(ECHO, subscriptions={"selectors": direct}))
        for number in range(2):
            handlers = compose(store, FunctionModel(world.answer), agents=agents)
            for handler in (handlers.builder, handlers.runner):
                world.crew.workers.append(SteppedWorker(store, handler, f"{handler.kind} {number}"))
            self.edit(handlers, 0)
        return world

    def edit(self, handlers: Handlers, version: int) -> None:
        handlers.configs._file = self.configs[version % len(self.configs)]


async def play(machine: Machine, schedule: bytes) -> World:
    """Do what the schedule says, then let everybody finish."""
    world = machine.world(two_agents=schedule[:1] > b"\xbf")
    workers = world.crew.workers
    for worker in workers:
        await worker.take_free_lanes(LANES // 2 if schedule[:1] > b"\x3f" else LANES)
    for byte in schedule:
        await happen(machine, world, byte)
    await world.crew.finish()
    return world


async def happen(machine: Machine, world: World, byte: int) -> None:
    kind, rest = byte & 15, byte >> 4
    worker = world.crew.workers[rest & 3]
    actors = [actor for actor in worker.actors if not actor.over]
    match kind:
        case 0 | 1 | 2:
            await world.say(*PEOPLE[rest & 3])
        case 3 | 4:
            await worker.read()
            if worker.ready:
                await worker.begin(rest % len(worker.ready)).settle()
        case 5 | 6 | 7 | 8:
            for _ in range(1 + rest // 4):
                if actors and not actors[0].over:
                    await actors[0].step()
        case 9:
            if actors:
                await actors[-1].step(lose_replies=True)
        case 10:
            await worker.crash(after_sending=False)
        case 11:
            await worker.crash(after_sending=True)
        case 12:
            await worker.lose_leases()
        case 13:
            worker.give_back(rest)
            for actor in worker.actors:
                await actor.settle()
        case 14:
            await worker.take_free_lanes(LANES)
        case 15:
            version = rest // 4
            for other in world.crew.workers[: 1 + rest % 4]:
                book: Any = getattr(other.handler, "_book", None)
                if hasattr(book, "_file"):
                    book._file = machine.configs[version % len(machine.configs)]


async def check(world: World) -> None:
    """One answer per message and agent, in order, in its session; nothing bled, nothing failed."""
    store = world.store
    assert not world.bled, world.bled
    for (owner, session), messages in world.said.items():
        chat = world.chats[owner]
        answers = await chat.all(session, RESPONSE)
        by_agent: dict[str, list[Breadcrumb]] = {}
        for answer in answers:
            by_agent.setdefault(answer.context["creator"]["agent_id"], []).append(answer)
        assert ASSISTANT in by_agent, "nobody has answered"
        for given_answers in by_agent.values():
            about = [answer.context["trigger_id"] for answer in given_answers]
            assert about == [str(message.id) for message in messages]
            texts = [answer.context["message"] for answer in given_answers]
            assert texts == [f"re {mark(owner, session, number)}" for number in range(len(messages))]
        assert await chat.errors(session) == []
        (context,) = await chat.all(session, CONTEXT)
        mine = {str(crumb.id) for crumb in (*messages, *answers)}
        for version in await store.history(owner, context.id):
            assert {item["id"] for item in version.context["explain"]["items"]} <= mine
    for owner in (ALICE, BOB):
        written = [(event.id, event.version) for event in await events_of(store, owner)]
        assert len(written) == len(set(written))
    for kind in ("contexts", "agents"):
        assert await Chat(store).dead_letters(kind) == []


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def test_any_interleaving_answers_every_message_once_in_order_and_in_its_session(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(delay: float) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(anyio, "sleep", at_once)
    # Configs are edited here, not by time: what a worker has read stays until the schedule says so.
    monkeypatch.setattr("breadcrumbs.context_builder.book._FRESH_SECONDS", 1e9)
    monkeypatch.setattr("breadcrumbs.agents.book._FRESH_SECONDS", 1e9)
    monkeypatch.setattr("breadcrumbs.runtime.schema_hints._LIFETIME", 1e9)
    edits = [
        config(),
        config(exclude={"tags": ["nothing"]}),
        config(formatting={"max_tokens": 100_000}),
        config(sources=[*config()["sources"], {"key": "notes", "schema_name": "note.v1"}]),
    ]
    played = 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def connect() -> Machine:
            machine = Machine(StandaloneConnection(parse_address(server.url), lanes=LANES))
            machine.configs = tuple((ContextConfig.model_validate(edit),) for edit in edits)
            return machine

        machine = runner.run(connect())

        async def one(schedule: bytes) -> None:
            await check(await play(machine, schedule))

        async def example(schedules: list[bytes]) -> None:
            nonlocal played
            async with asyncio.TaskGroup() as group:
                for schedule in schedules:
                    group.create_task(one(schedule))
            played += len(schedules)
            if next(machine.numbers) > 500:
                machine.numbers = count()
                await machine.connection.call(0, b"FLUSHALL")

        @settings(
            max_examples=SCHEDULES // PER_EXAMPLE,
            deadline=None,
            phases=[Phase.explicit, Phase.generate, Phase.shrink],
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(
            st.lists(
                st.binary(min_size=12, max_size=40), min_size=PER_EXAMPLE, max_size=PER_EXAMPLE, unique=True
            )
        )
        def schedules(drawn: list[bytes]) -> None:
            runner.run(example(drawn))

        schedules()
        runner.run(machine.connection.close())
    print(f"\n{played} interleavings")
    assert played >= SCHEDULES
