"""Checks of this machine: Python, the embedded server, and the data directory."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from breadcrumbs.runtime.backend.embedded import server_binary
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.maintenance.checks.finding import Finding, Status

OLDEST_PYTHON = (3, 11)
LOW_SPACE = 1 << 30
"""Free bytes below which there is a warning."""
FULL_DISK = 256 << 20
"""Free bytes below which there is an error."""


def check_python() -> Finding:
    """Check the version of Python."""
    version = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        return Finding("python", "error", f"Python {version} is too old", "use Python 3.11 or newer")
    return Finding("python", "ok", f"Python {version}")


def check_binary() -> Finding:
    """Check that the binary of the embedded server exists and is executable."""
    try:
        binary = server_binary()
    except StartupError as error:
        message, _, advice = str(error).partition(". ")
        return Finding("embedded-server", "error", message, advice)
    if not os.access(binary, os.X_OK):
        return Finding("embedded-server", "error", f"{binary} is not executable", f"run chmod +x {binary}")
    return Finding("embedded-server", "ok", str(binary))


def check_data_directory(directory: Path, *, holder: int | None) -> Finding:
    """Check that the data directory is writable.

    `holder` is the process whose server uses the directory now.
    """
    id, details = "data-directory", {"path": str(directory)}
    existing = _existing_part(directory)
    if not existing.is_dir():
        return Finding(
            id, "error", f"{existing} is not a directory", "choose another directory with --data", details
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(
            id,
            "error",
            f"{existing} is not writable",
            f"change its permissions (chmod u+rwx {existing}), or choose another directory with --data",
            details,
        )
    use = f"in use by the server with pid {holder}" if holder else "not in use"
    if not directory.exists():
        use = "does not exist yet, crumb up creates it"
    return Finding(id, "ok", f"{directory} ({use})", details=details)


def check_disk(directory: Path) -> Finding:
    """Check that the disk of the data directory has free space.

    The embedded server writes its data a second time when it rewrites the append-only file.
    """
    try:
        free = shutil.disk_usage(_existing_part(directory)).free
        used = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    except OSError as error:
        return Finding("disk", "unknown", f"the free space cannot be read: {error.strerror}")
    details = {"path": str(directory), "free_bytes": free, "data_bytes": used}
    shown = f"{_size_text(free)} are free on the disk of the data directory, which has {_size_text(used)}"
    if free < FULL_DISK:
        status: Status = "error"
    elif free < LOW_SPACE or free < used:
        status = "warning"
    else:
        return Finding("disk", "ok", shown, details=details)
    return Finding(
        "disk",
        status,
        shown,
        "free some space or move the data: a server that cannot write its append-only file rejects writes",
        details,
    )


def _existing_part(directory: Path) -> Path:
    """Return the directory, or the nearest parent that exists."""
    return next(path for path in (directory, *directory.parents) if path.exists())


def _size_text(size: int) -> str:
    return f"{size >> 30:,} GB" if size >= 10 << 30 else f"{size >> 20:,} MB"
