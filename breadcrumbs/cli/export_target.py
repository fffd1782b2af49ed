"""Target of an export: standard output, a file, or a pipe or device."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, TypeVar

from breadcrumbs.cli.output import CommandError

_STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1")

_T = TypeVar("_T")


def is_standard_output(name: str | None) -> bool:
    return name is None or name in _STANDARD_OUTPUT


def check_target(name: str | None, *, force: bool) -> None:
    """Raise `CommandError` if the export would replace a file. Called before the store is opened."""
    if name is None or is_standard_output(name) or force:
        return
    if os.path.isfile(name):  # False for a name that is too long
        raise _exists(Path(name))


def write_target(name: str | None, write: Callable[[IO[bytes]], _T], *, force: bool) -> _T:
    """Call `write` with the target. A file appears under its name only when it is complete."""
    if name is None or is_standard_output(name):
        result = write(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return result
    target = Path(name)
    try:
        if target.exists() and not target.is_file():
            with target.open("wb") as file:  # a pipe or a device is not replaced
                return write(file)
        # Replace the target of a symbolic link, not the link.
        return _write_file(Path(os.path.realpath(target)), write, force=force)
    except OSError as error:
        raise CommandError(f"cannot write {target}: {error.strerror}") from None


def _write_file(target: Path, write: Callable[[IO[bytes]], _T], *, force: bool) -> _T:
    """Write a temporary file, then rename it. An interrupted export leaves no file."""
    # Readable by this user only (mkstemp), because an export also contains secret breadcrumbs.
    descriptor, unfinished = tempfile.mkstemp(
        prefix=f".{target.name}.", suffix=".unfinished", dir=target.parent
    )
    try:
        with os.fdopen(descriptor, "wb") as file, _stopped_by_sigterm():
            result = write(file)
            file.flush()
            os.fsync(file.fileno())
        _publish(Path(unfinished), target, force=force)
    finally:
        Path(unfinished).unlink(missing_ok=True)
    return result


def _publish(unfinished: Path, target: Path, *, force: bool) -> None:
    if force:
        unfinished.replace(target)
        return
    try:
        os.link(unfinished, target)  # unlike a rename, this fails if another process has written the target
    except FileExistsError:
        raise _exists(target) from None
    except OSError:  # a file system without links
        if target.exists():
            raise _exists(target) from None
        unfinished.replace(target)


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that a stopped job removes its temporary file."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exists(target: Path) -> CommandError:
    return CommandError(f"{target} exists: choose another name, or add --force to replace it")
