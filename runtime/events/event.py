"""The event value and its decoder.

Each write adds one event to the Redis stream of its lane, in the order of the lane's clock. An event contains the
operation, the id of the breadcrumb, and owner, schema and tags, so that it can be filtered without loading the
breadcrumb.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal
from uuid import UUID

import orjson
import structlog

from breadcrumbs.runtime.breadcrumb.cached import cached_attribute
from breadcrumbs.runtime.breadcrumb.ids import uuid_of
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION

EventOperation = Literal["created", "updated", "deleted", "retried", "session_deleted", "unknown"]
"""`retried` is not a write. It makes a worker handle an older event again, and streams do not show it.
`session_deleted` names no breadcrumb. Its tag names the session.
`unknown` is an event that a newer version wrote, or a damaged one. Readers skip it."""

_OPERATIONS: Final[dict[int, EventOperation]] = {
    ord("c"): "created",
    ord("u"): "updated",
    ord("d"): "deleted",
    ord("r"): "retried",
    ord("s"): "session_deleted",
}
_NO_ID: Final = UUID(int=0)

_log = structlog.get_logger("breadcrumbs.events")


@dataclass(frozen=True)
class Event:
    """One event in the log of a lane."""

    operation: EventOperation
    owner_id: UUID
    id: UUID
    version: int
    schema_name: str | None
    tags: list[str]
    private_to: UUID | None
    """The only agent that may see the event, apart from curators. None: all agents."""
    lane: int
    at: int
    """Microseconds since 1970, unique and increasing within the lane."""
    only_for: str | None = None
    """The only kind of worker that handles the event. None: every kind."""
    imported: bool = False
    """The breadcrumb was imported with an older time. Workers do not answer it."""
    trace: str | None = None
    """The trace that the write belongs to (see `telemetry/trace_context.py`). None: none."""

    @cached_attribute
    def session_id(self) -> str | None:
        """The session named by the tags."""
        for tag in self.tags:
            if tag.startswith(SESSION):
                return tag[len(SESSION) :]
        return None


def decode_event(lane: int, stream_id: bytes, payload: bytes) -> Event:
    """Decode a stream entry. An unreadable entry becomes an event with the operation `unknown`."""
    at = int(stream_id.partition(b"-")[0])
    try:
        return _decode_payload(lane, at, payload)
    except (LookupError, ValueError, TypeError) as error:
        # An exception would stop every reader of the lane at this entry.
        _log.warning("skipped unreadable event", lane=lane, at=at, error=repr(error))
        return Event("unknown", _NO_ID, _NO_ID, 0, None, [], None, lane, at)


@lru_cache(1_024)
def _owner(raw: bytes) -> UUID:
    return UUID(bytes=raw)


def _decode_payload(lane: int, at: int, payload: bytes) -> Event:
    version, _, note = payload[33:].partition(b" ")
    schema_name, tags, private_to, only_for, imported, trace = (*orjson.loads(note), None, None, None, None)[
        :6
    ]
    return Event(
        _OPERATIONS[payload[0]],
        _owner(payload[1:17]),
        uuid_of(int.from_bytes(payload[17:33])),
        int(version),
        schema_name or None,
        tags,
        UUID(private_to) if private_to else None,
        lane,
        at,
        only_for,
        bool(imported),
        trace,
    )
