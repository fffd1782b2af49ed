"""Several API processes on one port: a parent that starts, watches and stops them.

The parent opens the listening socket and forks. It has no event loop, no threads and no connections, so a fork copies
nothing that is in use. The kernel gives a new connection to a process that is free to accept it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog

from breadcrumbs.composition.http_server import ReadyServer, ServerHooks, listening_url, run_port_process
from breadcrumbs.composition.listener import open_listener
from breadcrumbs.composition.logs import configure_logs
from breadcrumbs.runtime.errors import BreadcrumbsError, StartupError
from breadcrumbs.runtime.http.processes import group
from breadcrumbs.runtime.http.processes.group import ProcessGroup
from breadcrumbs.runtime.settings.settings import Settings

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_READY: Final = b"ready"
_STOP_SECONDS: Final = 20.0
"""Time for the processes to drain. Each gives open requests ten seconds."""
_END_SECONDS: Final = 5.0
_STABLE_SECONDS: Final = 10.0
"""A process that ends earlier than this is restarted after a pause that doubles each time."""
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 30.0
_MAX_FAILURES: Final = 6
"""If no process is ready and one has failed this often in a row, the parent gives up."""
_POLL_SECONDS: Final = 0.25
_PR_SET_PDEATHSIG: Final = 1

_log = structlog.get_logger("breadcrumbs.serve")


@dataclass(slots=True)
class _Child:
    """One API process, or the pause before its restart."""

    number: int
    pid: int = 0
    """0: the process does not run."""
    report: int = -1
    """Read end of the pipe for its report: ready, or the reason why it could not start."""
    ready: bool = False
    started: float = 0.0
    failures: int = 0
    restart_at: float = 0.0
    reason: str = field(default="", repr=False)


def run_api_processes(settings: Settings, redis: str, *, count: int, hooks: ServerHooks) -> int | None:
    """Serve requests with several processes until a signal. Return the number of the last signal."""
    configure_logs(settings)
    with open_listener(settings.host, settings.port) as listener:
        processes = ProcessGroup(count)

        def serve(number: int, on_ready: Callable[[ReadyServer], None]) -> None:
            configure_logs(settings, process=number)
            group.enter(processes.join(number))
            child_hooks = ServerHooks(on_ready=on_ready, on_stopping=lambda: None)
            run_port_process(settings, redis, listener, child_hooks)

        return _Supervisor(processes, serve, hooks, listener).run()


class _Supervisor:
    """Runs the processes of a group."""

    def __init__(
        self,
        processes: ProcessGroup,
        serve: Callable[[int, Callable[[ReadyServer], None]], None],
        hooks: ServerHooks,
        listener: socket.socket,
    ) -> None:
        self._group = processes
        self._serve = serve
        self._hooks = hooks
        self._listener = listener
        self._url = listening_url(listener)
        self._children = [_Child(number) for number in range(processes.size)]
        self._announced = False
        self._signal: int | None = None
        """The last signal that was passed on."""
        self._deadline = float("inf")

    def run(self) -> int | None:
        """Run the processes until a signal, and until all of them have ended."""
        with _received_signals() as (wakeup, received):
            try:
                while self._signal is None or any(child.pid for child in self._children):
                    self._start_missing()
                    self._wait(wakeup)
                    while received:
                        self._pass_on(received.pop(0))
                    self._reap()
            finally:
                self._end_all()
        return self._signal

    # Starting

    def _start_missing(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if child.pid == 0 and self._signal is None and now >= child.restart_at:
                self._start(child)

    def _start(self, child: _Child) -> None:
        read_end, write_end = os.pipe()
        parent = os.getpid()
        # A signal between the fork and the handlers of the new process would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            self._run_child(child.number, parent, write_end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.close(write_end)
        child.pid, child.report, child.ready, child.reason = pid, read_end, False, ""
        child.started = time.monotonic()

    def _run_child(self, number: int, parent: int, report: int) -> None:
        """Run in the new process. It must not return into the stack of the parent."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for one in (*_SIGNALS, signal.SIGCHLD):
                signal.signal(one, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            # In its own process group, Ctrl-C does not reach it twice.
            os.setpgid(0, 0)
            _end_with_parent(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            self._serve(number, partial(_report_ready, report))
            code = 0
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 1
        except BaseException as error:
            expected = _expected(error)
            if expected is None:
                traceback.print_exc()
            elif not _send_report(report, str(expected).encode()):  # the process was ready before
                _log.error("API process failed", error=str(expected))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    # Watching

    def _wait(self, wakeup: int) -> None:
        """Wait for a signal, a report or the time of a restart."""
        reports = {child.report: child for child in self._children if child.report >= 0}
        readable, _, _ = select.select([wakeup, *reports], [], [], _POLL_SECONDS)
        if wakeup in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wakeup, 4096)
        for one in readable:
            if one in reports:
                self._read_report(reports[one])
        if not self._announced and all(child.ready for child in self._children):
            self._announced = True
            pids = tuple(child.pid for child in self._children)
            self._hooks.on_ready(ReadyServer(self._url, pids=pids))
        if time.monotonic() >= self._deadline:
            _log.error("API processes did not drain in time and are killed", seconds=_STOP_SECONDS)
            self._kill_all()

    def _read_report(self, child: _Child) -> None:
        text = os.read(child.report, 65536)
        os.close(child.report)
        child.report = -1
        if text == _READY:
            child.ready = True
            if self._announced:
                _log.info("API process is ready", process=child.number, pid=child.pid)
        else:
            child.reason = text.decode(errors="replace")

    def _reap(self) -> None:
        for child in self._children:
            if child.pid == 0:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                self._note_end(child, os.waitstatus_to_exitcode(status))

    def _note_end(self, child: _Child, code: int) -> None:
        if child.report >= 0:
            self._read_report(child)
        ended, child.pid = child.pid, 0
        if self._signal is not None:
            return
        reason = child.reason or f"API process {child.number} ended with code {code}"
        if not self._announced:
            raise StartupError(reason)
        self._group.retire(child.number)
        lived = time.monotonic() - child.started
        child.failures = 0 if child.ready and lived >= _STABLE_SECONDS else child.failures + 1
        child.ready = False
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** max(0, child.failures - 1))
        child.restart_at = time.monotonic() + pause
        facts: dict[str, Any] = {"process": child.number, "pid": ended, "code": code}
        if child.reason:
            facts["error"] = child.reason
        _log.error("API process ended, restarting it", **facts, pause_seconds=pause)
        if child.failures >= _MAX_FAILURES and not any(one.ready for one in self._children):
            raise StartupError(f"no API process can start: {reason}")

    # Stopping

    def _pass_on(self, number: int) -> None:
        """Pass a signal on. The first one makes the processes drain."""
        if self._signal is None:
            self._hooks.on_stopping()
            self._deadline = time.monotonic() + _STOP_SECONDS
            # When the last process has stopped accepting connections, the port refuses them.
            self._listener.close()
        self._signal = number
        for child in self._children:
            if child.pid:
                os.kill(child.pid, number)

    def _end_all(self) -> None:
        """End the processes that still run after a failure of the parent or of the first start."""
        for child in self._children:
            if child.pid:
                os.kill(child.pid, signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        while any(child.pid for child in self._children) and time.monotonic() < deadline:
            time.sleep(0.02)
            for child in self._children:
                if child.pid and os.waitpid(child.pid, os.WNOHANG)[0]:
                    child.pid = 0
        self._kill_all()

    def _kill_all(self) -> None:
        """Kill the processes that still run, and wait for them."""
        for child in self._children:
            if child.pid:
                os.kill(child.pid, signal.SIGKILL)
        for child in self._children:
            if child.pid:
                os.waitpid(child.pid, 0)
                child.pid = 0


@contextlib.contextmanager
def _received_signals() -> Iterator[tuple[int, list[int]]]:
    """Yield a pipe that becomes readable with each signal, and the list of received signals that stop processes."""
    received: list[int] = []
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    before = {one: signal.getsignal(one) for one in (*_SIGNALS, signal.SIGCHLD)}
    previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for one in _SIGNALS:
        signal.signal(one, lambda number, _: received.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        yield read_end, received
    finally:
        signal.set_wakeup_fd(previous)
        for one, handler in before.items():
            signal.signal(one, handler)
        os.close(read_end)
        os.close(write_end)


def _end_with_parent(parent: int) -> None:
    """End this process when its parent ends, even if the parent is killed. Without effect outside Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
    if os.getppid() != parent:
        sys.exit(1)


def _report_ready(report: int, _: ReadyServer) -> None:
    _send_report(report, _READY)


def _send_report(report: int, text: bytes) -> bool:
    """Send a report to the parent. Return False if it has already received one."""
    try:
        os.write(report, text[:4096])
    except OSError:
        return False
    return True


def _expected(error: BaseException) -> BreadcrumbsError | None:
    """Return the error that explains itself to the user, or None."""
    if isinstance(error, BaseExceptionGroup):
        found = [_expected(one) for one in error.exceptions]
        return found[0] if all(found) else None
    return error if isinstance(error, BreadcrumbsError) else None
