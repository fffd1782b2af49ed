"""Set of the open subscriptions of a process.

The hub calls filters only through this class. A filter that raises an error ends only its own subscription.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.streams.conditions import Evaluation
from breadcrumbs.runtime.streams.stream_event import (
    OutgoingEvent,
    ReachedPosition,
    StreamValue,
)
from breadcrumbs.runtime.streams.subscription import Subscription

_log = structlog.get_logger("breadcrumbs.hub")


class Subscribers:
    """Open subscriptions, by owner."""

    def __init__(self, *, on_empty: Callable[[], None]) -> None:
        """`on_empty` is called when the last subscription is removed."""
        # The keys are the integers of the owners, which are hashed and compared much faster than UUIDs.
        self._by_owner: dict[int, set[Subscription]] = {}
        self._on_empty = on_empty
        self.dropped = 0
        """Number of subscriptions that were ended because they failed or were too slow."""

    def __len__(self) -> int:
        return sum(map(len, self._by_owner.values()))

    def __contains__(self, subscription: Subscription) -> bool:
        return subscription in self._by_owner.get(subscription.filter.owner_id.int, ())

    def wanting(self, event: Event) -> list[Subscription]:
        """Return the subscriptions of the event's owner whose filters want the event."""
        # A failing filter removes its subscription during the loop.
        same_owner = list(self._by_owner.get(event.owner_id.int, ()))
        return [subscription for subscription in same_owner if self.wants(subscription, event)]

    def add(self, subscription: Subscription) -> None:
        """Add a subscription. It gets values from now on."""
        self._by_owner.setdefault(subscription.filter.owner_id.int, set()).add(subscription)

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription if it is open."""
        owner = subscription.filter.owner_id.int
        same_owner = self._by_owner.get(owner)
        if same_owner is not None:
            same_owner.discard(subscription)
            if not same_owner:
                del self._by_owner[owner]
        if not self._by_owner:
            self._on_empty()

    def drop_all(self) -> None:
        """End all subscriptions. Each is removed when its client has left."""
        for subscriptions in self._by_owner.values():
            for subscription in subscriptions:
                subscription.drop()

    def wants(self, subscription: Subscription, event: Event) -> bool:
        """Call `Filter.wants`. If it fails, end the subscription and return False."""
        try:
            return subscription.filter.wants(event)
        except Exception:
            self._end_failed(subscription)
            return False

    def accepts(self, subscription: Subscription, event: Event, evaluation: Evaluation | None) -> bool | None:
        """Call `Filter.accepts`. If it fails, end the subscription and return False."""
        try:
            return subscription.filter.accepts(event, evaluation)
        except Exception:
            self._end_failed(subscription)
            return False

    def queue_event(
        self,
        subscription: Subscription,
        outgoing: OutgoingEvent,
        position: ReachedPosition,
        *,
        undecided: bool = False,
    ) -> None:
        """Queue an event for a subscriber.

        `undecided` sends it without its context, marked as undecided.
        """
        try:
            value = (
                outgoing.undecided_view(position)
                if undecided
                else outgoing.view_for(subscription.filter, position)
            )
        except Exception:
            self._end_failed(subscription)
        else:
            self.offer(subscription, value)

    def offer(self, subscription: Subscription, value: StreamValue) -> None:
        """Queue a value for a subscriber.

        Remove the subscriber if its queue is full.
        """
        if not subscription.offer(value):
            self.dropped += 1
            self.remove(subscription)

    def give_up(self, subscription: Subscription) -> None:
        """End a subscription whose client is too slow."""
        subscription.give_up()
        self.dropped += 1
        self.remove(subscription)

    def _end_failed(self, subscription: Subscription) -> None:
        _log.exception("stream filter failed, ending the stream")
        self.dropped += 1
        subscription.drop()
        self.remove(subscription)
