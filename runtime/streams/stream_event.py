"""Values in the queues of streams: events and deltas.

`http/routes/stream_frames.py` renders them when they are sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import orjson

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.events.deltas import Delta
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.streams.conditions import Evaluation
from breadcrumbs.runtime.streams.filters import Filter

_OVERHEAD_BYTES: Final = 512  # memory of a queued value in addition to its content: tags, ids, the position

ReachedPosition: TypeAlias = tuple[int, ...]
"""Immutable `Position`: one time per lane."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class StreamEvent:
    """Event as a group of subscribers may see it."""

    event: Event
    breadcrumb: Breadcrumb | None
    """Version that the event refers to, redacted for the subscribers. None if it no longer exists."""
    position: ReachedPosition
    """Position of the subscribers after this event."""
    shows_context: bool
    """Whether the breadcrumb is sent with its context."""
    undecided: bool = False
    """The conditions exceed the budget, so it is unknown whether the breadcrumb matches."""

    def load_breadcrumb(self) -> Breadcrumb | None:
        """Return a copy of the breadcrumb.

        The copy caches its parsed JSON. This value must not, because it can stay in queues for a long time.
        """
        return None if self.breadcrumb is None else self.breadcrumb.copy()


StreamValue: TypeAlias = StreamEvent | Delta


def queued_bytes(value: StreamValue) -> int:
    """Return the approximate memory of a queued value, from the size of its stored JSON."""
    if isinstance(value, Delta):
        return _OVERHEAD_BYTES + len(value.text) + len(value.reasoning)
    return _OVERHEAD_BYTES + (0 if value.breadcrumb is None else len(value.breadcrumb.json))


class OutgoingEvent:
    """Event that is being delivered.

    Subscribers that may see the same part of it share one `StreamEvent`.
    """

    __slots__ = ("_shared", "breadcrumb", "evaluation", "event")

    def __init__(self, event: Event, breadcrumb: Breadcrumb | None) -> None:
        self.event = event
        self.breadcrumb = breadcrumb
        self.evaluation = None if breadcrumb is None else Evaluation(breadcrumb)
        self._shared: dict[tuple[bool, ReachedPosition], StreamEvent] = {}

    @property
    def content_bytes(self) -> int:
        """Size of the stored breadcrumb."""
        return 0 if self.breadcrumb is None else len(self.breadcrumb.json)

    def view_for(self, filter: Filter, position: ReachedPosition) -> StreamEvent:
        """Return the value for a subscriber, with the content that its filter allows."""
        crumb = self.breadcrumb
        if crumb is None or not filter.shows_context(crumb):
            return self._shared_view(position, shows_context=False)
        seen = filter.redact(crumb)
        if seen is crumb:
            return self._shared_view(position, shows_context=True)
        return self._view(seen, position, shows_context=True)

    def undecided_view(self, position: ReachedPosition) -> StreamEvent:
        """Return the value for a subscriber whose conditions are undecided."""
        return replace(self._shared_view(position, shows_context=False), undecided=True)

    def _shared_view(self, position: ReachedPosition, *, shows_context: bool) -> StreamEvent:
        view = self._shared.get((shows_context, position))
        if view is None:
            crumb = self.breadcrumb
            if crumb is not None and not shows_context:
                crumb = replace(crumb, json=orjson.dumps({**crumb.document, "context": {}}))
            view = self._shared[shows_context, position] = self._view(
                crumb, position, shows_context=shows_context
            )
        return view

    def _view(
        self, crumb: Breadcrumb | None, position: ReachedPosition, *, shows_context: bool
    ) -> StreamEvent:
        # A copy has no cached parsed JSON, which takes much more memory than `queued_bytes` counts.
        return StreamEvent(self.event, None if crumb is None else crumb.copy(), position, shows_context)
