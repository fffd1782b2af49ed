"""What a subscriber of the event hub may see and wants to see."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.streams.conditions import Evaluation


class Filter(Protocol):
    """Decides which events a subscriber gets, and what of them."""

    owner_id: UUID

    @property
    def token(self) -> Hashable:
        """Equal for subscribers with equal rights: they share a queue for the evaluation of conditions."""
        ...

    @property
    def conditional(self) -> bool:
        """Whether it has conditions on the breadcrumb, which may take long to evaluate."""
        ...

    @property
    def ended(self) -> bool:
        """Whether no more events follow. The stream ends when its queue is empty."""
        ...

    def wants(self, event: Event) -> bool:
        """Decide by the event alone. True may mean that only the breadcrumb can tell."""
        ...

    def accepts(self, event: Event, evaluation: Evaluation | None) -> bool | None:
        """Decide with the breadcrumb; no evaluation: the breadcrumb is gone.

        None: the decision would cost more than the subscriber may spend on one event.
        """
        ...

    def shows_context(self, crumb: Breadcrumb) -> bool:
        """Whether the subscriber may see the context."""
        ...

    def redact(self, crumb: Breadcrumb) -> Breadcrumb:
        """Return what the subscriber may see of a breadcrumb whose context it is shown; itself if that is all."""
        ...


def is_streamed(event: Event) -> bool:
    """Whether subscribers get events of this kind at all."""
    return event.operation not in ("retried", "unknown")
