"""Turns of a builder and a runner in one process, run one round trip at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from breadcrumbs.agents.models.base import ModelRequest
from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.store.store import Store
from tests.support.conversations import (
    CONTEXT,
    MESSAGE,
    Chat,
    agent,
    compose,
    config,
    opened,
    recite,
    working,
)
from tests.turns.stepping import SteppedConnection, SteppedWorker

PATIENCE = 30


class Process:
    """One process with a builder and a runner, both stepped by the test."""

    def __init__(self, store: Store, **parts: Any) -> None:
        self.store = store
        self.chat = Chat(store)
        self.handlers = compose(store, FunctionModel(recite), **parts)
        self.builder = SteppedWorker(store, self.handlers.builder, "builder")
        self.runner = SteppedWorker(store, self.handlers.runner, "runner")

    async def start(self) -> None:
        for worker in (self.builder, self.runner):
            await worker.take_free_lanes(self.store.lanes)
        for book in (self.handlers.configs, self.handlers.runner_configs):
            await book.get(self.chat.owner)
        await self.handlers.agents.get(self.chat.owner)

    async def build_all(self) -> None:
        await self.builder.read()
        await self.builder.handle_all()

    async def answer_all(self) -> None:
        await self.build_all()
        await self.runner.read()
        await self.runner.handle_all()

    async def answers(self) -> list[str]:
        return [crumb.context["message"] for crumb in await self.chat.answers("s")]


@pytest.fixture(autouse=True)
def caches_never_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read shared by two stepped workers would wait for a step that never comes."""
    monkeypatch.setattr("breadcrumbs.runtime.workers.owner_cache._TTL_SECONDS", 1e9)
    monkeypatch.setattr("breadcrumbs.runtime.retrieval.schema_hints._TTL_SECONDS", 1e9)


@asynccontextmanager
async def started(server: EmbeddedServer, **parts: Any) -> AsyncIterator[Process]:
    async with opened(server.url, lanes=4) as store:
        store.connection = SteppedConnection(store.connection)
        process = Process(store, **parts)
        await process.start()
        await process.chat.say("s", "first")
        await process.answer_all()
        assert set(await process.answers()) == {"user: first"}
        yield process


@pytest.fixture
async def process(embedded_server: EmbeddedServer) -> AsyncIterator[Process]:
    async with started(embedded_server) as process:
        yield process


async def test_each_hop_from_a_message_to_its_answer_takes_one_round_trip(process: Process) -> None:
    """The commit of the context, and the commit of the answer. The session cache has the inputs of both."""
    await process.chat.say("s", "second")
    for worker in (process.builder, process.runner):
        await worker.read()
        assert await worker.begin(0).finish(PATIENCE) == 1
    assert (await process.answers())[1] == "user: first | assistant: user: first | user: second"


async def test_two_contexts_for_one_message_are_answered_by_both_agents(
    embedded_server: EmbeddedServer,
) -> None:
    names = ("ann", "ben")
    async with started(
        embedded_server, configs=[config(name) for name in names], agents=[agent(name) for name in names]
    ) as process:
        await process.chat.say("s", "second")
        await process.builder.read()
        building = process.builder.begin(0)
        await building.settle(PATIENCE)
        await building.step(patience=PATIENCE)
        assert building.asked  # the first context is written, the second is not
        await process.runner.read()
        await process.runner.begin(0).finish(PATIENCE)
        await building.finish(PATIENCE)
        await process.answer_all()
        assert len(await process.answers()) == 4


async def test_an_answer_committed_during_the_next_turn_is_in_its_context(process: Process) -> None:
    """A context built while the agent still answers lacks that answer. The runner has to notice it."""
    await process.chat.say("s", "second")
    await process.build_all()
    await process.runner.read()
    answering = process.runner.begin(0)
    await answering.settle(PATIENCE)
    assert answering.asked  # the answer is ready, and not yet written
    await process.chat.say("s", "third")
    await process.build_all()
    await process.runner.read()  # the next context waits: its turn begins before the answer's event is read
    await answering.finish(PATIENCE)
    _, second, third = await process.answers()
    assert third == f"user: first | assistant: user: first | user: second | assistant: {second} | user: third"


