"""The event value and its stored form.

Each write adds one event to the stream of its lane, in the order of the lane's clock. An event names the operation and
the breadcrumb, and has enough fields (owner, schema, tags) to filter it without the body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal
from uuid import UUID

import orjson
import structlog

from breadcrumbs.runtime.breadcrumb.cached import cached_attribute
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION

EventOperation = Literal["created", "updated", "deleted", "retried", "session_deleted", "unknown"]
"""`retried` is not a write: it asks a worker to handle an older event again. Streams do not show it.
`session_deleted` names no breadcrumb: its tag names the session.
`unknown`: written by a newer version, or damaged. Readers skip it."""

_OPERATIONS: Final[dict[int, EventOperation]] = {
    ord("c"): "created",
    ord("u"): "updated",
    ord("d"): "deleted",
    ord("r"): "retried",
    ord("s"): "session_deleted",
}
_NOBODY: Final = UUID(int=0)

_log = structlog.get_logger("breadcrumbs.events")


@dataclass(frozen=True)
class Event:
    """One event of a lane."""

    operation: EventOperation
    owner_id: UUID
    id: UUID
    version: int
    schema_name: str | None
    tags: list[str]
    private_to: UUID | None
    """The only agent, besides curators, that may see the event."""
    lane: int
    at: int
    """Microseconds; unique and increasing within its lane."""
    only_for: str | None = None
    """The only kind of worker that handles it. None: every kind."""
    imported: bool = False
    """The breadcrumb was imported with an older time. Workers do not answer it."""

    @cached_attribute
    def session_id(self) -> str | None:
        """Return the session named by the tags."""
        return next((tag[len(SESSION) :] for tag in self.tags if tag.startswith(SESSION)), None)


def decode_event(lane: int, stream_id: bytes, payload: bytes) -> Event:
    """Decode a stream entry. An unreadable one becomes an event with the operation `unknown`."""
    at = int(stream_id.partition(b"-")[0])
    try:
        return _decode_payload(lane, at, payload)
    except (LookupError, ValueError, TypeError) as error:
        # Readers must advance past it: an error here would stop every reader of the lane at this entry.
        _log.warning("an event cannot be read and is passed over", lane=lane, at=at, error=repr(error))
        return Event("unknown", _NOBODY, _NOBODY, 0, None, [], None, lane, at)


def _decode_payload(lane: int, at: int, payload: bytes) -> Event:
    version, _, note = payload[33:].partition(b" ")
    schema_name, tags, private_to, only_for, imported = (*orjson.loads(note), None, None, None)[:5]
    return Event(
        _OPERATIONS[payload[0]],
        UUID(bytes=payload[1:17]),
        UUID(bytes=payload[17:33]),
        int(version),
        schema_name or None,
        tags,
        UUID(private_to) if private_to else None,
        lane,
        at,
        only_for,
        bool(imported),
    )
