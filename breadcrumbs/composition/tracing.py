"""Starts and stops the tracing of a process. OpenTelemetry is imported only if the setting `tracing` is on."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
import structlog

from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.telemetry import tracing
from breadcrumbs.runtime.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_log = structlog.get_logger("breadcrumbs.tracing")

API_SERVICE: Final = "breadcrumbs-api"
CONTEXT_BUILDER_SERVICE: Final = "breadcrumbs-context-builder"
AGENT_RUNNER_SERVICE: Final = "breadcrumbs-agent-runner"
TOOL_RUNNER_SERVICE: Final = "breadcrumbs-tool-runner"
ALL_IN_ONE_SERVICE: Final = "breadcrumbs"

_FLUSH_SECONDS: Final = 2.0
"""Maximum time that the end of a process waits for the export of the last spans."""


@contextmanager
def traced_process(settings: Settings, service: str) -> Iterator[None]:
    """Trace a process while the block runs, if the settings say so. `service`: the default of OTEL_SERVICE_NAME."""
    provider = _start(settings, service)
    try:
        yield
    finally:
        if provider is not None:
            _end(provider.shutdown)


@asynccontextmanager
async def traced_task(settings: Settings, service: str) -> AsyncIterator[None]:
    """Trace agents inside a user's program, which can run several of these blocks one after the other."""
    provider = _start(settings, service)
    try:
        yield
    finally:
        if provider is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_end, provider.force_flush)


def _start(settings: Settings, service: str) -> TracerProvider | None:
    """Start tracing and return its provider. None: tracing is off, or it was started before."""
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if not settings.tracing or disabled or tracing.active is not None:
        return None
    try:
        from breadcrumbs.composition.trace_export import open_provider
        from breadcrumbs.runtime.telemetry.spans import SCHEMA_URL, Spans
    except ImportError as error:
        raise StartupError(
            f"tracing is on, but OpenTelemetry is not installed ({error.name}): "
            "pip install 'breadcrumbs[otel]', or set tracing = false"
        ) from None
    provider = open_provider(service)
    tracer = provider.get_tracer("breadcrumbs", VERSION, SCHEMA_URL)
    tracing.active = Spans(tracer, content=settings.tracing_content, propagates=settings.tracing_propagate)
    return provider


def _end(export_rest: Callable[[], object]) -> None:
    """Stop tracing and export the last spans, within a time limit.

    The thread is a daemon, so a collector that does not answer cannot keep the process alive.
    """
    tracing.active = None
    ending = threading.Thread(target=export_rest, name="last-trace-export", daemon=True)
    ending.start()
    ending.join(_FLUSH_SECONDS)
    if ending.is_alive():
        _log.info("last spans not exported in time", seconds=_FLUSH_SECONDS)
