"""The HTTP model with broken, endless, empty and invalid answers."""

from __future__ import annotations

import time
from typing import Any

import anyio
import orjson
import pytest

from breadcrumbs.agents.models.base import (
    ModelError,
)
from tests.support.model_calls import ASK, ask, failure, model_at
from tests.support.model_server import ModelServer

# Broken streams


async def test_a_half_closed_stream_is_an_error_after_the_first_delta(server: ModelServer) -> None:
    scenario = server.scenario("half_closed")
    error = await failure(scenario)
    assert error.retry
    assert "ended during the answer" in error.reason
    assert len(scenario.requests) == 1


async def test_a_half_closed_stream_is_retried_if_no_delta_was_passed_on(server: ModelServer) -> None:
    scenario = server.scenario("half_closed", times=1)
    async with model_at(scenario) as model:
        assert (await model.complete(ASK)).text == "You asked: Hello there"
    assert len(scenario.requests) == 2


async def test_a_connection_cut_in_the_middle_is_an_error(server: ModelServer) -> None:
    scenario = server.scenario("cut_off")
    error = await failure(scenario)
    assert error.retry
    assert "during the answer" in error.reason
    assert len(scenario.requests) == 1


async def test_a_connection_cut_after_the_end_of_the_answer_is_not_an_error(server: ModelServer) -> None:
    assert (await ask(server.scenario("cut_off", finish="stop"))).text == "You asked: Hello there"


async def test_an_answer_that_stalls_is_an_error(server: ModelServer) -> None:
    error = await failure(server.scenario("stalls"), read=0.2)
    assert error.retry
    assert "no data for 0.2 s" in error.reason


async def test_a_finished_answer_does_not_wait_for_the_connection_to_close(server: ModelServer) -> None:
    began = time.monotonic()
    assert (await ask(server.scenario("lingers"), read=9, total=9)).text == "You asked: Hello there"
    assert time.monotonic() - began < 4


async def test_a_broken_chunk_is_retried_before_the_first_delta(server: ModelServer) -> None:
    scenario = server.scenario("broken_chunk")
    error = await failure(scenario)
    assert error.retry
    assert "not JSON" in error.reason
    assert len(scenario.requests) == 3


async def test_a_broken_chunk_is_an_error_after_the_first_delta(server: ModelServer) -> None:
    scenario = server.scenario("broken_chunk", before=2)
    assert (await failure(scenario)).retry
    assert len(scenario.requests) == 1


# Endless answers


async def test_an_infinite_stream_is_cut_at_the_size_limit(server: ModelServer) -> None:
    scenario = server.scenario("infinite")
    error = await failure(scenario, max_text=200_000)
    assert not error.retry
    assert "cut off at 200,000 bytes" in error.reason
    assert len(scenario.requests) == 1
    assert scenario.gone.wait(5)  # the connection was closed


async def test_a_cut_answer_closes_its_connection_at_once(server: ModelServer) -> None:
    scenario = server.scenario("infinite")
    async with model_at(scenario, max_text=10_000) as model:
        with pytest.raises(ModelError):
            await model.complete(ASK)
        assert await anyio.to_thread.run_sync(scenario.gone.wait, 5)


async def test_an_infinite_slow_stream_is_cut_at_the_total_timeout(server: ModelServer) -> None:
    scenario = server.scenario("slow_trickle")
    error = await failure(scenario, total=0.5)
    assert not error.retry
    assert "cut off after 0.5 s" in error.reason
    assert scenario.gone.wait(5)


@pytest.mark.parametrize("kind", ["comments", "thoughts", "line"])
async def test_an_infinite_stream_without_text_is_cut(server: ModelServer, kind: str) -> None:
    scenario = server.scenario("infinite", kind=kind)
    error = await failure(scenario, max_text=1000, total=20, read=20)
    assert not error.retry
    assert len(scenario.requests) == 1
    assert scenario.gone.wait(5)


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_answer_of_ten_megabytes_is_an_error(server: ModelServer, streamed: bool) -> None:
    error = await failure(server.scenario("huge", streamed=streamed))
    assert not error.retry
    assert "bytes" in error.reason
    assert len(error.reason) < 500


