"""Shared code of the benchmarks: rounds, tables, a server, and the commands that the store sends."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit
from uuid import UUID

import hiredis
import uvloop

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.backend.link import Command
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.ids import new_id
from breadcrumbs.runtime.schema_names import USER_MESSAGE
from breadcrumbs.runtime.store.keys import Keys
from breadcrumbs.runtime.store.opening import DEFAULT_LANES, FORMAT
from breadcrumbs.runtime.store.store import Store

OWNER = UUID("0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b")
AGENT = UUID("0197a3c4-5e6f-7008-8a9b-0c1d2e3f4a5c")
SHARED_TAG = "extension:chat"
MESSAGE_LENGTH = 1024
MIN_ROUNDS = 3


def posted(session: str, *, extra_tag: str = "workspace:docs") -> dict[str, Any]:
    """Return a message of 1 KB with five tags, as a client posts it."""
    words = "the quick brown fox jumps over the lazy dog and says so in a chat window "
    return {
        "schema_name": USER_MESSAGE,
        "title": "A message",
        "tags": ["user:message", SHARED_TAG, "user:ann", extra_tag, f"session:{session}"],
        "context": {"message": (words * 15)[:MESSAGE_LENGTH], "session_id": session},
    }


# The commands of the store, without the store


class _Recorder:
    """Fake connection that records the script call of a create."""

    def __init__(self) -> None:
        self.recorded: tuple[int, Script, list[bytes], list[bytes | str | int]] | None = None

    def reader_groups(self) -> list[list[int]]:
        return []

    async def run(self, lane: int, script: Script, keys: list[bytes], args: list[bytes | str | int]) -> Any:
        self.recorded = (lane, script, keys, args)
        return [0, b"1", b"0", b"0", b"1"]


def packed(command: Command) -> bytes:
    pack: Callable[[Any], bytes] = hiredis.pack_command  # hiredis types its argument as a tuple of one item
    return pack(command)


class _ReferenceScript:
    """create.lua of commit 1bd9899."""

    def __init__(self) -> None:
        self.source = Path(__file__).with_name("reference_create.lua").read_bytes()
        self.sha = sha1(self.source, usedforsecurity=False).hexdigest().encode()


class CreateCommand:
    """The EVALSHA command that `Store.create` sends, which can be sent again with other ids."""

    def __init__(
        self, recorded: tuple[int, Script | _ReferenceScript, list[bytes], list[bytes | str | int]]
    ) -> None:
        self.lane, self.script, keys, args = recorded
        self._id = args[0]
        assert isinstance(self._id, bytes)
        self._command: Command = (b"EVALSHA", self.script.sha, len(keys), *keys, *args)
        self._pieces = packed(self._command).split(self._id)

    @classmethod
    async def of(cls, document: dict[str, Any], *, owner: UUID = OWNER) -> CreateCommand:
        """Record the command for a document."""
        recorder: Any = _Recorder()
        store = Store(recorder, Keys("bc", DEFAULT_LANES), secret=b"")
        store.use_format(FORMAT)
        await store.create(owner, BreadcrumbCreate.parse(document))
        return cls(recorder.recorded)

    @classmethod
    async def reference(cls, document: dict[str, Any]) -> CreateCommand:
        """Return the command that commit 1bd9899 sends for a document: the floor that creates are measured against."""
        recorder: Any = _Recorder()
        # Data format 1 indexes every tag, as that commit does.
        await Store(recorder, Keys("bc", DEFAULT_LANES), secret=b"").create(
            OWNER, BreadcrumbCreate.parse(document)
        )
        lane, _, keys, args = recorder.recorded
        # The later keys and arguments (deletions, unindexed tags, replays) did not exist.
        return cls((lane, _ReferenceScript(), [*keys[:9], *keys[11:]], args[:16]))

    def packed(self) -> bytes:
        """Return the encoded command with a new id."""
        return new_id(self.lane).bytes.join(self._pieces)

    def arguments(self) -> Command:
        """Return the arguments for a client library with a new id."""
        id = new_id(self.lane).bytes
        old: Any = self._id
        return tuple(part.replace(old, id) if isinstance(part, bytes) else part for part in self._command)


class RawLink:
    """Minimal client: a blocking socket and a parser."""

    def __init__(self, url: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(unquote(urlsplit(url).path))
        self._reader = hiredis.Reader()

    def call(self, *command: bytes | str | int) -> Any:
        self._socket.sendall(packed(command))
        return self._replies(1)[0]

    def load(self, script: Script | _ReferenceScript) -> None:
        self.call("SCRIPT", "LOAD", script.source)

    def pipeline(self, commands: Iterable[bytes], *, size: int = 50) -> None:
        """Send encoded commands in pipelines. Each pipeline is sent before the replies to the previous one are read."""
        batch: list[bytes] = []
        pending = 0
        for command in commands:
            batch.append(command)
            if len(batch) == size:
                self._socket.sendall(b"".join(batch))
                if pending:
                    self._replies(pending)
                pending = len(batch)
                batch.clear()
        self._socket.sendall(b"".join(batch))
        self._replies(pending + len(batch))

    def info(self, section: str) -> dict[str, str]:
        text: str = self.call("INFO", section).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def settle(self) -> None:
        """Wait until the server has no background save or rewrite."""
        while (
            (state := self.info("persistence"))["aof_rewrite_in_progress"] != "0"
            or state["aof_rewrite_scheduled"] != "0"
            or state["rdb_bgsave_in_progress"] != "0"
        ):
            time.sleep(0.05)

    def server_cpu(self) -> float:
        """Return the CPU time of the server's main thread, in seconds."""
        info = self.info("cpu")
        return float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"])

    def close(self) -> None:
        self._socket.close()

    def _replies(self, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            reply = self._reader.gets()
            if reply is False:
                data = self._socket.recv(1 << 16)
                if not data:
                    raise ConnectionError("the server closed the connection")
                self._reader.feed(data)
            elif isinstance(reply, Exception):
                raise reply
            else:
                found.append(reply)
        return found


@contextmanager
def embedded() -> Iterator[EmbeddedServer]:
    """Run the embedded server with its defaults (append-only file, unix socket) in a temporary directory."""
    directory = Path(tempfile.mkdtemp(prefix="breadcrumbs-bench-"))
    try:
        with EmbeddedServer(directory) as server:
            yield server
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# CPU time


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU time of a process so far. Linux only: the id of a process is part of the id of its clock."""
    return time.clock_gettime((~pid << 3) | 2)


def children_of(pid: int) -> list[int]:
    """Return the ids of the child processes. Linux only."""
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


# Rounds


@dataclass
class Rounds:
    """One measured value per round."""

    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def per(self, floor: Rounds) -> Rounds:
        """Return the ratio of each round to the same round of another side."""
        return Rounds([ours / theirs for ours, theirs in zip(self.values, floor.values, strict=True)])

    def as_json(self) -> dict[str, Any]:
        return {
            "median": self.median,
            "low": min(self.values),
            "high": max(self.values),
            "rounds": self.values,
        }

    def text(self, form: str = "{:,.0f}") -> str:
        return form.format(self.median)

    def spread(self, form: str = "{:,.0f}") -> str:
        return f"{form.format(min(self.values))} – {form.format(max(self.values))}"


Found: TypeAlias = dict[str, dict[str, Rounds]]
"""Rounds by side and by name of the measured value."""


def as_json(found: Found) -> dict[str, Any]:
    return {side: {what: rounds.as_json() for what, rounds in got.items()} for side, got in found.items()}


def percentile(values: list[float], share: float) -> float:
    """Return the value that a share (0 to 1) of the values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


Side: TypeAlias = Callable[[], Awaitable[dict[str, float]]]
"""Runs one round of a side. Returns the measured values by name."""


async def interleaved(
    rounds: int, sides: Mapping[str, Side], *, seconds: float
) -> dict[str, dict[str, Rounds]]:
    """Run every side once per round. Return the rounds by side and by name of the value.

    Each round starts with another side. One additional round is run first and discarded, because caches, scripts and
    connections are cold in it. After `seconds` no further round starts, but there are at least three.
    """
    deadline = time.monotonic() + seconds
    names = list(sides)
    found: dict[str, dict[str, Rounds]] = {name: {} for name in names}
    for number in range(-1, rounds):
        if number >= MIN_ROUNDS and time.monotonic() > deadline:
            break
        first = number % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            numbers = await sides[name]()
            if number >= 0:
                for what, value in numbers.items():
                    found[name].setdefault(what, Rounds()).values.append(value)
    return found


# Reports


@dataclass
class Verdict:
    """A result and its target."""

    what: str
    value: float
    aim: float | None
    """None: no target."""
    at_least: bool = False
    """Whether the target is a minimum. Otherwise it is a maximum."""
    form: str = "{:.2f}"

    @property
    def met(self) -> bool:
        if self.aim is None:
            return True
        return self.value >= self.aim if self.at_least else self.value <= self.aim


def machine() -> dict[str, Any]:
    """Return what a reader of a result needs to know about the machine."""
    return {
        "cpus": os.cpu_count(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


class Report:
    """Prints tables as the results arrive, or one JSON document at the end."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self._as_json: bool = options.json
        self._verdicts: list[Verdict] = []
        self._document: dict[str, Any] = {
            "benchmark": name,
            "mode": "full" if getattr(options, "full", False) else "quick" if options.quick else "default",
            "machine": machine(),
            "sections": {},
        }

    @property
    def verdicts(self) -> list[Verdict]:
        return self._verdicts

    @property
    def sections(self) -> dict[str, Any]:
        sections: dict[str, Any] = self._document["sections"]
        return sections

    def section(self, key: str, title: str, numbers: dict[str, Any]) -> None:
        self._document["sections"][key] = {"title": title, **numbers}
        self.say(f"\n({key}) {title}")

    def table(self, head: list[str], rows: list[list[str]]) -> None:
        widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
        for row in [head, *rows]:
            cells = [row[0].ljust(widths[0])] + [
                cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)
            ]
            self.say("    " + "   ".join(cells).rstrip())

    def verdict(self, verdict: Verdict) -> None:
        self._verdicts.append(verdict)
        self.say(f"  → {_sentence(verdict)}")

    def say(self, line: str) -> None:
        if not self._as_json:
            print(line, flush=True)

    def finish(self, began: float) -> None:
        self._document["seconds"] = round(time.monotonic() - began, 1)
        self._document["verdicts"] = [
            {"what": v.what, "value": v.value, "aim": v.aim, "at_least": v.at_least, "met": v.met}
            for v in self._verdicts
        ]
        if self._as_json:
            print(json.dumps(self._document, indent=2))
            return
        print(f"\nin {self._document['seconds']:.0f} s ({self._document['mode']} run):")
        for verdict in self._verdicts:
            mark = "      " if verdict.aim is None else "met   " if verdict.met else "MISSED"
            print(f"  {mark}  {_sentence(verdict)}")


def _sentence(verdict: Verdict) -> str:
    value = f"{verdict.what}: {verdict.form.format(verdict.value)}"
    if verdict.aim is None:
        return value
    return f"{value} (target: {'at least' if verdict.at_least else 'at most'} {verdict.form.format(verdict.aim)})"


# Comparison with another checkout

OURS, OTHER = "this checkout", "other checkout"


def add_against(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="only compare with another checkout, which needs a .venv",
    )


def interpreter_of(checkout: Path) -> str:
    """Return the Python interpreter of a checkout, which imports that checkout's code."""
    return str(checkout.resolve() / ".venv" / "bin" / "python")


def report_comparison(report: Report, title: str, found: Found, *, key: str = "against") -> None:
    """Print the results of both checkouts, and the ratios of adjacent rounds."""
    ours, other = found[OURS], found[OTHER]
    ratios = {what: ours[what].per(other[what]) for what in ours}
    numbers = {what: ratio.as_json() for what, ratio in ratios.items()}
    report.section(key, title, {"sides": as_json(found), "ratios": numbers})
    form = "{:,.2f}"
    report.table(
        ["", OURS, "low – high", OTHER, "low – high", "ratio of medians", "median ratio", "low – high"],
        [
            [
                what,
                ours[what].text(form),
                ours[what].spread(form),
                other[what].text(form),
                other[what].spread(form),
                form.format(ours[what].median / other[what].median),
                ratio.text(form),
                ratio.spread(form),
            ]
            for what, ratio in ratios.items()
        ],
    )
    for what, ratio in ratios.items():
        report.verdict(Verdict(f"{what} against the other checkout", ratio.median, None))


def options(description: str, *, only: str = "ac", json_file: bool = False) -> argparse.ArgumentParser:
    """Return a parser with the options of all benchmarks.

    `only` is an example for `--only`. `json_file`: `--json` accepts the name of a file.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {Path(sys.argv[0]).stem}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="smaller and noisier, takes up to half a minute")
    if json_file:
        add_json_file(parser)
    else:
        parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.add_argument("--only", default="", help=f"run only these sections, such as {only}")
    return parser


def add_json_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write one JSON document to a file, or print it instead of tables",
    )


def write_json(target: str, document: Any) -> None:
    """Write a document to a file, or to the standard output if `target` is `-`."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if target == "-":
        print(text, end="", flush=True)
    else:
        Path(target).write_text(text, "utf-8")


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a benchmark on uvloop. Ctrl-C and SIGTERM end it cleanly, so that servers and directories are removed."""
    # A shell starts background jobs with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        uvloop.run(_as_coroutine(main))
    except KeyboardInterrupt:
        sys.exit(130)


async def _as_coroutine(main: Callable[[], Awaitable[None]]) -> None:
    await main()
