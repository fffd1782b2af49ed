"""Logging to standard error: text on a terminal, otherwise JSON lines.

Tokens, keys and passwords are removed from log entries, including tracebacks.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import orjson
import structlog
from structlog.typing import EventDict, WrappedLogger

from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.settings.variables import describe_unknown, unknown_variables
from breadcrumbs.runtime.telemetry.tracing import carried

_SECRET_NAMES = frozenset(
    ("token", "access_token", "authorization", "api_key", "x_api_key", "password", "secret", "token_secret")
)
# Credentials in a URL: `token=…` in the query, or the password before the host.
_IN_URL = re.compile(r"((?:token|access_token|password)=)[^&\s\"']+|(://[^/@\s:]*:)[^@\s/]+(?=@)")
_BEARER = re.compile(r"(?i)(bearer\s+)\S+")


def configure_logs(settings: Settings, *, process: int | None = None) -> None:
    """Configure logging for this process. Call it once, at startup.

    `process` is the number of an API process that shares its port. Each log entry contains it.
    """
    as_text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
    shared_processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        add_trace,
        *([] if process is None else [partial(_add_process, process)]),
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if as_text else "iso", utc=not as_text),
    ]
    # Entries of Breadcrumbs do not pass through the standard library: it takes three times as long, and there is a line
    # for each turn.
    structlog.configure(
        processors=[*shared_processors, *_render_processors(as_text)],
        wrapper_class=structlog.make_filtering_bound_logger(settings.log_level),
        logger_factory=_StderrLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.PositionalArgumentsFormatter(), *shared_processors],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_render_processors(as_text),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=settings.log_level.upper(), force=True)
    # The debug output of these libraries is not useful here, and contains the URL of each request.
    for library in ("httpx", "httpcore", "asyncio", "uvicorn.access"):
        logging.getLogger(library).setLevel(logging.WARNING)
    for name, nearest in unknown_variables(os.environ, settings.models).items():
        structlog.get_logger("breadcrumbs.settings").warning(describe_unknown(name, nearest), variable=name)


class _StderrLogger:
    """Writes finished lines to standard error. `name` is the name in the entries."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def msg(self, line: str) -> None:
        try:
            # One write, so that lines of several threads do not mix.
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # a full disk, a closed pipe: a log line must not make a turn fail
            pass

    debug = info = warning = error = critical = exception = msg


def _render_processors(as_text: bool) -> list[Any]:
    if as_text:
        colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        renderer: Any = structlog.dev.ConsoleRenderer(
            colors=colours, sort_keys=False, exception_formatter=structlog.dev.plain_traceback
        )
    else:
        renderer = structlog.processors.JSONRenderer(serializer=_to_json)
    # The traceback becomes text first, so that its secrets are removed too.
    return [structlog.processors.format_exc_info, without_secrets, renderer]


def _to_json(event: EventDict, default: Callable[[Any], Any], **_: Any) -> str:
    """Return the entry as JSON. orjson takes a tenth of the time of the standard library."""
    try:
        return orjson.dumps(event, default=default, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # half of a surrogate pair, or an integer of more than 64 bits
        return json.dumps(event, default=default)


def add_trace(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Add the ids of the trace and the span that the running task belongs to, if any."""
    if (trace := carried.get()) is not None:
        event["trace_id"], event["span_id"] = trace[3:35], trace[36:52]
    return event


def _add_process(number: int, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event["process"] = number
    return event


def without_secrets(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Replace tokens, keys and passwords in a log entry with `…`."""
    for name, value in event.items():
        if _is_secret_name(name):
            event[name] = "…"
        elif isinstance(value, str):
            # The expressions are tried at every character of every field, so look for their fixed parts first.
            if "=" in value or "@" in value:
                value = _IN_URL.sub(r"\1\2…", value)
            if "bearer" in value.lower():
                value = _BEARER.sub(r"\1…", value)
            event[name] = value
    return event


@lru_cache(maxsize=1024)
def _is_secret_name(name: str) -> bool:
    return name.lower().replace("-", "_") in _SECRET_NAMES
