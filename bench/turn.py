"""Measures a turn of the whole system, from a posted message to its answer on the event stream.

(a) one session: time of a turn, against bare Redis streams with a worker process
(b) 200 sessions at once: time of a turn, and turns per second of one process
(c) building a context with 100,000 messages in the session, against 100
(d) building a context with 10,000 other sessions, against 10

`--against CHECKOUT` compares (a) with another checkout that has a `.venv`. Both systems run at the same time, in
alternating rounds.

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
from breadcrumbs.context_builder.builder import build_context
from breadcrumbs.context_builder.config_checks import parse_configs
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.retrieval.schema_hints import SchemaHints
from breadcrumbs.runtime.store.store import Store

CONFIG = Path(__file__).parent.parent / "config" / "context-builder-config.json"


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

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer, self._host = reader, writer, host
        self._posting = asyncio.Lock()
        self._answers: dict[str, asyncio.Future[float]] = {}

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
        began = time.perf_counter()
        async with self._posting:
            self._writer.write(
                b"POST /breadcrumbs HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
                b"Idempotency-Key: %s\r\nContent-Length: %d\r\n\r\n%s"
                % (self._host.encode(), key.encode(), len(body), body)
            )
            id = json.loads(await _http_body(self._reader))["id"]
        answer = self._answers.setdefault(id, answered)
        return await asyncio.wait_for(answer, 30) - began

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
        opened.append(Chat(*await asyncio.open_connection(host, int(port)), host))
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


async def compare(report: Report, quick: bool, checkout: Path) -> None:
    """Compare (a) of this checkout with another one."""
    # Short rounds, so that the two sides of a round see the same load of the machine.
    turns, rounds = 20, (15 if quick else 101)
    with crumb_up() as here, crumb_up(interpreter_of(checkout)) as there:
        async with chats(here.url, 1) as (ours,), chats(there.url, 1) as (others,):
            await asyncio.sleep(1.5)  # until the workers have their leases
            sides: dict[str, Side] = {
                OURS: partial(talk, here, ours, turns),
                OTHER: partial(talk, there, others, turns),
            }
            found = await interleaved(rounds, sides, seconds=120)
    done = len(found[OURS]["p50"].values)
    report_comparison(report, f"turns of this checkout against another, {done} rounds of {turns} (ms)", found)


async def one_session(report: Report, quick: bool) -> None:
    turns, rounds = (60, 3) if quick else (200, 5)
    with crumb_up() as system, embedded() as floor_server:
        async with chats(system.url, 1) as (chat,):
            await asyncio.sleep(1.5)  # until the workers have their leases

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
        async with chats(system.url, 20) as opened:
            await asyncio.sleep(1.5)

            async def at_once() -> dict[str, float]:
                async def talk(number: int) -> list[float]:
                    session = str(uuid4())
                    return [await opened[number % 20].turn(session, "Hello") for _ in range(each)]

                began = time.perf_counter()
                talks = await asyncio.gather(*(talk(number) for number in range(sessions)))
                times = [took for talk_times in talks for took in talk_times]
                took = time.perf_counter() - began
                return {
                    "p50": percentile(times, 0.5) * 1000,
                    "p99": percentile(times, 0.99) * 1000,
                    "turns/s": len(times) / took,
                }

            found = await interleaved(rounds, {"200 sessions": at_once}, seconds=60)
    _table(report, "b", f"{sessions} sessions at once, {each} turns each (ms, and turns per second)", found)
    report.verdict(Verdict("turns per second of one process", found["200 sessions"]["turns/s"].median, None))


# (c) and (d)


async def _fill(store: Store, session: str, count: int) -> None:
    new = BreadcrumbCreate(
        schema_name="user.message.v1",
        title="m",
        tags=["user:message", f"session:{session}"],
        context={"message": "some words of a message"},
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
    wanted = chosen.only or "abcd"
    if "a" in wanted:
        await one_session(report, chosen.quick)
    if "b" in wanted:
        await many_sessions(report, chosen.quick)
    if "c" in wanted or "d" in wanted:
        await context_cost(report, chosen.quick)
    report.finish(began)


if __name__ == "__main__":
    parser = options(__doc__ or "")
    add_against(parser)
    chosen = parser.parse_args()
    run(lambda: bench(chosen))
