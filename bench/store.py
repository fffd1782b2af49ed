"""Measures the speed of the store from one process, and the server memory per message.

    python bench/store.py [--quick | --full] [--json] [--only acde] [--against CHECKOUT]

`--against` compares creates and last-ten reads with another checkout that has a `.venv`, in alternating runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Python puts the folder of a script on the path. There, bench/http.py would hide the standard library's `http`.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import asyncio
import itertools
import json
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import orjson
from redis.asyncio import Redis

from bench import _common
from bench._common import (
    AGENT,
    MESSAGE_LENGTH,
    MIN_ROUNDS,
    OWNER,
    SHARED_TAG,
    CreateCommand,
    RawLink,
    Report,
    Rounds,
    Side,
    Verdict,
    as_json,
    embedded,
    interleaved,
    percentile,
    posted,
)
from bench.targets import TARGETS
from breadcrumbs.runtime.backend.link import Command
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.query import Page, Query
from breadcrumbs.runtime.schema_names import USER_MESSAGE
from breadcrumbs.runtime.store.store import Store

CALLERS = 50
MAX_ROUNDS = 60
OURS, PLAIN = "Store.create", "redis-py, script of 1bd9899"

_T = TypeVar("_T")


async def main() -> None:
    parser = _common.options("Compare the store with plain redis-py and raw pipelines on the same server.")
    parser.add_argument("--full", action="store_true", help="run (d) with 1,000,000 breadcrumbs; needs 3 GB")
    _common.add_against(parser)
    options = parser.parse_args()
    report = Report("store", options)
    began = time.monotonic()
    if options.against is not None:
        await compare(options, report)
        report.finish(began)
        return
    sections: dict[str, Callable[[argparse.Namespace, Report], Awaitable[None]]] = {
        "a": creates,
        "c": long_session,
        "d": large_store,
        "e": memory,
    }
    for letter, section in sections.items():
        if not options.only or letter in options.only:
            await section(options, report)
    report.finish(began)


# Another checkout

CHECKOUT = Path(__file__).resolve().parents[1]
COMPARED = {
    "creates per second": ("a", "sides", OURS, "per_second"),
    "CPU µs of a create": ("a", "sides", OURS, "cpu_us"),
    "p50 µs of a create, one caller": ("a1", "sides", OURS, "p50"),
    "p50 µs of the last ten": ("c", "calls", "Store.recent(session, schema, 10)", "long_us"),
}


async def compare(options: argparse.Namespace, report: Report) -> None:
    """Run the quick sections (a) and (c) in this checkout and in another one, alternately."""
    sides: dict[str, Side] = {
        _common.OURS: partial(measured_in, CHECKOUT, sys.executable),
        _common.OTHER: partial(measured_in, options.against, _common.interpreter_of(options.against)),
    }
    found = await interleaved(3 if options.quick else 9, sides, seconds=300)
    runs = len(next(iter(found[_common.OURS].values())).values)
    _common.report_comparison(report, f"the store of this checkout against another, {runs} runs", found)


async def measured_in(checkout: Path, python: str) -> dict[str, float]:
    """Run the benchmark of a checkout, and return its medians."""
    # A separate process, because the modules of the two checkouts have the same names.
    argv = [python, "bench/store.py", "--quick", "--json", "--only", "ac"]
    done = await asyncio.create_subprocess_exec(*argv, cwd=checkout, stdout=subprocess.PIPE)
    printed, _ = await done.communicate()
    sections: Any = json.loads(printed)["sections"]
    return {
        what: sections[section][group][side][number]["median"]
        for what, (section, group, side, number) in COMPARED.items()
    }


# (a)


class Creates:
    """The sides of (a): five ways to write the same breadcrumbs to the same server."""

    def __init__(
        self,
        store: Store,
        plain: Redis,
        raw: RawLink,
        documents: list[dict[str, Any]],
        commands: list[CreateCommand],
        reference: list[CreateCommand],
    ) -> None:
        self.store = store
        self.plain = plain
        self.raw = raw
        self.documents = documents
        self.ready = [BreadcrumbCreate.parse(document) for document in documents]
        self.commands = commands
        self.reference = reference
        self.names = itertools.count()

    def sides(self, count: int) -> dict[str, Side]:
        """Return the sides. Each writes `count` times. Its input is prepared before its clock starts."""
        turns = [number % CALLERS for number in range(count)]

        async def ours() -> dict[str, float]:
            return await self._timed([self.ready[turn] for turn in turns], self._create)

        async def ours_from_document() -> dict[str, float]:
            return await self._timed([self.documents[turn] for turn in turns], self._parse_and_create)

        async def redis_py() -> dict[str, float]:
            return await self._timed([self.reference[turn].arguments() for turn in turns], self.call)

        async def bare_set() -> dict[str, float]:
            body = b"x" * MESSAGE_LENGTH
            calls = [("SET", f"bare:{next(self.names)}", body) for _ in turns]
            return await self._timed(calls, self.call)

        async def pipelined() -> dict[str, float]:
            packed = [self.commands[turn].packed() for turn in turns]
            stop = self._clock(count)
            self.raw.pipeline(packed)
            return stop()

        return {
            OURS: ours,
            "parse + Store.create": ours_from_document,
            PLAIN: redis_py,
            "redis-py, bare SET of 1 KB": bare_set,
            "raw pipelines of 50, same script": pipelined,
        }

    async def _create(self, new: BreadcrumbCreate) -> None:
        await self.store.create(OWNER, new, by=AGENT)

    async def _parse_and_create(self, document: dict[str, Any]) -> None:
        await self.store.create(OWNER, BreadcrumbCreate.parse(document), by=AGENT)

    async def call(self, command: Command) -> None:
        await self.plain.execute_command(*command)  # type: ignore[no-untyped-call]

    async def _timed(self, items: list[_T], act: Callable[[_T], Awaitable[None]]) -> dict[str, float]:
        left = iter(items)

        async def caller() -> None:
            for item in left:
                await act(item)

        stop = self._clock(len(items))
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(caller())
        return stop()

    def _clock(self, count: int) -> Callable[[], dict[str, float]]:
        self.raw.settle()  # a rewrite of the append-only file must not slow down the next side
        there, here, began = self.raw.server_cpu(), time.process_time(), time.perf_counter()

        def stop() -> dict[str, float]:
            seconds, busy = time.perf_counter() - began, time.process_time() - here
            return {
                "per_second": count / seconds,
                "cpu_us": busy / count * 1e6,
                "server_cpu_us": (self.raw.server_cpu() - there) / count * 1e6,
            }

        return stop


async def creates(options: argparse.Namespace, report: Report) -> None:
    count, rounds, seconds = (1_000, 9, 5.0) if options.quick else (2_500, 31, 50.0)
    with embedded() as server:
        store = await Store.open(server.url)
        plain = Redis.from_url(server.url)
        raw = RawLink(server.url)
        try:
            documents = [posted(f"chat-{caller}") for caller in range(CALLERS)]
            commands = [await CreateCommand.of(document) for document in documents]
            raw.load(commands[0].script)
            reference = [await CreateCommand.reference(document) for document in documents]
            raw.load(reference[0].script)
            work = Creates(store, plain, raw, documents, commands, reference)
            found = await interleaved(rounds, work.sides(count), seconds=seconds)
            _show_creates(report, found, count)
            await _one_caller(options, report, work)
        finally:
            await store.close()
            await plain.aclose()
            raw.close()


def _show_creates(report: Report, found: dict[str, dict[str, Rounds]], count: int) -> None:
    ours = found[OURS]["per_second"]
    rounds = len(ours.values)
    title = f"creates per second at {CALLERS} callers, 1 KB and five tags, {rounds} rounds of {count:,}"
    report.section("a", title, {"sides": as_json(found)})
    report.table(
        ["", "per second", "low – high", "CPU µs here", "at the server", f"{OURS}: times that", "low – high"],
        [
            [
                side,
                got["per_second"].text(),
                got["per_second"].spread(),
                got["cpu_us"].text(),
                got["server_cpu_us"].text(),
                ours.per(got["per_second"]).text("{:.2f}"),
                ours.per(got["per_second"]).spread("{:.2f}"),
            ]
            for side, got in found.items()
        ],
    )
    ratio = ours.per(found[PLAIN]["per_second"]).median
    report.verdict(
        Verdict(
            f"(a) creates against plain redis-py, {CALLERS} callers",
            ratio,
            TARGETS["create"].aim,
            at_least=True,
        )
    )


async def _one_caller(options: argparse.Namespace, report: Report, work: Creates) -> None:
    blocks, size, seconds = (8, 100, 2.0) if options.quick else (30, 150, 12.0)
    new, command = work.ready[0], work.reference[0]

    async def ours() -> dict[str, float]:
        return await latencies([new] * size, lambda new: work.store.create(OWNER, new, by=AGENT))

    async def redis_py() -> dict[str, float]:
        return await latencies([command.arguments() for _ in range(size)], work.call)

    found = await interleaved(blocks, {OURS: ours, PLAIN: redis_py}, seconds=seconds)
    report.section("a1", f"one caller, blocks of {size} creates", {"sides": as_json(found)})
    report.table(
        ["", "p50 µs", "low – high", "p99 µs", "low – high"],
        [
            [side, got["p50"].text(), got["p50"].spread(), got["p99"].text(), got["p99"].spread()]
            for side, got in found.items()
        ],
    )
    ratio = found[OURS]["p50"].per(found[PLAIN]["p50"]).median
    report.verdict(Verdict("(a) latency against plain redis-py, one caller", ratio, 1.0, at_least=False))


async def latencies(items: list[_T], act: Callable[[_T], Awaitable[Any]]) -> dict[str, float]:
    taken = []
    for item in items:
        began = time.perf_counter()
        await act(item)
        taken.append((time.perf_counter() - began) * 1e6)
    return {"p50": percentile(taken, 0.5), "p99": percentile(taken, 0.99)}


# (c)


async def long_session(options: argparse.Namespace, report: Report) -> None:
    long, short = (10_000 if options.quick else 100_000), 100
    size, seconds = (40, 1.0) if options.quick else (60, 5.0)
    with embedded() as server:
        raw = RawLink(server.url)
        store = await Store.open(server.url)
        try:
            for session, count in (("long", long), ("short", short)):
                fill(raw, [await CreateCommand.of(posted(session))], count)
            raw.settle()
            rows, numbers, worst = [], {}, 0.0
            for name, call in {
                "Store.recent(session, schema, 10)": lambda session: store.recent(
                    OWNER, session, USER_MESSAGE, 10
                ),
                "Store.list(session, schema, limit 10)": lambda session: store.list(
                    OWNER, Query(session_id=session, schema_name=USER_MESSAGE, limit=10)
                ),
                "Store.list(session, limit 10)": lambda session: store.list(
                    OWNER, Query(session_id=session, limit=10)
                ),
            }.items():
                got = await _compare(call, "long", "short", size, seconds)
                ratio = got["long"]["p50"].per(got["short"]["p50"])
                worst = max(worst, ratio.median)
                rows.append(_comparison_row(name, got["long"], got["short"], ratio))
                numbers[name] = {
                    "long_us": got["long"]["p50"].as_json(),
                    "short_us": got["short"]["p50"].as_json(),
                    "ratio": ratio.as_json(),
                }
            title = f"last 10 of a session of {long:,} against a session of {short}, one caller"
            report.section("c", title, {"long": long, "short": short, "calls": numbers})
            report.table(["", f"{long:,}: p50 µs", f"{short}: p50 µs", "ratio", "low – high"], rows)
            report.verdict(
                Verdict(f"(c) a session of {long:,} against one of {short}", worst, 1.2, at_least=False)
            )
        finally:
            await store.close()
            raw.close()


async def _compare(
    call: Callable[[Any], Awaitable[Any]], left: Any, right: Any, size: int, seconds: float
) -> dict[str, dict[str, Rounds]]:
    """Call two targets alternately, so that load on the machine affects both."""
    found = {str(target): {"p50": Rounds()} for target in (left, right)}
    deadline = time.monotonic() + seconds
    for number in range(-1, MAX_ROUNDS):
        if number >= MIN_ROUNDS and time.monotonic() > deadline:
            break
        taken: dict[str, list[float]] = {str(target): [] for target in (left, right)}
        for turn in range(size):
            for target in (left, right) if turn % 2 else (right, left):
                began = time.perf_counter()
                await call(target)
                taken[str(target)].append((time.perf_counter() - began) * 1e6)
        if number >= 0:
            for name, times in taken.items():
                found[name]["p50"].values.append(percentile(times, 0.5))
    return found


def _comparison_row(name: str, left: dict[str, Rounds], right: dict[str, Rounds], ratio: Rounds) -> list[str]:
    return [name, left["p50"].text(), right["p50"].text(), ratio.text("{:.2f}"), ratio.spread("{:.2f}")]


def fill(raw: RawLink, commands: list[CreateCommand], count: int) -> None:
    """Write `count` breadcrumbs, cycling through the commands."""
    raw.load(commands[0].script)
    raw.pipeline(
        (command.packed() for command, _ in zip(itertools.cycle(commands), range(count), strict=False)),
        size=200,
    )


# (d)

RARE_TAG, RARE = "topic:rare", 50


async def large_store(options: argparse.Namespace, report: Report) -> None:
    large, small = (1_000_000 if options.full else 20_000 if options.quick else 200_000), 1_000
    size, seconds = (30, 1.0) if options.quick else (50, 5.0)
    with ExitStack() as open_servers:
        stores: dict[int, Store] = {}
        try:
            for count in (large, small):
                server = open_servers.enter_context(embedded())
                raw = RawLink(server.url)
                # Both stores have the same sessions, enough for every lane. Only the number of breadcrumbs differs.
                common = [await CreateCommand.of(posted(f"chat-{n}")) for n in range(200)]
                rare = [await CreateCommand.of(posted(f"rare-{n}", extra_tag=RARE_TAG)) for n in range(RARE)]
                half = (count - RARE) // 2
                fill(raw, common, half)
                fill(raw, rare, RARE)
                fill(raw, common, count - RARE - half)
                raw.settle()
                raw.close()
                stores[count] = await Store.open(server.url)
            rows, numbers, worst = [], {}, 0.0
            for name, tag in {"a tag on all": SHARED_TAG, f"a tag on {RARE}": RARE_TAG}.items():
                query = Query(all_tags=(tag,), limit=10)

                async def listed(count: int, query: Query = query) -> Page:
                    return await stores[count].list(OWNER, query)

                got = await _compare(listed, large, small, size, seconds)
                ratio = got[str(large)]["p50"].per(got[str(small)]["p50"])
                worst = max(worst, ratio.median)
                rows.append(
                    _comparison_row(f"Store.list({name}, limit 10)", got[str(large)], got[str(small)], ratio)
                )
                numbers[name] = {
                    "large_us": got[str(large)]["p50"].as_json(),
                    "small_us": got[str(small)]["p50"].as_json(),
                    "ratio": ratio.as_json(),
                }
            title = f"list by a tag with {large:,} breadcrumbs in the store against {small:,}, one caller"
            report.section("d", title, {"large": large, "small": small, "calls": numbers})
            report.table(["", f"{large:,}: p50 µs", f"{small:,}: p50 µs", "ratio", "low – high"], rows)
            report.verdict(Verdict(f"(d) {large:,} breadcrumbs against {small:,}", worst, None))
        finally:
            for store in stores.values():
                await store.close()


# (e)


async def memory(options: argparse.Namespace, report: Report) -> None:
    sessions, messages = (10 if options.quick else 64), 1_000
    total = sessions * messages
    with embedded() as server:
        raw = RawLink(server.url)
        store = await Store.open(server.url)
        try:
            documents = [posted(f"chat-{number}") for number in range(sessions)]
            commands = [await CreateCommand.of(document) for document in documents]
            raw.load(commands[0].script)
            before = _used(raw)
            fill(raw, commands, total)
            used = (_used(raw) - before) / total
            crumbs = (await store.list(OWNER, Query(session_id="chat-0", limit=1))).items
            as_read = len(orjson.dumps(crumbs[0].full_view()))
            as_posted = len(orjson.dumps(documents[0]))
            parts = _parts(raw, store, commands, crumbs[0].id.bytes, total)
            parts["other: key tables, buffers, rounding"] = used - sum(parts.values())
            report.section(
                "e",
                f"server memory of a message: {sessions} sessions of {messages:,}, five tags",
                {
                    "bytes_per_message": used,
                    "json_as_read_back": as_read,
                    "json_as_posted": as_posted,
                    "parts": parts,
                },
            )
            report.table(
                ["", "bytes", "overhead"],
                [
                    ["used_memory, per message", f"{used:,.0f}", ""],
                    ["JSON as read back (GET /full)", f"{as_read:,}", f"+{used - as_read:,.0f}"],
                    ["JSON as posted", f"{as_posted:,}", f"+{used - as_posted:,.0f}"],
                ],
            )
            report.table(
                ["of which (MEMORY USAGE)", "bytes"], [[name, f"{size:,.0f}"] for name, size in parts.items()]
            )
            report.verdict(
                Verdict(
                    "(e) bytes over the JSON as read back",
                    used - as_read,
                    600,
                    at_least=False,
                    form="{:,.0f}",
                )
            )
            report.verdict(
                Verdict(
                    "(e) bytes over the JSON as posted",
                    used - as_posted,
                    TARGETS["memory"].aim,
                    form="{:,.0f}",
                )
            )
        finally:
            await store.close()
            raw.close()


def _used(raw: RawLink) -> int:
    """Return the memory of the data, without the output buffers and the buffer of the append-only file."""
    raw.settle()
    time.sleep(1.2)  # the server rehashes tables and flushes the file once a second
    info = raw.info("memory")
    return int(info["used_memory"]) - int(info["mem_aof_buffer"]) - int(info["mem_clients_normal"])


def _parts(
    raw: RawLink, store: Store, commands: list[CreateCommand], id: bytes, total: int
) -> dict[str, float]:
    """Return the bytes per message by kind of key, over all lanes in use."""
    keys, lanes = store.keys, sorted({command.lane for command in commands})

    def usage(key: bytes) -> int:
        return int(raw.call("MEMORY", "USAGE", key, "SAMPLES", 0) or 0)

    sessions = {f"chat-{number}": command.lane for number, command in enumerate(commands)}
    parts = {
        "body": float(usage(keys.body(sessions["chat-0"], OWNER, id))),
        "index session + schema": sum(
            usage(keys.by_session(lane, OWNER, name, USER_MESSAGE)) for name, lane in sessions.items()
        )
        / total,
        "index schema": sum(usage(keys.by_schema(lane, OWNER, USER_MESSAGE)) for lane in lanes) / total,
    }
    for tag in posted("")["tags"]:
        if not tag.startswith("session:"):
            parts[f"index tag {tag}"] = sum(usage(keys.by_tag(lane, OWNER, tag)) for lane in lanes) / total
    parts["event"] = sum(usage(keys.events(lane)) for lane in lanes) / total
    return parts


if __name__ == "__main__":
    _common.run(main)
