"""Sessions with a chosen agent: only that agent answers users' messages, each once, also under kills and changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.models.base import ModelError, ModelReply, ModelRequest
from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbUpdate
from breadcrumbs.runtime.sessions.retries import retry, retry_letter
from breadcrumbs.runtime.store.published_agents import PublishedAgent, publish_agents
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers import owner_cache
from breadcrumbs.runtime.workers.dead_letters import DeadLetters
from tests.support.conversations import (
    ALICE,
    CONTEXT,
    MESSAGE,
    RESPONSE,
    Chat,
    PacedModel,
    agent,
    compose,
    config,
    eventually,
    last_words,
    opened,
    working,
)
from tests.turns.stepping import SteppedConnection, SteppedWorker

DIRECT: dict[str, Any] = {"subscriptions": {"selectors": [{"schema_name": MESSAGE}]}}
DEFINITION = "agent.def.v1"
PATIENCE = 30


def direct(agent_id: str, **changes: Any) -> ActiveAgent:
    """An agent that answers messages without a context."""
    return agent(agent_id, **DIRECT, **changes)


def named(one: ActiveAgent) -> FunctionModel:
    return FunctionModel(lambda request: f"{one.definition.agent_id}: {last_words(request)}")


async def choose(chat: Chat, agent_id: str | None, session: str = "s") -> Breadcrumb:
    tags, context = [f"session:{session}"], {"session_id": session, "agent": agent_id}
    return await chat.post("session.state.v1", tags, context)


async def authors(chat: Chat, message: Breadcrumb) -> list[str]:
    """Return the agents that answered a message."""
    answers = await chat.answers(message.session_id)
    return sorted(
        crumb.context["creator"]["agent_id"]
        for crumb in answers
        if crumb.context["trigger_id"] == str(message.id)
    )


async def test_only_the_chosen_agent_answers_in_its_session(store: Store) -> None:
    agents = [direct("ann"), direct("ben"), agent("cem")]
    async with working(store, named, agents=agents, configs=[config("cem")]) as chat:
        everybody = await chat.say("s", "All of you?")
        await eventually(lambda: _has_authors(chat, everybody, 3), "not all agents have answered")
        for chosen in ("ben", "cem", "ann"):
            await choose(chat, chosen)
            message, elsewhere = await chat.say("s", chosen), await chat.say(f"beside {chosen}", "Hello")
            await chat.answer_to(message)
            await eventually(partial(_has_authors, chat, elsewhere, 3), "the choice affects another session")
            await chat.settled()
            assert await authors(chat, message) == [chosen]
        await choose(chat, None)
        again = await chat.say("s", "All of you?")
        await eventually(lambda: _has_authors(chat, again, 3), "the choice was not removed")
        assert await chat.errors("s") == []


async def _has_authors(chat: Chat, message: Breadcrumb, number: int) -> bool:
    return len(await authors(chat, message)) == number


async def test_agents_that_react_to_other_breadcrumbs_are_not_affected(store: Store) -> None:
    agents = [
        direct("ann"),
        direct("ben"),
        agent("editor", subscriptions={"selectors": [{"schema_name": RESPONSE, "all_tags": ["draft"]}]}),
        agent("clerk", subscriptions={"selectors": [{"schema_name": "order.v1"}]}),
        agent("reader"),
    ]
    drafting = agent("ann", **DIRECT, emits={"tags": ["draft"]})
    configs = [config("reader", update_triggers=[{"schema_name": "order.v1"}])]
    async with working(store, named, agents=[*agents[1:], drafting], configs=configs) as chat:
        await choose(chat, "ann")
        message = await chat.say("s", "Write something")
        draft = await chat.answer_to(message)
        assert (await chat.answer_to(draft)).context["creator"]["agent_id"] == "editor"
        order = await chat.post("order.v1", ["session:s"], {"message": "tea"})
        await eventually(lambda: _has_authors(chat, order, 2), "an agent with another trigger did not answer")
        assert await authors(chat, order) == ["clerk", "reader"]
        assert await authors(chat, message) == ["ann"]


async def test_a_message_that_waits_keeps_the_agent_of_its_time(store: Store) -> None:
    model = PacedModel()
    async with working(store, model, agents=[direct("ann"), direct("ben")], configs=()) as chat:
        await choose(chat, "ann")
        first = await chat.say("s", "first")
        await model.begun("first")
        waiting = await chat.say("s", "second")
        await choose(chat, "ben")
        after = await chat.say("s", "third")
        await choose(chat, None)
        model.allow("first", "second", "third")
        await chat.settled()
        found = [await authors(chat, message) for message in (first, waiting, after)]
        assert found == [["ann"], ["ann"], ["ben"]]


async def test_a_retried_attempt_keeps_the_agent_when_the_choice_changes(store: Store) -> None:
    tried: list[str] = []

    async def fail_once(one: ActiveAgent, request: ModelRequest) -> str:
        tried.append(one.definition.agent_id)
        if len(tried) == 1:
            await choose(chat, "ben")
            raise ModelError("overloaded", retry=True)
        return "here I am"

    def model_of(one: ActiveAgent) -> Any:
        return _AsyncModel(one, fail_once)

    async with working(store, model_of, agents=[direct("ann"), direct("ben")], configs=()) as chat:
        await choose(chat, "ann")
        message = await chat.say("s", "Hello")
        await chat.answer_to(message)
        await chat.settled()
        assert tried == ["ann", "ann"] and await authors(chat, message) == ["ann"]


class _AsyncModel:
    name = "test"

    def __init__(self, one: ActiveAgent, answer: Any) -> None:
        self._one, self._answer = one, answer

    async def complete(self, request: ModelRequest, on_delta: Any = None) -> Any:
        return ModelReply(await self._answer(self._one, request))

    async def close(self) -> None:
        return None


async def test_a_deleted_agent_leads_to_one_error_that_names_it_and_a_retry_asks_the_new_choice(
    store: Store,
) -> None:
    agents = [direct("ann"), agent("ben"), agent("cem")]
    configs = [config("ben"), config("cem")]
    async with working(store, named, agents=agents, configs=configs) as chat:
        posted = await chat.post(DEFINITION, [], {"agent_id": "dora", **DIRECT})
        await choose(chat, "dora")
        assert (await chat.answer_to(await chat.say("s", "Hello"))).context["creator"]["agent_id"] == "dora"
        await store.delete(ALICE, posted.id)
        await eventually(lambda: _is_gone(chat, "dora"), "the agent is still in force")
        message = await chat.say("s", "Still there?")
        error = await chat.error_about(message)
        assert "'dora'" in error.context["error"] and "choose another agent" in error.context["error"]
        assert error.context["agent_id"] == "dora"
        await chat.settled()
        assert len(await chat.errors("s")) == 1 and await authors(chat, message) == []
        await choose(chat, "ben")
        await retry(store, Principal(ALICE, ALICE, frozenset(("curator",))), "s", message.id)
        assert (await chat.answer_to(message)).context["creator"]["agent_id"] == "ben"
        await chat.settled()
        assert await authors(chat, message) == ["ben"] and len(await chat.errors("s")) == 1


async def _is_gone(chat: Any, agent_id: str) -> bool:
    active = await chat.handlers.agents.get(ALICE)
    return agent_id not in {one.definition.agent_id for one in active}


async def test_the_event_of_a_definition_puts_it_in_force_before_the_cached_ones_expire(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_cache, "_TTL_SECONDS", 3_600)
    async with working(store, named, agents=[direct("ann")], configs=()) as chat:
        await chat.answer_to(await chat.say("s", "Hello"))  # caches the definitions
        posted = await chat.post(DEFINITION, [], {"agent_id": "dora", **DIRECT})
        await eventually(lambda: _is_in_force(chat, "dora"), "the agent is not in force")
        await store.delete(ALICE, posted.id)
        await eventually(lambda: _is_gone(chat, "dora"), "the agent is still in force")


async def _is_in_force(chat: Any, agent_id: str) -> bool:
    return not await _is_gone(chat, agent_id)


async def test_a_missing_agent_is_reported_even_if_no_other_agent_answers_users(store: Store) -> None:
    async with working(store, named, agents=[], configs=()) as chat:
        assert await chat.say("s", "Nobody is here") is not None
        await choose(chat, "dora")
        error = await chat.error_about(await chat.say("s", "Hello"))
        assert "'dora'" in error.context["error"]
        await chat.settled()
        assert len(await chat.errors("s")) == 1


async def test_an_agent_that_no_longer_answers_users_is_reported(store: Store) -> None:
    async with working(store, named, agents=[direct("ann")], configs=()) as chat:
        posted = await chat.post(DEFINITION, [], {"agent_id": "dora", **DIRECT})
        await choose(chat, "dora")
        await chat.answer_to(await chat.say("s", "Hello"))
        other = {"agent_id": "dora", "subscriptions": {"selectors": [{"schema_name": "order.v1"}]}}
        await store.update(ALICE, posted.id, BreadcrumbUpdate(context=other))

        async def is_edited() -> bool:
            (dora,) = [
                one.definition
                for one in await chat.handlers.agents.get(ALICE)  # type: ignore[union-attr]
                if one.definition.agent_id == "dora"
            ]
            return dora.triggers[0].schema_name == "order.v1"

        await eventually(is_edited, "the edit is not in force")
        error = await chat.error_about(await chat.say("s", "And now?"))
        assert "'dora'" in error.context["error"] and "no longer answers" in error.context["error"]


async def test_the_agent_of_a_users_program_is_not_reported_as_missing(store: Store) -> None:
    await publish_agents(store, "agents/program", [PublishedAgent("program", direct=True)])
    async with working(store, named, agents=[direct("ann")], configs=()) as chat:
        await choose(chat, "program")
        message = await chat.say("s", "Hello")
        await chat.settled()
        assert await chat.errors("s") == [] and await authors(chat, message) == []


async def test_only_the_chosen_agent_needs_a_context_config(store: Store) -> None:
    agents = [direct("ann"), agent("ben")]
    async with working(store, named, agents=agents, configs=()) as chat:
        await choose(chat, "ann")
        assert (await chat.answer_to(await chat.say("s", "Hello"))).context["creator"]["agent_id"] == "ann"
        await chat.settled()
        assert await chat.errors("s") == []
        await choose(chat, "ben")
        error = await chat.error_about(await chat.say("s", "And you?"))
        assert "no context config for ben" in error.context["error"]


async def test_a_message_is_not_merged_into_a_later_one_for_another_agent(store: Store) -> None:
    model = PacedModel()
    source = {"schema_name": MESSAGE, "role": "context", "key": "said", "fetch": {"limit": 3}}
    merging = agent("ann", when_busy="merge", subscriptions={"selectors": [{"schema_name": MESSAGE}, source]})
    async with working(store, model, agents=[merging, direct("ben")], configs=()) as chat:
        await choose(chat, "ann")
        first = await chat.say("s", "first")
        await model.begun("first")
        second = await chat.say("s", "second")
        await choose(chat, "ben")
        third = await chat.say("s", "third")
        await choose(chat, "ann")
        fourth = await chat.say("s", "fourth")
        await eventually(lambda: chat.read_all("agents"), "the messages were not read")
        model.allow("first", "second", "third", "fourth")
        answer = await chat.answer_to(fourth)
        await chat.settled()
        assert answer.context["answers"] == [str(second.id), str(fourth.id)]
        found = [await authors(chat, message) for message in (first, second, third, fourth)]
        assert found == [["ann"], [], ["ben"], ["ann"]]


async def test_a_retry_while_the_first_agent_still_answers_adds_no_second_answer(store: Store) -> None:
    model = PacedModel()
    async with working(store, model, agents=[direct("ann"), direct("ben")], configs=()) as chat:
        await choose(chat, "ann")
        message = await chat.say("s", "first")
        await model.begun("first")
        await choose(chat, "ben")
        await retry(store, Principal(ALICE, ALICE), "s", message.id)
        model.allow("first")
        await chat.settled()
        assert await authors(chat, message) == ["ann"]


async def test_a_retried_dead_letter_belongs_to_the_agent_that_failed(store: Store) -> None:
    broken = {"ann"}

    def model_of(one: ActiveAgent) -> FunctionModel:
        def answer(request: ModelRequest) -> str:
            if one.definition.agent_id in broken:
                raise ModelError("I refuse", retry=False)
            return "here I am"

        return FunctionModel(answer)

    async with working(store, model_of, agents=[direct("ann"), direct("ben")], configs=()) as chat:
        await choose(chat, "ann")
        message = await chat.say("s", "Hello")
        await chat.error_about(message)
        await choose(chat, "ben")
        broken.clear()
        (letter,) = await DeadLetters(store).all(ALICE, session="s")
        await retry_letter(store, letter)
        await chat.answer_to(message)
        await chat.settled()
        assert await authors(chat, message) == ["ann"]


async def test_an_edit_of_an_old_choice_changes_nothing(store: Store) -> None:
    model = PacedModel()
    async with working(store, model, agents=[direct("ann"), direct("ben")], configs=()) as chat:
        old = await choose(chat, "ann")
        first = await chat.say("s", "first")
        await model.begun("first")
        waiting = await chat.say("s", "second")
        await choose(chat, "ben")
        await store.update(ALICE, old.id, BreadcrumbUpdate(context={"session_id": "s", "agent": "ben"}))
        model.allow("first", "second")
        await chat.settled()
        assert [await authors(chat, message) for message in (first, waiting)] == [["ann"], ["ann"]]


# One round trip at a time


@pytest.fixture(autouse=True)
def caches_never_expire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read shared by two stepped workers would wait for a step that never comes."""
    if "stepped" in request.fixturenames:
        monkeypatch.setattr("breadcrumbs.runtime.workers.owner_cache._TTL_SECONDS", 1e9)
        monkeypatch.setattr("breadcrumbs.runtime.retrieval.schema_hints._TTL_SECONDS", 1e9)


