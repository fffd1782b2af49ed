"""Runs commands and ends every process that they leave behind.

A test that times out ends its pytest worker with `os._exit`, so no fixture stops the servers and browsers that
the worker had started. They lose their parent but keep running.

On Linux the supervisor is a child subreaper: the kernel makes it the parent of orphaned descendants, however
they were started. Other systems have no subreaper. There a thread notes all descendants once per second, which
misses only processes that lose their parent within the first second.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

_PR_SET_CHILD_SUBREAPER: Final = 36
_SAMPLE_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.05
# An interrupted pytest stops the servers of its fixtures. xdist gives a worker 15 s to end.
_INTERRUPT_SECONDS: Final = 20.0
_TERMINATE_SECONDS: Final = 5.0
_KILL_SECONDS: Final = 5.0


class Interrupted(Exception):
    """Raised when a signal ends this process."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        return 128 + self.number


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    pid: int
    parent: int
    started: str  # tells a process from a later one with the same pid
    name: str

    @property
    def key(self) -> tuple[int, str]:
        return self.pid, self.started


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a command."""

    code: int
    seconds: float
    """The time from the start to the end."""


def restore_interrupts() -> None:
    """Let SIGINT interrupt this process and its children, even if it was ignored at the start.

    A shell without job control starts background commands with SIGINT and SIGQUIT ignored. Children inherit
    that, and `trap` in a shell cannot undo it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


class Supervisor:
    """Runs commands. Use it from the main thread, as a context manager.

    Leaving the context ends every descendant process. `left_behind` then names those that had to be ended.
    SIGINT, SIGTERM and SIGHUP raise `Interrupted` in `wait` and `run`.
    """

    def __init__(self, *, use_subreaper: bool = True) -> None:
        self.left_behind: list[ProcessInfo] = []
        self._use_subreaper = use_subreaper
        self._seen: dict[tuple[int, str], ProcessInfo] = {}
        self._closed = threading.Event()
        self._sampler: threading.Thread | None = None
        self._interrupts = 0
        self._running: dict[int, tuple[subprocess.Popen[Any], float]] = {}
        """The commands by their process ids, each with the time of its start."""
        self._ended: dict[int, Ended] = {}

    def __enter__(self) -> Supervisor:
        restore_interrupts()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP on purpose
                signal.signal(number, self._interrupt)
        if not (self._use_subreaper and _become_subreaper()):
            self._sampler = threading.Thread(target=self._sample, daemon=True)
            self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._closed.set()
        if self._sampler is not None:
            self._sampler.join()
        self._end_descendants()

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> int:
        """Run a command to its end and return its exit code."""
        return self.wait(self.start(argv, env=env)).code

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, output: IO[bytes] | None = None
    ) -> int:
        """Start a command and return its process id. `output` gets what it prints, in place of our own output."""
        errors = None if output is None else subprocess.STDOUT
        command = subprocess.Popen(argv, env=env, stdout=output, stderr=errors)
        self._running[command.pid] = command, time.monotonic()
        return command.pid

    def wait(self, pid: int) -> Ended:
        """Wait until a started command has ended. Other commands can end meanwhile."""
        try:
            # Orphans are reaped too: tests take an unreaped process for a living one.
            while pid not in self._ended:
                self._note_end(*os.wait())
        except Interrupted as interrupted:
            # Ctrl-C in a terminal reaches the whole foreground group. A second SIGINT would break pytest's
            # teardown off, so only the other signals are passed on.
            if interrupted.number != signal.SIGINT:
                for command, _ in self._running.values():
                    command.send_signal(signal.SIGINT)
            self._allow_to_end()
            raise
        return self._ended.pop(pid)

    def _note_end(self, pid: int, status: int) -> None:
        if pid in self._running:
            command, started = self._running.pop(pid)
            command.returncode = os.waitstatus_to_exitcode(status)
            self._ended[pid] = Ended(command.returncode, time.monotonic() - started)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            raise Interrupted(number)

    def _allow_to_end(self) -> None:
        """Give the commands time for their teardown. A second signal ends the wait."""
        deadline = time.monotonic() + _INTERRUPT_SECONDS
        while self._running and time.monotonic() < deadline and self._interrupts < 2:
            for pid, status in _reap():
                self._note_end(pid, status)
            time.sleep(_POLL_SECONDS)

    def _sample(self) -> None:
        while not self._closed.wait(_SAMPLE_SECONDS):
            self._living_descendants()

    def _living_descendants(self) -> list[ProcessInfo]:
        table = process_table()
        for info in descendants(os.getpid(), table):
            self._seen[info.key] = info
        living = {info.key for info in table}
        self._seen = {key: info for key, info in self._seen.items() if key in living}
        return list(self._seen.values())

    def _end_descendants(self) -> None:
        for number, seconds in ((signal.SIGTERM, _TERMINATE_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
            deadline = time.monotonic() + seconds
            while living := self._remaining():
                if not self.left_behind:
                    self.left_behind = living
                for info in living:
                    _send(info.pid, number)
                if time.monotonic() > deadline:
                    break
                time.sleep(_POLL_SECONDS)

    def _remaining(self) -> list[ProcessInfo]:
        _reap()
        return self._living_descendants()


def process_table() -> list[ProcessInfo]:
    """Return all running processes of this machine. Zombies have ended and are left out."""
    if sys.platform == "linux":
        return _read_proc()
    return _ask_ps()


def descendants(root: int, table: Sequence[ProcessInfo]) -> list[ProcessInfo]:
    """Return the children of `root`, their children, and so on."""
    children: dict[int, list[ProcessInfo]] = {}
    for info in table:
        children.setdefault(info.parent, []).append(info)
    found: list[ProcessInfo] = []
    parents = [root]
    while parents:
        below = children.pop(parents.pop(), [])
        found += below
        parents += [info.pid for info in below]
    return found


def _become_subreaper() -> bool:
    if sys.platform != "linux":
        return False
    error: int = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)
    return error == 0


def _read_proc() -> list[ProcessInfo]:
    table: list[ProcessInfo] = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_text(errors="replace")
        except OSError:  # it has just ended
            continue
        # pid (name) state parent … started; the name may contain any character
        pid_and_name, _, rest = stat.rpartition(")")
        fields = rest.split()
        if fields[0] in "ZX":
            continue
        table.append(
            ProcessInfo(
                pid=int(entry.name),
                parent=int(fields[1]),
                started=fields[19],
                name=pid_and_name.partition("(")[2],
            )
        )
    return table


def _ask_ps() -> list[ProcessInfo]:
    columns = ["ps", "-axo", "pid=,ppid=,stat=,lstart=,comm="]
    with subprocess.Popen(columns, stdout=subprocess.PIPE, text=True, env=os.environ | {"LC_ALL": "C"}) as ps:
        output, _ = ps.communicate()
    table: list[ProcessInfo] = []
    for line in output.splitlines():
        # The start time has five words: Mon Nov 17 11:24:00 2025
        pid, parent, state, *started, name = line.split(maxsplit=8)
        if int(pid) != ps.pid and not state.startswith("Z"):
            table.append(ProcessInfo(int(pid), int(parent), " ".join(started), Path(name).name))
    return table


def _reap() -> list[tuple[int, int]]:
    """Reap all ended children. Return their pids and statuses."""
    reaped: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return reaped
        if pid == 0:
            return reaped
        reaped.append((pid, status))


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):  # ended; macOS answers EPERM for a zombie
        pass
