"""Config file of a server, which can be edited over HTTP.

A write is atomic: it replaces the whole file or nothing.
"""

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
"""Tag of a file that does not exist or cannot be read."""


class ChangedMeanwhile(BreadcrumbsError):
    """The file was changed after the version that the edit is based on."""

    def __init__(self, tag: str) -> None:
        super().__init__("the config file has changed since it was read: read it again and repeat the edit")
        self.tag = tag


def content_tag(raw: bytes) -> str:
    """Return the tag of a content, which clients get as its ETag."""
    return sha256(raw).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class FileContent:
    """The content of a config file, or the reason why it cannot be read."""

    raw: bytes | None
    tag: str
    """Hash of the content, sent to clients as its ETag."""
    problem: str = ""
    """Reason why the file cannot be read."""


class ConfigFile:
    """Reads and replaces one config file.

    A writer can state the version that its edit is based on. `locked` is the reason why the file must not be written.
    It is empty if the file is writable.
    """

    def __init__(self, path: Path, *, locked: str = "") -> None:
        self.path = path
        self._locked = locked
        self._lock = Lock()

    @property
    def locked(self) -> str:
        """Reason why the server cannot write the file. Empty if it can."""
        if self._locked:
            return self._locked
        # A write creates a new file and renames it, so the folder must be writable too.
        target = self._target
        if target.exists() and not os.access(target, os.W_OK):
            return "the server has no permission to write this file"
        if not os.access(target.parent, os.W_OK):
            return "the server has no permission to write to the folder of this file"
        return ""

    @property
    def _target(self) -> Path:
        """Path of the file, with symbolic links resolved.

        A write replaces the target of a link and keeps the link.
        """
        return Path(os.path.realpath(self.path))

    def read(self) -> FileContent:
        """Read the file. At most one byte more than the size limit is read."""
        try:
            with self.path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        except OSError as error:
            return FileContent(None, NO_FILE, f"cannot be read: {error.strerror or error}")
        return FileContent(raw, content_tag(raw))

    def check_unlocked(self) -> None:
        """Raise `Forbidden` if the server cannot write the file."""
        if reason := self.locked:
            raise Forbidden(f"{reason}: save the config as a context.config.v1 breadcrumb instead")

    def replace(self, raw: bytes, *, expected_tags: set[str] | None) -> FileContent:
        """Replace the content and return the new one.

        Raise `ChangedMeanwhile` if the file has none of the expected tags. None skips this check. Raise `Forbidden` if
        the file cannot be written.
        """
        self.check_unlocked()
        with self._lock:
            current = self.read().tag
            if expected_tags is not None and current not in expected_tags:
                raise ChangedMeanwhile(current)
            try:
                self._write(raw)
            except OSError as error:
                raise Forbidden(
                    f"the server cannot write its config file ({error.strerror or error}): "
                    "save the config as a context.config.v1 breadcrumb instead"
                ) from None
            return self.read()

    def _write(self, raw: bytes) -> None:
        """Write a temporary file in the same folder, then rename it.

        The rename is atomic, so readers never see an incomplete file.
        """
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
