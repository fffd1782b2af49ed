"""Checks of this machine: Python, the embedded server, and the data directory."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from breadcrumbs.runtime.backend.embedded import server_binary
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.maintenance.checks.finding import Finding

OLDEST_PYTHON = (3, 11)
LOW_SPACE = 256 << 20  # bytes


def check_python() -> Finding:
    """Check the version of Python."""
    version = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        return Finding("python", "wrong", f"Python {version} is too old", "use Python 3.11 or newer")
    return Finding("python", "ok", f"Python {version}")


def check_binary() -> Finding:
    """Check that the binary of the embedded server exists and is executable."""
    try:
        binary = server_binary()
    except StartupError as error:
        message, _, advice = str(error).partition(". ")
        return Finding("embedded server", "wrong", message, advice)
    if not os.access(binary, os.X_OK):
        return Finding("embedded server", "wrong", f"{binary} is not executable", f"run chmod +x {binary}")
    return Finding("embedded server", "ok", str(binary))


def check_data_directory(directory: Path, *, holder: int | None) -> Finding:
    """Check that the data directory is writable and has free space.

    `holder` is the process whose server uses the directory now.
    """
    where = "data directory"
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not existing.is_dir():
        return Finding(
            where, "wrong", f"{existing} is not a directory", "choose another directory with --data"
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(
            where,
            "wrong",
            f"{existing} is not writable",
            f"change its permissions (chmod u+rwx {existing}), or choose another directory with --data",
        )
    free = shutil.disk_usage(existing).free
    details = {"path": str(directory), "free_bytes": free}
    if free < LOW_SPACE:
        return Finding(
            where,
            "wrong",
            f"only {free >> 20} MB are free on the disk of {directory}",
            "free some space: a server that cannot write its append-only file rejects writes",
            details,
        )
    use = f"in use by the server with pid {holder}" if holder else "not in use"
    if not directory.exists():
        use = "does not exist yet, crumb up creates it"
    return Finding(where, "ok", f"{directory} ({use}, {free >> 30} GB free)", details=details)
