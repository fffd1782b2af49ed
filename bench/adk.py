"""Compares our session service for google-adk with ADK's own session services.

    python -m bench adk [--quick] [--json] [--only ab]

ADK's Redis service is in another package. It requires an older redis-py but works with ours:
pip install --no-deps google-adk-community. The database service needs sqlalchemy[asyncio].
"""

from __future__ import annotations

import sys
from pathlib import Path

# Python puts the folder of a script on the path. There, bench/http.py would hide the standard library's `http`.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import asyncio
import importlib
import itertools
import json
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import uuid4

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from bench import _common
from bench._common import Report, Rounds, Side, Verdict, as_json, embedded, interleaved
from breadcrumbs.adk import BreadcrumbSessionService

APP = "bench"
SHORT, LONG, LAST = 10, 1_000, 20
WORDS = "the quick brown fox jumps over the lazy dog and says so in a chat window " * 5

OURS, HTTP = "Breadcrumbs", "Breadcrumbs over HTTP"
MEMORY, SQLITE, DATABASE, REDIS = "ADK in memory", "ADK Sqlite", "ADK Database (sqlite)", "ADK Redis"

_numbers = itertools.count()


async def main() -> None:
    options = _common.options(
        "Compare our session service for google-adk with ADK's own services."
    ).parse_args()
    logging.disable(logging.WARNING)
    report = Report("adk", options)
    began = time.monotonic()
    sections: dict[str, Callable[[argparse.Namespace, Report, dict[str, Bench]], Awaitable[None]]] = {
        "a": appends,
        "b": throughput,
        "c": reads,
    }
    async with _services(report) as services:
        benches = {name: Bench(service) for name, service in services.items()}
        for bench in benches.values():
            await bench.prepare()
        for letter, section in sections.items():
            if not options.only or letter in options.only:
                await section(options, report, benches)
    report.finish(began)


