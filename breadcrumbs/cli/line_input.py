"""Line input at a terminal, with a history of typed lines that later chats can use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

_MAX_LINES = 1_000
_MAX_BYTES = 1 << 20
"""A longer file is not loaded. The bound on lines does not bound a pasted text."""


def read_line(prompt: str) -> str:
    """Read one line with line editing. Raise `EOFError` at the end of the input."""
    _readline()
    return input(prompt)


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
    except OSError as error:
        sys.stderr.write(f"crumb: the typed lines were not saved: {error.strerror} ({file})\n")


def _readline() -> ModuleType | None:
    """Return the module that adds line editing to `input`, or None if Python was built without it."""
    try:
        import readline
    except ImportError:
        return None
    return readline
