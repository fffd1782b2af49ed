"""Protocol of filters: which events a subscriber gets, and which part of them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.streams.conditions import Evaluation


class Filter(Protocol):
    """Decides which events a subscriber gets, and which part of their breadcrumbs."""

    owner_id: UUID

    @property
    def token(self) -> Hashable:
        """Key of the queue for conditions.

        Subscribers with equal rights have equal tokens and share a queue.
        """
        ...

    @property
    def conditional(self) -> bool:
        """Whether the filter has conditions on the breadcrumb, which can take long to evaluate."""
        ...

    @property
    def ended(self) -> bool:
        """Whether no more events follow. The stream ends when its queue is empty."""
        ...

    def wants(self, event: Event) -> bool:
        """Decide by the event alone, without its breadcrumb.

        Return False to reject the event. If this returns True, `accepts` makes the final decision.
        """
        ...

    def accepts(self, event: Event, evaluation: Evaluation | None) -> bool | None:
        """Decide by the event and its breadcrumb whether the subscriber gets the event.

        `evaluation` is None if the breadcrumb no longer exists. Return None if the evaluation exceeds the subscriber's
        budget for one event.
        """
        ...

    def shows_context(self, crumb: Breadcrumb) -> bool:
        """Return whether the subscriber may see the context."""
        ...

    def redact(self, crumb: Breadcrumb) -> Breadcrumb:
        """Return the part of a breadcrumb that the subscriber may see.

        Called only if `shows_context` is true. Return the same object if the subscriber may see all of it.
        """
        ...


def is_streamed(event: Event) -> bool:
    """Return whether events with this operation are sent to subscribers."""
    return event.operation not in ("retried", "unknown")
