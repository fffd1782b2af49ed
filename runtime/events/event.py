"""Events: one per write, in a stream per lane, in the order of the lane's clock.

An event says what happened to which breadcrumb, with enough to filter it (owner, schema, tags) without
its body. A reader's `Position` is one time per lane: everything up to it has been seen. An event stream gives it out
as `id:`, encrypted (see positions.py), so that a reader can come back to any process and miss nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from uuid import UUID

import orjson
import structlog

from breadcrumbs.runtime.breadcrumb.breadcrumb import SESSION
from breadcrumbs.runtime.breadcrumb.cached import once

if TYPE_CHECKING:
    from breadcrumbs.runtime.backend.connection import BlockingLink
    from breadcrumbs.runtime.store.store import Store

Operation = Literal["created", "updated", "deleted", "retried", "session_deleted", "unknown"]
"""`retried` is no write: a worker is asked to handle an older event once more. Streams do not show it.
`session_deleted` speaks of no breadcrumb: its tag says which session is going.
`unknown`: a newer process wrote it, or it is damaged. Readers pass over it."""

Position: TypeAlias = list[int]

_OPERATIONS: dict[int, Operation] = {
    ord("c"): "created",
    ord("u"): "updated",
    ord("d"): "deleted",
    ord("r"): "retried",
    ord("s"): "session_deleted",
}
_NOBODY = UUID(int=0)

_log = structlog.get_logger("breadcrumbs.events")


@dataclass(frozen=True)
class Event:
    operation: Operation
    owner_id: UUID
    id: UUID
    version: int
    schema_name: str | None
    tags: list[str]
    private_to: UUID | None
    """The only agent (besides curators) who may know of it."""
    lane: int
    at: int
    """Microseconds; unique and increasing in its lane."""
    only_for: str | None = None
    """The only kind of worker that is meant."""
    imported: bool = False
    """What it speaks of has its own, older time: it is history, and nobody answers it."""

    @once
    def session_id(self) -> str | None:
        return next((tag[len(SESSION) :] for tag in self.tags if tag.startswith(SESSION)), None)


def decode_event(lane: int, stream_id: bytes, payload: bytes) -> Event:
    at = int(stream_id.partition(b"-")[0])
    try:
        return _decoded(lane, at, payload)
    except (LookupError, ValueError, TypeError) as error:
        # Readers have to get past it: one event that nobody can read must not be the last one for everybody.
        _log.warning("an event cannot be read and is passed over", lane=lane, at=at, error=repr(error))
        return Event("unknown", _NOBODY, _NOBODY, 0, None, [], None, lane, at)


def _decoded(lane: int, at: int, payload: bytes) -> Event:
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


class EventLog:
    """Reads the streams of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lane_of = {store.keys.events(lane): lane for lane in range(store.lanes)}

    async def end(self) -> Position:
        """Where the newest events are now."""
        return await self._times(self._store.keys.clock)

    async def beginning(self) -> Position:
        """Up to where events may have been trimmed away: who comes from before has missed some."""
        return await self._times(self._store.keys.trimmed)

    async def wait(
        self, link: BlockingLink, position: Mapping[int, int], *, block_ms: int, count: int = 512
    ) -> list[Event]:
        """The next events of some lanes; waits for them."""
        streams = [self._store.keys.events(lane) for lane in position]
        after = [b"%d-0" % at for at in position.values()]
        reply = await link.call((b"XREAD", b"COUNT", count, b"BLOCK", block_ms, b"STREAMS", *streams, *after))
        events = [
            decode_event(self._lane_of[stream], entry[0], entry[1][1])
            for stream, entries in reply or ()
            for entry in entries
        ]
        # Streams come one after the other; readers of several lanes want them in time.
        events.sort(key=lambda event: event.at)
        return events

    async def between(
        self, after: Mapping[int, int], until: Mapping[int, int], *, count: int = 256
    ) -> list[Event]:
        """Some of the events after a time and up to another in each lane, at least one if there are any."""
        keys = self._store.keys
        lanes = [lane for lane in after if after[lane] < until[lane]]
        replies = await self._store.connection.call_all(
            [
                (
                    lane,
                    (
                        b"XRANGE",
                        keys.events(lane),
                        b"(%d-0" % after[lane],
                        b"%d-0" % until[lane],
                        b"COUNT",
                        count,
                    ),
                )
                for lane in lanes
            ]
        )
        events = [
            decode_event(lane, entry[0], entry[1][1])
            for lane, entries in zip(lanes, replies, strict=True)
            for entry in entries
        ]
        events.sort(key=lambda event: event.at)
        return events

    async def _times(self, key: Any) -> Position:
        replies = await self._store.connection.call_all(
            [(lane, (b"GET", key(lane))) for lane in range(self._store.lanes)]
        )
        return [int(reply or 0) for reply in replies]
