"""What a turn will ask is asked while the event that begins it is still being written; and is not relied on where
it may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import anyio
import pytest

from breadcrumbs.agents.models.base import ModelRequest
from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.runtime.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.connection import Run
from breadcrumbs.runtime.embedded import EmbeddedServer
from breadcrumbs.runtime.events import Event
from breadcrumbs.runtime.foresight import Foresight
from breadcrumbs.runtime.questions import as_written, header_of
from breadcrumbs.runtime.session_state import STATE_CHANGE
from breadcrumbs.runtime.store import Store
from breadcrumbs.runtime.worker import INTERNAL, Worker
from tests.support.turns import (
    ALICE,
    BOB,
    CONTEXT,
    MESSAGE,
    Chat,
    agent,
    compose,
    config,
    eventually,
    opened,
    recite,
    working,
)
from tests.turns.stepping import Actor, SteppedConnection, SteppedWorker

PATIENCE = 30


class Process:
    """One process with a builder and a runner in it, turned by hand."""

    def __init__(self, store: Store, **parts: Any) -> None:
        self.store = store
        self.chat = Chat(store)
        self.handlers = compose(store, FunctionModel(recite), **parts)
        self.builder = SteppedWorker(store, self.handlers.builder, "builder")
        self.runner = SteppedWorker(store, self.handlers.runner, "runner")
        for worker in (self.builder, self.runner):
            store.onlookers.append(worker.expect)

    async def start(self) -> None:
        for worker in (self.builder, self.runner):
            await worker.take_free_lanes(self.store.lanes)
        for book in (self.handlers.configs, self.handlers.runner_configs):
            await book.configs(self.chat.owner)
        await self.handlers.agents.agents(self.chat.owner)

    async def answer_all(self) -> None:
        for worker in (self.builder, self.runner):
            await worker.read()
            await worker.handle_all()

    async def answers(self) -> list[str]:
        return [crumb.context["message"] for crumb in await self.chat.answers("s")]


def under_way(worker: SteppedWorker) -> list[Actor]:
    return [actor for actor in worker.actors if not actor.over]


async def prepared(worker: SteppedWorker) -> Actor:
    """What the worker has begun to find out is found out."""
    (actor,) = under_way(worker)
    await actor.finish(PATIENCE)
    return actor


@pytest.fixture(autouse=True)
def _remembering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for somebody else's reading, in a world that is turned by hand, waits for ever."""
    monkeypatch.setattr("breadcrumbs.runtime.remembered._FRESH_SECONDS", 1e9)
    monkeypatch.setattr("breadcrumbs.runtime.schema_hints._LIFETIME", 1e9)


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


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is: what was found out is not too old."""
    monkeypatch.setattr("breadcrumbs.runtime.foresight._FRESH_SECONDS", 60.0)


@pytest.fixture
async def process(embedded_server: EmbeddedServer) -> AsyncIterator[Process]:
    async with started(embedded_server) as process:
        yield process


async def test_from_a_message_to_its_answer_three_round_trips_follow_each_other(process: Process) -> None:
    """The write of the message, of the context and of the answer; what they need is asked beside them."""
    await process.chat.say("s", "second")
    for worker in (process.builder, process.runner):
        assert (await prepared(worker)).round_trips == 1
        await worker.read()
        turn = worker.begin(0)
        assert await turn.finish(PATIENCE) == 1  # the commit
    assert (await process.answers())[1] == "user: first | assistant: user: first | user: second"


async def test_of_two_contexts_for_one_message_the_first_is_looked_ahead_for(
    embedded_server: EmbeddedServer,
) -> None:
    """The second is written by the time that the event of the first comes, and its turn is the later one."""
    names = ("ann", "ben")
    async with started(
        embedded_server, configs=[config(name) for name in names], agents=[agent(name) for name in names]
    ) as process:
        await process.chat.say("s", "second")
        await prepared(process.builder)
        await process.builder.read()
        building = process.builder.begin(0)
        await building.settle(PATIENCE)
        await building.step(patience=PATIENCE)
        assert building.asked  # the second one is on its way
        assert (await prepared(process.runner)).round_trips == 1
        await process.runner.read()
        assert await process.runner.begin(0).finish(PATIENCE) == 1  # the commit
        await building.finish(PATIENCE)
        await process.answer_all()
        assert len(await process.answers()) == 4


async def test_a_turn_waits_for_what_is_being_found_out_for_it(process: Process) -> None:
    await process.chat.say("s", "second")
    await process.builder.read()
    turn = process.builder.begin(0)
    await turn.settle(PATIENCE)
    assert not turn.over and not turn.asked  # what it needs to know is on its way
    await process.builder.handle_all()
    for actor in under_way(process.builder):
        await actor.finish(PATIENCE)
    await process.answer_all()
    assert len(await process.answers()) == 2


async def test_a_turn_asks_by_itself_where_nothing_could_be_found_out(process: Process) -> None:
    await process.chat.say("s", "second")
    for worker in (process.builder, process.runner):
        (asking,) = under_way(worker)
        await asking.settle(PATIENCE)
        while not asking.over:
            await asking.step(lose_replies=True)
        await worker.read()
        assert await worker.begin(0).finish(PATIENCE) >= 2
    assert (await process.answers())[1] == "user: first | assistant: user: first | user: second"


async def test_a_turn_does_not_fail_by_what_failed_ahead_of_it(
    embedded_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions are asked again after a lost link; what has to be listed is not, and fails for good."""
    marked = {"key": "conversation", "schema_name": MESSAGE, "any_tags": ["user:message"]}
    async with started(embedded_server, configs=[config(sources=[marked])]) as process:
        await process.chat.say("s", "second")
        (asking,) = under_way(process.builder)
        await asking.settle(PATIENCE)
        await asking.step(lose_replies=True)
        await asking.finish(PATIENCE)

        async def not_now(seconds: float) -> None:
            raise AssertionError("a turn waits for its store")

        monkeypatch.setattr(anyio, "sleep", not_now)
        await process.answer_all()
        assert (await process.answers())[1] == "user: first | user: second"