async def test_a_cancellation_before_the_start_of_the_turn_is_respected(process: Process) -> None:
    await process.chat.say("s", "second")
    await process.build_all()
    await process.chat.cancel("s")
    await process.runner.read()
    await process.runner.handle_all()
    assert len(await process.answers()) == 1
    (error,) = await process.chat.errors("s")
    assert "cancelled" in error.context["error"]


async def test_a_message_that_is_posted_again_is_answered_once(process: Process) -> None:
    new = BreadcrumbCreate.parse(
        {"schema_name": MESSAGE, "tags": ["user:message", "session:s"], "context": {"message": "second"}}
    )
    for _ in range(2):
        await process.store.create(process.chat.owner, new, idempotency_key="k")
    await process.answer_all()
    assert (await process.answers())[1:] == ["user: first | assistant: user: first | user: second"]


async def test_a_trigger_deleted_before_its_turn_is_not_answered(process: Process) -> None:
    message = await process.chat.say("s", "second")
    await process.builder.read()
    await process.store.delete(process.chat.owner, message.id)
    await process.builder.handle_all()
    await process.answer_all()
    assert await process.answers() == ["user: first"]


async def test_a_config_posted_before_a_message_applies_to_it(process: Process) -> None:
    only_messages = [{"key": "conversation", "schema_name": MESSAGE}]
    await process.chat.post("context.config.v1", [], config(sources=only_messages))
    await process.chat.say("s", "second")
    await process.answer_all()
    assert (await process.answers())[1] == "user: first | user: second"


async def test_a_message_too_large_for_the_write_cache_is_answered(process: Process) -> None:
    await process.chat.say("s", "second" + " and so on" * 10_000)
    await process.answer_all()
    assert len(await process.answers()) == 2


async def test_a_config_that_was_cached_long_ago_is_read_again(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, book = process.chat, process.handlers.configs
    await chat.post("context.config.v1", [], config(formatting={"max_tokens": 100}))
    book._own._cache._values[chat.owner.int] = (-1e9, ())  # loaded before
    await chat.say("s", "second")
    await process.answer_all()
    (context,) = await process.chat.all("s", CONTEXT)
    assert context.context["explain"]["budget"] == 100


async def test_a_second_attempt_reads_again(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = process.handlers.builder
    build = builder._build

    async def fails_once(*args: Any, **more: Any) -> None:
        monkeypatch.setattr(builder, "_build", build)
        raise RuntimeError("not this time")

    monkeypatch.setattr(builder, "_build", fails_once)
    await process.chat.say("s", "second")
    await process.builder.read()
    # The failure with cached inputs, the mark of the second attempt, its read, the commit, and the end of the mark.
    assert await process.builder.begin(0).finish(PATIENCE) == 5


async def test_a_message_that_expires_before_its_turn_begins_is_not_answered(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = process.store
    new = BreadcrumbCreate.parse(
        {
            "schema_name": MESSAGE,
            "tags": ["user:message", "session:s"],
            "context": {"message": "second"},
            "ttl_type": "duration",
            "ttl_config": {"duration_seconds": 60},
        }
    )
    await store.create(process.chat.owner, new)
    await process.builder.read()
    now = store.now() + 60_000_000
    monkeypatch.setattr(store.clock, "now", lambda: now)
    await process.builder.handle_all()
    await process.answer_all()
    assert await process.answers() == ["user: first"]


async def test_a_message_without_a_session_sees_no_other_messages(process: Process) -> None:
    await process.chat.say(None, "alone")
    await process.answer_all()
    assert [crumb.context["message"] for crumb in await process.chat.answers(None)] == ["user: alone"]


async def test_context_variables_of_a_request_do_not_reach_turns(embedded_server: EmbeddedServer) -> None:
    """Log fields and traces are stored in context variables, which tasks inherit."""
    request_name: ContextVar[str] = ContextVar("request_name", default="none")
    seen: list[str] = []

    def answer(request: ModelRequest) -> str:
        seen.append(request_name.get())
        return "yes"

    direct = agent(subscriptions={"selectors": [{"schema_name": MESSAGE}]})
    async with (
        opened(embedded_server.url) as store,
        working(store, FunctionModel(answer), agents=[direct]) as chat,
    ):

        async def request(session: str) -> None:
            request_name.set(session)
            for _ in range(4):
                await chat.answer_to(await chat.say(session, "well?"))

        for session in "ab":
            await asyncio.create_task(request(session))
    assert seen == ["none"] * 8
