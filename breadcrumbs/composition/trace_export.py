"""The provider of OpenTelemetry and the export of spans, as the OTEL_… variables configure them.

Only processes with tracing import this module.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Final
from uuid import uuid4

import structlog
from opentelemetry import trace as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.version import VERSION

_log = structlog.get_logger("breadcrumbs.tracing")

_EXPORTERS: Final = "opentelemetry_traces_exporter"
"""Entry points of the installed exporters."""
_PROTOCOLS: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_QUIET_LOGGERS: Final = ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal")
"""They report each failed attempt of an export. `ReportingExporter` reports the first one."""


def open_provider(service: str) -> TracerProvider:
    """Return the provider of this process.

    A program that runs agents can have a provider of its own. The spans then go where its other spans go.
    """
    existing = otel.get_tracer_provider()
    if isinstance(existing, TracerProvider):
        return existing
    # Without `shutdown_on_exit`: at the exit, an unreachable collector would delay the process by 30 seconds.
    provider = TracerProvider(resource=Resource.create(_resource(service)), shutdown_on_exit=False)
    if (exporter := _exporter()) is not None:
        provider.add_span_processor(BatchSpanProcessor(ReportingExporter(exporter)))
    otel.set_tracer_provider(provider)
    return provider


def _resource(service: str) -> dict[str, str]:
    attributes = {"service.version": VERSION, "service.instance.id": str(uuid4())}
    given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    names = {part.partition("=")[0].strip() for part in given.split(",")}
    if "OTEL_SERVICE_NAME" not in os.environ:
        attributes["service.name"] = service
    return {name: value for name, value in attributes.items() if name not in names}


def _exporter() -> SpanExporter | None:
    """Return the exporter that OTEL_TRACES_EXPORTER names. None: spans are not exported."""
    wanted = os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if wanted == "none":
        return None
    name = _otlp_exporter() if wanted == "otlp" else wanted
    found = next(iter(entry_points(group=_EXPORTERS, name=name)), None)
    if found is None:
        installed = sorted(point.name for point in entry_points(group=_EXPORTERS))
        raise StartupError(
            f"the trace exporter {name!r} is not installed: install it, or set OTEL_TRACES_EXPORTER to none or one of "
            f"{', '.join(installed)}"
        )
    try:
        exporter: SpanExporter = found.load()()
    except Exception as error:  # a package of somebody else, configured by the environment
        raise StartupError(
            f"the trace exporter {name!r} cannot start: {error}; check the OTEL_… variables"
        ) from None
    return exporter


def _otlp_exporter() -> str:
    protocol = (
        os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    ).strip()
    if protocol not in _PROTOCOLS:
        raise StartupError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}: use {' or '.join(_PROTOCOLS)}, or leave it out"
        )
    return _PROTOCOLS[protocol]


class ReportingExporter(SpanExporter):
    """Exports spans, and logs the first failure and the first success after it.

    Exports run in a thread of the SDK. A failure loses the spans of the batch and has no other effect.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._failing = False
        for name in _QUIET_LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        reason = "the collector is unreachable or refuses the spans"
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            result, reason = SpanExportResult.FAILURE, repr(error)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._failing:
            _log.warning("trace export failed, spans are lost until it works again", reason=reason)
        elif self._failing and not failed:
            _log.info("trace export works again")
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
