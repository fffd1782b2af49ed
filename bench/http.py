"""Measures the speed of the HTTP API, and the cost of an open event stream.

    python bench/http.py [--quick] [--json] [--only bf] [--against CHECKOUT] [--processes N]

`--against` compares creates with another checkout that has a `.venv`, in alternating rounds. `--processes` compares
`crumb serve --workers N` with one process.

The servers are separate processes. This process generates the load.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Python puts the folder of a script on the path. There, this file would hide the standard library's `http`.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import asyncio
import contextlib
import gc
import itertools
import math
import os
import re
import resource
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import uvloop

from bench import _common
from bench._common import Report, Rounds, Side, Verdict, as_json, embedded, interleaved, percentile, posted
from bench.targets import TARGETS
from breadcrumbs.runtime.backend.embedded import EmbeddedServer, end_process

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

HOST = "127.0.0.1"
CONNECTIONS = 50
STREAMS = 2_000
OURS, BARE, OTHER = "Breadcrumbs", "bare ASGI app", "other checkout"
ONE = "1 process"


async def main() -> None:
    parser = _common.options("Compare the HTTP API with a bare ASGI app on the same server.")
    _common.add_against(parser)
    parser.add_argument("--processes", type=int, metavar="N", help="compare N API processes with one process")
    options = parser.parse_args()
    report = Report("http", options)
    began = time.monotonic()
    _allow_many_files()
    with embedded() as redis:
        if options.against is not None:
            async with all_served(Served(OURS, redis), Served(OTHER, redis, options.against)) as servers:
                await compare(options, report, servers)
            report.finish(began)
            return
        if options.processes is not None:
            several = ServedByCommand(f"{options.processes} processes", redis, options.processes)
            async with all_served(ServedByCommand(ONE, redis, 1), several) as servers:
                await compare_processes(options, report, servers)
            report.finish(began)
            return
        for letter, section in {"b": creates, "f": streams}.items():
            if not options.only or letter in options.only:
                async with all_served(Served(OURS, redis), Served(BARE, redis)) as servers:
                    await section(options, report, servers)
    report.finish(began)


@contextlib.asynccontextmanager
async def all_served(*servers_to_start: Served) -> AsyncIterator[dict[str, Served]]:
    """Start the servers of a section.

    Each section has new processes, because memory that one section freed would hide the memory that the next one uses.
    """
    with contextlib.ExitStack() as running:
        servers = {server.name: running.enter_context(server) for server in servers_to_start}
        for server in servers.values():
            await server.wait_until_ready()
        yield servers


def _allow_many_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3 * STREAMS
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# The two servers


class Served:
    """A server in a child process, which ends together with this process."""

    def __init__(self, name: str, redis: EmbeddedServer, checkout: Path | None = None) -> None:
        self.name = name
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port: int = probe.getsockname()[1]
        program, served = [sys.executable, __file__], name
        if checkout is not None:
            program, served = [_common.interpreter_of(checkout), f"{checkout}/bench/http.py"], OURS
        self._argv = [*program, "--serve", served, redis.url, str(self.port), str(os.getpid())]
        self._environment: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Served:
        # A new session, so that Ctrl-C reaches only this process, which ends the child.
        self._process = subprocess.Popen(
            self._argv, start_new_session=True, env=os.environ | self._environment, stdout=subprocess.DEVNULL
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            end_process(self._process)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def wait_until_ready(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"the server of {self.name!r} exited unexpectedly")
            try:
                _, writer = await asyncio.open_connection(HOST, self.port)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return

    def cpu(self) -> float:
        """Return the CPU time of its main thread in seconds, or nan if the system does not report it."""
        return _cpu_seconds(self.pid)

    async def memory(self) -> int:
        """Return its private memory in bytes, after a garbage collection."""
        os.kill(self.pid, signal.SIGUSR1)
        await asyncio.sleep(1)
        return _private_bytes(self.pid)


class ServedByCommand(Served):
    """`crumb serve`, with one or several processes."""

    def __init__(self, name: str, redis: EmbeddedServer, processes: int) -> None:
        super().__init__(name, redis)
        address = ["--redis", redis.url, "--host", HOST, "--port", str(self.port)]
        self._argv = [sys.executable, "-m", "breadcrumbs", "serve", *address, "--workers", str(processes)]
        self._argv += ["--log-level", "error"]
        self._environment = {"CRUMB_DATA": str(redis.data_dir)}  # not the files of this user

    def cpu(self) -> float:
        """Return the CPU time of the process and its children."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        pids = [self.pid, *map(int, children.read_text().split())] if children.exists() else [self.pid]
        return sum(map(_cpu_seconds, pids))


