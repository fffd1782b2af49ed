"""Events that workers have not acknowledged yet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.events.log import EventLog
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_records import read_worker_kinds

_RUNNERS: Final = "agents"
"""Kind of the agent runners. It counts even if no runner has ever started."""
_MAX_EVENTS: Final = 20_000
"""Maximum number of events of the lane to search, the newest first."""
_PAGE_EVENTS: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Progress:
    """Progress of one kind of worker in a lane."""

    kind: str
    up_to: int
    """The low-water mark: every event up to this time is done."""
    done: frozenset[int]
    """Times of the events above the low-water mark that are done."""

    def has_finished(self, event: Event) -> bool:
        return event.at <= self.up_to or event.at in self.done or event.only_for not in (None, self.kind)


async def unfinished_events(store: Store, owner: UUID, session: str, until: int) -> AsyncIterator[Event]:
    """Yield the events of a session up to a time that a kind of worker has not acknowledged, the newest first.

    A worker acknowledges an event that it does not handle only with the low-water mark. So events can be included that
    need no turn.
    """
    kinds = sorted({*await read_worker_kinds(store), _RUNNERS})
    async for event, _ in unfinished_by_kind(store, owner, session, until, kinds):
        yield event


async def unfinished_by_kind(
    store: Store, owner: UUID, session: str, until: int, kinds: Sequence[str]
) -> AsyncIterator[tuple[Event, list[str]]]:
    """Yield the events of a session up to a time, the newest first, with the kinds that have not acknowledged them."""
    lane = store.keys.session_lane(owner, session)
    progress = await _read_progress(store, lane, kinds)
    log, after = EventLog(store.connection, store.keys), min(one.up_to for one in progress)
    for _ in range(_MAX_EVENTS // _PAGE_EVENTS):
        events = await log.newest(lane, after, until, count=_PAGE_EVENTS)
        for event in events:
            if event.owner_id != owner or event.session_id != session:
                continue
            if unfinished := [one.kind for one in progress if not one.has_finished(event)]:
                yield event, unfinished
        if len(events) < _PAGE_EVENTS:
            return
        until = events[-1].at - 1


async def _read_progress(store: Store, lane: int, kinds: Sequence[str]) -> list[_Progress]:
    keys = store.keys
    replies = await store.connection.call_all(
        [
            (lane, call)
            for kind in kinds
            for call in ((b"GET", keys.low(lane, kind)), (b"ZRANGE", keys.done(lane, kind), 0, -1))
        ]
    )
    return [
        _Progress(kind, int(low or 0), frozenset(int(at) for at in done))
        for kind, low, done in zip(kinds, replies[::2], replies[1::2], strict=True)
    ]
