"""Requests and replies of the HTTP model, against a real server."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import anyio
import pytest

from breadcrumbs.agents.models.base import (
    ModelError,
    ModelReply,
    ModelRequest,
    PromptMessage,
    TokenUsage,
    ToolCall,
    ToolSpec,
)
from breadcrumbs.agents.models.endpoint import last_event, read_events
from breadcrumbs.runtime.errors import BreadcrumbsError
from breadcrumbs.runtime.sse import Parser
from tests.support.model_calls import ASK, KEY, Deltas, ask, failure, model_at
from tests.support.model_server import ModelServer

CALCULATOR = ToolSpec(
    "calculator", "Does sums", {"type": "object", "properties": {"expression": {"type": "string"}}}
)


# Answers


async def test_a_streamed_answer_arrives_in_deltas_and_as_a_complete_reply(server: ModelServer) -> None:
    scenario = server.scenario("normal")
    deltas = Deltas()
    async with model_at(scenario) as model:
        reply = await model.complete(ASK, deltas)
    assert reply == ModelReply("You asked: Hello there", usage=TokenUsage(12, 7), finish_reason="stop")
    assert len(deltas) > 3
    (sent,) = scenario.requests
    assert sent.body == {
        "model": "test",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello there"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert sent.headers["authorization"] == f"Bearer {KEY}"


async def test_deltas_arrive_before_the_answer_is_complete(server: ModelServer) -> None:
    scenario = server.scenario("normal", pause=0.05)
    arrivals: list[float] = []

    async def note(_: str) -> None:
        arrivals.append(time.monotonic())

    async with model_at(scenario) as model:
        await model.complete(ASK, note)
    assert arrivals[-1] - arrivals[0] > 0.1


async def test_the_reply_is_the_same_without_a_delta_callback(server: ModelServer) -> None:
    async with model_at(server.scenario("normal")) as model:
        reply = await model.complete(ASK)
    assert reply.text == "You asked: Hello there"


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_answer_without_streaming_is_read(server: ModelServer, streaming: bool) -> None:
    scenario = server.scenario("whole")
    reply = await ask(scenario, streaming=streaming)
    assert reply == ModelReply("You asked: Hello there", usage=TokenUsage(12, 7), finish_reason="stop")
    assert ("stream" in scenario.requests[0].body) is streaming


async def test_the_read_timeout_does_not_apply_without_streaming(server: ModelServer) -> None:
    scenario = server.scenario("slow_first_byte", delay=0.4)
    assert (await ask(scenario, streaming=False, read=0.1, total=3)).text == "You asked: Hello there"


async def test_a_call_without_a_key_sends_no_authorization_header(server: ModelServer) -> None:
    scenario = server.scenario("normal")
    await ask(scenario, key=None)
    assert "authorization" not in scenario.requests[0].headers


async def test_request_settings_are_sent_to_the_model(server: ModelServer) -> None:
    scenario = server.scenario("normal")
    await ask(scenario, replace(ASK, temperature=0.3, max_tokens=50, tools=(CALCULATOR,)))
    body = scenario.requests[0].body
    assert body["temperature"] == 0.3
    assert body["max_tokens"] == 50
    assert body["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "calculator",
                "description": "Does sums",
                "parameters": CALCULATOR.parameters,
            },
        }
    ]


@pytest.mark.parametrize("streaming", [True, False])
async def test_tool_calls_are_assembled_from_deltas(server: ModelServer, streaming: bool) -> None:
    reply = await ask(server.scenario("tool_calls"), replace(ASK, tools=(CALCULATOR,)), streaming=streaming)
    assert reply.text == ""
    assert reply.finish_reason == "tool_calls"
    assert reply.tool_calls == (
        ToolCall("call_a", "calculator", '{"expression": "12*7"}'),
        ToolCall("call_b", "clock", "{}"),
    )


async def test_tool_calls_and_their_results_are_sent_back_to_the_model(server: ModelServer) -> None:
    scenario = server.scenario("tool_calls", text="It is 84.")
    calls = (ToolCall("call_a", "calculator", '{"expression": "12*7"}'), ToolCall("call_b", "clock", "{oops"))
    history = (
        *ASK.messages,
        PromptMessage("assistant", "", tool_calls=calls),
        PromptMessage("tool", "84", tool_call_id="call_a", name="calculator"),
        PromptMessage("tool", "no", tool_call_id="call_b"),
    )
    reply = await ask(scenario, ModelRequest(history))
    assert reply.text == "It is 84."
    sent = scenario.requests[0].body["messages"]
    assert sent[2]["content"] is None
    assert sent[2]["tool_calls"][0]["function"] == {
        "name": "calculator",
        "arguments": '{"expression": "12*7"}',
    }
    # Servers answer 400 to a history with broken arguments.
    assert sent[2]["tool_calls"][1]["function"]["arguments"] == '{"invalid_json":"{oops"}'
    assert sent[3] == {"role": "tool", "content": "84", "tool_call_id": "call_a"}


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        pytest.param(
            [
                {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "a", "arguments": "{}"}}]},
                {"tool_calls": [{"index": 0, "id": "y", "function": {"name": "b", "arguments": "{}"}}]},
            ],
            (ToolCall("x", "a", "{}"), ToolCall("y", "b", "{}")),
            id="every index is 0",
        ),
        pytest.param(
            [
                {"tool_calls": [{"id": "x", "function": {"name": "a", "arguments": '{"q"'}}]},
                {"tool_calls": [{"function": {"arguments": ": 1}"}}]},
                {"tool_calls": [{"id": "y", "function": {"name": "b", "arguments": "{}"}}]},
            ],
            (ToolCall("x", "a", '{"q": 1}'), ToolCall("y", "b", "{}")),
            id="no index",
        ),
        pytest.param(
            [{"tool_calls": [{"index": 0, "function": {"name": "a", "arguments": {"q": "ü"}}}]}],
            (ToolCall("call_1", "a", '{"q":"ü"}'),),
            id="arguments as an object, no id",
        ),
        pytest.param(
            [
                {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "get_", "arguments": ""}}]},
                {"tool_calls": [{"index": 0, "function": {"name": "time"}}]},
                {"tool_calls": [{"index": 0, "function": {"name": "get_time", "arguments": "{}"}}]},
            ],
            (ToolCall("x", "get_time", "{}"),),
            id="name in pieces, then repeated",
        ),
    ],
)
async def test_tool_call_variants_of_servers_are_parsed(
    server: ModelServer, deltas: list[dict[str, Any]], expected: tuple[ToolCall, ...]
) -> None:
    assert (await ask(server.scenario("chunks", deltas=deltas))).tool_calls == expected


async def test_a_tool_call_without_a_name_is_an_error(server: ModelServer) -> None:
    deltas = [{"tool_calls": [{"index": 0, "id": "x", "function": {"arguments": "{}"}}]}]
    assert "without a name" in (await failure(server.scenario("chunks", deltas=deltas))).reason


async def test_thoughts_are_not_part_of_the_answer(server: ModelServer) -> None:
    deltas = [{"reasoning_content": "Let me see"}, {"content": [{"type": "text", "text": "Four"}]}]
    assert (await ask(server.scenario("chunks", deltas=deltas))).text == "Four"


async def test_a_surrogate_pair_split_by_the_server_is_joined(server: ModelServer) -> None:
    deltas = [{"content": "hi \ud83d"}, {"content": "\ude00 there"}, {"content": "\ud83d"}]
    assert (await ask(server.scenario("chunks", deltas=deltas))).text == "hi 😀 there\ufffd"


@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_the_finish_reason_of_the_model_is_returned(server: ModelServer, finish: str) -> None:
    reply = await ask(server.scenario("chunks", deltas=[{"content": "Once"}], finish=finish))
    assert (reply.text, reply.finish_reason) == ("Once", finish)


async def test_a_refusal_is_returned_as_text_with_its_own_finish_reason(server: ModelServer) -> None:
    deltas = [{"refusal": "I cannot "}, {"refusal": "do that"}]
    reply = await ask(server.scenario("chunks", deltas=deltas))
    assert (reply.text, reply.finish_reason) == ("I cannot do that", "refusal")


async def test_events_with_a_wrong_content_type_are_read(server: ModelServer) -> None:
    body = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\r\n\r\ndata: [DONE]\r\n\r\n'
    assert (await ask(server.scenario("raw", body=body, content_type="text/plain"))).text == "Hi"


async def test_a_json_answer_with_the_content_type_of_a_stream_is_read(server: ModelServer) -> None:
    body = b'{"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}'
    assert (await ask(server.scenario("raw", body=body, content_type="text/event-stream"))).text == "Hi"


async def test_the_last_event_needs_no_trailing_empty_line(server: ModelServer) -> None:
    body = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\ndata: [DONE]'
    assert (await ask(server.scenario("raw", body=body, content_type="text/event-stream"))).text == "Hi"


async def test_concurrent_calls_on_one_endpoint_do_not_mix(server: ModelServer) -> None:
    answers: dict[int, str] = {}
    async with model_at(server.scenario("normal", pause=0.005)) as model:

        async def one(number: int) -> None:
            reply = await model.complete(ModelRequest((PromptMessage("user", f"I am {number}"),)))
            answers[number] = reply.text

        async with anyio.create_task_group() as group:
            for number in range(30):
                group.start_soon(one, number)
    assert answers == {number: f"You asked: I am {number}" for number in range(30)}


# Unsupported fields


@pytest.mark.parametrize("field", ["stream_options", "stream", "max_tokens"])
async def test_an_unsupported_field_is_left_out_of_later_requests(server: ModelServer, field: str) -> None:
    scenario = server.scenario("picky", refuses=(field,))
    async with model_at(scenario) as model:
        for _ in range(2):
            assert (await model.complete(replace(ASK, max_tokens=9))).text == "You asked: Hello there"
    assert len(scenario.requests) == 3  # the second call leaves the field out at once
    assert field not in scenario.requests[-1].body
    if field == "max_tokens":
        assert scenario.requests[-1].body["max_completion_tokens"] == 9


@pytest.mark.parametrize("field", ["stream_options", "stream", "max_tokens"])
async def test_concurrent_calls_all_retry_without_an_unsupported_field(
    server: ModelServer, field: str
) -> None:
    scenario = server.scenario("picky", refuses=(field,), delay=0.2)
    answers: list[str] = []
    async with model_at(scenario) as model:

        async def ask() -> None:
            answers.append((await model.complete(replace(ASK, max_tokens=9))).text)

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(ask)
    assert answers == ["You asked: Hello there"] * 5
    assert sum(field in request.body for request in scenario.requests) == 5


async def test_the_token_limit_is_never_dropped(server: ModelServer) -> None:
    scenario = server.scenario("picky", refuses=("max_tokens", "max_completion_tokens"))
    async with model_at(scenario) as model:
        with pytest.raises(ModelError, match="refused the request") as caught:
            await model.complete(replace(ASK, max_tokens=9))
    assert not caught.value.retry
    assert len(scenario.requests) == 2


# Events


def test_events_are_parsed_with_any_chunk_size() -> None:
    stream = b"\xef\xbb\xbfdata: one\n\n: note\r\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\n\n\ndata: last"
    for size in range(1, len(stream) + 1):
        parser = Parser(max_line_bytes=100)
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        events = [event for piece in pieces for event in read_events(parser, piece)]
        assert (events, last_event(parser)) == ([b"one", b"two\nlines"], b"last")
        assert last_event(parser) is None
        assert not parser.stray


def test_an_endless_line_is_refused() -> None:
    parser = Parser(max_line_bytes=1000)
    with pytest.raises(ModelError, match="longer than 1,000 bytes"):
        for _ in range(100):
            read_events(parser, b"x" * 100)


# Callback, cancellation, closing


async def test_an_error_in_the_delta_callback_is_raised_unchanged(server: ModelServer) -> None:
    scenario = server.scenario("normal")

    async def fails(_: str) -> None:
        raise TimeoutError("mine")

    async with model_at(scenario) as model:
        with pytest.raises(TimeoutError, match="mine"):
            await model.complete(ASK, fails)
    assert len(scenario.requests) == 1


async def test_a_cancelled_call_closes_its_connection(server: ModelServer) -> None:
    scenario = server.scenario("slow_trickle")
    async with model_at(scenario) as model:
        with anyio.move_on_after(0.3) as scope:
            await model.complete(ASK)
        assert scope.cancelled_caught
        assert await anyio.to_thread.run_sync(scenario.gone.wait, 5)


async def test_a_prompt_that_cannot_be_json_is_an_error(server: ModelServer) -> None:
    scenario = server.scenario("normal")
    async with model_at(scenario) as model:
        with pytest.raises(ModelError, match="cannot be encoded as JSON") as caught:
            await model.complete(ModelRequest((PromptMessage("user", "\ud800"),)))
    assert not caught.value.retry
    assert not scenario.requests


async def test_a_model_can_be_closed_twice_and_its_error_is_a_breadcrumbs_error(server: ModelServer) -> None:
    async with model_at(server.scenario("normal")) as model:
        await model.complete(ASK)
        await model.close()
    await model.close()
    assert issubclass(ModelError, BreadcrumbsError)