async def test_an_answer_at_the_size_limit_is_accepted(server: ModelServer) -> None:
    assert len((await ask(server.scenario("huge", size=1 << 20))).text) == 1 << 20


async def test_too_many_tool_calls_are_an_error(server: ModelServer) -> None:
    deltas = [
        {"tool_calls": [{"index": i, "id": f"c{i}", "function": {"name": "a", "arguments": "{}"}}]}
        for i in range(200)
    ]
    assert not (await failure(server.scenario("chunks", deltas=deltas))).retry


# Empty answers, invalid bodies, errors


async def test_an_empty_answer_is_a_retryable_error(server: ModelServer) -> None:
    scenario = server.scenario("empty")
    error = await failure(scenario)
    assert error.retry
    assert "returned nothing" in error.reason
    assert len(scenario.requests) == 1


async def test_an_answer_of_whitespace_is_empty(server: ModelServer) -> None:
    async with model_at(server.scenario("chunks", deltas=[{"content": " \n"}])) as model:
        with pytest.raises(ModelError, match="returned nothing"):
            await model.complete(ASK)


@pytest.mark.parametrize(
    ("finish", "words"), [("content_filter", "content filter"), ("length", "max_tokens")]
)
async def test_the_error_of_an_empty_answer_explains_the_finish_reason(
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
        (b"<html><body>Log in</body></html>", "text/html", "check the URL", False),
        (b"<html><body>Log in</body></html>", "text/event-stream", "check the URL", False),
        (b"\xff\xfe\x00garbage", "application/json", "not JSON", False),
        (b"OK", "text/plain", "not JSON", False),
        (b"[1, 2]", "application/json", "not a chat completion", False),
        (b"null", "application/json", "not JSON", False),
        (b"{}", "application/json", "has no message", False),
        (b'{"choices": []}', "application/json", "has no message", False),
        (b'{"choices": [{"message": "hi"}]}', "application/json", "has no message", False),
        (b'{"choices": {"0": 1}}', "application/json", "has no message", False),
        (b"[" * 5000, "application/json", "not JSON", False),
        (b"data: [1]\n\n", "text/event-stream", "not a chat completion", False),
    ],
)
async def test_an_invalid_body_is_an_error_with_a_description(
    server: ModelServer, body: bytes, content_type: str, words: str, retry: bool
) -> None:
    error = await failure(server.scenario("raw", body=body, content_type=content_type), retries=0)
    assert words in error.reason
    assert error.retry is retry
    assert len(error.reason) < 500
    assert error.reason.isprintable()


async def test_a_temporary_error_in_a_200_reply_is_retried(server: ModelServer) -> None:
    scenario = server.scenario("error_in_200", times=1)
    assert (await ask(scenario)).text == "You asked: Hello there"  # 503 is retryable
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
async def test_the_code_or_type_of_an_error_decides_whether_it_is_retryable(
    server: ModelServer, error: Any, retry: bool
) -> None:
    assert (await failure(server.scenario("error_in_200", error=error), retries=0)).retry is retry


async def test_an_error_in_the_middle_of_a_stream_is_raised(server: ModelServer) -> None:
    scenario = server.scenario("error_in_200", before=2)
    error = await failure(scenario)
    assert error.retry
    assert "Upstream is overloaded" in error.reason
    assert len(scenario.requests) == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [(400, "refused"), (402, "credit"), (403, "not allowed"), (404, "model not found"), (413, "too large")],
)
async def test_a_permanent_failure_is_not_retried(server: ModelServer, status: int, words: str) -> None:
    scenario = server.scenario("failing", status=status)
    error = await failure(scenario)
    assert not error.retry
    assert words in error.reason
    assert len(scenario.requests) == 1


@pytest.mark.parametrize("code", [0, 1, True, 1302])
async def test_an_error_code_of_the_provider_does_not_hide_the_status(server: ModelServer, code: int) -> None:
    body = orjson.dumps({"error": {"message": "later", "code": code}})
    error = await failure(server.scenario("raw", status=503, body=body), retries=0)
    assert error.retry
    assert "503" in error.reason
    error = await failure(server.scenario("raw", status=401, body=body), retries=0)
    assert not error.retry and "401" in error.reason


async def test_the_html_of_an_error_page_is_not_shown(server: ModelServer) -> None:
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
