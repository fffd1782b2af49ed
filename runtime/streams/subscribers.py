"""The subscriptions of a process. A filter that fails ends its own subscription only."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

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
    """The open subscriptions, by owner."""

    def __init__(self, *, on_empty: Callable[[], None]) -> None:
        """`on_empty` is called when the last subscription was removed."""
        self._by_owner: dict[UUID, set[Subscription]] = {}
        self._on_empty = on_empty
        self.dropped = 0
        """How many were ended because they failed or did not keep up."""

    def __len__(self) -> int:
        return sum(map(len, self._by_owner.values()))

    def __contains__(self, subscription: Subscription) -> bool:
        return subscription in self._by_owner.get(subscription.filter.owner_id, ())

    def of(self, owner: UUID) -> list[Subscription]:
        return list(self._by_owner.get(owner, ()))

    def add(self, subscription: Subscription) -> None:
        self._by_owner.setdefault(subscription.filter.owner_id, set()).add(subscription)

    def remove(self, subscription: Subscription) -> None:
        owner = subscription.filter.owner_id
        same_owner = self._by_owner.get(owner)
        if same_owner is not None:
            same_owner.discard(subscription)
            if not same_owner:
                del self._by_owner[owner]
        if not self._by_owner:
            self._on_empty()

    def drop_all(self) -> None:
        """End every subscription. Each removes itself when its client has left."""
        for subscriptions in self._by_owner.values():
            for subscription in subscriptions:
                subscription.drop()

    def wants(self, subscription: Subscription, event: Event) -> bool:
        try:
            return subscription.filter.wants(event)
        except Exception:
            self._end_failed(subscription)
            return False

    def accepts(self, subscription: Subscription, event: Event, evaluation: Evaluation | None) -> bool | None:
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
        """Queue an event for a subscriber."""
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
        """Queue a value. A subscriber whose queue is full is removed."""
        if not subscription.offer(value):
            self.dropped += 1
            self.remove(subscription)

    def give_up(self, subscription: Subscription) -> None:
        """End a subscription that does not keep up."""
        subscription.give_up()
        self.dropped += 1
        self.remove(subscription)

    def _end_failed(self, subscription: Subscription) -> None:
        _log.exception("the filter of a client failed, its stream ends")
        self.dropped += 1
        subscription.drop()
        self.remove(subscription)
