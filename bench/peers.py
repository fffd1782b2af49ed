"""Compares appends and last-ten reads with the sessions of openai-agents, for sessions of different lengths.

    python -m bench.peers [--quick] [--json] [--only ab]

openai-agents' Redis session uses the same server, a unix socket. Its SQLite session uses a file. Our session for
openai-agents talks HTTP to a server in another process. `--json` prints one document. Its sections (a) and (b) have
`series`: a list of {"length", "p50_us"} per system.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Protocol

from bench import _common
from bench._common import (
    CreateCommand,
    RawLink,
    Report,
    Rounds,
    Side,
    Verdict,
    as_json,
    embedded,
    interleaved,
)
from breadcrumbs.client.aio import AsyncClient
from breadcrumbs.openai_agents import BreadcrumbSession
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.schema_names import OPENAI_ITEM
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.store import Store

LAST = 10
WORDS = "the quick brown fox jumps over the lazy dog and says so in a chat window " * 5
ITEM = {"role": "user", "content": WORDS}
COMPARED_LENGTH = 1_000
"""Length of the session for the ratios."""

OURS, COLD, LIST = "Store.recent", "Store.recent, nothing cached", "Store.list(session)"
CREATE = "Store.create"
SESSION = "BreadcrumbSession (HTTP)"
REDIS, SQLITE = "openai-agents RedisSession", "openai-agents SQLiteSession"


class AgentSession(Protocol):
    """The part of the session protocol of openai-agents that is measured."""

    async def get_items(self, limit: int | None = None) -> list[Any]: ...

    async def add_items(self, items: list[Any]) -> None: ...


async def main() -> None:
    options = _common.options("Compare appends and last-ten reads with openai-agents' sessions.").parse_args()
    report = Report("peers", options)
    began = time.monotonic()
    lengths = (100, 1_000, 10_000) if options.quick else (100, 1_000, 10_000, 100_000)
    sections: dict[str, tuple[str, Callable[[Bench], dict[str, Call]]]] = {
        "a": (f"last {LAST} items of a session, one caller", Bench.reads),
        "b": ("append of one item, one caller", Bench.appends),
    }
    found: dict[str, dict[int, _common.Found]] = {letter: {} for letter in sections}
    for length in lengths:
        async with _bench(length) as bench:
            for letter, (_, calls) in sections.items():
                if not options.only or letter in options.only:
                    found[letter][length] = await _measure(options, calls(bench))
    for letter, (title, _) in sections.items():
        if found[letter]:
            _report(report, letter, title, found[letter])
    report.finish(began)


Call = Callable[[], Awaitable[Any]]


async def _measure(options: argparse.Namespace, calls: dict[str, Call]) -> _common.Found:
    size, rounds, seconds = (20, 5, 4.0) if options.quick else (50, 15, 20.0)

    def side(call: Call) -> Side:
        async def run() -> dict[str, float]:
            durations = []
            for _ in range(size):
                began = time.perf_counter()
                await call()
                durations.append((time.perf_counter() - began) * 1e6)
            return {"p50": _common.percentile(durations, 0.5)}

        return run

    return await interleaved(rounds, {name: side(call) for name, call in calls.items()}, seconds=seconds)


def _report(report: Report, letter: str, title: str, found: dict[int, _common.Found]) -> None:
    names = list(next(iter(found.values())))
    series = {
        name: [
            {"length": length, "p50_us": round(sides[name]["p50"].median, 1)}
            for length, sides in found.items()
        ]
        for name in names
    }
    compared = found[COMPARED_LENGTH]
    ratios: dict[str, Rounds] = {
        name: compared[name]["p50"].per(compared[REDIS]["p50"]) for name in names if name != REDIS
    }
    report.section(
        letter,
        title,
        {
            "series": series,
            "ratios": {name: ratio.as_json() for name, ratio in ratios.items()},
            "rounds": {str(length): as_json(sides) for length, sides in found.items()},
        },
    )
    report.table(
        ["p50 µs, by length of the session", *(f"{length:,}" for length in found)],
        [[name, *(f"{point['p50_us']:,.0f}" for point in series[name])] for name in names],
    )
    for name, ratio in ratios.items():
        aim = 1.0 if name in (OURS, CREATE) else None
        report.verdict(Verdict(f"({letter}) {name} against {REDIS}", ratio.median, aim))


# The systems


class Bench:
    """One session of the same length in each system."""

    def __init__(self, store: Store, sessions: dict[str, AgentSession]) -> None:
        self._store = store
        self._sessions = sessions
        self._new = BreadcrumbCreate.parse(_document("stored"))

    def reads(self) -> dict[str, Call]:
        """Return the calls that read the last items. All of them parse the items."""
        store, last_of_session = self._store, Query(session_id="stored", limit=LAST)

        async def recent() -> list[Any]:
            return [crumb.context for crumb in await store.recent(DEVELOPER, "stored", OPENAI_ITEM, LAST)]

        async def recent_cold() -> list[Any]:
            record.clear_cache()
            return await recent()

        async def listed() -> list[Any]:
            return [crumb.context for crumb in (await store.list(DEVELOPER, last_of_session)).items]

        async def items(session: AgentSession) -> list[Any]:
            return await session.get_items(LAST)

        sides: dict[str, Call] = {OURS: recent, COLD: recent_cold, LIST: listed}
        return sides | {name: lambda s=session: items(s) for name, session in self._sessions.items()}

    def appends(self) -> dict[str, Call]:
        """Return the calls that append one item."""

        async def create() -> None:
            await self._store.create(DEVELOPER, self._new)

        async def add(session: AgentSession) -> None:
            await session.add_items([ITEM])

        sides: dict[str, Call] = {CREATE: create}
        return sides | {name: lambda s=session: add(s) for name, session in self._sessions.items()}


@asynccontextmanager
async def _bench(length: int) -> AsyncIterator[Bench]:
    """Open all systems with a session of this length."""
    redis_session, sqlite_session = _openai_agents_sessions()
    folder = Path(tempfile.mkdtemp(prefix="breadcrumbs-bench-"))
    try:
        with embedded() as server, _served(server.url) as url:
            store = await Store.open(server.url)
            raw = RawLink(server.url)
            for session in ("stored", "served"):
                command = await CreateCommand.of(_document(session), owner=DEVELOPER)
                raw.load(command.script)
                raw.pipeline(command.packed() for _ in range(length))
            raw.close()
            redis = redis_session.from_url("peer", url=server.url)
            sqlite = sqlite_session("peer", str(folder / "sqlite.db"))
            for peer in (redis, sqlite):
                for chunk in _chunks(repeat(ITEM, length), 1_000):
                    await peer.add_items(chunk)
            async with AsyncClient(url) as client:
                served = BreadcrumbSession("served", client=client)
                yield Bench(store, {SESSION: served, REDIS: redis, SQLITE: sqlite})
            await redis.close()
            sqlite.close()
            await store.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _document(session: str) -> dict[str, Any]:
    """Return an item as `BreadcrumbSession` stores it."""
    return {
        "schema_name": OPENAI_ITEM,
        "title": "user: the quick brown fox",
        "tags": ["openai:item", f"session:{session}"],
        "context": {"entry": ITEM, "session_id": session},
    }


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk


def _openai_agents_sessions() -> tuple[Any, Any]:
    """Import openai-agents. Its package has the name of a folder of this project."""
    root = Path(__file__).resolve().parents[1]
    saved = sys.path[:]
    sys.path[:] = [entry for entry in saved if Path(entry or ".").resolve() != root]
    try:
        from agents.extensions.memory import RedisSession  # type: ignore[import-not-found,unused-ignore]  # noqa: TID251

        from agents import SQLiteSession  # type: ignore[attr-defined,unused-ignore]  # noqa: TID251
    finally:
        sys.path[:] = saved
    return RedisSession, SQLiteSession


@contextmanager
def _served(redis: str) -> Iterator[str]:
    """Run `crumb serve` in a separate process, and yield its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "breadcrumbs", "serve", "--redis", redis, "--port", "0"],
        stdout=subprocess.PIPE,
        env=os.environ | {"CRUMB_LOG_LEVEL": "error"},
    )
    try:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["url"])
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    _common.run(main)
