"""Tools in turns: each call runs once, and its result or failure reaches the model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import orjson
import pytest

from breadcrumbs.agents.functions import Call
from breadcrumbs.agents.models.base import ModelError, ModelReply, PromptMessage, ToolCall
from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
from breadcrumbs.agents.tools import Tool, tool
from breadcrumbs.runtime.breadcrumb.ids import derived_id, home_lane, new_id
from breadcrumbs.runtime.errors import StoreUnavailable
from breadcrumbs.runtime.store.store import Store
from tests.support.conversations import (
    ASSISTANT,
    agent,
    eventually,
    failing_for,
    function_agent,
    working,
)
from tests.support.tools import Counting, use


async def test_P9_a_tool_call_leaves_request_and_response_with_ids_derived_from_trigger_and_step(
    store: Store,
) -> None:
    counting = Counting()
    model = ScriptedModel([use("count_me", '{"word": "tea"}'), "done"])
    async with working(store, model, agents=[agent(tools=["count_me"])], tools=[counting.tool]) as chat:
        message = await chat.say("s", "Go")
        answer = await chat.answer_to(message)
        (request,), (response,) = (
            await chat.all("s", "tool.request.v1"),
            await chat.all("s", "tool.response.v1"),
        )
        assert request.context["input"] == {"word": "tea"} and request.context["requestedBy"] == ASSISTANT
        assert response.context["status"] == "success" and response.context["output"] == "run 1 tea"
        assert response.context["request_id"] == str(request.id)
        # Ids are derived, so a replay has the same ones. Trigger and step make them unique.
        lane = home_lane(answer.id, store.lanes)
        place = (ASSISTANT, str(message.id), "0.0", "count_me", '{"word": "tea"}')
        assert request.id == derived_id(lane, "request", *place)
        assert response.id == derived_id(lane, "response", *place)
        assert answer.id == derived_id(lane, "answer", ASSISTANT, str(message.id))
        assert len({request.id, response.id, answer.id, message.id}) == 4
        assert message.id.version == 7 and answer.id.version == 8
        called, result = model.requests[1].messages[-2:]
        assert called.role == "assistant" and called.tool_calls[0].name == "count_me"
        assert result == PromptMessage(
            "tool", '{"output":"run 1 tea"}', tool_call_id=called.tool_calls[0].id, name="count_me"
        )


async def test_P9_new_ids_are_unique_within_one_moment() -> None:
    made = [new_id(number % 16) for number in range(20_000)]
    assert len(set(made)) == len(made)
    assert {id.version for id in made} == {7}


async def test_a_tool_is_not_run_again_when_its_turn_is_retried(store: Store) -> None:
    counting = Counting()
    model = ScriptedModel([use("count_me"), ModelError("overloaded", retry=True), "done"])
    async with working(store, model, agents=[agent(tools=["count_me"])], tools=[counting.tool]) as chat:
        await chat.answer_to(await chat.say("s", "Go"))
        assert counting.runs == 1
        assert (
            len(await chat.all("s", "tool.request.v1")) == len(await chat.all("s", "tool.response.v1")) == 1
        )
        assert "run 1" in model.requests[-1].messages[-1].content


async def test_a_tool_is_not_run_again_after_the_store_was_unavailable(store: Store) -> None:
    counting = Counting()
    model = ScriptedModel([use("count_me"), "done"])
    failing_for(store, "tool.response.v1", StoreUnavailable("gone"), times=3)
    async with working(store, model, agents=[agent(tools=["count_me"])], tools=[counting.tool]) as chat:
        await chat.answer_to(await chat.say("s", "Go"))
        assert counting.runs == 1 and len(model.requests) == 2


async def test_several_calls_in_one_reply_are_run_in_order(store: Store) -> None:
    counting = Counting()
    model = ScriptedModel([use("count_me", number=3), "done"])
    async with working(store, model, agents=[agent(tools=["count_me"])], tools=[counting.tool]) as chat:
        await chat.answer_to(await chat.say("s", "Go"))
        outputs = [crumb.context["output"].strip() for crumb in await chat.all("s", "tool.response.v1")]
        assert outputs == ["run 1", "run 2", "run 3"]


async def test_a_tool_outside_the_allow_list_is_refused_and_the_model_gets_the_error(store: Store) -> None:
    counting = Counting()
    other = Counting()
    other.tool.name = "other"
    model = ScriptedModel([use("count_me"), "then not"])
    tools = [counting.tool, other.tool]
    async with working(store, model, agents=[agent(tools=["other"])], tools=tools) as chat:
        answer = await chat.answer_to(await chat.say("s", "Go"))
        assert counting.runs == 0
        (response,) = await chat.all("s", "tool.response.v1")
        assert response.context["status"] == "error"
        assert response.context["error"] == "tool count_me not found; your tools: other"
        assert "not found; your tools" in model.requests[1].messages[-1].content
        assert answer.context["message"] == "then not"


@pytest.mark.parametrize("name", ["", "\n\x00bad\u2028name", "x" * 1_000_000, "\ud800"])
async def test_an_invalid_tool_name_is_treated_as_unknown(store: Store, name: str) -> None:
    model = ScriptedModel([use(name, "no json"), "then not"])
    async with working(store, model) as chat:
        answer = await chat.answer_to(await chat.say("s", "Go"))
        assert answer.context["message"] == "then not"
        assert len(await chat.all("s", "tool.request.v1")) == 1


async def test_a_model_that_never_stops_calling_tools_is_stopped(store: Store) -> None:
    counting = Counting()
    model = FunctionModel(
        lambda request: use("count_me", orjson.dumps({"word": str(len(request.messages))}).decode())
    )
    agents = [agent(tools=["count_me"], max_steps=3)]
    async with working(store, model, agents=agents, tools=[counting.tool]) as chat:
        error = await chat.error_about(await chat.say("s", "Go"))
        assert "stopped after max_steps (3) model calls" in error.context["error"]
        assert len(model.requests) == 3 == counting.runs
        assert len(await chat.dead_letters()) == 1


async def test_tool_failures_are_reported_to_the_model(store: Store) -> None:
    @tool
    async def raises() -> str:
        """Raise."""
        raise RuntimeError("broken")

    @tool(timeout=0.05)
    async def hangs() -> str:
        """Hang."""
        await anyio.sleep(60)
        return ""

    @tool
    def no_json() -> object:
        """Return an object."""
        return object()

    def nested() -> Any:
        """Return something deep."""
        deep: Any = 1
        for _ in range(300):
            deep = [deep]
        return deep

    deep = Tool(nested)
    names = ["raises", "hangs", "no_json", "nested"]
    replies = ModelReply("", tuple(ToolCall(name, name, "{}") for name in names))
    model = ScriptedModel([replies, "I see"])
    tools = [raises, hangs, no_json, deep]
    async with working(store, model, agents=[agent(tools=names)], tools=tools) as chat:
        answer = await chat.answer_to(await chat.say("s", "Go"))
        assert answer.context["message"] == "I see"
        responses = await chat.all("s", "tool.response.v1")
        assert len(responses) == 4
        told = [message.content for message in model.requests[1].messages[-4:]]
        assert "broken" in told[0] and "did not finish within 0.05 s" in told[1]


async def test_the_output_of_a_tool_that_does_not_return_to_the_model_is_the_answer(store: Store) -> None:
    counting = Counting(return_to_llm=False)
    model = ScriptedModel([use("count_me")])
    async with working(store, model, agents=[agent(tools=["count_me"])], tools=[counting.tool]) as chat:
        answer = await chat.answer_to(await chat.say("s", "Go"))
        assert "run 1" in answer.context["message"]
        assert len(model.requests) == 1


async def test_text_of_a_model_next_to_a_tool_call_is_shown_and_stored(store: Store) -> None:
    counting = Counting()
    calls = use("count_me").tool_calls
    model = ScriptedModel(
        [
            ModelReply("Let me look.\n", calls),
            ModelReply(" \n", calls),
            ModelReply("Hm.", calls),
            "It is four.",
        ]
    )
    async with (
        working(store, model, agents=[agent(tools=["count_me"])], tools=[counting.tool]) as chat,
        deltas_of(store) as shown,
    ):
        answer = await chat.answer_to(await chat.say("s", "Go"))
        assert answer.context["message"] == "Let me look.\n\nHm.\n\nIt is four."
        # Trailing white space of a reply is streamed unchanged.
        await eventually(
            lambda: _async(shown() == "Let me look.\n\n\nHm.\n\nIt is four."), f"it showed {shown()!r}"
        )


async def test_the_text_so_far_is_shown_while_a_model_pauses(store: Store) -> None:
    goes_on = anyio.Event()

    async def hesitating(call: Call) -> str:
        for word in ("One, ", "two, "):
            await call.say(word)
            await anyio.lowlevel.checkpoint()
        await goes_on.wait()
        await call.say("three.")
        return "One, two, three."

    async with working(store, agents=[function_agent(hesitating)]) as chat, deltas_of(store) as shown:
        message = await chat.say("s", "Count")
        await eventually(lambda: _async(shown() == "One, two, "), f"it showed {shown()!r}")
        goes_on.set()
        await chat.answer_to(message)
        await eventually(lambda: _async(shown() == "One, two, three."), f"it showed {shown()!r}")


async def test_text_before_a_json_answer_precedes_its_message(store: Store) -> None:
    counting = Counting()
    last = '{"action": "create", "breadcrumb": {"tags": ["found"], "context": {"message": "four", "n": 4}}}'
    model = ScriptedModel([ModelReply("Let me look.", use("count_me").tool_calls), last])
    async with working(store, model, agents=[agent(tools=["count_me"])], tools=[counting.tool]) as chat:
        answer = await chat.answer_to(await chat.say("s", "Go"))
        assert answer.context["message"] == "Let me look.\n\nfour"
        assert answer.context["n"] == 4 and "found" in answer.tags


async def test_text_next_to_a_tool_call_is_not_an_answer_by_itself(store: Store) -> None:
    counting = Counting()
    model = ScriptedModel([ModelReply("Let me look.", use("count_me").tool_calls), ""])
    agents = [agent(tools=["count_me"])]
    async with working(store, model, agents=agents, tools=[counting.tool], attempts=1) as chat:
        error = await chat.error_about(await chat.say("s", "Go"))
        assert error.context["error"] == "the model returned an empty answer"


async def _async(value: bool) -> bool:
    return value


@asynccontextmanager
async def deltas_of(store: Store) -> AsyncIterator[Callable[[], str]]:
    """Collect the deltas of all answers. Yield a function that returns their text."""
    pieces: list[str] = []

    async def listen() -> None:
        await store.connection.listen(
            store.keys.deltas(), lambda raw: pieces.append(orjson.loads(raw)["text"])
        )

    async def heard() -> bool:
        _, listeners = await store.connection.call(0, b"PUBSUB", b"NUMSUB", store.keys.deltas())
        return bool(listeners)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await eventually(heard, "no client is subscribed")
        yield lambda: "".join(pieces)
        tasks.cancel_scope.cancel()
