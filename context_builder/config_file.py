"""The config file of a server, edited over HTTP. A write replaces the whole file or nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Final

from breadcrumbs.context_builder.config_checks import MAX_BYTES
from breadcrumbs.runtime.errors import BreadcrumbsError, Forbidden

NO_FILE: Final = "none"
"""The tag of a missing file."""


class ChangedMeanwhile(BreadcrumbsError):
    """The file was changed after the version that the edit is based on."""

    def __init__(self, tag: str) -> None:
        super().__init__("somebody else has changed the config file since: read it again and edit that")
        self.tag = tag


@dataclass(frozen=True, slots=True)
class FileContent:
    """The content of a config file, or why it cannot be read."""

    raw: bytes | None
    tag: str
    """Identifies the content."""
    problem: str = ""


class ConfigFile:
    """One file with several writers. Each names the version that its edit is based on."""

    def __init__(self, path: Path, *, locked: str = "") -> None:
        self.path = path
        self._locked = locked
        self._lock = Lock()

    @property
    def locked(self) -> str:
        """Why the server cannot write the file; empty: it can."""
        if self._locked:
            return self._locked
        # A new file replaces the old one, so the folder must be writable too.
        target = self._target
        if target.exists() and not os.access(target, os.W_OK):
            return "the server may not write this file"
        if not os.access(target.parent, os.W_OK):
            return "the server may not write the folder of this file"
        return ""

    @property
    def _target(self) -> Path:
        """The target of a symbolic link: the link stays."""
        return Path(os.path.realpath(self.path))

    def read(self) -> FileContent:
        try:
            with self.path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        except OSError as error:
            return FileContent(None, NO_FILE, f"cannot be read: {error.strerror or error}")
        return FileContent(raw, sha256(raw).hexdigest()[:32])

    def check_unlocked(self) -> None:
        if reason := self.locked:
            raise Forbidden(f"{reason}: save the config as a context.config.v1 breadcrumb instead")

    def replace(self, raw: bytes, *, made_on: set[str] | None) -> FileContent:
        """Replace the content. `made_on`: only if the file has one of these tags now."""
        self.check_unlocked()
        with self._lock:
            now = self.read().tag
            if made_on is not None and now not in made_on:
                raise ChangedMeanwhile(now)
            try:
                self._write(raw)
            except OSError as error:
                raise Forbidden(
                    f"the server cannot write its config file ({error.strerror or error}): "
                    "save the config as a context.config.v1 breadcrumb instead"
                ) from None
            return self.read()

    def _write(self, raw: bytes) -> None:
        target = self._target
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, name)
            else:
                Path(name).chmod(0o644)
            Path(name).replace(target)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