async def test_an_answer_that_is_on_its_way_is_known_to_the_next_turn(process: Process) -> None:
    """A context that is made while the agent still speaks does not know its words. The runner has to notice, and
    it could not if it had looked before they were written."""
    await process.chat.say("s", "second")
    await prepared(process.builder)
    await process.builder.read()
    await process.builder.handle_all()
    await prepared(process.runner)
    await process.runner.read()
    speaking = process.runner.begin(0)
    await speaking.settle(PATIENCE)
    assert speaking.asked  # the answer is ready, and not yet written
    await process.chat.say("s", "third")
    await process.builder.read()
    await process.builder.handle_all()
    for actor in under_way(process.runner):
        if actor is not speaking:
            await actor.finish(PATIENCE)
    await process.runner.read()  # the next context waits: its turn begins before anybody hears of the answer
    await speaking.finish(PATIENCE)
    _, second, third = await process.answers()
    assert third == f"user: first | assistant: user: first | user: second | assistant: {second} | user: third"


async def test_a_cancellation_that_comes_before_the_turn_begins_is_heard(process: Process) -> None:
    await process.chat.say("s", "second")
    await prepared(process.builder)
    await process.builder.read()
    await process.builder.handle_all()
    await prepared(process.runner)  # nobody has cancelled anything yet
    await process.chat.cancel("s")
    await process.runner.read()
    await process.runner.handle_all()
    assert len(await process.answers()) == 1
    (error,) = await process.chat.errors("s")
    assert "cancelled" in error.context["error"]


async def test_a_message_that_is_posted_again_is_nobodys_next_turn(process: Process) -> None:
    """The second try of a client writes nothing; what was asked for it is about a breadcrumb that never was."""
    new = BreadcrumbCreate.parse(
        {"schema_name": MESSAGE, "tags": ["user:message", "session:s"], "context": {"message": "second"}}
    )
    for _ in range(2):
        await process.store.create(process.chat.owner, new, idempotency_key="k")
        for actor in under_way(process.builder):
            await actor.finish(PATIENCE)
    await process.answer_all()
    assert (await process.answers())[1:] == ["user: first | assistant: user: first | user: second"]


