"""A real HTTP server on loopback that speaks chat completions, well or badly as a test wants it.

    with ModelServer() as server:
        scenario = server.scenario("rate_limited", times=2, retry_after="0")
        model = resolve_model(f"{scenario.url}#test", …)

Every scenario has a URL and a record of its own, so tests share one server. Other processes can use the URLs
too. The behaviours are the keys of `BEHAVIOURS`; what they can be told is in the function of that name.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import uvicorn
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

HOST = "127.0.0.1"
START_LIMIT = 20.0


@dataclass
class Received:
    """One request as the server saw it."""

    headers: dict[str, str]
    body: dict[str, Any]
    at: float = field(default_factory=time.monotonic)


@dataclass
class Scenario:
    """A URL that behaves in one way, and what came to it."""

    url: str
    behaviour: str
    options: dict[str, Any]
    requests: list[Received] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)
    """Set when a client went away before the answer was complete."""


class Exchange:
    """One request, and the ways to answer it."""

    def __init__(
        self, scenario: Scenario, receive: ASGIReceiveCallable, send: ASGISendCallable, body: dict[str, Any]
    ) -> None:
        self.scenario = scenario
        self.body = body
        self.number = len(scenario.requests)
        self._receive = receive
        self._send = send
        self.disconnected = asyncio.Event()

    def option(self, name: str, default: Any) -> Any:
        return self.scenario.options.get(name, default)

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def text(self) -> str:
        """Text of a correct answer."""
        last = self.body["messages"][-1]["content"] if self.body.get("messages") else ""
        return str(self.option("text", f"You asked: {last}"))

    async def watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.disconnected.set()

    async def start(self, status: int, content_type: str, headers: dict[str, str] | None = None) -> None:
        pairs = {"content-type": content_type, **(headers or {})}
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(name.encode(), value.encode()) for name, value in pairs.items()],
                "trailers": False,
            }
        )

    async def write(self, data: bytes, *, last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def reply(
        self, status: int, content: bytes, content_type: str, headers: dict[str, str] | None = None
    ) -> None:
        await self.start(status, content_type, headers)
        await self.write(content, last=True)

    async def json(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        await self.reply(status, json.dumps(content).encode(), "application/json", headers)

    async def event(self, content: Any) -> None:
        await self.write(f"data: {json.dumps(content)}\n\n".encode())

    async def chunk(
        self, delta: dict[str, Any] | None = None, *, finish: str | None = None, **more: Any
    ) -> None:
        await self.event(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion.chunk",
                "model": self.body.get("model", ""),
                "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}],
                **more,
            }
        )

    async def usage(self) -> None:
        if self.body.get("stream_options"):
            await self.event({"object": "chat.completion.chunk", "choices": [], "usage": USAGE})

    async def done(self) -> None:
        await self.write(b"data: [DONE]\n\n", last=True)

    async def error(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        kind = (
            "rate_limit_error"
            if status == 429
            else "server_error"
            if status >= 500
            else "invalid_request_error"
        )
        await self.json(status, {"error": {"message": message, "type": kind}}, headers)


USAGE = {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19}


def completion(text: str | None, *, finish: str = "stop", **message: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, **message},
                "finish_reason": finish,
            }
        ],
        "usage": USAGE,
    }


# The behaviours


async def normal(exchange: Exchange) -> None:
    """Streams on request, a few characters at a time, with `pause` between the pieces."""
    if not exchange.streams:
        await exchange.json(200, completion(exchange.text))
        return
    await exchange.start(200, "text/event-stream; charset=utf-8")
    await exchange.write(b": PROCESSING\n\n")
    await exchange.chunk({"role": "assistant", "content": ""})
    text = exchange.text
    for start in range(0, len(text), 5):
        await asyncio.sleep(exchange.option("pause", 0))
        await exchange.chunk({"content": text[start : start + 5]})
    await exchange.chunk(finish=exchange.option("finish", "stop"))
    await exchange.usage()
    await exchange.done()


async def whole(exchange: Exchange) -> None:
    """Never streams, even on request."""
    await exchange.json(200, completion(exchange.text, finish=exchange.option("finish", "stop")))


async def raw(exchange: Exchange) -> None:
    """Exactly these bytes: `body`, `content_type`, `status`, `headers`."""
    await exchange.reply(
        exchange.option("status", 200),
        exchange.option("body", b""),
        exchange.option("content_type", "application/json"),
        exchange.option("headers", {}),
    )


async def chunks(exchange: Exchange) -> None:
    """These `deltas`, one a chunk, each after a `pause`, then `finish`."""
    await exchange.start(200, "text/event-stream")
    for delta in exchange.option("deltas", []):
        await _pause(exchange, exchange.option("pause", 0))
        await exchange.chunk(delta)
    await exchange.chunk(finish=exchange.option("finish", "stop"))
    await exchange.done()


async def slow_first_byte(exchange: Exchange) -> None:
    """Waits `delay` seconds before an answer, for the first `times` calls (default: always)."""
    if exchange.number <= exchange.option("times", 1_000_000):
        await _pause(exchange, exchange.option("delay", 5))
    await normal(exchange)


async def slow_trickle(exchange: Exchange) -> None:
    """A piece every `pause` seconds, without an end."""
    await exchange.start(200, "text/event-stream")
    while not exchange.disconnected.is_set():
        await exchange.chunk({"content": "drip "})
        await _pause(exchange, exchange.option("pause", 0.05))


async def stalls(exchange: Exchange) -> None:
    """Begins to answer, and then nothing more comes."""
    await exchange.start(200, "text/event-stream")
    await exchange.chunk({"content": "Well, "})
    await _pause(exchange, exchange.option("delay", 5))


async def lingers(exchange: Exchange) -> None:
    """Says that it is finished, but neither [DONE] nor the end of the connection follows."""
    await exchange.start(200, "text/event-stream")
    await exchange.chunk({"content": exchange.text})
    await exchange.chunk(finish="stop")
    await _pause(exchange, exchange.option("delay", 10))


async def broken_chunk(exchange: Exchange) -> None:
    """JSON that stops in the middle, after `before` pieces of text."""
    await exchange.start(200, "text/event-stream")
    for _ in range(exchange.option("before", 0)):
        await exchange.chunk({"content": "so far "})
    await exchange.write(b'data: {"choices": [{"delta": {"content": "hal\n\n')
    await exchange.chunk(finish="stop")
    await exchange.done()


async def half_closed(exchange: Exchange) -> None:
    """The stream ends well-formed, but the answer does not: `before` pieces, no finish_reason, no [DONE]."""
    if exchange.number > exchange.option("times", 1_000_000):
        await normal(exchange)
        return
    await exchange.start(200, "text/event-stream")
    for _ in range(exchange.option("before", 1)):
        await exchange.chunk({"content": "and then "})
    await exchange.write(b"", last=True)


async def cut_off(exchange: Exchange) -> None:
    """The connection is closed in the middle of the body; `finish` says whether the answer was over."""
    await exchange.start(200, "text/event-stream")
    await exchange.chunk({"content": exchange.text})
    if finish := exchange.option("finish", None):
        await exchange.chunk(finish=finish)
    raise ConnectionAbortedError  # uvicorn closes the connection without the last chunk


async def rate_limited(exchange: Exchange) -> None:
    """429 for the first `times` requests, with `retry_after` (a header's text) where given."""
    if exchange.number <= exchange.option("times", 1_000_000):
        retry_after = exchange.option("retry_after", None)
        headers = {} if retry_after is None else {"retry-after": str(retry_after)}
        await exchange.error(429, "Rate limit reached", headers)
        return
    await normal(exchange)


async def failing(exchange: Exchange) -> None:
    """`status` (500) for the first `times` requests."""
    if exchange.number <= exchange.option("times", 1_000_000):
        await exchange.error(exchange.option("status", 500), "The server had an error")
        return
    await normal(exchange)


async def unauthorized(exchange: Exchange) -> None:
    """401, quoting the key as some providers do."""
    key = exchange.scenario.requests[-1].headers.get("authorization", "").removeprefix("Bearer ")
    await exchange.error(401, f"Incorrect API key provided: {key}. Header was Bearer {key}")


async def infinite(exchange: Exchange) -> None:
    """Text as fast as it can be sent, for ever; `kind` may also be `comments`, `thoughts` or `line`."""
    kind = exchange.option("kind", "text")
    await exchange.start(200, "text/event-stream")
    if kind == "line":
        await exchange.write(b"data: ")
    while not exchange.disconnected.is_set():
        match kind:
            case "comments":
                await exchange.write(b": still here\n\n" * 100)
            case "thoughts":
                await exchange.chunk({"reasoning_content": "hmm " * 1000})
            case "line":
                await exchange.write(b"x" * 65536)
            case _:
                await exchange.chunk({"content": "and on " * 1000})
        await asyncio.sleep(0)


async def huge(exchange: Exchange) -> None:
    """An answer of `size` bytes (10 MB) in one piece."""
    text = "x" * exchange.option("size", 10_000_000)
    if exchange.streams and exchange.option("streamed", False):
        await exchange.start(200, "text/event-stream")
        await exchange.chunk({"content": text})
        await exchange.chunk(finish="stop")
        await exchange.done()
        return
    await exchange.json(200, completion(text))


async def unknown_model(exchange: Exchange) -> None:
    """404 for every model that is not in `models`."""
    if exchange.body.get("model") not in exchange.option("models", ()):
        await exchange.error(404, f"model '{exchange.body.get('model')}' not found, try pulling it first")
        return
    await normal(exchange)


async def empty(exchange: Exchange) -> None:
    """A well-formed answer with nothing in it."""
    finish = exchange.option("finish", "stop")
    if not exchange.streams:
        await exchange.json(200, completion(None, finish=finish))
        return
    await exchange.start(200, "text/event-stream")
    await exchange.chunk({"role": "assistant", "content": ""})
    await exchange.chunk(finish=finish)
    await exchange.done()


async def tool_calls(exchange: Exchange) -> None:
    """Calls the first offered tool in pieces, and another one; answers in words once it has results."""
    if any(message["role"] == "tool" for message in exchange.body["messages"]):
        await normal(exchange)
        return
    first, second = exchange.option("names", ("calculator", "clock"))
    calls = [
        {
            "id": "call_a",
            "type": "function",
            "function": {"name": first, "arguments": '{"expression": "12*7"}'},
        },
        {"id": "call_b", "type": "function", "function": {"name": second, "arguments": "{}"}},
    ]
    if not exchange.streams:
        await exchange.json(200, completion(None, finish="tool_calls", tool_calls=calls))
        return
    await exchange.start(200, "text/event-stream")
    await exchange.chunk({"role": "assistant", "content": None})
    await exchange.chunk({"tool_calls": [_opened(0, "call_a", first)]})
    for piece in ('{"expr', 'ession": ', '"12*7"}'):
        await exchange.chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    await exchange.chunk({"tool_calls": [_opened(1, "call_b", second)]})
    await exchange.chunk({"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]})
    await exchange.chunk(finish="tool_calls")
    await exchange.usage()
    await exchange.done()


def _opened(index: int, identity: str, name: str) -> dict[str, Any]:
    return {"index": index, "id": identity, "type": "function", "function": {"name": name, "arguments": ""}}


async def error_in_200(exchange: Exchange) -> None:
    """Status 200 and an error object (`error`), after `before` pieces of text where it is streamed."""
    error = exchange.option("error", {"message": "Upstream is overloaded", "code": 503})
    before = exchange.option("before", 0)
    if exchange.number > exchange.option("times", 1_000_000):
        await normal(exchange)
    elif not before:
        await exchange.json(200, {"error": error})
    else:
        await exchange.start(200, "text/event-stream")
        for _ in range(before):
            await exchange.chunk({"content": "so far "})
        await exchange.event(
            {"error": error, "choices": [{"delta": {"content": ""}, "finish_reason": "error"}]}
        )
        await exchange.done()


async def picky(exchange: Exchange) -> None:
    """400 for each field in `refuses`, after `delay` seconds."""
    await _pause(exchange, exchange.option("delay", 0))
    for name in exchange.option("refuses", ()):
        if name in exchange.body:
            await exchange.error(400, f"Unsupported parameter: '{name}' is not supported by this model")
            return
    await normal(exchange)


BEHAVIOURS: dict[str, Callable[[Exchange], Awaitable[None]]] = {
    behaviour.__name__: behaviour
    for behaviour in (
        normal,
        whole,
        raw,
        chunks,
        slow_first_byte,
        slow_trickle,
        stalls,
        lingers,
        broken_chunk,
        half_closed,
        cut_off,
        rate_limited,
        failing,
        unauthorized,
        infinite,
        huge,
        unknown_model,
        empty,
        tool_calls,
        error_in_200,
        picky,
    )
}


async def _pause(exchange: Exchange, seconds: float) -> None:
    """Sleep, but stop when the client disconnects."""
    try:
        await asyncio.wait_for(exchange.disconnected.wait(), seconds)
    except TimeoutError:
        pass


class ModelServer:
    """The server, in a thread of its own."""

    def __init__(self) -> None:
        self._scenarios: dict[str, Scenario] = {}
        self._numbers = itertools.count(1)
        self._socket = socket.socket()
        self._socket.bind((HOST, 0))
        self.port: int = self._socket.getsockname()[1]
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app,
                loop="asyncio",
                interface="asgi3",
                lifespan="off",
                ws="none",
                log_config=None,
                log_level="critical",
                access_log=False,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="model-server", daemon=True
        )

    def scenario(self, behaviour: str, **options: Any) -> Scenario:
        """A new base URL (ending in /v1) that behaves so.

        With `models`, it also lists these, with the status `list_status` after `list_delay` seconds.
        """
        if behaviour not in BEHAVIOURS:
            raise ValueError(f"no behaviour {behaviour!r}: there is {', '.join(BEHAVIOURS)}")
        name = f"s{next(self._numbers)}"
        made = Scenario(f"http://{HOST}:{self.port}/{name}/v1", behaviour, options)
        self._scenarios[name] = made
        return made

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + START_LIMIT
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError("the model server did not start")
            time.sleep(0.005)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=10)
        self._socket.close()

    async def _app(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message["body"]
            if not message["more_body"]:
                break
        _, name, rest = scope["path"].split("/", 2)
        scenario = self._scenarios.get(name)
        if scenario is not None and rest == "v1/models" and "models" in scenario.options:
            listed = [{"id": id, "object": "model"} for id in scenario.options["models"]]
            await asyncio.sleep(scenario.options.get("list_delay", 0))
            status = scenario.options.get("list_status", 200)
            await Exchange(scenario, receive, send, {}).json(status, {"object": "list", "data": listed})
            return
        if scenario is None or rest != "v1/chat/completions" or scope["method"] != "POST":
            nowhere = Exchange(Scenario("", "", {}), receive, send, {})
            await nowhere.error(404, f"there is no {scope['path']}")
            return
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        scenario.requests.append(Received(headers, json.loads(body)))
        exchange = Exchange(scenario, receive, send, scenario.requests[-1].body)
        watching = asyncio.create_task(exchange.watch())
        try:
            await BEHAVIOURS[scenario.behaviour](exchange)
        finally:
            if exchange.disconnected.is_set():
                scenario.gone.set()
            watching.cancel()
