"""Spans of turns. They link to what they repeat: an earlier attempt, or the message of a requested retry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.events.traces import trace_of_write
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry import tracing
from breadcrumbs.runtime.telemetry.trace_context import TraceContext, decode
from breadcrumbs.runtime.workers.turn import Turn

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from breadcrumbs.runtime.telemetry.spans import Attributes, SpanKind, Spans

_Key: TypeAlias = tuple[int, int, str]
_MAX_FAILED: Final = 10_000

_failed: dict[_Key, TraceContext] = {}
"""Spans of failed attempts, by lane and time of the event and name of the span.

If another process repeats the turn, there is no link. The span of a killed process is never exported.
"""


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """The span of one attempt."""

    name: str
    attributes: Attributes = field(default_factory=dict)
    kind: SpanKind = "internal"
    start_ns: int | None = None
    """Time when the operation began, in nanoseconds since 1970. None: now."""
    is_deferred: bool = False
    """The trigger waited for the event of this turn. The span then links to the trace of the trigger."""


@asynccontextmanager
async def turn_span(
    spans: Spans, store: Store, turn: Turn, trigger: Breadcrumb, wanted: TurnSpan
) -> AsyncIterator[Span]:
    """Run a part of a turn in a span."""
    key = turn.event.lane, turn.event.at, wanted.name
    repeats = wanted.is_deferred or turn.event.operation == "retried"
    earlier = [_failed.get(key), await trace_of_write(store, trigger) if repeats else None]
    attributes = dict(wanted.attributes)
    if turn.attempt > 1:
        attributes["breadcrumbs.turn.attempt"] = turn.attempt
    links = [link for link in earlier if link is not None]
    with spans.span(wanted.name, attributes, kind=wanted.kind, links=links, start_ns=wanted.start_ns) as span:
        try:
            yield span
        except Exception:
            _note_failure(key)
            raise
    _failed.pop(key, None)


def _note_failure(key: _Key) -> None:
    """Remember the current span of this task as a failed attempt."""
    if len(_failed) >= _MAX_FAILED:
        _failed.clear()
    if (span := decode(tracing.carried.get())) is not None:
        _failed[key] = span
