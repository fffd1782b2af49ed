"""Measures a turn of the whole system, from a posted message to its answer on the event stream.

(a) one session: time of a turn, against bare Redis streams with a worker process
(b) 200 sessions at once: time of a turn, and turns per second of one process
(c) building a context with 100,000 messages in the session, against 100
(d) building a context with 10,000 other sessions, against 10
(e) a turn with 10,000 messages in the session, against an empty session
(f) a turn in a store with 256 lanes, against 16

`--against CHECKOUT` compares (a) and (b) with another checkout that has a `.venv`. Both systems run at the same time,
in alternating rounds.

A test in tests/turns counts the round trips of each step.

The system runs as `crumb up` starts it, with the append-only file on. The offline model takes no time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from bench._common import (
    OTHER,
    OURS,
    OWNER,
    CreateCommand,
    Found,
    RawLink,
    Report,
    Rounds,
    Side,
    Verdict,
    add_against,
    children_of,
    cpu_seconds_of,
    embedded,
    interleaved,
    interpreter_of,
    options,
    percentile,
    report_comparison,
    run,
)
from bench.targets import TARGETS
from breadcrumbs.context_builder.builder import build_context
from breadcrumbs.context_builder.config_checks import parse_configs
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.retrieval.schema_hints import SchemaHints
from breadcrumbs.runtime.schema_names import AGENT_RESPONSE, USER_MESSAGE
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store.store import Store

CONFIG = Path(__file__).parent.parent / "config" / "context-builder-config.json"
CONNECTIONS = 20
LEASE_WAIT_SECONDS = 1.5
"""Until the workers of a new system have their leases."""
LONG_SESSION = 10_000
MANY_LANES, FEW_LANES = 256, 16
FILL_TEXT = "some words of a message"


class System(NamedTuple):
    """A running `crumb up`."""

    url: str
    processes: list[int]
    """The process and its embedded server."""

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time so far of Python and of the embedded server."""
        python, *servers = map(cpu_seconds_of, self.processes)
        return {"python": python, "server": sum(servers)}


@contextmanager
def crumb_up(python: str = sys.executable, *options: str) -> Iterator[System]:
    """Run the whole system in a separate process. `python` is the interpreter to use."""
    with tempfile.TemporaryDirectory(prefix="crumb-bench-") as data:
        process = subprocess.Popen(
            [python, "-m", "breadcrumbs", "up", "--port", "0", "--data", data, *options],
            stdout=subprocess.PIPE,
            cwd=data,  # in this checkout, its packages would have priority over those of `python`
            env={"CRUMB_LOG_LEVEL": "error", **os.environ},  # the environment can set `info` to measure logs
        )
        try:
            assert process.stdout is not None
            url = str(json.loads(process.stdout.readline())["url"])
            yield System(url, [process.pid, *children_of(process.pid)])
        finally:
            process.terminate()
            process.wait(20)


