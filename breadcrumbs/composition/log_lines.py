"""Writes log entries as JSON lines to standard error, in batches.

A turn writes one line. To render and write it alone costs several times as much as in a batch, because the code and
the data are no longer in the caches of the processor. Entries of the event loop therefore wait for a moment. They are
written earlier if a warning or an error follows, if an entry has a traceback, or if the process ends. Entries of other
threads are not delayed.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import orjson
import structlog
from structlog.typing import EventDict, WrappedLogger

from breadcrumbs.composition.log_secrets import has_secret_names, may_contain_secrets, without_secrets
from breadcrumbs.runtime.telemetry.tracing import carried

MAX_DELAY_SECONDS: Final = 0.1
"""Longest time that an entry waits in a process that is not busy."""
_MAX_WAITING: Final = 256
_MAX_WRITE_CHARACTERS: Final = 4000
"""Lines that are written together. Larger writes to a pipe can mix with those of other processes."""
_DELAYED: Final = frozenset(("debug", "info"))


class LogEntry(NamedTuple):
    """An entry that is not rendered yet."""

    fields: EventDict
    method: str
    logger: str
    at: float
    """Time in seconds since 1970."""
    trace: str | None


def to_entry(logger: WrappedLogger, method: str, fields: EventDict) -> tuple[tuple[LogEntry], dict[str, Any]]:
    """Return the arguments of `JsonLinesLogger`. It is the last processor of structlog."""
    return (LogEntry(fields, method, logger.name, time.time(), carried.get()),), {}


def render(entry: LogEntry) -> str:
    """Return an entry as one line of JSON, without secrets."""
    fields = entry.fields
    if (trace := entry.trace) is not None:
        fields["trace_id"], fields["span_id"] = trace[3:35], trace[36:52]
    structlog.stdlib.add_log_level(None, entry.method, fields)
    fields["logger"] = entry.logger
    fields["timestamp"] = datetime.fromtimestamp(entry.at, UTC).isoformat().replace("+00:00", "Z")
    if "exc_info" in fields:
        # The traceback becomes text first, so that its secrets are removed too.
        fields = structlog.processors.format_exc_info(None, entry.method, fields)
    line = "" if has_secret_names(tuple(fields)) else to_json(fields)
    if not line or may_contain_secrets(line):
        line = to_json(without_secrets(None, entry.method, fields))
    return line


def to_json(fields: EventDict) -> str:
    """Return an entry as JSON. orjson takes a tenth of the time of the standard library."""
    try:
        return orjson.dumps(fields, default=_to_text, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # half of a surrogate pair, or an integer of more than 64 bits
        return json.dumps(fields, default=_to_text)


def _to_text(value: Any) -> str:
    """Return a value that JSON does not have, in the way of structlog."""
    try:
        return str(value.__structlog__()) if hasattr(value, "__structlog__") else repr(value)
    except Exception as error:  # in the code of a user: it must not delay or lose other entries
        return f"<{type(value).__name__}: {type(error).__name__}>"


class LogLines:
    """The entries of this process that are not written yet."""

    def __init__(self) -> None:
        self._waiting: list[LogEntry] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop that will write the waiting entries. None: no write is scheduled."""
        self._lock = threading.RLock()

    def add(self, entry: LogEntry) -> None:
        """Add an entry, and write it at once if it must not wait."""
        with self._lock:
            self._waiting.append(entry)
            if (
                entry.method not in _DELAYED
                or "exc_info" in entry.fields
                or len(self._waiting) >= _MAX_WAITING
                or not self._schedule()
            ):
                self.flush()

    def flush(self) -> None:
        """Write all waiting entries."""
        with self._lock:
            self._loop = None
            waiting, self._waiting = self._waiting, []
            lines: list[str] = []
            size = 0
            for entry in waiting:
                line = render(entry) + "\n"
                if lines and size + len(line) > _MAX_WRITE_CHARACTERS:
                    write("".join(lines))
                    lines, size = [], 0
                lines.append(line)
                size += len(line)
            if lines:
                write("".join(lines))

    def _schedule(self) -> bool:
        """Schedule a write. Return False in a thread without a running event loop."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        # An event loop that was closed never writes. Its successor does.
        if loop is not self._loop:
            self._loop = loop
            loop.call_later(MAX_DELAY_SECONDS, self.flush)
        return True


LINES: Final = LogLines()
atexit.register(LINES.flush)


class JsonLinesLogger:
    """Logger of structlog. `name` is the name in the entries."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.debug = self.info = self.warning = self.error = self.critical = self.exception = self.msg = (
            LINES.add
        )


def write(text: str) -> None:
    """Write lines to standard error in one call, so that lines of several threads do not mix."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):  # a full disk, a closed pipe: a log line must not make a turn fail
        pass
