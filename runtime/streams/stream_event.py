"""The values that streams carry. They are rendered where they leave the process (see http/routes/stream_frames.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import orjson

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.events.deltas import Delta
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.streams.conditions import Evaluation
from breadcrumbs.runtime.streams.filters import Filter

_OVERHEAD_BYTES: Final = 512  # what a queued value takes beside its content: tags, ids, the position

ReachedPosition: TypeAlias = tuple[int, ...]
"""A `Position` (one time per lane) that does not change."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class StreamEvent:
    """An event as some subscribers may see it."""

    event: Event
    breadcrumb: Breadcrumb | None
    """The version that the event names, without what the subscribers may not see. None: none exists any more."""
    position: ReachedPosition
    """The position of the subscribers after this event."""
    shows_context: bool
    undecided: bool = False
    """The conditions of the subscribers cost too much on this breadcrumb. It may match or not."""

    def load_breadcrumb(self) -> Breadcrumb | None:
        """Return a copy of the breadcrumb. Its parsed JSON is not kept with this value, which may wait in queues."""
        return None if self.breadcrumb is None else replace(self.breadcrumb)


StreamValue: TypeAlias = StreamEvent | Delta


def queued_bytes(value: StreamValue) -> int:
    """Return the memory that a value takes in a queue, by the size of its stored JSON."""
    if isinstance(value, Delta):
        return _OVERHEAD_BYTES + len(value.text)
    return _OVERHEAD_BYTES + (0 if value.breadcrumb is None else len(value.breadcrumb.json))


class OutgoingEvent:
    """An event on its way to its subscribers. Subscribers that may see the same of it share one value."""

    __slots__ = ("_shared", "breadcrumb", "evaluation", "event")

    def __init__(self, event: Event, breadcrumb: Breadcrumb | None) -> None:
        self.event = event
        self.breadcrumb = breadcrumb
        self.evaluation = None if breadcrumb is None else Evaluation(breadcrumb)
        self._shared: dict[tuple[bool, ReachedPosition], StreamEvent] = {}

    @property
    def content_bytes(self) -> int:
        return 0 if self.breadcrumb is None else len(self.breadcrumb.json)

    def view_for(self, filter: Filter, position: ReachedPosition) -> StreamEvent:
        """Return what a subscriber gets."""
        crumb = self.breadcrumb
        if crumb is None or not filter.shows_context(crumb):
            return self._shared_view(position, shows_context=False)
        seen = filter.redact(crumb)
        if seen is crumb:
            return self._shared_view(position, shows_context=True)
        return self._view(seen, position, shows_context=True)

    def undecided_view(self, position: ReachedPosition) -> StreamEvent:
        """Return what a subscriber gets whose conditions could not be decided."""
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
        # A copy has no cached parsed JSON, which would take much more memory than the value is counted with.
        return StreamEvent(self.event, None if crumb is None else replace(crumb), position, shows_context)