@asynccontextmanager
async def _services(report: Report) -> AsyncIterator[dict[str, BaseSessionService]]:
    """Open all services, each with its own data. Our service and ADK's Redis service share a server."""
    folder = Path(tempfile.mkdtemp(prefix="breadcrumbs-bench-"))
    try:
        with embedded() as server, _served(server.url) as url:
            async with (
                BreadcrumbSessionService(server.url) as ours,
                BreadcrumbSessionService(url) as over_http,
            ):
                services: dict[str, BaseSessionService] = {
                    OURS: ours,
                    HTTP: over_http,
                    MEMORY: InMemorySessionService(),
                    SQLITE: SqliteSessionService(str(folder / "sqlite.db")),
                }
                for name, module, made in (
                    (DATABASE, "google.adk.sessions.database_session_service", {
                        "db_url": f"sqlite+aiosqlite:///{folder / 'database.db'}"
                    }),
                    (REDIS, "google.adk_community.sessions.redis_session_service", {"uri": server.url}),
                ):  # fmt: skip
                    kind = f"{name.split()[1]}SessionService"
                    try:
                        services[name] = getattr(importlib.import_module(module), kind)(**made)
                    except ImportError as error:
                        report.say(f"skipped {name}: {error}. See the first lines of bench/adk.py")
                yield services
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _served(redis: str) -> Iterator[str]:
    """Run `crumb serve` in a separate process, and yield its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "breadcrumbs", "serve", "--redis", redis, "--port", "0"],
        stdout=subprocess.PIPE,
        env=os.environ | {"CRUMB_NAMESPACE": "overhttp", "CRUMB_LOG_LEVEL": "error"},
    )
    try:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["url"])
    finally:
        process.terminate()
        process.wait()


# One service


def _event(*, state: bool = True) -> Event:
    number = next(_numbers)
    return Event(
        author="helper",
        invocation_id=f"i{number}",
        content=types.Content(role="model", parts=[types.Part(text=WORDS)]),
        actions=EventActions(state_delta={"step": number} if state else {}),
    )


class Bench:
    """A session service and its test sessions."""

    def __init__(self, service: BaseSessionService) -> None:
        self.service = service
        self.long: Session

    async def prepare(self) -> None:
        self.long = await self.session(LONG)

    async def session(self, length: int) -> Session:
        session = await self.service.create_session(app_name=APP, user_id=f"u{uuid4()}")
        if type(self.service).__name__ == "RedisSessionService":
            # This service writes the whole session on each append. One append stores all events at once.
            session.events.extend(_event() for _ in range(length - 1))
            length = 1
        for _ in range(length):
            await self.service.append_event(session, _event())
        return session

    async def append(self, session: Session, count: int) -> float:
        """Append events one after the other. Return the microseconds per append."""
        events = [_event() for _ in range(count)]
        began = time.perf_counter()
        for event in events:
            await self.service.append_event(session, event)
        return (time.perf_counter() - began) / count * 1e6

    async def get(self, config: GetSessionConfig | None, count: int) -> float:
        """Read the long session. Return the microseconds per read."""
        wanted: dict[str, Any] = {
            "app_name": APP,
            "user_id": self.long.user_id,
            "session_id": self.long.id,
            "config": config,
        }
        began = time.perf_counter()
        for _ in range(count):
            found = await self.service.get_session(**wanted)
            assert found is not None
            assert len(found.events) == (LAST if config else len(self.long.events))
        return (time.perf_counter() - began) / count * 1e6


# (a)


async def appends(options: argparse.Namespace, report: Report, benches: dict[str, Bench]) -> None:
    count = 5 if options.quick else 10

    def side(bench: Bench) -> Side:
        async def run() -> dict[str, float]:
            short = await bench.session(SHORT)
            at_short = await bench.append(short, count)
            return {"short": at_short, "long": await bench.append(bench.long, count)}

        return run

    found = await interleaved(
        6 if options.quick else 20,
        {name: side(bench) for name, bench in benches.items()},
        seconds=8 if options.quick else 40,
    )
    growth = {name: got["long"].per(got["short"]) for name, got in found.items()}
    report.section("a", "append_event, one caller, an event of 400 characters with state", as_json(found))
    report.table(
        ["µs", f"at {SHORT} events", f"at {LONG:,} events", "ratio", "low – high"],
        [
            [
                name,
                got["short"].text(),
                got["long"].text(),
                growth[name].text("{:.2f}"),
                growth[name].spread("{:.2f}"),
            ]
            for name, got in found.items()
        ],
    )
    report.verdict(Verdict(f"append at {LONG:,} events against {SHORT}", growth[OURS].median, 1.2))


# (b)


async def throughput(options: argparse.Namespace, report: Report, benches: dict[str, Bench]) -> None:
    callers, each = 20, 5 if options.quick else 10

    def side(bench: Bench) -> Side:
        async def run() -> dict[str, float]:
            sessions = [await bench.session(1) for _ in range(callers)]
            events = [[_event() for _ in range(each)] for _ in sessions]

            async def talk(session: Session, said: list[Event]) -> None:
                for event in said:
                    await bench.service.append_event(session, event)

            began = time.perf_counter()
            await asyncio.gather(*(talk(*pair) for pair in zip(sessions, events, strict=True)))
            return {"rate": callers * each / (time.perf_counter() - began)}

        return run

    found = await interleaved(
        5 if options.quick else 15,
        {name: side(bench) for name, bench in benches.items()},
        seconds=8 if options.quick else 40,
    )
    report.section("b", f"append_event, {callers} callers, each in its own session", as_json(found))
    report.table(
        ["appends/s", "median", "low – high"],
        [[name, got["rate"].text(), got["rate"].spread()] for name, got in found.items()],
    )
    if DATABASE in found:
        ratio = found[OURS]["rate"].per(found[DATABASE]["rate"])
        report.verdict(Verdict(f"appends/s against {DATABASE}", ratio.median, 5, at_least=True))


# (c)


async def reads(options: argparse.Namespace, report: Report, benches: dict[str, Bench]) -> None:
    last = GetSessionConfig(num_recent_events=LAST)
    some, whole = (5, 1) if options.quick else (10, 2)

    def side(bench: Bench) -> Side:
        async def run() -> dict[str, float]:
            return {"last": await bench.get(last, some), "all": await bench.get(None, whole)}

        return run

    found = await interleaved(
        5 if options.quick else 15,
        {name: side(bench) for name, bench in benches.items()},
        seconds=8 if options.quick else 40,
    )
    report.section("c", f"get_session of a session with at least {LONG:,} events", as_json(found))
    report.table(
        ["µs", f"the last {LAST}", "low – high", "all"],
        [[name, got["last"].text(), got["last"].spread(), got["all"].text()] for name, got in found.items()],
    )
    if REDIS in found:
        ratio: Rounds = found[OURS]["last"].per(found[REDIS]["last"])
        report.verdict(Verdict(f"get of the last {LAST} against {REDIS}", ratio.median, 0.1))


if __name__ == "__main__":
    _common.run(main)
