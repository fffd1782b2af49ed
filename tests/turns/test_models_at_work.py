"""Turns with models that are overloaded, slow, silent or return invalid output.

Each has a visible outcome and does not affect others.
"""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from structlog.testing import capture_logs

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.models.base import ModelError, ModelRequest
from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers import retries
from tests.support.conversations import (
    CONTEXT,
    MESSAGE,
    RESPONSE,
    Working,
    agent,
    eventually,
    last_words,
    working,
)
from tests.support.model_calls import model_at
from tests.support.model_server import ModelServer


async def test_calls_of_an_overloaded_model_are_retried_with_delays(store: Store) -> None:
    pauses: list[int] = []

    def backoff(attempt: int) -> float:
        pauses.append(attempt)
        return 0.01

    model = ScriptedModel([ModelError("overloaded", retry=True)] * 2 + ["here I am"])
    async with working(store, model, backoff=backoff) as chat:
        answer = await chat.answer_to(await chat.say("s", "Hello"))
        assert answer.context["message"] == "here I am"
        assert pauses == [1, 2] and len(model.requests) == 3
        await chat.settled()
        assert await chat.errors("s") == [] and await chat.dead_letters() == []


async def test_P11_a_retry_waits_as_long_as_the_model_requests(store: Store) -> None:
    asked: list[float] = []

    def answer(request: ModelRequest) -> str:
        asked.append(anyio.current_time())
        if len(asked) == 1:
            raise ModelError("too many requests", retry=True, retry_after=0.6)
        return "here I am"

    async with working(store, FunctionModel(answer), backoff=lambda attempt: 0.01) as chat:
        await chat.answer_to(await chat.say("s", "Hello"))
        assert 0.6 <= asked[1] - asked[0] < 3


async def test_a_repeated_model_call_is_logged_with_its_turn(store: Store) -> None:
    with ModelServer() as server, capture_logs() as lines:
        async with model_at(server.scenario("failing", times=1)) as model, working(store, model) as chat:
            message = await chat.say("s", "Hello")
            await chat.answer_to(message)
    (line,) = [line for line in lines if line["event"] == "model call failed, retrying"]
    assert (line["session"], line["message_id"]) == ("s", str(message.id))
    assert line["agent"] == "default-chat-assistant" and line["model"] == model.name


async def test_the_longest_of_several_requested_pauses_counts(store: Store) -> None:
    asked: dict[str, list[float]] = {"a": [], "b": []}

    def model_of(one: ActiveAgent) -> FunctionModel:
        def answer(request: ModelRequest) -> str:
            asked[name].append(anyio.current_time())
            if len(asked[name]) == 1:
                raise ModelError("too many requests", retry=True, retry_after={"a": 0.1, "b": 0.6}[name])
            return "here I am"

        name = one.definition.agent_id
        return FunctionModel(answer)

    direct = {"subscriptions": {"selectors": [{"schema_name": MESSAGE}]}}
    agents = [agent("a", **direct), agent("b", **direct)]
    async with working(store, model_of, agents=agents, configs=()) as chat:
        await chat.say("s", "Hello")
        await eventually(lambda: answers_are(chat, "s", 2), "not both have answered")
        assert asked["b"][1] - asked["b"][0] >= 0.6 and len(asked["a"]) == 2


async def answers_are(chat: Working, session: str, number: int) -> bool:
    return len(await chat.answers(session)) == number


