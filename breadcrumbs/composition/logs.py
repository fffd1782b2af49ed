"""Logging to standard error: text on a terminal, otherwise JSON lines.

Tokens, keys and passwords are removed from log entries, including tracebacks.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger

from breadcrumbs.composition.log_lines import LINES, JsonLinesLogger, to_entry, to_json, write
from breadcrumbs.composition.log_secrets import without_secrets
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.settings.variables import describe_unknown, unknown_variables
from breadcrumbs.runtime.telemetry.tracing import carried


def configure_logs(settings: Settings, *, process: int | None = None) -> None:
    """Configure logging for this process. Call it once, at startup.

    `process` is the number of an API process that shares its port. Each log entry contains it.
    """
    as_text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
    context_processors: list[Any] = [structlog.contextvars.merge_contextvars]
    if process is not None:
        context_processors.append(partial(_add_process, process))
    shared_processors: list[Any] = [
        *context_processors,
        add_trace,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if as_text else "iso", utc=not as_text),
    ]
    # Entries of Breadcrumbs do not pass through the standard library: it takes three times as long, and there is a line
    # for each turn.
    structlog.configure(
        processors=[*shared_processors, *_render_processors(as_text)]
        if as_text
        else [*context_processors, to_entry],
        wrapper_class=structlog.make_filtering_bound_logger(settings.log_level),
        logger_factory=_TextLogger if as_text else JsonLinesLogger,
        cache_logger_on_first_use=True,
    )
    handler = _ForeignHandler(sys.stderr)
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


def log_through_logging() -> None:
    """Send entries to the standard `logging` module, which the surrounding program configures.

    Does nothing if the program has configured structlog.
    """
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


class _TextLogger:
    """Logger of structlog that writes lines at once. `name` is the name in the entries."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def msg(self, line: str) -> None:
        write(line + "\n")

    debug = info = warning = error = critical = exception = msg


class _ForeignHandler(logging.StreamHandler[Any]):
    """Writes the entries of libraries, after the entries of Breadcrumbs that still wait."""

    def emit(self, record: logging.LogRecord) -> None:
        LINES.flush()
        super().emit(record)


def _render_processors(as_text: bool) -> list[Any]:
    if as_text:
        colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        renderer: Any = structlog.dev.ConsoleRenderer(
            colors=colours, sort_keys=False, exception_formatter=structlog.dev.plain_traceback
        )
    else:
        renderer = structlog.processors.JSONRenderer(serializer=lambda event, **_: to_json(event))
    # The traceback becomes text first, so that its secrets are removed too.
    return [structlog.processors.format_exc_info, without_secrets, renderer]


def add_trace(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Add the ids of the trace and the span that the running task belongs to, if any."""
    if (trace := carried.get()) is not None:
        event["trace_id"], event["span_id"] = trace[3:35], trace[36:52]
    return event


def _add_process(number: int, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event["process"] = number
    return event