def _cpu_seconds(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return math.nan


def _private_bytes(pid: int) -> int:
    """Return the private memory of a process; on macOS its resident memory."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True)
        return int(shown.stdout) * 1024
    private = re.findall(r"^Private_\w+:\s+(\d+) kB$", text, re.MULTILINE)
    return sum(int(amount) for amount in private) * 1024


def serve(name: str, redis_url: str, port: int, parent: int) -> None:
    """Run the child process, with the same server and options for both apps."""
    from breadcrumbs.runtime.http.server import HttpServer

    async def run() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, gc.collect)
        async with contextlib.AsyncExitStack() as parts:
            app, on_exit = await (_breadcrumbs if name == OURS else _bare)(redis_url, parts)
            server = HttpServer(app, host=HOST, port=port, on_exit=on_exit)
            watch = asyncio.create_task(_end_with(parent, server))
            await server.serve()
            watch.cancel()

    _allow_many_files()
    uvloop.run(run())


async def _end_with(parent: int, server: Any) -> None:
    """Stop the server when the benchmark process is gone. A killed benchmark leaves no processes behind."""
    while os.getppid() == parent:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(1)
    server.handle_exit(signal.SIGTERM, None)


async def _breadcrumbs(url: str, parts: contextlib.AsyncExitStack) -> tuple[Any, Callable[[], None]]:
    from breadcrumbs.runtime.events.reader import EventReader
    from breadcrumbs.runtime.http.app import build_app
    from breadcrumbs.runtime.maintenance.hygiene import Hygiene
    from breadcrumbs.runtime.settings.settings import Settings
    from breadcrumbs.runtime.store.store import Store
    from breadcrumbs.runtime.streams.hub import EventHub

    settings = Settings()
    store = await Store.open(url)
    parts.push_async_callback(store.close)
    reader = await parts.enter_async_context(EventReader(store))
    hub = EventHub(store, reader)
    parts.push_async_callback(hub.close)
    return build_app(store, hub, Hygiene(store, settings), settings), hub.end_streams


async def _bare(url: str, parts: contextlib.AsyncExitStack) -> tuple[Any, Callable[[], None]]:
    from redis.asyncio import Redis

    redis = Redis.from_url(url)
    parts.push_async_callback(redis.aclose)
    app = BareApp(redis)
    return app, app.end


class BareApp:
    """The baseline: one SET per POST, and streams that forward the posted bytes without a store."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self._names = itertools.count()
        self._streams: set[asyncio.Queue[bytes]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            await self._stream(send)
            return
        body = b""
        more = True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        name = f"bare:{next(self._names)}"
        await self._redis.set(name, body)
        for stream in self._streams:
            stream.put_nowait(b"data: %s\n\n" % body)
        answer = orjson.dumps({"id": name})
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _stream(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b": connected\n\n", "more_body": True})
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._streams.add(queue)
        try:
            while frame := await queue.get():
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        finally:
            self._streams.discard(queue)

    def end(self) -> None:
        for stream in self._streams:
            stream.put_nowait(b"")


# (b)


class Poster(asyncio.Protocol):
    """One keep-alive connection that posts all requests and parses as little as possible of the replies."""

    def __init__(self, requests: Iterator[bytes], taken: list[float], done: asyncio.Future[None]) -> None:
        self._requests = requests
        self._taken = taken
        self._done = done
        self._answer = b""
        self._sent = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        answer = self._answer = self._answer + data if self._answer else data
        end = answer.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _CONTENT_LENGTH.search(answer, 0, end + 2)
        if length is None or not answer.startswith(b"HTTP/1.1 201 "):
            self._fail(f"not a 201 with a length: {answer[:300]!r}")
        elif len(answer) >= end + 4 + int(length[1]):
            self._taken.append(time.perf_counter() - self._sent)
            self._answer = b""
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the server closed the connection: {exc}")

    def _next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            if not self._done.done():
                self._done.set_result(None)
            self._transport.close()
            return
        self._sent = time.perf_counter()
        self._transport.write(request)

    def _fail(self, reason: str) -> None:
        if not self._done.done():
            self._done.set_exception(ConnectionError(reason))
        self._transport.close()


_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


def post(path: str, document: Any, *, token: str | None = None) -> bytes:
    """Return an encoded POST request."""
    body = orjson.dumps(document)
    credential = f"authorization: Bearer {token}\r\n" if token else ""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {HOST}\r\n{credential}"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def post_all(server: Served, requests: list[bytes], connections: int) -> dict[str, float]:
    """Send all requests over several connections, each as soon as the previous one was answered."""
    loop = asyncio.get_running_loop()
    left, taken = iter(requests), list[float]()
    done = [loop.create_future() for _ in range(connections)]
    server_cpu, here, began = server.cpu(), time.process_time(), time.perf_counter()
    for future in done:
        await loop.create_connection(partial(Poster, left, taken, future), HOST, server.port)
    await asyncio.gather(*done)
    seconds = time.perf_counter() - began
    count = len(requests)
    return {
        "per_second": count / seconds,
        "server_cpu_us": (server.cpu() - server_cpu) / count * 1e6,
        "load_cpu_us": (time.process_time() - here) / count * 1e6,
        "p50_ms": percentile(taken, 0.5) * 1e3,
        "p99_ms": percentile(taken, 0.99) * 1e3,
    }


async def token_from(server: Served) -> str:
    """Get a token, as a client does in development mode."""
    reader, writer = await asyncio.open_connection(HOST, server.port)
    identity = {"owner_id": str(_common.OWNER), "agent_id": str(_common.AGENT), "roles": ["curator"]}
    writer.write(post("/auth/token", identity).replace(b"\r\nhost", b"\r\nconnection: close\r\nhost", 1))
    answer = await reader.read()
    writer.close()
    if b" 200 " not in answer.partition(b"\r\n")[0]:
        raise RuntimeError(f"no token: {answer[:500]!r}")
    return str(orjson.loads(answer.partition(b"\r\n\r\n")[2])["token"])


async def creates(options: argparse.Namespace, report: Report, servers: dict[str, Served]) -> None:
    count, rounds, seconds = (1_000, 9, 5.0) if options.quick else (2_500, 31, 60.0)
    token = await token_from(servers[OURS])
    turns = [
        post("/breadcrumbs", posted(f"chat-{number % CONNECTIONS}"), token=token) for number in range(count)
    ]

    def side(server: Served) -> Side:
        return lambda: post_all(server, turns, CONNECTIONS)

    found = await interleaved(
        rounds, {name: side(server) for name, server in servers.items()}, seconds=seconds
    )
    ours, bare = found[OURS]["per_second"], found[BARE]["per_second"]
    ratio = ours.per(bare)
    title = f"HTTP creates per second, {CONNECTIONS} connections, {len(ours.values)} rounds of {count:,}"
    report.section("b", title, {"sides": as_json(found), "ratio": ratio.as_json()})
    report.table(
        ["", "per second", "low – high", "CPU µs", "CPU µs of the load", "p50 ms", "p99 ms"],
        [
            [
                side,
                got["per_second"].text(),
                got["per_second"].spread(),
                got["server_cpu_us"].text(),
                got["load_cpu_us"].text(),
                got["p50_ms"].text("{:.1f}"),
                got["p99_ms"].text("{:.1f}"),
            ]
            for side, got in found.items()
        ],
    )
    report.say(f"    ratio by round: {ratio.text('{:.2f}')} ({ratio.spread('{:.2f}')})")
    report.verdict(
        Verdict(
            "(b) HTTP creates against the bare app", ratio.median, TARGETS["http_create"].aim, at_least=True
        )
    )


async def compare(options: argparse.Namespace, report: Report, servers: dict[str, Served]) -> None:
    """Compare creates of this checkout with those of another one."""
    # Short rounds, so that the two sides of a round see the same load of the machine.
    count, rounds, seconds = (500, 15, 20.0) if options.quick else (500, 101, 120.0)
    sides: dict[str, Side] = {}
    for name, server in servers.items():
        token = await token_from(server)
        turns = [
            post("/breadcrumbs", posted(f"chat-{number % CONNECTIONS}"), token=token)
            for number in range(count)
        ]
        sides[name] = partial(post_all, server, turns, CONNECTIONS)
    found = await interleaved(rounds, sides, seconds=seconds)
    rate = found[OURS]["per_second"].per(found[OTHER]["per_second"])
    cpu = found[OURS]["server_cpu_us"].per(found[OTHER]["server_cpu_us"])
    title = f"HTTP creates, this checkout against another, {len(rate.values)} rounds of {count:,}"
    report.section("against", title, {"sides": as_json(found), "ratio": rate.as_json()})
    report.table(
        ["", "per second", "low – high", "CPU µs", "p50 ms", "p99 ms"],
        [
            [
                side,
                got["per_second"].text(),
                got["per_second"].spread(),
                got["server_cpu_us"].text(),
                got["p50_ms"].text("{:.1f}"),
                got["p99_ms"].text("{:.1f}"),
            ]
            for side, got in found.items()
        ],
    )
    report.verdict(Verdict("creates per second against the other checkout", rate.median, 0.95, at_least=True))
    report.verdict(Verdict("CPU time of a create against the other checkout", cpu.median, None))


async def compare_processes(options: argparse.Namespace, report: Report, servers: dict[str, Served]) -> None:
    """Compare several API processes with one. The load and Redis use the same cores, which limits the gain."""
    count, rounds, seconds = (1_000, 9, 20.0) if options.quick else (2_500, 31, 90.0)
    sides: dict[str, Side] = {}
    for name, server in servers.items():
        token = await token_from(server)
        turns = [
            post("/breadcrumbs", posted(f"chat-{number % CONNECTIONS}"), token=token)
            for number in range(count)
        ]
        sides[name] = partial(post_all, server, turns, CONNECTIONS)
    found = await interleaved(rounds, sides, seconds=seconds)
    one, several = (found[name]["per_second"] for name in servers)
    ratio = several.per(one)
    title = f"HTTP creates with {options.processes} API processes on {os.cpu_count()} cores"
    report.section("processes", title, {"sides": as_json(found), "ratio": ratio.as_json()})
    report.table(
        ["", "per second", "low – high", "CPU µs", "CPU µs of the load", "p50 ms", "p99 ms"],
        [
            [
                side,
                got["per_second"].text(),
                got["per_second"].spread(),
                got["server_cpu_us"].text(),
                got["load_cpu_us"].text(),
                got["p50_ms"].text("{:.1f}"),
                got["p99_ms"].text("{:.1f}"),
            ]
            for side, got in found.items()
        ],
    )
    report.say("    the load generator and Redis share the cores with the processes")
    report.verdict(Verdict(f"{options.processes} API processes against one", ratio.median, None))


# (f)


class Listener(asyncio.Protocol):
    """One open event stream. It records arrival times and discards the data."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self._crowd.request)

    def data_received(self, data: bytes) -> None:
        if b": connected" in data:
            self._crowd.connected()
        # Pings have `event: ping`. A large event can arrive in several pieces, and only the first contains `data: `.
        elif b"data: " in data and not data.startswith(b"event: ping") and b"event: ping" not in data[:12]:
            self._crowd.arrived(time.perf_counter())

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.lost(exc)


class Crowd:
    """Many open streams on one server."""

    def __init__(self, server: Served, size: int, *, token: str) -> None:
        self._server = server
        self._size = size
        self.request = (
            f"GET /events/stream HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer {token}\r\n\r\n".encode()
        )
        self._listeners: list[Listener] = []
        self._waiting: asyncio.Future[None] | None = None
        self._missing = 0
        self._arrivals: list[float] = []
        self._closing = False

    async def gather(self) -> None:
        """Open all streams, 100 at a time."""
        loop = asyncio.get_running_loop()
        while len(self._listeners) < self._size:
            batch = min(100, self._size - len(self._listeners))
            waiting = self._wait_for(batch)
            for _ in range(batch):
                _, listener = await loop.create_connection(lambda: Listener(self), HOST, self._server.port)
                self._listeners.append(listener)
            await asyncio.wait_for(waiting, 30)

    async def hear(self, request: bytes) -> list[float]:
        """Post once. Return the delay until each client has the event, in milliseconds."""
        self._arrivals.clear()
        waiting = self._wait_for(self._size)
        began = time.perf_counter()
        await post_all(self._server, [request], 1)
        await asyncio.wait_for(waiting, 30)
        return [(arrival - began) * 1e3 for arrival in self._arrivals]

    def connected(self) -> None:
        self._one_less()

    def arrived(self, at: float) -> None:
        self._arrivals.append(at)
        self._one_less()

    def lost(self, reason: Exception | None) -> None:
        if not self._closing and self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionError(f"the server closed a stream: {reason}"))

    async def leave(self) -> None:
        self._closing = True
        for listener in self._listeners:
            listener.transport.close()
        await asyncio.sleep(0.5)

    def _wait_for(self, count: int) -> asyncio.Future[None]:
        self._missing = count
        self._waiting = asyncio.get_running_loop().create_future()
        return self._waiting

    def _one_less(self) -> None:
        self._missing -= 1
        if self._missing == 0 and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


async def streams(options: argparse.Namespace, report: Report, servers: dict[str, Served]) -> None:
    max_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    size = min(500 if options.quick else STREAMS, (max_files - 200) // 2)
    events = 5 if options.quick else 20
    token = await token_from(servers[OURS])
    request = post("/breadcrumbs", posted("chat-0"), token=token)
    memory: dict[str, float] = {}
    found: dict[str, dict[str, Rounds]] = {}
    crowds: dict[str, Crowd] = {}
    for name, server in servers.items():
        # A few clients and one event first, because one-time allocations must not count as memory of a client.
        few = Crowd(server, 10, token=token)
        await few.gather()
        await few.hear(request)
        await few.leave()
        before = await server.memory()
        crowds[name] = Crowd(server, size, token=token)
        await crowds[name].gather()
        memory[name] = (await server.memory() - before) / size
        found[name] = {what: Rounds() for what in ("p50", "p99", "last")}
    for number in range(-1, events):
        for name, crowd in crowds.items():
            await asyncio.sleep(0.1)
            delays = await crowd.hear(request)
            if number >= 0:
                found[name]["p50"].values.append(percentile(delays, 0.5))
                found[name]["p99"].values.append(percentile(delays, 0.99))
                found[name]["last"].values.append(max(delays))
    for crowd in crowds.values():
        await crowd.leave()
    title = f"{size:,} idle event streams, and one event to all of them ({events} times)"
    report.section("f", title, {"streams": size, "bytes_per_client": memory, "delay_ms": as_json(found)})
    report.table(
        ["", "kB per client", "p50 ms", "p99 ms", "last ms", "low – high"],
        [
            [
                name,
                f"{memory[name] / 1000:.1f}",
                got["p50"].text("{:.0f}"),
                got["p99"].text("{:.0f}"),
                got["last"].text("{:.0f}"),
                got["last"].spread("{:.0f}"),
            ]
            for name, got in found.items()
        ],
    )
    report.verdict(Verdict("(f) kB of server memory per stream", memory[OURS] / 1000, 30, form="{:.1f}"))
    ratio = found[OURS]["last"].per(found[BARE]["last"]).median
    report.verdict(Verdict("(f) delay to the last client, against the bare app", ratio, None))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        _common.run(main)
