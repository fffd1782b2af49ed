"""Logging to standard error: text on a terminal, otherwise JSON lines.

Tokens, keys and passwords are removed from log entries, including tracebacks.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger

from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.telemetry.tracing import carried

_SECRET_NAMES = frozenset(
    ("token", "access_token", "authorization", "api_key", "x_api_key", "password", "secret", "token_secret")
)
# Credentials in a URL: `token=…` in the query, or the password before the host.
_IN_URL = re.compile(r"((?:token|access_token|password)=)[^&\s\"']+|(://[^/@\s:]*:)[^@\s/]+(?=@)")
_BEARER = re.compile(r"(?i)(bearer\s+)\S+")


def configure_logs(settings: Settings) -> None:
    """Configure logging for this process. Call it once, at startup."""
    as_text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
    shared_processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        add_trace,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if as_text else "iso", utc=not as_text),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared_processors,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
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


def _render_processors(as_text: bool) -> list[Any]:
    if as_text:
        colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        renderer: Any = structlog.dev.ConsoleRenderer(
            colors=colours, exception_formatter=structlog.dev.plain_traceback
        )
    else:
        renderer = structlog.processors.JSONRenderer()
    # The traceback becomes text first, so that its secrets are removed too.
    return [structlog.processors.format_exc_info, without_secrets, renderer]


def add_trace(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Add the ids of the trace and the span that the running task belongs to, if any."""
    if (trace := carried.get()) is not None:
        event["trace_id"], event["span_id"] = trace[3:35], trace[36:52]
    return event


def without_secrets(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Replace tokens, keys and passwords in a log entry with `…`."""
    for name, value in event.items():
        if name.lower().replace("-", "_") in _SECRET_NAMES:
            event[name] = "…"
        elif isinstance(value, str):
            event[name] = _BEARER.sub(r"\1…", _IN_URL.sub(r"\1\2…", value))
    return event