async def test_a_trigger_that_is_gone_when_its_turn_begins_is_not_answered(process: Process) -> None:
    message = await process.chat.say("s", "second")
    await process.builder.read()
    (asking,) = under_way(process.builder)
    await asking.settle(PATIENCE)
    await process.store.delete(process.chat.owner, message.id)
    await asking.finish(PATIENCE)  # only now is the server asked
    await process.builder.handle_all()
    await process.answer_all()
    assert await process.answers() == ["user: first"]


async def test_a_config_that_was_posted_before_a_message_holds_for_it(process: Process) -> None:
    """Its event comes before the message's, but perhaps not before somebody looks ahead for the message."""
    only_messages = [{"key": "conversation", "schema_name": MESSAGE}]
    await process.chat.post("context.config.v1", [], config(sources=only_messages))
    await process.chat.say("s", "second")
    await prepared(process.builder)
    await process.answer_all()
    assert (await process.answers())[1] == "user: first | user: second"


async def test_nobody_looks_ahead_for_what_is_too_large_to_be_remembered(process: Process) -> None:
    """Its turn has to read it anyway, and asks all the rest beside that."""
    await process.chat.say("s", "second" + " and so on" * 10_000)
    assert not under_way(process.builder)
    await process.answer_all()
    assert len(await process.answers()) == 2


async def test_a_header_speaks_for_the_version_and_the_time_of_its_event_only(process: Process) -> None:
    store, message = process.store, await process.chat.say("s", "second")
    header = header_of(store, message.owner_id, message.id)
    await store.ask(header)
    event = replace(EXPECTED, id=message.id, at=message.updated)
    assert as_written(store, event, header.answer) == message
    assert as_written(store, replace(event, at=event.at + 1), header.answer) is None
    assert as_written(store, replace(event, version=2), header.answer) is None
    assert as_written(store, event, b"") is None


async def test_configs_that_may_be_out_of_date_are_read_again_beside_the_rest(process: Process) -> None:
    chat, book = process.chat, process.handlers.configs
    await chat.post("context.config.v1", [], config(formatting={"max_tokens": 100}))
    book._own._known[chat.owner] = (-1e9, ())  # read long ago
    await chat.say("s", "second")
    assert (await prepared(process.builder)).round_trips == 1
    (now,) = book.last(chat.owner)
    assert now.formatting.max_tokens == 100 and book.is_fresh(chat.owner)
    await process.answer_all()
    (context,) = await process.chat.all("s", CONTEXT)
    assert context.context["explain"]["budget"] == 100  # what was looked for by the old config is not used


