"""The HTTP model against a real server that behaves well, badly, and very badly."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anyio
import orjson
import pytest
import structlog
from pydantic import SecretStr

from breadcrumbs.agents.models.base import (
    Message,
    ModelError,
    ModelReply,
    ModelRequest,
    ToolCall,
    ToolSpec,
    Usage,
)
from breadcrumbs.agents.models.endpoint import Endpoint, Limits
from breadcrumbs.agents.models.openai_compatible import OpenAICompatibleModel
from breadcrumbs.agents.models.server_sent_events import EventParser
from breadcrumbs.runtime.errors import BreadcrumbsError, StartupError
from tests.support.model_server import ModelServer, Scenario
from tests.support.servers import free_port

KEY = "sk-test-0123456789abcdef"
ASK = ModelRequest(messages=(Message("system", "Be brief."), Message("user", "Hello there")))
QUICK = Limits(connect=2, read=2, total=5, retries=2, backoff=0.02, max_wait=1)
CALCULATOR = ToolSpec(
    "calculator", "Does sums", {"type": "object", "properties": {"expression": {"type": "string"}}}
)


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@asynccontextmanager
async def model_at(
    scenario: Scenario, *, key: str | None = KEY, streaming: bool = True, **limits: Any
) -> AsyncIterator[OpenAICompatibleModel]:
    endpoint = Endpoint(
        scenario.url,
        key=SecretStr(key) if key else None,
        limits=replace(QUICK, **limits),
        streaming=streaming,
    )
    model = OpenAICompatibleModel("test", endpoint)
    try:
        yield model
    finally:
        await model.close()


class Deltas(list[str]):
    async def __call__(self, piece: str) -> None:
        self.append(piece)


async def ask(scenario: Scenario, request: ModelRequest = ASK, **options: Any) -> ModelReply:
    """With deltas; they must add up to the reply."""
    deltas = Deltas()
    async with model_at(scenario, **options) as model:
        reply = await model.complete(request, deltas)
    assert "".join(deltas) == reply.text
    assert "" not in deltas
    return reply


async def failure(scenario: Scenario, **options: Any) -> ModelError:
    deltas = Deltas()
    async with model_at(scenario, **options) as model:
        with pytest.raises(ModelError) as caught:
            await model.complete(ASK, deltas)
    error = caught.value
    assert KEY not in repr(error) and KEY not in str(error.reason)
    assert error.reason.startswith(f"{scenario.url}#test: ")
    assert str(error) == error.reason
    return error


# Answers


async def test_a_streamed_answer_arrives_in_pieces_and_whole(server: ModelServer) -> None:
    scenario = server.scenario("normal")
    deltas = Deltas()
    async with model_at(scenario) as model:
        reply = await model.complete(ASK, deltas)
    assert reply == ModelReply("You asked: Hello there", usage=Usage(12, 7), finish_reason="stop")
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


async def test_deltas_come_while_the_model_is_still_writing(server: ModelServer) -> None:
    scenario = server.scenario("normal", pause=0.05)
    arrivals: list[float] = []

    async def note(_: str) -> None:
        arrivals.append(time.monotonic())

    async with model_at(scenario) as model:
        await model.complete(ASK, note)
    assert arrivals[-1] - arrivals[0] > 0.1


async def test_without_a_listener_the_reply_is_the_same(server: ModelServer) -> None:
    async with model_at(server.scenario("normal")) as model:
        reply = await model.complete(ASK)
    assert reply.text == "You asked: Hello there"


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_server_that_does_not_stream_is_understood(server: ModelServer, streaming: bool) -> None:
    scenario = server.scenario("whole")
    reply = await ask(scenario, streaming=streaming)
    assert reply == ModelReply("You asked: Hello there", usage=Usage(12, 7), finish_reason="stop")
    assert ("stream" in scenario.requests[0].body) is streaming


async def test_without_streaming_a_model_may_think_longer_than_the_read_limit(server: ModelServer) -> None:
    scenario = server.scenario("slow_first_byte", delay=0.4)
    assert (await ask(scenario, streaming=False, read=0.1, total=3)).text == "You asked: Hello there"


async def test_no_key_means_no_authorization_header(server: ModelServer) -> None:
    scenario = server.scenario("normal")
    await ask(scenario, key=None)
    assert "authorization" not in scenario.requests[0].headers


async def test_settings_of_the_request_reach_the_model(server: ModelServer) -> None:
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
async def test_tool_calls_are_put_together_from_their_pieces(server: ModelServer, streaming: bool) -> None:
    reply = await ask(server.scenario("tool_calls"), replace(ASK, tools=(CALCULATOR,)), streaming=streaming)
    assert reply.text == ""
    assert reply.finish_reason == "tool_calls"
    assert reply.tool_calls == (
        ToolCall("call_a", "calculator", '{"expression": "12*7"}'),
        ToolCall("call_b", "clock", "{}"),
    )


async def test_calls_and_their_results_go_back_to_the_model(server: ModelServer) -> None:
    scenario = server.scenario("tool_calls", text="It is 84.")
    calls = (ToolCall("call_a", "calculator", '{"expression": "12*7"}'), ToolCall("call_b", "clock", "{oops"))
    history = (
        *ASK.messages,
        Message("assistant", "", tool_calls=calls),
        Message("tool", "84", tool_call_id="call_a", name="calculator"),
        Message("tool", "no", tool_call_id="call_b"),
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
async def test_dialects_of_tool_calls_are_understood(
    server: ModelServer, deltas: list[dict[str, Any]], expected: tuple[ToolCall, ...]
) -> None:
    assert (await ask(server.scenario("chunks", deltas=deltas))).tool_calls == expected


async def test_a_tool_call_without_a_name_is_an_error(server: ModelServer) -> None:
    deltas = [{"tool_calls": [{"index": 0, "id": "x", "function": {"arguments": "{}"}}]}]
    assert "without naming it" in (await failure(server.scenario("chunks", deltas=deltas))).reason


async def test_thoughts_are_not_part_of_the_answer(server: ModelServer) -> None:
    deltas = [{"reasoning_content": "Let me see"}, {"content": [{"type": "text", "text": "Four"}]}]
    assert (await ask(server.scenario("chunks", deltas=deltas))).text == "Four"


async def test_an_emoji_cut_in_two_by_the_server_is_whole_again(server: ModelServer) -> None:
    deltas = [{"content": "hi \ud83d"}, {"content": "\ude00 there"}, {"content": "\ud83d"}]
    assert (await ask(server.scenario("chunks", deltas=deltas))).text == "hi 😀 there\ufffd"


@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_why_a_model_stopped_is_passed_on(server: ModelServer, finish: str) -> None:
    reply = await ask(server.scenario("chunks", deltas=[{"content": "Once"}], finish=finish))
    assert (reply.text, reply.finish_reason) == ("Once", finish)


async def test_a_refusal_is_text_that_says_so(server: ModelServer) -> None:
    deltas = [{"refusal": "I cannot "}, {"refusal": "do that"}]
    reply = await ask(server.scenario("chunks", deltas=deltas))
    assert (reply.text, reply.finish_reason) == ("I cannot do that", "refusal")


async def test_events_under_a_wrong_content_type_are_read_all_the_same(server: ModelServer) -> None:
    body = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\r\n\r\ndata: [DONE]\r\n\r\n'
    assert (await ask(server.scenario("raw", body=body, content_type="text/plain"))).text == "Hi"


async def test_a_whole_answer_that_claims_to_be_a_stream_is_read_all_the_same(server: ModelServer) -> None:
    body = b'{"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}'
    assert (await ask(server.scenario("raw", body=body, content_type="text/event-stream"))).text == "Hi"


async def test_the_last_event_needs_no_empty_line_after_it(server: ModelServer) -> None:
    body = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\ndata: [DONE]'
    assert (await ask(server.scenario("raw", body=body, content_type="text/event-stream"))).text == "Hi"


async def test_many_calls_at_once_share_the_endpoint_and_do_not_mix(server: ModelServer) -> None:
    answers: dict[int, str] = {}
    async with model_at(server.scenario("normal", pause=0.005)) as model:

        async def one(number: int) -> None:
            reply = await model.complete(ModelRequest((Message("user", f"I am {number}"),)))
            answers[number] = reply.text

        async with anyio.create_task_group() as group:
            for number in range(30):
                group.start_soon(one, number)
    assert answers == {number: f"You asked: I am {number}" for number in range(30)}


# What servers do not know


@pytest.mark.parametrize("field", ["stream_options", "stream", "max_tokens"])
async def test_a_server_that_does_not_know_a_field_is_asked_without_it(
    server: ModelServer, field: str
) -> None:
    scenario = server.scenario("picky", refuses=(field,))
    async with model_at(scenario) as model:
        for _ in range(2):
            assert (await model.complete(replace(ASK, max_tokens=9))).text == "You asked: Hello there"
    assert len(scenario.requests) == 3  # it is remembered
    assert field not in scenario.requests[-1].body
    if field == "max_tokens":
        assert scenario.requests[-1].body["max_completion_tokens"] == 9


@pytest.mark.parametrize("field", ["stream_options", "stream", "max_tokens"])
async def test_calls_at_the_same_time_all_do_without_a_field_that_the_server_does_not_know(
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


async def test_a_limit_on_tokens_is_never_dropped(server: ModelServer) -> None:
    scenario = server.scenario("picky", refuses=("max_tokens", "max_completion_tokens"))
    async with model_at(scenario) as model:
        with pytest.raises(ModelError, match="refused the request") as caught:
            await model.complete(replace(ASK, max_tokens=9))
    assert not caught.value.retry
    assert len(scenario.requests) == 2


# What passes


@pytest.mark.parametrize(("behaviour", "options"), [("rate_limited", {"retry_after": "0"}), ("failing", {})])
async def test_what_passes_is_tried_again(
    server: ModelServer, behaviour: str, options: dict[str, Any]
) -> None:
    scenario = server.scenario(behaviour, times=2, **options)
    assert (await ask(scenario)).text == "You asked: Hello there"
    assert len(scenario.requests) == 3


async def test_retries_end(server: ModelServer) -> None:
    scenario = server.scenario("failing", status=503)
    error = await failure(scenario)
    assert error.retry
    assert "the provider failed (503): The server had an error" in error.reason
    assert len(scenario.requests) == 3


async def test_a_pause_that_the_server_asks_for_is_kept(server: ModelServer) -> None:
    scenario = server.scenario("rate_limited", times=1, retry_after="0.4")
    await ask(scenario)
    first, second = scenario.requests
    assert second.at - first.at >= 0.4


async def test_the_cap_holds_where_there_would_be_time_left(server: ModelServer) -> None:
    scenario = server.scenario("rate_limited", times=1, retry_after="0.3")
    assert (await failure(scenario, max_wait=0.2)).retry_after == 0.3
    assert len(scenario.requests) == 1


async def test_a_pause_of_some_seconds_is_left_to_the_worker_who_has_other_work(server: ModelServer) -> None:
    scenario = server.scenario("rate_limited", times=1, retry_after="5")
    error = await failure(scenario, max_wait=Limits().max_wait, total=60)
    assert error.retry and error.retry_after == 5


async def test_a_pause_may_be_given_as_a_date(server: ModelServer) -> None:
    scenario = server.scenario(
        "rate_limited", retry_after=format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    )
    error = await failure(scenario)
    assert error.retry_after is not None and 90 < error.retry_after <= 100
    assert len(scenario.requests) == 1


async def test_a_pause_longer_than_the_cap_is_left_to_the_caller(server: ModelServer) -> None:
    scenario = server.scenario("rate_limited", retry_after="120")
    began = time.monotonic()
    error = await failure(scenario)
    assert (error.retry, error.retry_after) == (True, 120.0)
    assert len(scenario.requests) == 1
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("retry_after", ["soon", "nan", "inf", "-5", ""])
async def test_a_pause_that_makes_no_sense_is_ignored(server: ModelServer, retry_after: str) -> None:
    scenario = server.scenario("rate_limited", times=1, retry_after=retry_after)
    assert (await ask(scenario)).text == "You asked: Hello there"


async def test_no_wait_goes_beyond_the_total_time(server: ModelServer) -> None:
    scenario = server.scenario("rate_limited", retry_after="0.9")
    began = time.monotonic()
    error = await failure(scenario, total=0.5)
    assert (error.retry, error.retry_after) == (True, 0.9)
    assert time.monotonic() - began < 0.5


async def test_an_exhausted_quota_is_not_tried_again(server: ModelServer) -> None:
    body = b'{"error": {"message": "Quota exceeded", "code": "insufficient_quota"}}'
    scenario = server.scenario("raw", status=429, body=body)
    assert not (await failure(scenario)).retry
    assert len(scenario.requests) == 1


async def test_nobody_listening_is_a_passing_error_that_says_where(server: ModelServer) -> None:
    scenario = Scenario(f"http://127.0.0.1:{free_port()}/v1", "", {})
    error = await failure(scenario)
    assert error.retry
    assert "cannot connect to" in error.reason and "is it running?" in error.reason


async def test_a_server_that_is_slow_to_begin_is_tried_again(server: ModelServer) -> None:
    scenario = server.scenario("slow_first_byte", delay=3, times=1)
    assert (await ask(scenario, read=0.2)).text == "You asked: Hello there"
    assert len(scenario.requests) == 2


async def test_a_server_that_never_begins_is_given_up(server: ModelServer) -> None:
    error = await failure(server.scenario("slow_first_byte", delay=5), read=0.2, retries=1)
    assert error.retry
    assert "no answer began within 0.2 s" in error.reason


async def test_the_total_time_holds_over_all_retries(server: ModelServer) -> None:
    began = time.monotonic()
    error = await failure(server.scenario("slow_first_byte", delay=5), read=0.3, total=0.5, retries=9)
    assert error.retry
    assert "no answer within 0.5 s" in error.reason
    assert time.monotonic() - began < 1.5


# Broken streams


async def test_a_half_closed_stream_is_an_error_once_a_part_was_passed_on(server: ModelServer) -> None:
    scenario = server.scenario("half_closed")
    error = await failure(scenario)
    assert error.retry
    assert "ended in the middle of the answer" in error.reason
    assert len(scenario.requests) == 1


async def test_a_half_closed_stream_is_tried_again_while_nothing_was_passed_on(server: ModelServer) -> None:
    scenario = server.scenario("half_closed", times=1)
    async with model_at(scenario) as model:
        assert (await model.complete(ASK)).text == "You asked: Hello there"
    assert len(scenario.requests) == 2


async def test_a_connection_cut_in_the_middle_is_an_error(server: ModelServer) -> None:
    scenario = server.scenario("cut_off")
    error = await failure(scenario)
    assert error.retry
    assert "in the middle of the answer" in error.reason
    assert len(scenario.requests) == 1


async def test_a_connection_cut_after_the_end_of_the_answer_is_none(server: ModelServer) -> None:
    assert (await ask(server.scenario("cut_off", finish="stop"))).text == "You asked: Hello there"


async def test_an_answer_that_stalls_is_an_error(server: ModelServer) -> None:
    error = await failure(server.scenario("stalls"), read=0.2)
    assert error.retry
    assert "nothing came for 0.2 s" in error.reason


async def test_a_finished_answer_does_not_wait_for_a_server_that_lingers(server: ModelServer) -> None:
    began = time.monotonic()
    assert (await ask(server.scenario("lingers"), read=9, total=9)).text == "You asked: Hello there"
    assert time.monotonic() - began < 4


async def test_a_broken_chunk_is_tried_again_while_nothing_was_passed_on(server: ModelServer) -> None:
    scenario = server.scenario("broken_chunk")
    error = await failure(scenario)
    assert error.retry
    assert "not JSON" in error.reason
    assert len(scenario.requests) == 3


async def test_a_broken_chunk_is_raised_once_a_part_was_passed_on(server: ModelServer) -> None:
    scenario = server.scenario("broken_chunk", before=2)
    assert (await failure(scenario)).retry
    assert len(scenario.requests) == 1


# Answers without end


async def test_an_infinite_stream_is_cut_by_its_size(server: ModelServer) -> None:
    scenario = server.scenario("infinite")
    error = await failure(scenario, max_text=200_000)
    assert not error.retry
    assert "cut off at 200,000 bytes" in error.reason
    assert len(scenario.requests) == 1
    assert scenario.gone.wait(5)  # the connection was given up, not left running


async def test_what_is_cut_gives_up_its_connection_at_once(server: ModelServer) -> None:
    scenario = server.scenario("infinite")
    async with model_at(scenario, max_text=10_000) as model:
        with pytest.raises(ModelError):
            await model.complete(ASK)
        assert await anyio.to_thread.run_sync(scenario.gone.wait, 5)


async def test_an_infinite_trickle_is_cut_by_its_time(server: ModelServer) -> None:
    scenario = server.scenario("slow_trickle")
    error = await failure(scenario, total=0.5)
    assert not error.retry
    assert "cut off after 0.5 s" in error.reason
    assert scenario.gone.wait(5)


@pytest.mark.parametrize("kind", ["comments", "thoughts", "line"])
async def test_what_is_no_text_can_be_no_infinite_stream_either(server: ModelServer, kind: str) -> None:
    scenario = server.scenario("infinite", kind=kind)
    error = await failure(scenario, max_text=1000, total=20, read=20)
    assert not error.retry
    assert len(scenario.requests) == 1
    assert scenario.gone.wait(5)


@pytest.mark.parametrize("streamed", [True, False])
async def test_ten_megabytes_are_not_an_answer(server: ModelServer, streamed: bool) -> None:
    error = await failure(server.scenario("huge", streamed=streamed))
    assert not error.retry
    assert "bytes" in error.reason
    assert len(error.reason) < 500


async def test_an_answer_just_within_the_limit_is_one(server: ModelServer) -> None:
    assert len((await ask(server.scenario("huge", size=1 << 20))).text) == 1 << 20


async def test_tool_calls_without_end_are_cut(server: ModelServer) -> None:
    deltas = [
        {"tool_calls": [{"index": i, "id": f"c{i}", "function": {"name": "a", "arguments": "{}"}}]}
        for i in range(200)
    ]
    assert not (await failure(server.scenario("chunks", deltas=deltas))).retry


# Nothing, garbage, errors


async def test_a_model_that_returns_nothing_is_an_error_that_says_so(server: ModelServer) -> None:
    scenario = server.scenario("empty")
    error = await failure(scenario)
    assert error.retry
    assert "returned nothing" in error.reason
    assert len(scenario.requests) == 1


async def test_only_white_space_is_nothing(server: ModelServer) -> None:
    async with model_at(server.scenario("chunks", deltas=[{"content": " \n"}])) as model:
        with pytest.raises(ModelError, match="returned nothing"):
            await model.complete(ASK)


@pytest.mark.parametrize(
    ("finish", "words"), [("content_filter", "content filter"), ("length", "max_tokens")]
)
async def test_nothing_is_explained_where_the_model_says_why(
    server: ModelServer, finish: str, words: str
) -> None:
    error = await failure(server.scenario("empty", finish=finish))
    assert not error.retry
    assert words in error.reason


@pytest.mark.parametrize(
    ("body", "content_type", "words", "retry"),
    [
        (b"", "application/json", "empty body", True),
        (b"  \n", "text/event-stream", "empty body", True),
        (b"<html><body>Log in</body></html>", "text/html", "is the URL right?", False),
        (b"<html><body>Log in</body></html>", "text/event-stream", "is the URL right?", False),
        (b"\xff\xfe\x00garbage", "application/json", "not JSON", False),
        (b"OK", "text/plain", "not JSON", False),
        (b"[1, 2]", "application/json", "no chat completion", False),
        (b"null", "application/json", "not JSON", False),
        (b"{}", "application/json", "no message in it", False),
        (b'{"choices": []}', "application/json", "no message in it", False),
        (b'{"choices": [{"message": "hi"}]}', "application/json", "no message in it", False),
        (b'{"choices": {"0": 1}}', "application/json", "no message in it", False),
        (b"[" * 5000, "application/json", "not JSON", False),
        (b"data: [1]\n\n", "text/event-stream", "no chat completion", False),
    ],
)
async def test_garbage_is_an_error_that_shows_what_came(
    server: ModelServer, body: bytes, content_type: str, words: str, retry: bool
) -> None:
    error = await failure(server.scenario("raw", body=body, content_type=content_type), retries=0)
    assert words in error.reason
    assert error.retry is retry
    assert len(error.reason) < 500
    assert error.reason.isprintable()


async def test_an_error_in_a_200_answer_is_an_error(server: ModelServer) -> None:
    scenario = server.scenario("error_in_200", times=1)
    assert (await ask(scenario)).text == "You asked: Hello there"  # 503 passes
    assert len(scenario.requests) == 2


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        ({"message": "bad", "code": 400}, False),
        ({"message": "slow down", "code": 429}, True),
        ({"message": "oh", "type": "server_error", "code": None}, True),
        ({"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}, False),
        ("just text", False),
        ({"odd": [1]}, False),
        ({"message": "oh", "type": "server_error", "code": 1302}, True),
    ],
)
async def test_the_error_decides_whether_it_passes(server: ModelServer, error: Any, retry: bool) -> None:
    assert (await failure(server.scenario("error_in_200", error=error), retries=0)).retry is retry


async def test_an_error_in_the_middle_of_a_stream_is_raised(server: ModelServer) -> None:
    scenario = server.scenario("error_in_200", before=2)
    error = await failure(scenario)
    assert error.retry
    assert "Upstream is overloaded" in error.reason
    assert len(scenario.requests) == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [(400, "refused"), (402, "credit"), (403, "not allowed"), (404, "no such model"), (413, "too large")],
)
async def test_what_does_not_pass_is_not_tried_again(server: ModelServer, status: int, words: str) -> None:
    scenario = server.scenario("failing", status=status)
    error = await failure(scenario)
    assert not error.retry
    assert words in error.reason
    assert len(scenario.requests) == 1


@pytest.mark.parametrize("code", [0, 1, True, 1302])
async def test_a_providers_own_number_does_not_hide_the_status(server: ModelServer, code: int) -> None:
    body = orjson.dumps({"error": {"message": "later", "code": code}})
    error = await failure(server.scenario("raw", status=503, body=body), retries=0)
    assert error.retry
    assert "503" in error.reason
    error = await failure(server.scenario("raw", status=401, body=body), retries=0)
    assert not error.retry and "401" in error.reason


async def test_a_web_page_as_an_error_is_not_shown(server: ModelServer) -> None:
    scenario = server.scenario("raw", status=502, body=b"<html>Bad gateway</html>", content_type="text/html")
    error = await failure(scenario, retries=0)
    assert error.retry
    assert "a web page" in error.reason and "<html>" not in error.reason


async def test_a_redirect_is_not_followed(server: ModelServer) -> None:
    elsewhere = server.scenario("normal")
    target = f"{elsewhere.url}/chat/completions"
    error = await failure(server.scenario("raw", status=307, headers={"location": target}))
    assert not error.retry
    assert "redirects" in error.reason
    assert not elsewhere.requests


# Keys


@pytest.mark.parametrize("key", [KEY, "0123456789abcdef"])
@pytest.mark.parametrize("behaviour", ["unauthorized", "raw"])
async def test_a_key_that_the_server_quotes_is_not_in_the_error(
    server: ModelServer, behaviour: str, key: str
) -> None:
    quoted = f'{{"choices": [], "you_sent": "{key}"}}'.encode()
    error = await failure(server.scenario(behaviour, body=quoted), key=key)
    assert not error.retry
    assert "***" in error.reason
    assert key not in error.reason
    assert error.__cause__ is None


async def test_no_part_of_a_key_is_left_where_an_error_is_cut(server: ModelServer) -> None:
    key = "0123456789abcdefghijklmnopqrstuvwxyz"
    for padding in range(300, 400, 9):
        body = f'{{"error": {{"message": "{"-" * padding}{key}"}}}}'.encode()
        error = await failure(server.scenario("raw", status=400, body=body), key=key)
        assert key[:4] not in error.reason


async def test_a_key_that_the_server_quotes_in_part_is_not_in_the_error(server: ModelServer) -> None:
    body = b'{"error": {"message": "Incorrect API key provided: sk-tes****cdef."}}'
    error = await failure(server.scenario("raw", status=401, body=body))
    assert "not accepted (401)" in error.reason
    assert "sk-tes" not in error.reason and "cdef" not in error.reason


async def test_a_key_is_in_no_log(server: ModelServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    scenario = server.scenario(
        "error_in_200", times=1, error={"message": f"{KEY} is overloaded", "code": 503}
    )
    with structlog.testing.capture_logs() as entries:
        await ask(scenario)
    assert [entry["event"] for entry in entries] == ["model call failed, trying again"]
    assert KEY not in repr(entries) + caplog.text
    async with model_at(scenario) as model:
        assert KEY not in repr(model) + repr(model.endpoint) + repr(vars(model.endpoint))


@pytest.mark.parametrize("key", ["with space", "line\nbreak", "ümlaut-key"])
def test_a_key_that_can_be_none_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(StartupError) as caught:
        Endpoint("http://127.0.0.1:1/v1", key=SecretStr(key))
    assert key not in str(caught.value)


async def test_white_space_around_a_key_is_dropped(server: ModelServer) -> None:
    scenario = server.scenario("normal")
    await ask(scenario, key=f" {KEY}\n")
    assert scenario.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "url",
    ["ftp://host/v1", "file:///etc/passwd", "host/v1", "", "http://", "https://user:secret@host/v1",
     "http://host:99999/v1", "http://host/v1?key=secret"],
)  # fmt: skip
def test_only_web_addresses_without_secrets_are_endpoints(url: str) -> None:
    with pytest.raises(StartupError) as caught:
        Endpoint(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://h/v1/", "http://h/v1/chat/completions", " http://h/v1 "])
def test_what_people_paste_along_with_a_url_is_dropped(url: str) -> None:
    assert Endpoint(url).url == "http://h/v1"


# Events


def test_events_are_found_however_the_bytes_are_cut() -> None:
    stream = b"\xef\xbb\xbfdata: one\n\n: note\r\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\n\n\ndata: last"
    for size in range(1, len(stream) + 1):
        parser = EventParser(max_line=100)
        events = [e for at in range(0, len(stream), size) for e in parser.feed(stream[at : at + size])]
        assert (events, parser.end()) == ([b"one", b"two\nlines"], b"last")
        assert parser.end() is None
        assert not parser.stray


def test_a_line_without_end_is_not_collected() -> None:
    parser = EventParser(max_line=1000)
    with pytest.raises(ModelError, match="longer than 1,000 bytes"):
        for _ in range(100):
            parser.feed(b"x" * 100)


# The caller


async def test_an_error_of_the_listener_is_the_listeners(server: ModelServer) -> None:
    scenario = server.scenario("normal")

    async def fails(_: str) -> None:
        raise TimeoutError("mine")

    async with model_at(scenario) as model:
        with pytest.raises(TimeoutError, match="mine"):
            await model.complete(ASK, fails)
    assert len(scenario.requests) == 1


async def test_a_cancelled_call_gives_up_its_connection(server: ModelServer) -> None:
    scenario = server.scenario("slow_trickle")
    async with model_at(scenario) as model:
        with anyio.move_on_after(0.3) as scope:
            await model.complete(ASK)
        assert scope.cancelled_caught
        assert await anyio.to_thread.run_sync(scenario.gone.wait, 5)


async def test_a_prompt_that_is_no_json_is_an_error(server: ModelServer) -> None:
    scenario = server.scenario("normal")
    async with model_at(scenario) as model:
        with pytest.raises(ModelError, match="cannot be written as JSON") as caught:
            await model.complete(ModelRequest((Message("user", "\ud800"),)))
    assert not caught.value.retry
    assert not scenario.requests


async def test_closing_twice_is_fine_and_a_model_error_is_ours(server: ModelServer) -> None:
    async with model_at(server.scenario("normal")) as model:
        await model.complete(ASK)
        await model.close()
    await model.close()
    assert issubclass(ModelError, BreadcrumbsError)
