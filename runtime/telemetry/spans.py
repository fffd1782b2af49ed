"""Spans of OpenTelemetry. Only processes with tracing import this module.

The names and attributes follow version 1.41.1 of the semantic conventions. It is the last release that contains the
conventions for generative AI. Their new repository, `semantic-conventions-genai`, has no release yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal, TypeAlias

from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.context import Context

from breadcrumbs.runtime.telemetry import tracing
from breadcrumbs.runtime.telemetry.trace_context import TraceContext, decode

Attributes: TypeAlias = Mapping[str, str | bool | int | float | Sequence[str]]
SpanKind: TypeAlias = Literal["internal", "server", "client"]

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.1"
_MAX_DESCRIPTION_CHARACTERS: Final = 300

_KINDS: Final[dict[SpanKind, otel.SpanKind]] = {
    "internal": otel.SpanKind.INTERNAL,
    "server": otel.SpanKind.SERVER,
    "client": otel.SpanKind.CLIENT,
}


class Spans:
    """Starts the spans of a process."""

    def __init__(self, tracer: otel.Tracer, *, content: bool = False, propagates: bool = False) -> None:
        self._tracer = tracer
        self.content = content
        """Whether spans contain messages, arguments and results."""
        self.propagates = propagates
        """Whether requests to model servers and ADK servers contain the trace."""

    @contextmanager
    def span(
        self,
        name: str,
        attributes: Attributes,
        *,
        kind: SpanKind = "internal",
        links: Sequence[TraceContext] = (),
        start_ns: int | None = None,
    ) -> Iterator[otel.Span]:
        """Run the block in a new span, and carry it in the events that the block writes.

        The parent is the current span of the task, or the trace that the task carries. An exception sets the status of
        the span.
        """
        span = self._tracer.start_span(
            name,
            _parent(),
            _KINDS[kind],
            dict(attributes),
            [otel.Link(_span_context(link)) for link in links],
            start_ns,
        )
        attached = otel_context.attach(otel.set_span_in_context(span))
        carrying = tracing.carried.set(encode_span(span))
        try:
            yield span
        except Exception as error:
            self.set_error(span, error_type(error), error)
            raise
        except BaseException:
            self.set_error(span, "cancelled")
            raise
        finally:
            tracing.carried.reset(carrying)
            otel_context.detach(attached)
            span.end()

    def set_error(self, span: otel.Span, type: str, description: object = None) -> None:
        """Set the status of a span whose operation failed.

        The text of an error can quote a message or the arguments of a tool, so it is content.
        """
        span.set_attribute("error.type", type)
        text = str(description)[:_MAX_DESCRIPTION_CHARACTERS] if self.content and description else None
        span.set_status(otel.StatusCode.ERROR, text)

    def describe(self, attributes: Attributes) -> None:
        """Add attributes to the current span of the task."""
        otel.get_current_span().set_attributes(dict(attributes))

    def add_link(self, target: TraceContext | None) -> None:
        """Link the current span of the task to another one."""
        if target is not None:
            otel.get_current_span().add_link(_span_context(target))


def encode_span(span: otel.Span) -> str:
    """Return a span in the form that events carry."""
    context = span.get_span_context()
    state = context.trace_state.to_header() if context.trace_state else ""
    return TraceContext(context.trace_id, context.span_id, int(context.trace_flags), state).encode()


def error_type(error: Exception) -> str:
    """Return the class of an error: the HTTP status of a model server, or the name of the exception."""
    status = getattr(error, "status", None)
    return str(status) if isinstance(status, int) else error.__class__.__qualname__


def _parent() -> Context | None:
    """Return the context of the parent. None: the current one of OpenTelemetry, which can be empty."""
    if otel.get_current_span().get_span_context().is_valid:
        return None
    parent = decode(tracing.carried.get())
    return None if parent is None else otel.set_span_in_context(otel.NonRecordingSpan(_span_context(parent)))


def _span_context(context: TraceContext) -> otel.SpanContext:
    state = otel.TraceState.from_header([context.state]) if context.state else None
    return otel.SpanContext(
        context.trace_id,
        context.span_id,
        is_remote=True,
        trace_flags=otel.TraceFlags(context.flags),
        trace_state=state,
    )
