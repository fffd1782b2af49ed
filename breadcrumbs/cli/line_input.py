"""Line input at a terminal, with a history of typed lines that later chats can use."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

_MAX_LINES = 1_000
_MAX_BYTES = 1 << 20
"""A longer file is not loaded. The bound on lines does not bound a pasted text."""


def read_line(prompt: str) -> str:
    """Read one line with line editing. Raise `EOFError` at the end of the input, `KeyboardInterrupt` at Ctrl-C."""
    if _readline() is None:
        return input(prompt)
    with _interrupts().watched():
        return input(prompt)


class _InterruptWatch:
    """Delivers a Ctrl-C that arrives while readline processes a key.

    CPython notes such a signal, and then waits for the next key before it handles the signal. A thread gets the number
    of each signal through the wakeup descriptor. If the input is still waiting shortly after SIGINT, the thread sends
    another signal, whose handler does nothing. It interrupts the wait, and CPython handles both.
    """

    _DELAY_SECONDS = 0.05
    _SIGNAL = signal.SIGURG  # ignored by default, and not used by Python

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._inputs = 0
        self._waiting: int | None = None
        """Number of the input that is waiting, or None."""
        self._numbers, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        signal.signal(self._SIGNAL, lambda *_: None)
        threading.Thread(target=self._run, daemon=True).start()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch one input."""
        self._inputs += 1
        self._waiting = self._inputs
        before = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        try:
            yield
        finally:
            self._waiting = None
            signal.set_wakeup_fd(before)

    def _run(self) -> None:
        while numbers := os.read(self._numbers, 512):
            interrupted = self._waiting
            while interrupted is not None and signal.SIGINT in numbers:
                time.sleep(self._DELAY_SECONDS)
                if self._waiting != interrupted:
                    break
                signal.pthread_kill(self._main, self._SIGNAL)


@cache
def _interrupts() -> _InterruptWatch:
    return _InterruptWatch()


def history_file() -> Path:
    """Return the file with the typed lines, in the state directory of this user."""
    from platformdirs import user_state_dir

    return Path(user_state_dir("breadcrumbs")) / "chat-history"


@contextmanager
def saved_history() -> Iterator[None]:
    """Load the history at the start and save it at the end. A chat never fails because of its history.

    The file can contain private messages, so only its owner can read it.
    """
    readline = _readline()
    if readline is None:
        yield
        return
    file = history_file()
    loaded = _load(readline, file)
    try:
        yield
    finally:
        _save(readline, file, readline.get_current_history_length() - loaded)


def _load(readline: ModuleType, file: Path) -> int:
    """Load the history. Return the number of lines."""
    try:
        if file.stat().st_size <= _MAX_BYTES:
            readline.read_history_file(file)
    except OSError:
        pass
    return int(readline.get_current_history_length())


def _save(readline: ModuleType, file: Path, new_lines: int) -> None:
    """Add the lines of this chat to the file. Lines that another chat has added in the meantime remain."""
    if new_lines <= 0:
        return
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.fchmod(descriptor, 0o600)
        too_long = os.fstat(descriptor).st_size > _MAX_BYTES
        os.close(descriptor)
        if too_long:
            file.write_bytes(b"")
        readline.set_history_length(_MAX_LINES)
        if hasattr(readline, "append_history_file"):
            readline.append_history_file(new_lines, file)
        else:  # libedit cannot append
            readline.write_history_file(file)
        file.chmod(0o600)
    except OSError:  # a home that is read-only or full
        pass


def _readline() -> ModuleType | None:
    """Return the module that adds line editing to `input`, or None if Python was built without it."""
    try:
        import readline
    except ImportError:
        return None
    return readline
