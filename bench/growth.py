"""Measures the cost of an append and of a turn against the length of the session, beside other systems.

    python -m bench growth [--quick] [--json FILE] [--only append,turn] [--install-peers]

An append adds one message of 200 characters to a session. All systems do it in the process of the caller: Breadcrumbs
with `Store.create`, which also writes indexes and an event. A turn answers one message with a model that takes no time.
Breadcrumbs runs its whole system: the message is posted over HTTP, and the answer arrives on the event stream of the
client. The peers run in the process of the caller, without HTTP: `Runner.run` of openai-agents and `Runner.run_async`
of google-adk with their sessions, and `ainvoke` of a LangGraph graph with one node and a saver. Only Aegra, a server
for LangGraph graphs, also runs over HTTP: its turn is a run of the same graph, until the end of its stream.

Breadcrumbs shares its server with the Redis session of openai-agents. Aegra uses PostgreSQL, and the other peers use
sqlite files. LangGraph and Aegra are not installed with the tests: `--install-peers` installs them into an environment
in the cache folder. A peer that is missing is named in the output.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from bench import _common
from bench._common import CreateCommand, RawLink, embedded, percentile
from bench._peer import TEXT
from bench.turn import LEASE_WAIT_SECONDS, Chat, chats, crumb_up, fill_session
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.schema_names import USER_MESSAGE
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store.store import Store

OURS = "Breadcrumbs"
PEERS_ENVIRONMENT = user_cache_path("breadcrumbs-bench") / "peers"
PEERS_PACKAGES = (
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "aiosqlite",
    "aegra-api",
    "greenlet",
    "uvicorn",
)
LANGGRAPH, AEGRA = "LangGraph, sqlite saver", "Aegra, PostgreSQL"
APPEND, TURN = "append", "turn"
PEERS = {
    "openai-agents RedisSession": (APPEND, TURN),
    "openai-agents RedisSession(limit=10)": (TURN,),
    "openai-agents SQLiteSession": (APPEND, TURN),
    "google-adk SqliteSessionService": (APPEND, TURN),
    LANGGRAPH: (APPEND, TURN),
    AEGRA: (TURN,),
}
"""The peers and the actions to measure. A limit makes no difference to an append."""
MAX_SECONDS = {False: 4.0, True: 1.0}
"""Seconds after which a side of a round starts no further action; by `--quick`."""
ROUNDS_OF_SLOW_SIDES, SLOW_US = 2, 3e6
"""A side that takes longer than this runs only in the first rounds."""

Act = Callable[[int, int, float], Awaitable[list[float]]]
"""Runs an action in the session of a length, at most some times and seconds. Returns the microseconds of each."""


# Breadcrumbs


async def _for_a_while(count: int, seconds: float, act: Callable[[], Awaitable[Any]]) -> list[float]:
    taken: list[float] = []
    deadline = time.monotonic() + seconds
    for _ in range(count):
        began = time.perf_counter()
        await act()
        taken.append((time.perf_counter() - began) * 1e6)
        if time.monotonic() > deadline:
            break
    return taken


class OurAppends:
    """Appends with `Store.create`."""

    def __init__(self, store: Store, server: EmbeddedServer) -> None:
        self._store, self._server = store, server

    async def fill(self, length: int) -> None:
        command = await CreateCommand.of(self._document(length), owner=DEVELOPER)
        raw = RawLink(self._server.url)
        raw.load(command.script)
        raw.pipeline((command.packed() for _ in range(length)), size=200)
        raw.settle()
        raw.close()

    async def act(self, length: int, count: int, seconds: float) -> list[float]:
        new = BreadcrumbCreate.parse(self._document(length))
        return await _for_a_while(count, seconds, lambda: self._store.create(DEVELOPER, new))

    def _document(self, length: int) -> dict[str, Any]:
        session = f"append-{length}"
        return {
            "schema_name": USER_MESSAGE,
            "title": "A message",
            "tags": [f"session:{session}"],  # no tag that starts a turn: the workers of the turns see it too
            "context": {"message": TEXT, "session_id": session},
        }


class OurTurns:
    """Turns of the whole system, from the post to the answer on the stream."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    async def act(self, length: int, count: int, seconds: float) -> list[float]:
        return await _for_a_while(count, seconds, lambda: self._chat.turn(f"turn-{length}", "Hello"))


# Peers


class PeerProcess:
    """A child process with one peer."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name, self._process = name, process

    async def fill(self, length: int) -> None:
        await self.call({"do": "fill", "length": length})

    def action(self, what: str) -> Act:
        async def act(length: int, count: int, seconds: float) -> list[float]:
            request = {"do": what, "length": length, "count": count, "seconds": seconds}
            found: list[float] = (await self.call(request))["us"]
            return found

        return act

    async def call(self, request: dict[str, Any] | None) -> Any:
        """Send a request, and return the reply. `request` None: only read."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if request is not None:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended, see its message above")
        return json.loads(line)


@asynccontextmanager
async def peer_process(name: str, folder: Path, redis: str) -> AsyncIterator[tuple[PeerProcess, str]]:
    """Start a peer. Yield it with its version. Raise ImportError if it is not installed."""
    python = _interpreter_for(name)
    # -P: without it, the folder of the script would hide modules of the standard library.
    argv = [python, "-P", str(Path(__file__).with_name("_peer.py")), name, str(folder), redis]
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, start_new_session=True
    )
    try:
        peer = PeerProcess(name, process)
        first = await peer.call(None)
        if "missing" in first:
            raise ImportError(first["missing"])
        yield peer, first["version"]
    finally:
        if process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()  # it then ends the servers that it has started
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 30)
        if process.returncode is None:
            process.kill()
            await process.wait()


