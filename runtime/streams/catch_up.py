"""Replay of missed events, for subscribers that resume at a position.

The event log is read separately for each subscriber, at the speed of its client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import islice
from typing import Final

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.events.bodies import has_body, load_versions
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.events.log import EventLog, Position
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.streams.conditions import Pacer
from breadcrumbs.runtime.streams.filters import Filter, is_streamed
from breadcrumbs.runtime.streams.slots import Slots
from breadcrumbs.runtime.streams.stream_event import OutgoingEvent, StreamEvent

_BATCH_EVENTS: Final = 64
# Limits of concurrent replays that keep loaded breadcrumbs in memory. Other replays wait.
_MAX_REPLAYS: Final = 16
_MAX_REPLAYS_PER_OWNER: Final = 8
_MAX_REPLAYS_PER_TOKEN: Final = 4


class Replayer:
    """Replays the event log for subscribers that resume."""

    def __init__(self, store: Store, log: EventLog, pacer: Pacer) -> None:
        self._store = store
        self._log = log
        self._pacer = pacer
        self._slots = Slots(
            total=_MAX_REPLAYS, per_owner=_MAX_REPLAYS_PER_OWNER, per_token=_MAX_REPLAYS_PER_TOKEN
        )

    async def replay(
        self, filter: Filter, position: Position, until: Position
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events that a filter accepts, from `position` to `until`.

        Advance `position` in place. Hold a slot while loaded breadcrumbs are in memory.
        """
        while events := await self._log.between(
            dict(enumerate(position)), dict(enumerate(until)), count=_BATCH_EVENTS
        ):
            ends = {event.lane: event.at for event in events}
            wanted = deque(
                event
                for event in events
                if event.owner_id == filter.owner_id and is_streamed(event) and filter.wants(event)
            )
            del events
            while wanted:
                # Release the slot after each batch, so that a slow client does not keep it.
                async with (
                    self._slots.hold(filter.owner_id, filter.token),
                    aclosing(self._replay_batch(filter, position, wanted)) as values,
                ):
                    async for value in values:
                        yield value
                        del value
            for lane, at in ends.items():
                position[lane] = at
        for lane, at in enumerate(until):
            position[lane] = max(position[lane], at)

    async def _replay_batch(
        self, filter: Filter, position: Position, wanted: deque[Event]
    ) -> AsyncGenerator[StreamEvent, None]:
        """Load the first events of `wanted`, remove them from it and yield them.

        Keep no reference to a breadcrumb while its value is sent, so that its memory can be freed.
        """
        batch = list(islice(wanted, _BATCH_EVENTS))
        loaded = deque(await load_versions(self._store, [event for event in batch if has_body(event)]))
        for event in batch:
            if has_body(event) and not loaded:
                return
            crumb = loaded.popleft() if has_body(event) else None
            wanted.popleft()
            position[event.lane] = event.at
            value = await self._view(filter, event, crumb, position)
            del crumb
            if value is not None:
                yield value
            del value

    async def _view(
        self, filter: Filter, event: Event, crumb: Breadcrumb | None, position: Position
    ) -> StreamEvent | None:
        """Return the value for a subscriber, or None if its filter rejects the event."""
        outgoing = OutgoingEvent(event, crumb)
        if filter.conditional:
            decision = await self._pacer.run(filter.token, lambda: filter.accepts(event, outgoing.evaluation))
        else:
            decision = filter.accepts(event, outgoing.evaluation)
        if decision is False:
            return None
        if decision is None:
            return outgoing.undecided_view(tuple(position))
        return outgoing.view_for(filter, tuple(position))
