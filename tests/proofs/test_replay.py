"""Replays of answers: the prompt of that time, stored tool responses, and no writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.functions import Call
from breadcrumbs.agents.models.base import (
    Model,
    ModelError,
    ModelReply,
    ModelRequest,
    TokenUsage,
    ToolCall,
    ToolSpec,
)
from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.agents.tools import Tool
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.referenced import UNRESTRICTED, Reader
from breadcrumbs.proofs.replay import (
    Changes,
    NotReplayable,
    Replayed,
    ReplayPrompt,
    prepare,
    replay_document,
    replay_once,
)
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbUpdate
from breadcrumbs.runtime.errors import Forbidden, InvalidInput
from breadcrumbs.runtime.store.store import Store
from tests.support.conversations import (
    ALICE,
    MESSAGE,
    RESPONSE,
    PacedModel,
    agent,
    config,
    function_agent,
    spoken,
    working,
)

Reply = Callable[[ModelRequest], ModelReply | str]


def counting(runs: list[str]) -> list[Tool]:
    """A tool that remembers its runs."""

    async def weigh(thing: str) -> dict[str, Any]:
        """Return the weight of a thing."""
        runs.append(thing)
        return {"grams": len(thing) * 100}

    return [Tool(weigh, name="weigh")]


def uses_tool(request: ModelRequest, arguments: str = '{"thing":"tea"}') -> ModelReply | str:
    """Call the tool first, then answer with its result."""
    last = request.messages[-1]
    if last.role == "tool":
        return ModelReply(f"It says {last.content}", usage=TokenUsage(200, 9))
    return ModelReply("Let me see.", (ToolCall("c1", "weigh", arguments),), usage=TokenUsage(100, 5))


async def dump(store: Store) -> dict[bytes, Any]:
    """Return all keys of a store with their values and whether they expire."""
    found: dict[bytes, Any] = {}
    cursor = b"0"
    while True:
        cursor, keys = await store.connection.call(
            0, b"SCAN", cursor, b"MATCH", store.keys.meta.removesuffix(b"meta") + b"*", b"COUNT", b"1000"
        )
        for key in keys:
            found[key] = (
                await store.connection.call(0, b"DUMP", key),
                await store.connection.call(0, b"PEXPIRETIME", key),
            )
        if cursor in (b"0", 0):
            return found


def no_tools(names: Any) -> tuple[ToolSpec, ...]:
    raise InvalidInput(f"unknown tools {', '.join(names)}")


async def prepared(
    store: Store, answer: Breadcrumb, changes: Changes | None = None, reader: Reader = UNRESTRICTED
) -> ReplayPrompt:
    return await prepare(store, answer, changes or Changes(), no_tools, reader)


async def replayed(prompt: ReplayPrompt, reply: Reply | str, name: str = "other") -> Replayed:
    model: Model = FunctionModel(reply if callable(reply) else lambda _: reply, name=name)
    return await replay_once(prompt, model, seconds=10)


def noting(seen: list[ModelRequest], text: str) -> Reply:
    """Return a model function that notes each request and answers with a text."""

    def reply(request: ModelRequest) -> str:
        seen.append(request)
        return text

    return reply


async def test_a_replay_gets_the_stored_tool_responses_and_writes_nothing(store: Store) -> None:
    runs: list[str] = []
    model = FunctionModel(uses_tool, name="scripted")
    async with working(store, model, agents=[agent(tools=["weigh"])], tools=counting(runs)) as chat:
        answer = await chat.answer_to(await chat.say("s", "How heavy is tea?"))
        await chat.settled()
    before = await dump(store)
    assert len(before) > 20
    prompt = await prepared(store, answer)
    result = await replayed(prompt, uses_tool, "scripted")
    assert await dump(store) == before
    assert runs == ["tea"], "the replay ran the tool"
    assert result.text == answer.context["message"] == 'Let me see.\n\nIt says {"output":{"grams":300}}'
    assert (result.same, result.same_request, result.calls, result.error) == (True, True, 2, None)
    assert result.usage.as_dict() == {"input_tokens": 300, "output_tokens": 14}
    assert [(tool.step, tool.name, tool.result) for tool in result.tools] == [("0.0", "weigh", "stored")]
    document = replay_document(prompt, [result], {})
    assert document["original"]["input_tokens"] == 300
    assert document["original"]["text"] == document["replays"][0]["text"]


async def test_equal_arguments_in_another_form_or_step_find_the_stored_response(store: Store) -> None:
    runs: list[str] = []
    async with working(
        store, FunctionModel(uses_tool), agents=[agent(tools=["weigh"])], tools=counting(runs)
    ) as chat:
        answer = await chat.answer_to(await chat.say("s", "How heavy?"))

    def later(request: ModelRequest) -> ModelReply | str:
        """Call an unknown thing first, then tea with spaces in the arguments."""
        steps = sum(message.role == "tool" for message in request.messages)
        if steps == 2:
            return f"first {request.messages[-3].content}; then {request.messages[-1].content}"
        thing = '{"thing": "gold"}' if steps == 0 else '{ "thing" : "tea" }'
        return ModelReply("", (ToolCall(f"c{steps}", "weigh", thing),))

    result = await replayed(await prepared(store, answer), later)
    assert [tool.result for tool in result.tools] == ["missing", "stored"]
    assert "no stored response" in result.text.partition(";")[0], (
        "the model must learn that there is no response"
    )
    assert result.text.endswith('then {"output":{"grams":300}}')
    assert runs == ["tea"] and not result.same


async def test_a_replay_uses_the_versions_of_that_time(store: Store) -> None:
    async with working(store) as chat:
        first = await chat.say("s", "the old words")
        await chat.answer_to(first)
        answer = await chat.answer_to(await chat.say("s", "and now?"))
        await store.update(ALICE, first.id, BreadcrumbUpdate.parse({"context": {"message": "edited"}}))
    seen: list[ModelRequest] = []
    result = await replayed(await prepared(store, answer), noting(seen, "x"))
    assert spoken(seen[0])[0] == ("user", "the old words")
    assert result.text == "x" and not result.same


async def test_another_config_builds_another_prompt_for_the_same_message(store: Store) -> None:
    async with working(store) as chat:
        await chat.answer_to(await chat.say("s", "one"))
        answer = await chat.answer_to(await chat.say("s", "two"))
        await chat.answer_to(await chat.say("s", "three"))
    short = config(sources=[{"key": "conversation", "schema_name": MESSAGE, "fetch": {"limit": 1}}])
    changes = Changes((ContextConfig.model_validate(short),))
    seen: list[ModelRequest] = []
    prompt = await prepared(store, answer, changes)
    result = await replayed(prompt, noting(seen, "ok"))
    assert spoken(seen[0]) == [("user", "two")]
    assert not result.same_request
    assert replay_document(prompt, [result], {})["config"] == changes.configs[0].digest
    same = await prepared(store, answer, Changes((ContextConfig.model_validate(config()),)))
    assert same.request.messages == (await prepared(store, answer)).request.messages
    other = ContextConfig.model_validate(config("somebody")), ContextConfig.model_validate(config("else"))
    with pytest.raises(InvalidInput, match="no config of the consumer"):
        await prepared(store, answer, Changes(other))


async def test_another_definition_changes_prompt_parameters_and_tools(store: Store) -> None:
    runs: list[str] = []
    async with working(
        store, FunctionModel(uses_tool), agents=[agent(tools=["weigh"])], tools=counting(runs)
    ) as chat:
        answer = await chat.answer_to(await chat.say("s", "How heavy?"))

    def with_definition(**fields: Any) -> Changes:
        return Changes(definition=AgentDefinition.model_validate(agent(**fields).definition.model_dump()))

    changed = (
        await prepared(store, answer, with_definition(system_prompt="Be short.", temperature=0.5))
    ).request
    assert changed.messages[0].content.startswith("Be short.")
    assert (changed.temperature, changed.tools) == (0.5, ())
    kept = (await prepared(store, answer, with_definition(tools=["weigh"]))).request
    assert [tool.name for tool in kept.tools] == ["weigh"], "the recorded schema is used"
    with pytest.raises(InvalidInput, match="unknown tools dig"):
        await prepared(store, answer, with_definition(tools=["dig"]))


async def test_what_was_deleted_is_named(store: Store) -> None:
    runs: list[str] = []
    async with working(
        store, FunctionModel(uses_tool), agents=[agent(tools=["weigh"])], tools=counting(runs)
    ) as chat:
        first = await chat.say("s", "one")
        await chat.answer_to(first)
        answer = await chat.answer_to(await chat.say("s", "two"))
        response = (await chat.all("s", "tool.response.v1"))[-1]
        await chat.answer_to(
            await chat.say("s", "three")
        )  # the context of the answer is reduced to references
        await chat.settled()
    await store.delete(ALICE, response.id)
    prompt = await prepared(store, answer)
    assert "was deleted" in prompt.notes[0]
    result = await replayed(prompt, uses_tool)
    assert [tool.result for tool in result.tools] == ["missing"]
    await store.delete(ALICE, first.id)
    with pytest.raises(NotReplayable) as caught:
        await prepared(store, answer)
    assert str(first.id) in {one.id for one in caught.value.missing}
    again = await prepared(store, answer, Changes((ContextConfig.model_validate(config()),)))
    assert any(str(first.id) in note for note in again.notes), "another config names what is gone, too"


async def test_functions_and_breadcrumbs_that_are_no_answers_cannot_be_replayed(store: Store) -> None:
    async def answer_fixed(call: Call) -> str:
        return "fixed"

    async with working(store, agents=[function_agent(answer_fixed)]) as chat:
        message = await chat.say("s", "hello")
        answer = await chat.answer_to(message)
    with pytest.raises(NotReplayable, match="function of your own code"):
        await prepared(store, answer)
    with pytest.raises(NotReplayable, match="not an answer"):
        await prepared(store, message)


async def test_a_failing_or_endless_model_is_reported_in_the_result(store: Store) -> None:
    async with working(store) as chat:
        answer = await chat.answer_to(await chat.say("s", "hello"))
    prompt = await prepared(store, answer)

    def fail(request: ModelRequest) -> str:
        raise ModelError("no credit left", retry=False)

    assert (await replayed(prompt, fail)).error == "no credit left"
    loop = await replayed(prompt, lambda _: ModelReply("", (ToolCall("c", "weigh", "{}"),)))
    assert loop.error is not None and "max_steps" in loop.error and loop.calls == 8
    empty = await replayed(prompt, lambda _: ModelReply("  "))
    assert empty.error is not None and "empty answer" in empty.error
    result = await replay_once(prompt, PacedModel(), seconds=0.05)
    assert result.error is not None and "no answer within" in result.error


async def test_a_prompt_with_hidden_items_is_refused(store: Store) -> None:
    async with working(store) as chat:
        first = await chat.say("s", "secret words")
        await chat.answer_to(first)
        answer = await chat.answer_to(await chat.say("s", "hello"))

    def may_see(crumb: Breadcrumb) -> bool:
        return crumb.id != first.id

    with pytest.raises(Forbidden):
        await prepared(store, answer, reader=Reader(may_see))
    assert answer.schema_name == RESPONSE