class Chat:
    """Minimal client with one keep-alive connection for posts and one event stream."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._posting = asyncio.Lock()
        self._answers: dict[str, asyncio.Future[float]] = {}

    async def connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def turn(self, session: str, text: str) -> float:
        """Post a message. Return the seconds until its answer is on the stream."""
        key = f"{session}-{uuid4()}"
        answered: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        body = json.dumps(
            {
                "schema_name": "user.message.v1",
                "title": "A message",
                "tags": ["user:message", "extension:chat", f"session:{session}"],
                "context": {"message": text},
            }
        ).encode()
        request = (
            b"POST /breadcrumbs HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
            b"Idempotency-Key: %s\r\nContent-Length: %d\r\n\r\n%s"
            % (self._host.encode(), key.encode(), len(body), body)
        )
        began = time.perf_counter()
        async with self._posting:
            id = json.loads(await self._post(request))["id"]
        answer = self._answers.setdefault(id, answered)
        return await asyncio.wait_for(answer, 30) - began

    async def _post(self, request: bytes) -> bytes:
        """Send a request. Return the body of the reply."""
        if self._reader.at_eof():  # the server closes connections that were idle for a while
            await self.connect()
        self._writer.write(request)
        try:
            return await _http_body(self._reader)
        except (asyncio.IncompleteReadError, ConnectionError):  # it was just closing this one
            await self.connect()
            self._writer.write(request)
            return await _http_body(self._reader)

    async def listen(self, stream: asyncio.StreamReader) -> None:
        """Record the arrival time of each answer."""
        loop = asyncio.get_running_loop()
        while line := await stream.readline():
            if line.startswith(b"data:") and b'"agent.response.v1"' in line:
                trigger = json.loads(line[5:])["context"]["trigger_id"]
                answer = self._answers.setdefault(trigger, loop.create_future())
                if not answer.done():
                    answer.set_result(time.perf_counter())


async def _http_body(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 201"):
        raise RuntimeError(head.decode())
    length = next(int(line[15:]) for line in head.lower().splitlines() if line.startswith(b"content-length:"))
    return await reader.readexactly(length)


@asynccontextmanager
async def chats(url: str, count: int) -> AsyncIterator[list[Chat]]:
    """Open clients that share one event stream."""
    host, _, port = url.removeprefix("http://").partition(":")
    opened: list[Chat] = []
    stream, writer = await asyncio.open_connection(host, int(port), limit=1 << 22)
    writer.write(
        b"GET /events/stream?schema_name=agent.response.v1 HTTP/1.1\r\nHost: %s\r\n\r\n" % host.encode()
    )
    await stream.readuntil(b": connected")
    for _ in range(count):
        opened.append(Chat(host, int(port)))
        await opened[-1].connect()
        opened[-1]._answers = opened[0]._answers
    listener = asyncio.create_task(opened[0].listen(stream))
    try:
        yield opened
    finally:
        listener.cancel()


# (a) and (b)


async def bare_streams(url: str, turns: int) -> list[float]:
    """Measure the baseline of (a): one XADD to a worker process, and its XADD back."""
    worker = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench._bare_worker", url, str(turns))
    link = RawLink(url)
    try:
        link.call("BLPOP", "bare:ready", 10)
        times, last = [], "$"
        for number in range(turns):
            began = time.perf_counter()
            link.call("XADD", "bare:in", "*", "m", "x" * 100)
            last = last if number else "0"
            reply = link.call("XREAD", "BLOCK", 5000, "STREAMS", "bare:out", last)
            last = reply[0][1][-1][0].decode()
            times.append(time.perf_counter() - began)
        return times
    finally:
        link.call("DEL", "bare:in", "bare:out")
        link.close()
        await worker.wait()


async def talk_at_once(system: System, opened: list[Chat], sessions: int, each: int) -> dict[str, float]:
    """Run some turns in each of many new sessions at once. Return times in milliseconds and turns per second."""

    async def converse(chat: Chat) -> list[float]:
        session = str(uuid4())
        return [await chat.turn(session, "Hello") for _ in range(each)]

    before, began = system.cpu_seconds(), time.perf_counter()
    talks = await asyncio.gather(*(converse(opened[n % len(opened)]) for n in range(sessions)))
    took, after = time.perf_counter() - began, system.cpu_seconds()
    times = [taken for conversation in talks for taken in conversation]
    spent = {name: (after[name] - before[name]) / len(times) * 1000 for name in after}
    return {
        "p50": percentile(times, 0.5) * 1000,
        "p99": percentile(times, 0.99) * 1000,
        "turns/s": len(times) / took,
        "CPU": sum(spent.values()),
    }


async def talk(system: System, chat: Chat, turns: int) -> dict[str, float]:
    """Run some turns in a new session. Return times and CPU times of a turn in milliseconds."""
    session = str(uuid4())
    before = system.cpu_seconds()
    times = [await chat.turn(session, "Hello") for _ in range(turns)]
    after = system.cpu_seconds()
    spent = {name: (after[name] - before[name]) / turns * 1000 for name in after}
    return {
        "p50": percentile(times, 0.5) * 1000,
        "p99": percentile(times, 0.99) * 1000,
        "CPU": sum(spent.values()),
        "CPU of Python": spent["python"],
        "CPU of the server": spent["server"],
    }


async def paired_turns(checkout: Path, quick: bool) -> Found:
    """Run turns of one session in this checkout and in another one, in alternating rounds."""
    # Short rounds, so that the two sides of a round see the same load of the machine.
    turns, rounds = 20, (15 if quick else 101)
    with crumb_up() as here, crumb_up(interpreter_of(checkout)) as there:
        async with chats(here.url, 1) as (ours,), chats(there.url, 1) as (others,):
            await asyncio.sleep(LEASE_WAIT_SECONDS)
            sides: dict[str, Side] = {
                OURS: partial(talk, here, ours, turns),
                OTHER: partial(talk, there, others, turns),
            }
            return await interleaved(rounds, sides, seconds=30 if quick else 120)


async def paired_throughput(checkout: Path, quick: bool) -> Found:
    """Run turns of 100 sessions at once in this checkout and in another one, in alternating rounds."""
    sessions, each, rounds = 100, 2, (5 if quick else 21)
    with crumb_up() as here, crumb_up(interpreter_of(checkout)) as there:
        async with chats(here.url, CONNECTIONS) as ours, chats(there.url, CONNECTIONS) as others:
            await asyncio.sleep(LEASE_WAIT_SECONDS)
            sides: dict[str, Side] = {
                OURS: partial(talk_at_once, here, ours, sessions, each),
                OTHER: partial(talk_at_once, there, others, sessions, each),
            }
            return await interleaved(rounds, sides, seconds=30 if quick else 90)


async def compare(report: Report, quick: bool, checkout: Path) -> None:
    """Compare (a) and (b) of this checkout with another one."""
    for key, title, measure in (
        ("against", "turns of one session", paired_turns),
        ("against many", "100 sessions at once", paired_throughput),
    ):
        found = await measure(checkout, quick)
        rounds = len(found[OURS]["p50"].values)
        title = f"{title}, this checkout against another, {rounds} rounds (ms)"
        report_comparison(report, title, found, key=key)


async def one_session(report: Report, quick: bool) -> None:
    turns, rounds = (60, 3) if quick else (200, 5)
    with crumb_up() as system, embedded() as floor_server:
        async with chats(system.url, 1) as (chat,):
            await asyncio.sleep(LEASE_WAIT_SECONDS)

            async def floor() -> dict[str, float]:
                times = await bare_streams(floor_server.url, turns)
                return {"p50": percentile(times, 0.5) * 1000, "p99": percentile(times, 0.99) * 1000}

            found = await interleaved(
                rounds, {"turn": partial(talk, system, chat, turns), "bare streams": floor}, seconds=60
            )
    _table(report, "a", f"one session, {turns} turns per round (ms)", found)
    report.verdict(Verdict("p50 of a turn in ms", found["turn"]["p50"].median, 5.0))
    report.verdict(
        Verdict(
            "p50 of a turn against bare streams",
            found["turn"]["p50"].per(found["bare streams"]["p50"]).median,
            None,
        )
    )


async def many_sessions(report: Report, quick: bool) -> None:
    sessions, each, rounds = 200, (2 if quick else 5), 3
    with crumb_up() as system:
        async with chats(system.url, CONNECTIONS) as opened:
            await asyncio.sleep(LEASE_WAIT_SECONDS)
            at_once = partial(talk_at_once, system, opened, sessions, each)
            found = await interleaved(rounds, {"200 sessions": at_once}, seconds=60)
    _table(report, "b", f"{sessions} sessions at once, {each} turns each (ms, and turns per second)", found)
    report.verdict(Verdict("turns per second of one process", found["200 sessions"]["turns/s"].median, None))


# (c) and (d)


async def _fill(store: Store, session: str, count: int) -> None:
    new = BreadcrumbCreate(
        schema_name="user.message.v1",
        title="m",
        tags=["user:message", f"session:{session}"],
        context={"message": FILL_TEXT},
    )
    for start in range(0, count, 500):
        await asyncio.gather(*(store.create(OWNER, new) for _ in range(min(500, count - start))))


async def _newest(store: Store, session: str) -> Breadcrumb:
    return (await store.recent(OWNER, session, "user.message.v1", 1))[0]


async def context_cost(report: Report, quick: bool) -> None:
    long, many = (5_000, 500) if quick else (100_000, 10_000)
    config = parse_configs(CONFIG.read_bytes())[0]
    with embedded() as server:
        store = await Store.open(server.url)
        hints = SchemaHints(store)
        await _fill(store, "short", 100)
        await _fill(store, "long", long)

        def side(store: Store, session: str, trigger: Breadcrumb) -> Any:
            async def build() -> dict[str, float]:
                began = time.perf_counter()
                for _ in range(200):
                    await build_context(store, config, trigger, hints=hints)
                return {"µs": (time.perf_counter() - began) / 200 * 1e6}

            return build

        found = await interleaved(
            5,
            {
                "100 messages": side(store, "short", await _newest(store, "short")),
                f"{long:,} messages": side(store, "long", await _newest(store, "long")),
            },
            seconds=60,
        )
        _table(report, "c", "building a context, by the length of the session (µs)", found)
        _ratio(report, f"{long:,} messages against 100", found)

        few = await Store.open(server.url, namespace="few")
        crowd = await Store.open(server.url, namespace="crowd")
        for other, sessions in ((few, 10), (crowd, many)):
            await _fill(other, "mine", 100)
            for start in range(0, sessions, 500):
                await asyncio.gather(
                    *(_fill(other, f"other{n}", 2) for n in range(start, min(start + 500, sessions)))
                )
        found = await interleaved(
            5,
            {
                "10 other sessions": side(few, "mine", await _newest(few, "mine")),
                f"{many:,} other sessions": side(crowd, "mine", await _newest(crowd, "mine")),
            },
            seconds=60,
        )
        _table(report, "d", "building a context, by the number of other sessions (µs)", found)
        _ratio(report, f"{many:,} other sessions against 10", found)
        for opened in (store, few, crowd):
            await opened.close()


# (e) and (f)


async def fill_session(server: EmbeddedServer, session: str, count: int, *, text: str = FILL_TEXT) -> None:
    """Write messages of both sides into a session of a new store, without an agent that answers them."""
    # Without the tags of the triggers of the context config, a message starts no turn.
    store = await Store.open(server.url)  # writes the metadata of a new store
    await store.close()
    tags = [f"session:{session}"]
    context = {"message": text, "session_id": session}
    user = {"schema_name": USER_MESSAGE, "title": "m", "tags": tags, "context": context}
    answer = user | {"schema_name": AGENT_RESPONSE}
    commands = [await CreateCommand.of(document, owner=DEVELOPER) for document in (user, answer)]
    raw = RawLink(server.url)
    raw.load(commands[0].script)
    raw.pipeline((commands[number % 2].packed() for number in range(count)), size=200)
    raw.settle()
    raw.close()


async def turn_times(chat: Chat, session: str | None, turns: int) -> dict[str, float]:
    """Return the p50 of some turns in milliseconds. `session` None: a new session."""
    name = session or str(uuid4())
    return {"p50": percentile([await chat.turn(name, "Hello") for _ in range(turns)], 0.5) * 1000}


async def by_session_length(quick: bool) -> Found:
    """Compare turns in a session of 10,000 messages with turns in new sessions of the same store."""
    turns, rounds = 10, (15 if quick else 61)
    with embedded() as server:
        await fill_session(server, "long", LONG_SESSION)
        with crumb_up(sys.executable, "--redis", server.url) as system:
            async with chats(system.url, 1) as (chat,):
                await asyncio.sleep(LEASE_WAIT_SECONDS)
                sides: dict[str, Side] = {
                    "empty": partial(turn_times, chat, None, turns),
                    f"{LONG_SESSION:,} messages": partial(turn_times, chat, "long", turns),
                }
                return await interleaved(rounds, sides, seconds=20 if quick else 60)


async def by_lanes(quick: bool) -> Found:
    """Compare turns in a store with many lanes with turns in one with few."""
    turns, rounds = 20, (15 if quick else 61)
    with (
        crumb_up(sys.executable, "--lanes", str(FEW_LANES)) as few,
        crumb_up(sys.executable, "--lanes", str(MANY_LANES)) as many,
    ):
        async with chats(few.url, 1) as (with_few,), chats(many.url, 1) as (with_many,):
            await asyncio.sleep(2 * LEASE_WAIT_SECONDS)
            sides: dict[str, Side] = {
                f"{FEW_LANES} lanes": partial(talk, few, with_few, turns),
                f"{MANY_LANES} lanes": partial(talk, many, with_many, turns),
            }
            return await interleaved(rounds, sides, seconds=30 if quick else 90)


def ratio_of_sides(found: Found, what: str) -> Rounds:
    """Return the ratio of the second side to the first, by round."""
    first, second = found.values()
    return second[what].per(first[what])


def _ratio(report: Report, what: str, found: dict[str, dict[str, Rounds]]) -> None:
    small, large = found.values()
    report.verdict(Verdict(what, large["µs"].per(small["µs"]).median, 1.2))


def _table(report: Report, key: str, title: str, found: dict[str, dict[str, Rounds]]) -> None:
    report.section(
        key, title, {name: {what: r.as_json() for what, r in got.items()} for name, got in found.items()}
    )
    names = list(next(iter(found.values())))
    report.table(
        ["", *names],
        [
            [side, *(f"{got[n].median:,.2f} ({got[n].spread('{:,.2f}')})" for n in names)]
            for side, got in found.items()
        ],
    )


async def bench(chosen: argparse.Namespace) -> None:
    began = time.monotonic()
    report = Report("turn", chosen)
    if chosen.against is not None:
        await compare(report, chosen.quick, chosen.against)
        report.finish(began)
        return
    wanted = chosen.only or "abcdef"
    if "a" in wanted:
        await one_session(report, chosen.quick)
    if "b" in wanted:
        await many_sessions(report, chosen.quick)
    if "c" in wanted or "d" in wanted:
        await context_cost(report, chosen.quick)
    if "e" in wanted:
        found = await by_session_length(chosen.quick)
        _table(report, "e", "turns by the length of the session (ms)", found)
        report.verdict(TARGETS["long_session"].verdict(ratio_of_sides(found, "p50").median))
    if "f" in wanted:
        found = await by_lanes(chosen.quick)
        _table(report, "f", "turns by the number of lanes (ms)", found)
        report.verdict(TARGETS["many_lanes"].verdict(ratio_of_sides(found, "p50").median))
    report.finish(began)


def main() -> None:
    parser = options(__doc__ or "")
    add_against(parser)
    chosen = parser.parse_args()
    run(lambda: bench(chosen))


if __name__ == "__main__":
    main()
