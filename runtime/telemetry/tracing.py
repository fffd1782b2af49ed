"""The tracing of this process, and the trace that the running task belongs to.

This module does not import OpenTelemetry. While tracing is off, a traced operation costs one comparison with None.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from breadcrumbs.runtime.telemetry.spans import Spans

active: Spans | None = None
"""The spans of this process. None: tracing is off. Set by the composition, once at startup."""

carried: Final[ContextVar[str | None]] = ContextVar("carried_trace", default=None)
"""The trace of the running task, as `trace_context.py` encodes it. None: the task belongs to no trace.

Each event that the task writes carries it. It is also set while tracing is off, if a client has sent a trace.
"""