def _interpreter_for(name: str) -> str:
    if name not in (LANGGRAPH, AEGRA):
        return sys.executable
    python = PEERS_ENVIRONMENT / "bin" / "python"
    if not python.exists():
        raise ImportError("not installed: python -m bench growth --install-peers")
    return str(python)


def _postgres(chosen: argparse.Namespace) -> str:
    if chosen.postgres is None:
        raise ImportError("needs an empty database: --postgres postgresql://user@127.0.0.1/name")
    return str(chosen.postgres)


def install_peers() -> None:
    """Install the peers that are no dependency of the tests into their own environment."""
    python = PEERS_ENVIRONMENT / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS_ENVIRONMENT)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PEERS_PACKAGES], check=True)


# Rounds


async def measure(action: str, sides: dict[str, Act], lengths: list[int], *, quick: bool) -> dict[str, Any]:
    """Run all sides at all lengths in alternating rounds. Return the points of each side."""
    rounds, count = (2, 10) if quick else (5, 20)
    medians: dict[tuple[str, int], list[float]] = {(name, length): [] for name in sides for length in lengths}
    for number in range(-1, rounds):  # the first round is a warm-up
        names = list(sides)
        first = number % len(names)
        # All lengths of a side follow each other: a slow peer before one of them would leave cold caches.
        for name in names[first:] + names[:first]:
            for length in lengths:
                found = medians[name, length]
                if len(found) >= ROUNDS_OF_SLOW_SIDES and found[-1] > SLOW_US:
                    continue
                taken = await sides[name](length, count + 1 if number >= 0 else 1, MAX_SECONDS[quick])
                if number >= 0:
                    found.append(percentile(taken[1:] or taken, 0.5))
        say(f"  {action}: round {number + 1} of {rounds}")
    return {
        name: [
            {
                "length": length,
                "p50_us": percentile(medians[name, length], 0.5),
                "low_us": min(medians[name, length]),
                "high_us": max(medians[name, length]),
            }
            for length in lengths
        ]
        for name in sides
    }


async def measure_all(chosen: argparse.Namespace) -> dict[str, Any]:
    """Fill the sessions of all systems, and measure the actions. Return the document."""
    wanted = chosen.only.split(",") if chosen.only else [APPEND, TURN]
    lengths = [100, 1_000, 10_000] + ([] if chosen.quick else [100_000])
    versions, missing = {OURS: importlib.metadata.version("breadcrumbs")}, {}
    document: dict[str, Any] = {"mode": "quick" if chosen.quick else "default", "machine": _common.machine()}
    async with AsyncExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="breadcrumbs-bench-")))
        server = opened.enter_context(embedded())
        store = await Store.open(server.url)
        opened.push_async_callback(store.close)
        sides: dict[str, dict[str, Act]] = {APPEND: {}, TURN: {}}
        if APPEND in wanted:
            appends = OurAppends(store, server)
            for length in lengths:
                await appends.fill(length)
            sides[APPEND][OURS] = appends.act
        if TURN in wanted:
            for length in lengths:
                await fill_session(server, f"turn-{length}", length, text=TEXT)
            system = opened.enter_context(crumb_up(sys.executable, "--redis", server.url))
            (chat,) = await opened.enter_async_context(chats(system.url, 1))
            await asyncio.sleep(LEASE_WAIT_SECONDS)
            sides[TURN][OURS] = OurTurns(chat).act
        for number, (name, actions) in enumerate(PEERS.items()):
            if not set(actions) & set(wanted):
                continue
            own = folder / str(number)
            own.mkdir()
            try:
                url = _postgres(chosen) if name == AEGRA else f"{server.url}?db={number + 1}"
                started = peer_process(name, own, url)
                peer, versions[name] = await opened.enter_async_context(started)
            except ImportError as error:
                missing[name] = str(error)
                say(f"  not measured: {name} ({error})")
                continue
            for length in lengths:
                await peer.fill(length)
            say(f"  filled {name}")
            for action in actions:
                sides[action][name] = peer.action(action)
        for action in wanted:
            document[action] = await measure(action, sides[action], lengths, quick=chosen.quick)
    return document | {"versions": versions, "missing": missing}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def show(document: dict[str, Any]) -> None:
    """Print a table for each action."""
    for action in (APPEND, TURN):
        series = document.get(action)
        if series is None:
            continue
        lengths = [point["length"] for point in next(iter(series.values()))]
        print(f"\np50 of {'an append' if action == APPEND else 'a turn'} in ms, by messages in the session")
        width = max(map(len, series))
        print("".ljust(width) + "".join(f"{length:>12,}" for length in lengths))
        for name, points in series.items():
            print(name.ljust(width) + "".join(f"{point['p50_us'] / 1000:12,.2f}" for point in points))


async def bench(chosen: argparse.Namespace) -> None:
    if chosen.install_peers:
        install_peers()
    document = await measure_all(chosen)
    if chosen.json:
        _common.write_json(chosen.json, document)
    if chosen.json != "-":
        show(document)


def main() -> None:
    parser = _common.options(__doc__ or "", only="append,turn", json_file=True)
    parser.add_argument(
        "--install-peers", action="store_true", help="install LangGraph and Aegra into the cache folder"
    )
    parser.add_argument("--postgres", metavar="URL", help="empty PostgreSQL database for Aegra")
    chosen = parser.parse_args()
    _common.run(lambda: bench(chosen))


if __name__ == "__main__":
    main()
