"""Agents on a faulty ADK server. A turn ends with an answer or with an error that has a reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import anyio
import orjson
import pytest
import structlog

from breadcrumbs.runtime.store.store import Store
from tests.support.adk_agents import (
    chatting,
    forgotten,
    hang,
    history,
    status_of,
    talk,
)
from tests.support.adk_backend import Exchange, FakeAdk, fake_adk, said
from tests.support.conversations import eventually


def _stream(*chunks: bytes, end: bool = True) -> Callable[[Exchange], None]:
    def behave(exchange: Exchange) -> None:
        exchange.stream()
        for chunk in chunks:
            exchange.chunk(chunk)
        if end:
            exchange.end()
        else:
            exchange.cut()

    return behave


def _event(text: str, **fields: Any) -> bytes:
    return b"data: " + orjson.dumps(said(text, **fields)) + b"\n\n"


def _endless(piece: bytes, pause: float = 0.0) -> Callable[[Exchange], None]:
    def behave(exchange: Exchange) -> None:
        exchange.stream()
        while True:
            exchange.chunk(piece)
            time.sleep(pause)

    return behave


INVALID_ANSWERS: dict[str, tuple[Callable[[Exchange], None], str]] = {
    "garbage": (_stream(b"\x00\xff garbage\n\n"), "the response is not an event stream"),
    "no JSON": (_stream(b"data: {oops\n\n"), "is not JSON"),
    "no event": (_stream(b"data: [1]\n\n"), "not an event of an ADK server"),
    "nothing": (_stream(), "the app returned no text"),
    "no words": (_stream(_event("  ")), "the app returned no text"),
    "half an answer": (_stream(_event("Hel", partial=True)), "the answer is incomplete"),
    "half an utterance more": (
        _stream(_event("Let me look."), _event("It is", partial=True)),
        "the answer is incomplete",
    ),
    "an error code after words": (
        _stream(_event("Let me look."), b'data: {"author": "a", "errorCode": "SAFETY", "errorMessage": "blocked"}\n\n'),
        "the app failed: SAFETY blocked",
    ),
    "cut": (_stream(_event("Hel", partial=True), end=False), "the connection was lost during the answer"),
    "an exception": (_stream(b'data: {"error": "ValueError: no luck"}\n\n'), "the app failed: ValueError: no luck"),
    "an error code": (
        _stream(b'data: {"author": "a", "errorCode": "SAFETY", "errorMessage": "blocked"}\n\n'),
        "the app failed: SAFETY blocked",
    ),
    "10 MB": (_stream(_event("x" * (10 << 20))), "a line of the answer is longer than"),
    "endless words": (_endless(_event("word " * 1000, partial=True)), "cut off"),
    "endless pings": (_endless(b": ping\n\n", 0.05), "cut off after 3 s"),
    "an endless line": (_endless(b"data: " + b"x" * 65536), "a line of the answer is longer than"),
    "silence": (hang, "no data within 2 s"),
    "500": (lambda exchange: exchange.reply(500, b"Internal Server Error", "text/plain"), "500: Internal Server"),
    "401": (status_of(401, {"detail": "who are you?"}), "the key is missing or rejected"),
    "a web page": (lambda exchange: exchange.reply(200, b"<html>hi", "text/html"), "is not a list of events: <html>"),
    "a redirect": (lambda exchange: exchange.reply(307, b"", Location="http://127.0.0.1:1/"), "redirects"),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID_ANSWERS)
async def test_an_invalid_answer_is_an_error_with_a_reason(store: Store, name: str) -> None:
    behaviour, reason = INVALID_ANSWERS[name]
    special: dict[str, dict[str, Any]] = {
        "silence": {"read_timeout": 2},
        "endless pings": {"total_timeout": 3},
    }
    limits = special.get(name, {})
    with fake_adk(run_sse=behaviour) as fake:
        async with chatting(store, fake.url, attempts=1, max_answer_bytes=100_000, **limits) as chat:
            error = await chat.error_about(await chat.say("s", "Hello"))
            assert error.context["error"].startswith("ADK server house: ")
            assert reason in error.context["error"]
            assert len(error.context["error"]) < 500
            assert not await chat.answers("s")
            # The session stays usable after the error.
            del fake.behaviours["run_sse"]
            await talk(chat, "s", "Again")


@pytest.mark.parametrize(
    "events",
    [
        (b'data: {"author": "a", "errorCode": "MALFORMED_FUNCTION_CALL"}\n\n', _event("All the same.")),
        (_event("All the ", partial=True), _event("All the same."), _event("\n", partial=True), _event("\n")),
        (_event("All the same.", errorCode="MAX_TOKENS"),),
    ],
    ids=["recovered", "blank", "cut short"],
)
async def test_text_with_or_after_an_error_is_an_answer(
    store: Store, fake: FakeAdk, events: tuple[bytes, ...]
) -> None:
    fake.behaviours["run_sse"] = _stream(*events)
    async with chatting(store, fake.url) as chat:
        (answer,) = await talk(chat, "s", "Hello")
        assert answer.context["message"] == "All the same."


async def test_a_run_on_a_busy_server_is_retried(store: Store, fake: FakeAdk) -> None:
    def busy(exchange: Exchange) -> None:
        del fake.behaviours["run_sse"]
        exchange.json(503, {"detail": "starting"})

    async with chatting(store, fake.url) as chat:
        fake.behaviours["run_sse"] = busy
        (answer,) = await talk(chat, "s", "Hello")
        assert answer.context["message"] == "answer 2"


async def test_an_unreachable_server_is_reported_in_the_log_and_in_the_session(store: Store) -> None:
    with fake_adk() as fake:
        url = fake.url
    with structlog.testing.capture_logs() as logs:
        async with chatting(store, url, attempts=2) as chat:
            error = await chat.error_about(await chat.say("s", "Hello"))
            assert f"cannot connect to {url}" in error.context["error"]
            assert error.context["attempts"] == 2
    problem = next(line for line in logs if line["event"] == "adk agent not available")
    assert problem["agent"] == "remote" and "cannot connect" in problem["problem"]


async def test_a_server_without_streaming_is_called_through_run(store: Store, fake: FakeAdk) -> None:
    async with chatting(store, fake.url) as chat:
        fake.behaviours["run_sse"] = status_of(404, {"detail": "Not Found"})
        answers = await talk(chat, "s", "Hello", "Second")
        assert [answer.context["message"] for answer in answers] == ["a whole answer"] * 2
        fake.behaviours["run"] = lambda exchange: (
            forgotten if exchange.body["sessionId"] == "made-1" else fake._run
        )(exchange)
        await talk(chat, "s", "Third")
    assert len(fake.paths("/run_sse")) == 1
    assert len(fake.paths("/run")) == 4
    assert len(fake.paths("/sessions")) == 2


async def test_a_cancelled_turn_closes_its_connection(store: Store, fake: FakeAdk) -> None:
    async with chatting(store, fake.url) as chat:
        fake.behaviours["run_sse"] = _endless(_event("and ", partial=True), 0.02)
        message = await chat.say("s", "Talk for ever")
        await eventually(lambda: _was_run(fake), "the app was not run")
        await chat.cancel("s")
        error = await chat.error_about(message)
        assert error.context["cancelled"] is True
        assert await anyio.to_thread.run_sync(fake.gone.wait, 10), "the connection was kept"
        del fake.behaviours["run_sse"]
        await talk(chat, "s", "Next")
    assert history(fake.paths("/sessions")[-1].body["events"]) == [("user", "Talk for ever")]


async def _was_run(fake: FakeAdk) -> bool:
    return bool(fake.paths("/run_sse"))


async def test_thoughts_are_left_out_of_the_answer(store: Store, fake: FakeAdk) -> None:
    def think(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event(
            "", content={"parts": [{"text": "hm", "thought": True}, {"text": "Yes"}]}, partial=True
        )
        exchange.event("", content={"parts": [{"text": "hm", "thought": True}, {"text": "Yes."}]})
        exchange.end()

    async with chatting(store, fake.url) as chat:
        fake.behaviours["run_sse"] = think
        (answer,) = await talk(chat, "s", "Hello")
        assert answer.context["message"] == "Yes."
