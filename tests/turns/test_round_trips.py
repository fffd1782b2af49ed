"""Round trips of a turn: everything is loaded once, in few round trips."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
import pytest

from breadcrumbs.agents.agents_in_force import load_definitions
from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.agents.tools import shipped_tools
from breadcrumbs.composition.workers import config_path
from breadcrumbs.runtime.backend.connection import ScriptCall
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.backend.link import Command
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.store import Store
from tests.support.conversations import RESPONSE, Chat, compose, opened, recite
from tests.turns.stepping import Actor, SteppedConnection, SteppedWorker

PATIENCE = 30


class Noting(SteppedConnection):
    """Connection that records the keys that are read."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.read: list[bytes] = []

    async def call(self, lane: int, *command: Any) -> Any:
        self._note(command)
        return await super().call(lane, *command)

    async def call_all(self, commands: Sequence[tuple[int, Command | ScriptCall]]) -> list[Any]:
        for _, command in commands:
            if not isinstance(command, ScriptCall):
                self._note(command)
        return await super().call_all(commands)

    def _note(self, command: Any) -> None:
        if command[0] in (b"GET", b"MGET"):
            self.read += command[1:]


@pytest.fixture
async def stepped(embedded_server: EmbeddedServer) -> AsyncIterator[Store]:
    async with opened(embedded_server.url, lanes=16) as store:
        store.connection = Noting(store.connection)
        yield store


async def hop(worker: SteppedWorker) -> int:
    """Return the round trips from an event's arrival to its acknowledgement, including those of `wants`."""
    connection: Any = worker.store.connection
    reading = Actor(worker.read)  # type: ignore[arg-type]
    asked = await reading.finish(PATIENCE) - 1  # without the read of the event
    assert len(worker.ready) == 1
    connection.read.clear()
    handled = await worker.begin(0).finish(PATIENCE)
    twice = {key: times for key, times in Counter(connection.read).items() if times > 1}
    assert not twice, f"{worker.handler.kind}: read more than once: {twice}"
    return asked + handled


@pytest.mark.parametrize("turns_before", [0, 1, 30])
@pytest.mark.parametrize("caches", ["warm", "cold"])
async def test_P17_a_hop_takes_at_most_six_round_trips_and_reads_nothing_twice(
    stepped: Store, turns_before: int, caches: str
) -> None:
    """Uses the shipped config and agent, and a tool catalogue."""
    shipped = orjson.loads(config_path(Settings()).read_bytes())
    del shipped["$schema"]
    tools = shipped_tools()
    handlers = compose(
        stepped, FunctionModel(recite), configs=[shipped], agents=load_definitions(None), tools=tools
    )
    chat = Chat(stepped)
    await stepped.create(chat.owner, BreadcrumbCreate.parse(tools.catalogue()))
    builder, runner = (
        SteppedWorker(stepped, handler, "w") for handler in (handlers.builder, handlers.runner)
    )
    for worker in (builder, runner):
        await worker.take_free_lanes(stepped.lanes)
    for turn in range(turns_before + 1):
        await chat.say("s", f"message {turn}")
        await runner.read()  # the message, before its context
        if caches == "cold":
            handlers.configs._own._cache._values.clear()
            handlers.builder._hints._cached.clear()
        to_context = await hop(builder)
        if caches == "cold":
            handlers.agents._own._cache._values.clear()
        to_answer = await hop(runner)
    assert len(await chat.all("s", RESPONSE)) == turns_before + 1
    print(f"\nround trips: builder {to_context}, runner {to_answer} ({caches}, {turns_before} turns before)")
    assert to_context <= 6 and to_answer <= 6