async def test_a_very_long_requested_pause_is_shortened(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_MAX_PAUSE_SECONDS", 0.05)
    model = ScriptedModel([ModelError("come back tomorrow", retry=True, retry_after=86_400), "here I am"])
    async with working(store, model) as chat:
        answer = await chat.answer_to(await chat.say("s", "Hello"))
        assert answer.context["message"] == "here I am"


async def test_an_unavailable_model_leads_to_an_error_and_a_dead_letter(store: Store) -> None:
    model = FunctionModel(lambda request: (_ for _ in ()).throw(ModelError("overloaded", retry=True)))
    async with working(store, model, attempts=3) as chat:
        message = await chat.say("s", "Hello")
        error = await chat.error_about(message)
        assert error.context["error"] == "overloaded" and error.context["attempts"] == 3
        assert error.context["cancelled"] is False
        assert len(model.requests) == 3
        (letter,) = await chat.dead_letters()
        (context,) = await chat.all("s", CONTEXT)
        assert letter["breadcrumb_id"] == str(context.id) and letter["version"] == context.version
        assert letter["session_id"] == "s" and letter["owner_id"] == str(chat.owner)
        assert letter["error"] == "overloaded" and letter["attempts"] == 3 and letter["kind"] == "agents"


async def test_a_permanent_failure_is_not_retried_and_does_not_affect_others(store: Store) -> None:
    def answer(request: ModelRequest) -> str:
        if "poison" in last_words(request):
            raise ModelError("I refuse", retry=False)
        return "fine"

    model = FunctionModel(answer)
    async with working(store, model) as chat:
        poison = [await chat.say(f"s{number}", "poison") for number in range(6)]
        good = [await chat.say(f"s{number}", "good") for number in range(12)]
        for message in good:
            assert (await chat.answer_to(message)).context["message"] == "fine"
        for message in poison:
            assert (await chat.error_about(message)).context["error"] == "I refuse"
        assert len(model.requests) == 18
        assert len(await chat.dead_letters()) == 6


@pytest.mark.parametrize("reason", ["", "\ud800 half a character", "x" * 3_000_000, "line\nbreak\x00\u2028"])
async def test_an_error_with_any_text_is_stored_in_the_session_and_the_worker_continues(
    store: Store, reason: str
) -> None:
    model = ScriptedModel([ModelError(reason, retry=False), RuntimeError(reason), "still here"])
    async with working(store, model, attempts=1) as chat:
        for text in ("one", "two"):
            error = await chat.error_about(await chat.say("s", text))
            assert error.context["error"] and len(error.context["error"]) <= 4_000
        assert (await chat.answer_to(await chat.say("s", "three"))).context["message"] == "still here"
        assert len(await chat.dead_letters()) == 2


@pytest.mark.parametrize("empty", ["", "   \n\t "])
async def test_an_empty_answer_is_reported_as_an_error(store: Store, empty: str) -> None:
    model = FunctionModel(lambda request: empty)
    async with working(store, model, attempts=2) as chat:
        error = await chat.error_about(await chat.say("s", "Hello"))
        assert error.context["error"] == "the model returned an empty answer"
        assert len(model.requests) == 2
        assert await chat.answers("s") == []


async def test_an_answer_of_ten_megabytes_is_reported_as_an_error(store: Store) -> None:
    model = FunctionModel(lambda request: "x" * 10_000_000)
    async with working(store, model) as chat:
        message = await chat.say("s", "Hello")
        error = await chat.error_about(message)
        assert "10,000,000 bytes" in error.context["error"]
        assert len(model.requests) == 1
        assert await chat.answers("s") == []


def deep(levels: int) -> str:
    return (
        '{"action":"create","breadcrumb":{"context":{"message":"words","deep":'
        + "[" * levels
        + "]" * levels
        + "}}}"
    )


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("{ not json", "{ not json"),
        ('{"action": "create", "breadcrumb": 5}', '{"action": "create", "breadcrumb": 5}'),
        ('{"action": "delete_everything"}', '{"action": "delete_everything"}'),
        ('```json\n{"action":"create","breadcrumb":{"context":{"message":"hi",},}}\n```', "hi"),
        ('{"action":"create","breadcrumb":{"tags":["","\\n",5,"' + "t" * 300 + '"],"context":{"message":"m"}}}', "m"),
        ('{"action":"create","breadcrumb":{"schema_name":"\\n","title":"\\u2028","context":{"message":"m"}}}', "m"),
        (deep(300), "words"),
        ("half \ud800 a character", "half ? a character"),
        ("\x00\x01\x02", "\x00\x01\x02"),
    ],
)  # fmt: skip
async def test_invalid_output_of_a_model_is_stored_as_text(store: Store, said: str, text: str) -> None:
    model = ScriptedModel([said, "next"])
    async with working(store, model) as chat:
        answer = await chat.answer_to(await chat.say("s", "Hello"))
        assert answer.context["message"] == answer.context["content"] == text
        assert answer.session_id == "s" and answer.schema_name == RESPONSE
        assert (await chat.answer_to(await chat.say("s", "And?"))).context["message"] == "next"


async def test_a_slow_agent_times_out_and_others_are_answered_meanwhile(
    store: Store,
) -> None:
    async def slow(request: ModelRequest) -> str:
        if "slow" in last_words(request):
            await anyio.sleep(60)
        return "quick"

    model = FunctionModel(slow)
    agents = [agent(timeout_seconds=0.3)]
    async with working(store, model, agents=agents, attempts=2) as chat:
        slow_one = await chat.say("s", "slow")
        assert (await chat.answer_to(await chat.say("t", "fast"))).context["message"] == "quick"
        error = await chat.error_about(slow_one)
        assert error.context["error"] == "no answer within 0.3 s" and error.context["attempts"] == 2
