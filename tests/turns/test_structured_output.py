"""Answers that match the `output_schema` of their agent, with one correction by the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import orjson
import pytest
from pydantic import BaseModel

from breadcrumbs.agents.functions import agent as function_agent
from breadcrumbs.agents.models.base import ModelError, ModelReply, ToolCall
from breadcrumbs.agents.models.output_schema import find_problems, is_strict
from breadcrumbs.agents.models.registry import resolve_model
from breadcrumbs.agents.models.scripted import ScriptedModel
from breadcrumbs.agents.tools import tool
from breadcrumbs.proofs.replay import Changes, prepare, replay_once
from breadcrumbs.proofs.verification import verify_answer
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.store.store import Store
from tests.support.conversations import Working, agent, last_words, working
from tests.support.model_server import ModelServer
from tests.turns.test_hooks_at_work import OWN, told

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
VALID, INVALID = '{"city": "Bern", "degrees": 7}', '{"city": "Bern", "degrees": "warm"}'


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


def structured(schema: Any = WEATHER, **changes: Any) -> Any:
    return [agent(output_schema=schema, **changes)]


async def is_proven(chat: Working, answer: Any) -> bool:
    return (await verify_answer(chat.store, chat.owner, answer.id)).outcome == "equal"


@pytest.mark.parametrize("reply", [VALID, f"```json\n{VALID}\n```"])
async def test_the_answer_has_the_parsed_value(store: Store, reply: str) -> None:
    model = ScriptedModel([reply])
    async with working(store, model, agents=structured()) as chat:
        answer = await told(chat, "The weather in Bern?")
        assert answer.context["structured_output"] == {"city": "Bern", "degrees": 7}
        assert answer.context["message"] == VALID
        system = model.requests[0].messages[0]
        assert system.role == "system" and system.content.startswith("You are a test.")
        assert orjson.dumps(WEATHER).decode() in system.content
        assert await is_proven(chat, answer)
        # A model sees the text of an earlier answer, and not also its value.
        model._replies.append(VALID)
        await told(chat, "And now?")
        assert "structured_output" not in str(model.requests[1].messages)


async def test_an_invalid_answer_is_corrected_once(store: Store) -> None:
    model = ScriptedModel([INVALID, VALID])
    async with working(store, model, agents=structured()) as chat:
        answer = await told(chat, "The weather in Bern?")
        assert answer.context["structured_output"]["degrees"] == 7
        assert answer.context["message"] == VALID
        assert 'answer.degrees: "warm" is not of type "integer"' in last_words(model.requests[1])
        first, second = answer.context["model_receipt"]["calls"]
        assert "degrees" in first["repair"] and first["text"] == INVALID and "repair" not in second
        assert await is_proven(chat, answer)


async def test_an_invalid_answer_is_not_asked_for_again_by_the_next_attempt(store: Store) -> None:
    model = ScriptedModel([INVALID, ModelError("overloaded", retry=True), VALID])
    async with working(store, model, agents=structured()) as chat:
        answer = await told(chat, "The weather in Bern?")
        assert answer.context["message"] == VALID and len(model.requests) == 3
        assert 'answer.degrees: "warm" is not of type "integer"' in last_words(model.requests[2])
        first, second = answer.context["model_receipt"]["calls"]
        assert first["replayed"] and "degrees" in first["repair"] and "replayed" not in second
        assert await is_proven(chat, answer)


async def test_an_answer_that_stays_invalid_is_a_clear_error(store: Store) -> None:
    model = ScriptedModel([INVALID, "sorry"])
    async with working(store, model, agents=structured()) as chat:
        error = await chat.error_about(await chat.say("s", "Hello"))
        assert (
            "does not match output_schema, also after one correction: it is not JSON"
            in error.context["error"]
        )
        assert await chat.answers("s") == [] and len(model.requests) == 2


async def test_max_steps_also_limits_corrections(store: Store) -> None:
    model = ScriptedModel([INVALID])
    async with working(store, model, agents=structured(max_steps=1)) as chat:
        error = await chat.error_about(await chat.say("s", "Hello"))
        assert "max_steps permits no correction" in error.context["error"]


async def test_a_structured_answer_can_follow_tool_calls(store: Store) -> None:
    @tool
    def look() -> str:
        """Look out of the window."""
        return "7 degrees"

    replies: list[ModelReply | str] = [ModelReply("I look.", (ToolCall("1", "look", "{}"),)), INVALID, VALID]
    async with working(
        store, ScriptedModel(replies), agents=structured(tools=["look"]), tools=[look]
    ) as chat:
        answer = await told(chat, "The weather?")
        assert answer.context["message"] == VALID  # without the text before the tool call
        assert await is_proven(chat, answer)


async def test_a_hook_cannot_make_the_answer_invalid(store: Store) -> None:
    schema = {**WEATHER, "properties": {**WEATHER["properties"], "city": {"enum": ["4111-1111"]}}}
    agents = structured(schema, hooks={"before_answer": ["redact"]})
    model = ScriptedModel(['{"city": "4111-1111", "degrees": 1}'])
    async with working(store, model, agents=agents, hooks=OWN) as chat:
        error = await chat.error_about(await chat.say("s", "Hello"))
        assert "a hook changed the answer, which no longer matches output_schema" in error.context["error"]


async def test_a_server_gets_the_schema_as_response_format(store: Store, server: ModelServer) -> None:
    scenario = server.scenario("normal", text=VALID)
    async with working(store, resolve_model(f"{scenario.url}#m"), agents=structured()) as chat:
        answer = await told(chat, "Hello")
        assert scenario.requests[0].body["response_format"] == {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": WEATHER, "strict": True},
        }
        assert await is_proven(chat, answer)


async def test_a_server_that_refuses_response_format_gets_only_the_instruction(
    store: Store, server: ModelServer
) -> None:
    scenario = server.scenario("picky", refuses=("response_format",), text=VALID)
    async with working(store, resolve_model(f"{scenario.url}#m"), agents=structured()) as chat:
        answer = await told(chat, "Hello")
        assert "response_format" not in scenario.requests[-1].body
        assert "JSON Schema" in scenario.requests[-1].body["messages"][0]["content"]
        assert answer.context["structured_output"]["city"] == "Bern"
        assert await is_proven(chat, answer)


async def test_a_replay_sends_the_same_request(store: Store) -> None:
    async with working(store, ScriptedModel([VALID]), agents=structured()) as chat:
        answer = await told(chat, "Hello")
        prompt = await prepare(store, answer, Changes(), lambda names: ())
        again = await replay_once(prompt, ScriptedModel([VALID]), seconds=5)
        assert again.same and again.same_request


# Definitions


class Forecast(BaseModel):
    city: str
    sky: Literal["clear", "cloudy"] = "clear"


def test_a_pydantic_model_is_a_schema() -> None:
    definition = structured(Forecast)[0].definition
    assert definition.output_schema == Forecast.model_json_schema()
    assert not is_strict(definition.output_schema) and is_strict(WEATHER)


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"type": "string"}, 'needs "type": "object"'),
        ({"type": "object", "properties": {"a": {"minimum": "x"}}}, r"properties\.a\.minimum: "),
        ({"type": "object", "properties": {"a": {"type": "strng"}}}, r"properties\.a\.type: "),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, r"properties\.a\.pattern: "),
        ({"type": "object", "properties": {"a": {"$ref": "https://a.example"}}}, "other documents"),
        ({"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}, "other documents"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, "does not exist"),
        ({"type": "object", "description": "x" * 70_000}, "more than 65,536 bytes"),
        (7, "valid dictionary"),
    ],
)
def test_an_invalid_schema_is_refused_with_its_position(schema: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        structured(schema)
    assert "output_schema" in str(caught.value)


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(ValueError, match="deeper than 32"):
        structured(deep)


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    definition = structured(schema)[0].definition
    assert find_problems(definition.output_schema, {"next": {"next": {"other": 1}}})
    assert find_problems(definition.output_schema, {"next": {"next": {}}}) == []


def test_a_function_agent_has_no_schema() -> None:
    with pytest.raises(StartupError, match="output_schema"):
        function_agent("f", output_schema=WEATHER)
