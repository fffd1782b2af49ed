"""Receivers of spans: in memory, and over OTLP/HTTP for other processes."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from breadcrumbs.runtime.telemetry import tracing
from breadcrumbs.runtime.telemetry.spans import Spans

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CLIENT_SPAN = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{CLIENT_SPAN}-01"


@dataclass(frozen=True)
class ExportedSpan:
    """A span as a collector sees it. Ids are hexadecimal; `parent_id` is empty for a root."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    """Trace and span of each link."""
    kind: str
    error: bool


@contextmanager
def recorded(*, content: bool = False, propagates: bool = False) -> Iterator[InMemorySpanExporter]:
    """Trace this process into memory while the block runs."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    assert tracing.active is None
    tracing.active = Spans(provider.get_tracer("test"), content=content, propagates=propagates)
    try:
        yield exporter
    finally:
        tracing.active = None
        provider.shutdown()


def finished(exporter: InMemorySpanExporter) -> list[ExportedSpan]:
    """Return the finished spans in the order of their ends."""
    return [_from_memory(span) for span in exporter.get_finished_spans()]


def one(spans: list[ExportedSpan], start: str) -> ExportedSpan:
    """Return the only span whose name starts with a text."""
    (found,) = [span for span in spans if span.name.startswith(start)]
    return found


def _from_memory(span: ReadableSpan) -> ExportedSpan:
    assert span.context is not None
    return ExportedSpan(
        span.name,
        "",
        f"{span.context.trace_id:032x}",
        f"{span.context.span_id:016x}",
        "" if span.parent is None else f"{span.parent.span_id:016x}",
        dict(span.attributes or {}),
        [(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in span.links],
        span.kind.name.lower(),
        not span.status.is_ok and not span.status.is_unset,
    )


@dataclass
class Collector:
    """Receives OTLP over HTTP."""

    url: str = ""
    spans: list[ExportedSpan] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def wait_for(self, wanted: Callable[[list[ExportedSpan]], bool], limit: float = 60) -> list[ExportedSpan]:
        """Return the spans as soon as a condition holds."""
        deadline = time.monotonic() + limit
        while True:
            with self.lock:
                found = list(self.spans)
            if wanted(found):
                return found
            assert time.monotonic() < deadline, [(span.service, span.name) for span in found]
            time.sleep(0.05)


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            request = ExportTraceServiceRequest()
            request.ParseFromString(body)
            with collector.lock:
                collector.spans += _from_request(request)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


_KINDS = {1: "internal", 2: "server", 3: "client"}


def _from_request(request: ExportTraceServiceRequest) -> list[ExportedSpan]:
    return [
        ExportedSpan(
            span.name,
            _attributes(resource.resource.attributes).get("service.name", ""),
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            _attributes(span.attributes),
            [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
            _KINDS[span.kind],
            span.status.code == 2,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(item) for item in value.array_value.values)
    return getattr(value, kind)
