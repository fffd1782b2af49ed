"""Renders the values of event streams as server-sent events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from uuid import UUID
from weakref import WeakKeyDictionary

import orjson

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.events.deltas import DELTA, Delta
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.sse import encode_event
from breadcrumbs.runtime.streams.stream_event import StreamEvent, StreamValue

GREETING: Final = b"retry: 2000\n: connected\n\n"
GAP: Final = encode_event(
    b'{"type":"gap","detail":"events after your Last-Event-ID are no longer stored: reload your data"}',
    event="gap",
)
_UNDECIDED: Final = (
    "the conditions of this stream are too expensive for this breadcrumb: read the breadcrumb itself, or use fewer "
    "conditions, paths without '..', a schema name or tags"
)


class FrameRenderer:
    """Renders the values of all streams. Each value is rendered once for all of its streams."""

    def __init__(self, encode_position: Callable[[UUID, Sequence[int]], str], *, rcrt_events: bool) -> None:
        self._encode_position = encode_position
        self._rcrt_events = rcrt_events
        # A frame is cached while its value is in a queue.
        self._frames: WeakKeyDictionary[StreamValue, bytes] = WeakKeyDictionary()

    def render(self, values: Iterable[StreamValue]) -> bytes:
        """Return the joined frames of some values."""
        return b"".join([self._cached_frame(value) for value in values])

    def render_ping(self, owner: UUID, position: Sequence[int] | None) -> bytes:
        """Return a ping. It has no id if the position of the client is unknown."""
        data = orjson.dumps({"type": "ping", "ts": times.to_text(time.time_ns() // 1000)})
        id = None if position is None else self._encode_position(owner, position)
        return encode_event(data, event="ping", id=id)

    def _cached_frame(self, value: StreamValue) -> bytes:
        frame = self._frames.get(value)
        if frame is None:
            frame = self._frames[value] = self._frame(value)
        return frame

    def _frame(self, value: StreamValue) -> bytes:
        if isinstance(value, Delta):
            return encode_event(orjson.dumps(value.document()), event=DELTA)
        id = self._encode_position(value.event.owner_id, value.position)
        data = orjson.dumps(self._payload(value))
        return encode_event(data, event="undecided" if value.undecided else None, id=id)

    def _payload(self, value: StreamEvent) -> dict[str, object]:
        event, crumb = value.event, value.load_breadcrumb()
        if event.operation == "session_deleted":
            return _session_payload(event)
        payload = self._event_payload(event, crumb)
        if value.undecided:
            # `type` is replaced and stays the first field.
            payload |= {"type": "breadcrumb.undecided", "detail": _UNDECIDED}
        elif crumb is not None:
            payload["title"] = crumb.title
            if value.shows_context:
                payload["context"] = crumb.context
        return payload

    def _event_payload(self, event: Event, crumb: Breadcrumb | None) -> dict[str, object]:
        # RCRT's clients expect "breadcrumb.updated" for new breadcrumbs too. `operation` distinguishes them.
        kind = "updated" if self._rcrt_events and event.operation == "created" else event.operation
        payload: dict[str, object] = {
            "type": f"breadcrumb.{kind}",
            "operation": event.operation,
            "breadcrumb_id": str(event.id),
            "owner_id": str(event.owner_id),
            "version": event.version,
            "tags": event.tags,
            "updated_at": times.to_text(crumb.updated if crumb else event.at),
        }
        if event.schema_name is not None:
            payload["schema_name"] = event.schema_name
        if event.session_id is not None:
            payload["session_id"] = event.session_id
        return payload


def _session_payload(event: Event) -> dict[str, object]:
    return {
        "type": "session.deleted",
        "session_id": event.session_id,
        "owner_id": str(event.owner_id),
        "tags": event.tags,
        "updated_at": times.to_text(event.at),
    }