async def test_the_header_is_asked_for_before_all_that_it_vouches_for(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked after the rest it could say that the trigger is there where the rest was asked too early."""
    asked: list[Any] = []
    call_all = process.store.connection.call_all

    async def noted(commands: Sequence[tuple[int, Any]]) -> list[Any]:
        if any(isinstance(command, Run) for _, command in commands):
            asked.append(commands[0][1][0])
        return await call_all(commands)

    monkeypatch.setattr(process.store.connection, "call_all", noted)
    await process.chat.say("s", "second")
    for worker in (process.builder, process.runner):
        await prepared(worker)
        await worker.read()
        await worker.handle_all()
    assert asked == [b"GETRANGE", b"GETRANGE"]


async def test_a_turn_goes_on_where_whoever_found_out_for_it_was_ended(process: Process) -> None:
    await process.chat.say("s", "second")
    await process.builder.read()
    (asking,) = under_way(process.builder)
    turn = process.builder.begin(0)
    await turn.settle(PATIENCE)
    await asking.kill()
    await turn.finish(PATIENCE)
    await process.answer_all()
    assert len(await process.answers()) == 2


async def test_who_finds_out_for_a_turn_that_was_cancelled_meanwhile_comes_to_no_harm(
    process: Process,
) -> None:
    await process.chat.say("s", "second")
    await prepared(process.builder)
    await process.builder.read()
    await process.builder.handle_all()
    (asking,) = under_way(process.runner)
    await process.runner.read()
    turn = process.runner.begin(0)
    await turn.settle(PATIENCE)
    await process.chat.cancel("s")
    await process.runner.read()
    await turn.finish(PATIENCE)
    await asking.finish(PATIENCE)
    assert len(await process.answers()) == 1
    assert len(await process.chat.errors("s")) == 1


async def test_a_second_attempt_asks_by_itself(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked ahead of the first one is as old as that."""
    builder = process.handlers.builder
    build = builder._build

    async def fails_once(*args: Any, **more: Any) -> None:
        monkeypatch.setattr(builder, "_build", build)
        raise RuntimeError("not this time")

    monkeypatch.setattr(builder, "_build", fails_once)
    await process.chat.say("s", "second")
    await prepared(process.builder)
    await process.builder.read()
    # The failure is stored and the second attempt is marked; its questions, and the commit; the mark is removed.
    assert await process.builder.begin(0).finish(PATIENCE) == 5


async def test_what_nobody_reacts_to_has_happened_all_the_same(process: Process) -> None:
    await process.chat.say("s", "second")
    await prepared(process.builder)
    await process.builder.read()
    await process.chat.post("note.v1", [INTERNAL, "session:s"], {})
    await process.builder.read()
    assert await process.builder.begin(0).finish(PATIENCE) == 2


async def test_nobody_looks_ahead_for_what_will_not_be_handled_here(process: Process) -> None:
    await process.chat.say("s", "for somebody's own use", tags=[INTERNAL])
    for lane in process.builder._lanes.values():
        lane.closing = True
    await process.chat.say("s", "second")
    assert not under_way(process.builder)


async def test_nobody_looks_ahead_for_what_changes_by_its_own_turn(embedded_server: EmbeddedServer) -> None:
    """A pause takes the consumers off the contexts that there are: those that follow are made after that."""
    triggers = [{"schema_name": MESSAGE}, {"schema_name": STATE_CHANGE}]
    async with started(embedded_server, configs=[config(update_triggers=triggers)]) as process:
        await process.chat.post(STATE_CHANGE, ["session:s"], {"active": False})
        assert not under_way(process.builder)


async def test_what_expires_before_its_turn_begins_is_not_there(
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
    await prepared(process.builder)
    await process.builder.read()
    now = store.now() + 60_000_000
    monkeypatch.setattr(store, "now", lambda: now)
    await process.builder.handle_all()
    await process.answer_all()
    assert await process.answers() == ["user: first"]


async def test_what_belongs_to_no_session_is_asked_for_when_its_turn_begins(process: Process) -> None:
    """There is nothing that was said last where there is no session, and no others' words either."""
    await process.chat.say(None, "alone")
    assert not under_way(process.builder)
    await process.answer_all()
    assert [crumb.context["message"] for crumb in await process.chat.answers(None)] == ["user: alone"]


async def test_a_worker_that_has_ended_is_told_nothing_more(process: Process) -> None:
    store = process.store
    before = list(store.onlookers)
    worker = Worker(store, process.handlers.builder)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await eventually(lambda: is_told(store, worker), "it does not look on")
        worker.stop()
    assert store.onlookers == before
    # Between the end of its tasks and its own it may still be told something: that is nobody's work then.
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ended.cancel()
    worker._hands.append(ended)
    worker._tasks = None
    worker._start(worker._prepare)


async def is_told(store: Store, worker: Worker) -> bool:
    return worker.expect in store.onlookers


async def test_who_writes_does_not_suffer_from_who_looks_on(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(event: Event) -> bool:
        raise RuntimeError("cannot tell")

    monkeypatch.setattr(process.handlers.builder, "foresees", broken)
    await process.chat.say("s", "second")
    await process.answer_all()
    assert len(await process.answers()) == 2


async def test_what_is_set_for_one_request_does_not_show_in_the_turns_of_others(
    embedded_server: EmbeddedServer,
) -> None:
    """A log's fields, a trace: they lie in variables that every task passes on to those that it starts."""
    whose: ContextVar[str] = ContextVar("whose", default="nobody's")
    seen: list[str] = []

    def answer(request: ModelRequest) -> str:
        seen.append(whose.get())
        return "yes"

    direct = agent(subscriptions={"selectors": [{"schema_name": MESSAGE}]})
    async with (
        opened(embedded_server.url) as store,
        working(store, FunctionModel(answer), agents=[direct]) as chat,
    ):

        async def request(session: str) -> None:
            whose.set(session)
            for _ in range(4):
                await chat.answer_to(await chat.say(session, "well?"))

        for session in "ab":
            await asyncio.create_task(request(session))
    assert seen == ["nobody's"] * 8


EXPECTED = Event("created", ALICE, BOB, 1, MESSAGE, ["session:s"], None, 0, 0)
CAME = replace(EXPECTED, at=7)


async def test_what_was_found_out_is_given_once_and_for_its_event_only() -> None:
    foresight, lane = Foresight(), object()
    ahead = foresight.expect("s", lane, EXPECTED)
    assert ahead is not None
    foresight.passed("s", CAME)
    assert foresight.take("another session", lane, CAME) is None
    assert foresight.take("s", lane, CAME) is ahead.found
    assert foresight.take("s", lane, CAME) is None


@pytest.mark.parametrize(
    "change", [{"id": ALICE}, {"version": 2}, {"operation": "retried"}, {"owner_id": BOB}]
)
async def test_another_event_does_not_get_it(change: dict[str, Any]) -> None:
    foresight, lane = Foresight(), object()
    foresight.expect("s", lane, EXPECTED)
    assert foresight.take("s", lane, replace(CAME, **change)) is None
    assert foresight.take("s", lane, CAME) is None  # and a turn that came between has changed the session


async def test_it_does_not_outlive_its_lane_or_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    foresight, lane = Foresight(), object()
    foresight.expect("s", lane, EXPECTED)
    assert foresight.take("s", object(), CAME) is None
    monkeypatch.setattr("breadcrumbs.runtime.foresight._FRESH_SECONDS", -0.001)
    foresight.expect("s", lane, EXPECTED)
    assert foresight.take("s", lane, CAME) is None


async def test_what_happens_after_the_event_makes_it_useless_and_what_came_before_does_not() -> None:
    foresight, lane, other = Foresight(), object(), replace(CAME, id=ALICE)
    ahead = foresight.expect("s", lane, EXPECTED)
    assert ahead is not None
    for event in (other, CAME):
        foresight.passed("s", event)
    assert foresight.take("s", lane, CAME) is ahead.found
    foresight.expect("s", lane, EXPECTED)
    for event in (CAME, other):
        foresight.passed("s", event)
    assert foresight.take("s", lane, CAME) is None


async def test_what_is_expected_first_in_a_session_stays_until_its_turn_or_its_lane_is_over() -> None:
    foresight, lane, next_one = Foresight(), object(), replace(EXPECTED, id=ALICE)
    first = foresight.expect("s", lane, EXPECTED)
    assert first is not None and foresight.expect("s", lane, next_one) is None
    assert foresight.take("s", lane, CAME) is first.found
    assert foresight.expect("s", lane, next_one) is not None
    assert foresight.expect("s", object(), EXPECTED) is not None
    foresight.passed("s", CAME)  # and nobody wanted it: else there would be no room for others in its session
    assert foresight.expect("s", lane, next_one) is not None


async def test_only_a_few_are_expected_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("breadcrumbs.runtime.foresight._MOST", 2)
    foresight, lane = Foresight(), object()
    first, second, third = (foresight.expect(session, lane, EXPECTED) for session in "abc")
    assert first is not None and second is not None and third is None
    assert foresight.expect("b", lane, EXPECTED) is not None  # the same once more: what was tried has failed
    assert foresight.take("a", lane, CAME) is first.found
    assert foresight.expect("c", lane, EXPECTED) is not None


async def test_what_came_to_nothing_makes_room_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("breadcrumbs.runtime.foresight._MOST", 1)
    monkeypatch.setattr("breadcrumbs.runtime.foresight._FRESH_SECONDS", -0.001)
    foresight, lane = Foresight(), object()
    for session in "abc":
        assert foresight.expect(session, lane, EXPECTED) is not None
