"""Worker processes that die or freeze at a given point.

`Nursery` starts a process that has imported everything and forks a worker for each command. Importing again for each
of hundreds of killed workers would take too long. The workers are those of `crumb build-contexts` and
`crumb run-agents`, with a model that answers at once with its prompt. Commands are lines of JSON. They start a worker
that sends itself a signal at a given point, or send a signal to a live worker.

The nursery ends with the test, and the workers end with the nursery.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Literal

import anyio
import orjson

from breadcrumbs.agents.models.base import ModelRequest
from breadcrumbs.agents.models.circuits import Circuits
from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.composition import processes, workers
from breadcrumbs.runtime.backend.address import parse_address
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.fence import LeaseLost
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.held_lanes import HeldLanes
from breadcrumbs.runtime.workers.leases import Leases
from breadcrumbs.runtime.workers.turn_runner import TurnRunner
from tests.support import effects

Kind = Literal["build-contexts", "run-agents"]

POINTS: dict[Kind, tuple[str, ...]] = {
    "run-agents": ("after read", "in the model", "before commit", "after commit", "before ack", "after ack"),
    "build-contexts": ("after read", "before commit", "after commit", "before ack", "after ack"),
}
"""Acknowledgements are part of commits. Those by themselves, which the last two points mean, are for what came to
nothing, for the low-water mark, and for lanes that are given back."""

MARK = re.compile(r"<(s\d+)/(\d+)>")


def answer(request: ModelRequest) -> str:
    """Return the last question and the speakers in the prompt."""
    seen = sorted({session for message in request.messages for session, _ in MARK.findall(message.content)})
    return f"re {request.messages[-1].content} saw {' '.join(seen)}"


@dataclass(frozen=True, slots=True)
class Trap:
    """Points at which a worker dies or freezes."""

    point: str = ""
    after: float = 0.0
    """For so many seconds nothing happens to it."""
    signal: int = signal.SIGKILL


@dataclass(frozen=True, slots=True)
class Post:
    """The store and the role of a worker."""

    url: str
    namespace: str
    lease_seconds: float
    folder: str
    """Folder for its marker files: `frozen-PID`, `refused-PID`, `lost-PID`."""
    think_seconds: float = 0.0
    """Seconds that the model takes for an answer."""
    deadly: str = ""
    """The model kills its worker when the last message contains this text."""
    model: str = ""
    """The model of the settings. Empty: a model in the process that answers with its prompt."""
    agents: str = ""
    """Folder with the agents. Empty: the default assistant."""
    tools: tuple[str, ...] = ()
    """Tools of the settings."""


# In the worker


class _Laid:
    """A trap in this process."""

    def __init__(self, trap: Trap, folder: Path) -> None:
        self._trap, self._folder = trap, folder
        self._opens = time.monotonic() + trap.after
        self._sprung = False

    def come_to(self, point: str) -> None:
        if point != self._trap.point or self._sprung or time.monotonic() < self._opens:
            return
        self._sprung = True
        if self._trap.signal == signal.SIGSTOP:
            (self._folder / f"frozen-{os.getpid()}").touch()
        os.kill(os.getpid(), self._trap.signal)

    def refused(self) -> None:
        """A commit of ours came too late."""
        (self._folder / f"refused-{os.getpid()}").touch()

    def lost(self) -> None:
        """This worker lost a lane."""
        (self._folder / f"lost-{os.getpid()}").touch()


def _lay(trap: _Laid) -> None:
    """Put the trap where it can be stepped on."""
    run_commit: Any = Store._run_commit
    acknowledge: Any = Leases.acknowledge
    run_attempt: Any = TurnRunner._run_attempt
    drop: Any = HeldLanes.drop

    commits = count(1)
    effects.at_point = trap.come_to

    async def commit_trapped(self: Store, *call: Any) -> Any:
        trap.come_to("before commit")
        try:
            reply = await run_commit(self, *call)
        except LeaseLost:
            trap.refused()
            raise
        trap.come_to("after commit")
        trap.come_to(f"after commit {next(commits)}")
        return reply

    async def acknowledge_trapped(self: Leases, *args: Any, **options: Any) -> None:
        trap.come_to("before ack")
        await acknowledge(self, *args, **options)
        trap.come_to("after ack")

    async def attempt_trapped(self: TurnRunner, turn: Any) -> Any:
        trap.come_to("after read")
        return await run_attempt(self, turn)

    def drop_noted(self: HeldLanes, lane: Any) -> None:
        if self.holds(lane):
            trap.lost()
        drop(self, lane)

    changes: list[tuple[Any, str, Any]] = [
        (HeldLanes, "drop", drop_noted),
        (Store, "_run_commit", commit_trapped),
        (Leases, "acknowledge", acknowledge_trapped),
        (TurnRunner, "_run_attempt", attempt_trapped),
    ]
    for owner, name, changed in changes:
        setattr(owner, name, changed)


class _Models:
    """Replacement for the pool of models."""

    default_spec = "offline"
    aliases: ClassVar[dict[str, str]] = {}
    offered: tuple[str, ...] = ()

    def __init__(self, trap: _Laid, post: Post) -> None:
        async def think(request: ModelRequest) -> str:
            trap.come_to("in the model")
            if post.deadly and post.deadly in request.messages[-1].content:
                os.kill(os.getpid(), signal.SIGKILL)
            await anyio.sleep(post.think_seconds)
            return answer(request)

        self._model = FunctionModel(think)
        self.circuits = Circuits()

    def resolve(self, *_: Any, **__: Any) -> FunctionModel:
        self._model.requests.clear()
        return self._model

    resolve_list = resolve

    def meaning(self, spec: str) -> str:
        return spec

    async def close(self) -> None:
        return None


def _work(kind: Kind, post: Post, trap: Trap) -> None:
    laid = _Laid(trap, Path(post.folder))
    _lay(laid)
    if not post.model:
        pool: Any = workers
        pool.ModelPool = lambda *_: _Models(laid, post)
    announcing: Any = processes
    announcing.print_ready_line = lambda *_: None  # the standard output is the nurse's
    settings = Settings(
        redis=post.url,
        namespace=post.namespace,
        lease_seconds=post.lease_seconds,
        log_level="error",
        model=post.model or None,
        agents=Path(post.agents) if post.agents else None,
        tools=post.tools,
    )
    if kind == "build-contexts":
        processes.run_context_builder(settings)
    else:
        processes.run_agent_runner(settings)


# In the nursery


def _die_with(parent: int) -> None:
    death_signal = 1
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(death_signal, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def _nurse() -> None:
    # These import what each worker would otherwise import by itself.
    parse_address("redis://127.0.0.1")
    anyio.run(anyio.sleep, 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    commands = b""
    living: set[int] = set()
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            living -= _report_deaths()
        if 0 in ready:
            piece = os.read(0, 4096)
            if not piece:
                return  # with the death signal, the workers go too
            commands += piece
            while b"\n" in commands:
                line, _, commands = commands.partition(b"\n")
                command = orjson.loads(line)
                if "start" in command:
                    living.add(_fork(command["start"], Post(**command["post"]), Trap(**command["trap"])))
                elif command["pid"] in living:
                    os.kill(command["pid"], command["signal"])


def _fork(kind: Kind, post: Post, trap: Trap) -> int:
    parent = os.getpid()
    child = os.fork()
    if child:
        os.write(1, f"started {child}\n".encode())
        return child
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _die_with(parent)
        silence = os.open(os.devnull, os.O_RDWR)
        os.dup2(silence, 0)
        os.dup2(silence, 1)
        _work(kind, post, trap)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _report_deaths() -> set[int]:
    dead: set[int] = set()
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return dead
        if not child:
            return dead
        dead.add(child)
        os.write(1, f"ended {child} {os.waitstatus_to_exitcode(status)}\n".encode())


# In the test


@dataclass
class Running:
    """One worker process."""

    pid: int
    kind: Kind = "run-agents"
    ended: threading.Event = field(default_factory=threading.Event)
    code: int | None = None
    ended_at: float = 0.0


class Nursery:
    """Starts workers and records their exit status."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "workers.log"
        self._workers: dict[int, Running] = {}
        self._started: list[Running] = []
        self._changed = threading.Condition()
        self._requests = threading.Lock()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=Path(__file__).parents[2],
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def living(self) -> list[Running]:
        with self._changed:
            return [worker for worker in self._workers.values() if not worker.ended.is_set()]

    def start(self, kind: Kind, post: Post, trap: Trap | None = None) -> Running:
        with self._requests:
            self._ask({"start": kind, "post": asdict(post), "trap": asdict(trap or Trap())})
            with self._changed:
                assert self._changed.wait_for(lambda: self._started, 60), "the nursery does not answer"
                worker = self._started.pop()
                worker.kind = kind
                return worker

    def send(self, worker: Running, number: signal.Signals) -> None:
        with self._requests:
            self._ask({"pid": worker.pid, "signal": int(number)})

    def _ask(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(orjson.dumps(command) + b"\n")
        self._process.stdin.flush()

    def clear(self) -> None:
        """End every worker that is left."""
        left = self.living
        for worker in left:
            self.send(worker, signal.SIGKILL)
        for worker in left:
            assert worker.ended.wait(60), f"{worker.pid} survived"

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self.clear()
        finally:
            self._process.stdin.close()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                raise
            self._reader.join(60)
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, pid, *code = line.decode().split()
            with self._changed:
                if what == "started":
                    self._workers[int(pid)] = worker = Running(int(pid))
                    self._started.append(worker)
                else:
                    worker = self._workers[int(pid)]
                    worker.code, worker.ended_at = int(code[0]), time.time()
                    worker.ended.set()
                self._changed.notify_all()


if __name__ == "__main__":
    _nurse()
