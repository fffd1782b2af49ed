"""Functions as agents, foreign breadcrumbs and agents that trigger each other: visible outcomes, no loops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial, wraps
from typing import Any

import pytest

from breadcrumbs.agents.functions import Call
from breadcrumbs.agents.functions import agent as decorated_as_agent
from breadcrumbs.agents.models.base import ModelError, ModelRequest
from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbUpdate
from breadcrumbs.runtime.store.store import Store
from tests.support.conversations import (
    ASSISTANT,
    CONTEXT,
    ERROR,
    MESSAGE,
    RESPONSE,
    Working,
    agent,
    config,
    eventually,
    function_agent,
    last_words,
    recite,
    working,
)
from tests.support.tools import Counting, use

# Functions


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (None, "returned NoneType: return a str or a dict"),
        (5, "returned int: return a str or a dict"),
        (["a"], "returned list: return a str or a dict"),
        ("", "returned an empty answer"),
        (" \n", "returned an empty answer"),
        ({"context": {"message": ""}}, "returned an empty answer"),
        ({"context": {"message": {1, 2}}}, "returned a value that is not JSON"),
        ("x" * 2_000_000, "returned 2,000,000 bytes"),
    ],
)
async def test_a_function_that_returns_no_text_fails_with_an_explanation(
    store: Store, reply: Any, words: str
) -> None:
    async def function(call: Call) -> Any:
        return reply

    async with working(store, agents=[function_agent(function)], attempts=2) as chat:
        error = await chat.error_about(await chat.say("s", "Go"))
        assert words in error.context["error"] and error.context["error"].startswith(ASSISTANT)
        assert await chat.answers("s") == []


async def test_a_timeout_inside_a_function_is_not_mistaken_for_that_of_the_turn(store: Store) -> None:
    async def function(call: Call) -> str:
        raise TimeoutError("the shop did not answer within 5 s")

    async with working(store, agents=[function_agent(function)], attempts=2) as chat:
        error = await chat.error_about(await chat.say("s", "Go"))
        assert error.context["error"] == "the shop did not answer within 5 s"
        assert error.context["attempts"] == 2


@pytest.mark.parametrize(
    ("failure", "words"),
    [(SystemExit(3), "failed: SystemExit: 3"), (asyncio.CancelledError(), "cancelled by its own code")],
)
async def test_a_function_that_raises_system_exit_ends_only_its_turn(
    store: Store, failure: BaseException, words: str
) -> None:
    async def function(call: Call) -> str:
        if call.text == "Go":
            raise failure
        return "still here"

    async with working(store, agents=[function_agent(function)], attempts=2) as chat:
        error = await chat.error_about(await chat.say("s", "Go"))
        assert words in error.context["error"] and error.context["attempts"] == 2
        for session in ("s", "another"):
            answer = await chat.answer_to(await chat.say(session, "Hello"))
            assert answer.context["message"] == "still here"


def test_a_function_that_is_not_async_is_refused_by_the_decorator() -> None:
    def plain(call: Call) -> str:
        return call.text

    with pytest.raises(TypeError, match="eve: an agent must be an async function"):
        decorated_as_agent("eve")(plain)  # type: ignore[arg-type]  # the error that mypy reports

    class Speaker:
        async def __call__(self, call: Call) -> str:
            return call.text

    async def speak(call: Call) -> str:
        return call.text

    @wraps(speak)
    def wrapped(call: Call) -> Awaitable[str]:
        return speak(call)

    for function in (Speaker(), speak, wrapped, partial(speak)):
        assert decorated_as_agent("eve")(function).definition.agent_id == "eve"


# Foreign breadcrumbs


@pytest.mark.parametrize("when_busy", ["queue", "merge"])
@pytest.mark.parametrize(
    ("context", "words"),
    [
        ({"as_of": "x", "parts": []}, "as_of is not a time"),
        ({"parts": 5}, "parts is not a list"),
        ({"parts": [5]}, "parts[0].place is not one of conversation, shared, elsewhere"),
        ({"parts": [{"items": []}]}, "parts[0].place is not one of"),
        ({"parts": [{"place": {}, "items": []}]}, "parts[0].place is not one of"),
        ({"parts": [{"place": "shared", "items": []}]}, "parts[0] has no key"),
        ({"parts": [{"place": "conversation"}]}, "parts[0] has no items"),
        ({"parts": [{"place": "conversation", "items": ["x"]}]}, "parts[0].items[0] has no content"),
        ({"parts": [{"place": "conversation", "items": [{}]}]}, "parts[0].items[0] has no content"),
    ],
)
async def test_an_unreadable_context_fails_once_with_an_explanation(
    store: Store, when_busy: str, context: dict[str, Any], words: str
) -> None:
    model = FunctionModel(recite)
    async with working(store, model, agents=[agent(when_busy=when_busy)]) as chat:
        await chat.post(CONTEXT, ["session:s", f"consumer:{ASSISTANT}"], context)
        await eventually(lambda: errors_are(chat, "s", 1), "it did not fail")
        (error,) = await chat.errors("s")
        assert words in error.context["error"] and error.context["attempts"] == 1
        assert not model.requests


async def errors_are(chat: Working, session: str, number: int) -> bool:
    return len(await chat.errors(session)) == number


@pytest.mark.parametrize(
    "creator", [{"type": "agent", "agent_id": ASSISTANT}, ASSISTANT, [], {"agent_id": []}]
)
async def test_an_answer_without_a_trigger_does_not_block_other_answers(store: Store, creator: Any) -> None:
    async with working(store, agents=[agent(when_busy="merge")]) as chat:
        await chat.post(RESPONSE, ["session:s"], {"message": "forged", "trigger_id": {}, "creator": creator})
        message = await chat.say("s", "Hello")
        answer = await chat.answer_to(message)
        assert answer.context["answers"] == [str(message.id)]


@pytest.mark.parametrize("chosen_by", ["definition", "model"])
async def test_an_answer_with_another_schema_is_not_repeated_for_a_rebuilt_context(
    store: Store, chosen_by: str
) -> None:
    said, emits = "a note", {"schema_name": "note.v1"}
    if chosen_by == "model":
        emits = {}
        said = '{"action":"create","breadcrumb":{"schema_name":"note.v1","context":{"message":"a note"}}}'
    model = FunctionModel(lambda request: said)
    agents = [agent(emits=emits)]
    async with working(store, model, agents=agents, runners=0) as chat:
        await chat.say("s", "Hello")
        await eventually(lambda: chat.handled("contexts"), "no context was built")
    for _ in range(2):
        async with working(store, model, agents=agents, builders=0) as chat:
            await eventually(lambda: notes_are(chat, 1), "no answer")
            await chat.settled()
        for lane in range(store.lanes):  # as if the worker had died before its acknowledgement
            await store.connection.call(lane, b"DEL", *progress_keys(store, lane))
    assert len(model.requests) == 1


def progress_keys(store: Store, lane: int) -> list[bytes]:
    return [store.keys.low(lane, "agents"), store.keys.done(lane, "agents")]


async def notes_are(chat: Working, number: int) -> bool:
    return len(await chat.all("s", "note.v1")) == number


# Agents that trigger each other


@pytest.mark.parametrize(
    ("session", "changes", "says"),
    [
        (None, {"max_steps": -1}, "max_steps: must be at least 1"),
        (None, {"subscriptions": {"selectors": [{"schema_nam": "note.v1"}]}}, "schema_nam: unknown field"),
        (None, {"subscriptions": {"selectors": [{"role": "trigger"}]}}, "selectors.0: a trigger without conditions"),
        ("mine", {}, "without session: and user: tags"),
    ],
)  # fmt: skip
async def test_an_invalid_definition_leaves_an_error_and_other_agents_answer(
    store: Store, session: str | None, changes: dict[str, Any], says: str
) -> None:
    usable = {"agent_id": "eve", "subscriptions": {"selectors": [{"schema_name": "note.v1"}]}}
    tags = [] if session is None else [f"session:{session}"]
    async with working(store) as chat:
        posted = await chat.post("agent.def.v1", tags, {**usable, **changes})
        error = await chat.error_about(posted)
        assert error.context["error"].startswith("this agent definition is not used: ")
        assert says in error.context["error"]
        await chat.answer_to(await chat.say("s", "Hello"))
        if session is None:  # a corrected definition writes no error
            change = BreadcrumbUpdate(context=usable)
            await store.update(chat.owner, posted.id, change)
        await chat.settled()
        assert len(await chat.errors(session)) == 1 and not await chat.dead_letters()


async def test_agents_that_trigger_each_other_stop_at_the_hop_limit(store: Store) -> None:
    def listens_to(name: str, other: str) -> Any:
        return agent(
            name,
            hop_limit=4,
            emits={"schema_name": f"{name}.said.v1", "tags": []},
            subscriptions={
                "selectors": [{"schema_name": f"{other}.said.v1"}, {"schema_name": f"{name}.start.v1"}]
            },
        )

    model = FunctionModel(lambda request: "and you?")
    async with working(store, model, agents=[listens_to("ping", "pong"), listens_to("pong", "ping")]) as chat:
        start = await chat.post("ping.start.v1", ["session:s"], {"message": "go"})
        await eventually(lambda: has_errors(chat, "s"), "they were not stopped")
        await chat.settled()
        said = await chat.all("s", "ping.said.v1") + await chat.all("s", "pong.said.v1")
        assert sorted(crumb.context["hops"] for crumb in said) == [1, 2, 3, 4]
        (error,) = await chat.errors("s")
        assert "4 times in a row" in error.context["error"] and "hop limit" in error.context["error"]
        assert len(model.requests) == 4 and start.session_id == "s"


async def has_errors(chat: Any, session: str) -> bool:
    return bool(await chat.errors(session))


@pytest.mark.parametrize("by_context", [False, True])
async def test_an_agent_that_reacts_to_errors_and_fails_stops(store: Store, by_context: bool) -> None:
    trigger = {"schema_name": ERROR}
    selector = {"schema_name": CONTEXT, "all_tags": ["consumer:medic"]} if by_context else trigger
    medic = agent("medic", hop_limit=3, subscriptions={"selectors": [selector]})
    configs = [config(), config("medic", update_triggers=[trigger])]
    model = FunctionModel(lambda request: (_ for _ in ()).throw(ModelError("no", retry=False)))
    async with working(store, model, agents=[agent(), medic], configs=configs) as chat:
        await chat.say("s", "Hello")
        await eventually(lambda: has_errors(chat, "s"), "no error")
        await chat.settled()
        assert len(await chat.errors("s")) == (4 if by_context else 1)
        assert len(model.requests) == (3 if by_context else 2)


async def test_an_agent_that_reacts_to_its_own_tool_calls_stops(store: Store) -> None:
    counting = Counting()
    watcher = agent(
        "watcher",
        hop_limit=3,
        tools=["count_me"],
        subscriptions={"selectors": [{"schema_name": "tool.response.v1"}, {"schema_name": MESSAGE}]},
    )
    model = FunctionModel(lambda request: "seen" if request.messages[-1].role == "tool" else use("count_me"))
    async with working(store, model, agents=[watcher], tools=[counting.tool]) as chat:
        await chat.say("s", "Go")
        await eventually(lambda: has_errors(chat, "s"), "it was not stopped")
        await chat.settled()
        assert counting.runs == 3 and len(await chat.answers("s")) == 3


async def test_one_agent_that_fails_does_not_silence_another(store: Store) -> None:
    direct = {"subscriptions": {"selectors": [{"schema_name": MESSAGE}]}}

    def model_of(who: Any) -> Any:
        if who.definition.agent_id == "a-broken":
            return FunctionModel(lambda request: (_ for _ in ()).throw(ModelError("broken", retry=False)))
        return FunctionModel(lambda request: "fine")

    async with working(
        store, model_of, agents=[agent("a-broken", **direct), agent("b-well", **direct)]
    ) as chat:
        message = await chat.say("s", "Hello")
        assert (await chat.error_about(message)).context["error"] == "broken"
        assert (await chat.answer_to(message)).context["creator"]["agent_id"] == "b-well"


async def test_an_error_contains_the_agent_that_failed(store: Store) -> None:
    """A client that waits for one agent must continue to wait when another one fails."""

    def fail(request: ModelRequest) -> str:
        if last_words(request) in (request.messages[0].content, "all"):
            raise ModelError("out of order", retry=False)
        return "here"

    # Both agents react to the message itself, so they share one turn.
    said = {"selectors": [{"schema_name": MESSAGE}]}
    agents = [agent(name, system_prompt=name, subscriptions=said) for name in ("ann", "ben")]
    async with working(store, FunctionModel(fail), agents=agents, configs=()) as chat:
        message = await chat.say("s", "ben")
        assert (await chat.error_about(message)).context["agent_id"] == "ben"
        assert (await chat.answer_to(message)).context["creator"]["agent_id"] == "ann"
        both = await chat.error_about(await chat.say("s", "all"))
        assert both.context["error"] == "out of order" and "agent_id" not in both.context


async def test_an_edit_of_an_answered_message_is_not_answered_again(store: Store) -> None:
    model = FunctionModel(recite)
    async with working(store, model) as chat:
        message = await chat.say("s", "Hello")
        await chat.answer_to(message)
        change = BreadcrumbUpdate.parse({"context": {"message": "Hello!"}})
        await store.update(chat.owner, message.id, change)
        await chat.settled()
        assert len(model.requests) == 1 and len(await chat.answers("s")) == 1