@pytest.fixture
async def stepped(embedded_server: EmbeddedServer) -> AsyncIterator[Store]:
    async with opened(embedded_server.url) as store:
        store.connection = SteppedConnection(store.connection)
        yield store


async def _runner(store: Store, name: str) -> SteppedWorker:
    handlers = compose(store, named, agents=[direct("ann"), direct("ben")], configs=())
    worker = SteppedWorker(store, handlers.runner, name)
    await handlers.agents.get(ALICE)
    await handlers.runner_configs.get(ALICE)
    await worker.take_free_lanes(store.lanes)
    return worker


@pytest.mark.parametrize("chosen", [None, "ben"])
async def test_a_choice_costs_no_round_trip(stepped: Store, chosen: str | None) -> None:
    chat, runner = Chat(stepped), await _runner(stepped, "runner")
    await chat.say("s", "Hello")
    await runner.read()
    await runner.handle_all()
    if chosen is not None:
        await choose(chat, chosen)
    await chat.say("s", "And now?")
    await runner.read()
    reads, answers = (0, 2) if chosen is None else (1, 1)  # the choice is read once, after it has changed
    assert await runner.begin(0).finish(PATIENCE) == reads + answers


@pytest.mark.parametrize("after_sending", [False, True])
@pytest.mark.parametrize("steps", [0, 1])
async def test_a_killed_runner_and_a_changed_choice_leave_one_answer_of_the_first_choice(
    stepped: Store, steps: int, after_sending: bool
) -> None:
    chat, first = Chat(stepped), await _runner(stepped, "first")
    await choose(chat, "ann")
    message = await chat.say("s", "Hello")
    await first.read()
    turn = first.begin(0)
    await turn.settle(PATIENCE)
    for _ in range(steps):
        await turn.step(patience=PATIENCE)
    await first.crash(after_sending=after_sending)
    await choose(chat, "ben")
    second = await _runner(stepped, "second")
    await second.read()
    await second.handle_all()
    assert await authors(chat, message) == ["ann"]
    after = await chat.say("s", "And now?")
    await second.read()
    await second.handle_all()
    assert await authors(chat, after) == ["ben"]
    assert await chat.errors("s") == [] and await chat.all("s", CONTEXT) == []
