"""Brings subscribers up to date that join an answer in progress, or that lost a piece of it.

The text so far is read from the store after the subscription began. Deltas that arrive meanwhile are held, and continue
the text that was read. If the session gets an event meanwhile, the read is repeated: the event can be the answer, and
then its text so far must not follow it.

A long text is sent in parts, because the queue of a subscriber is limited. The next part is read when the subscriber
has taken the one before. So a subscriber always has the beginning of the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, TypeAlias
from uuid import UUID
from weakref import WeakKeyDictionary

import structlog

from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.events.deltas import DELTA, Delta, read_running
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.store.running_answers import NO_RUN
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.streams.shown_answers import Missing, ShownAnswers
from breadcrumbs.runtime.streams.subscribers import Subscribers
from breadcrumbs.runtime.streams.subscription import Subscription
from breadcrumbs.runtime.telemetry.store_calls import log_store_error

_MAX_READS: Final = 5
"""Maximum number of reads of one join. Then the next delta begins another join."""
_MAX_HELD: Final = 200
"""Maximum number of held deltas of one join. Above it, they are dropped, and the next delta begins another join."""
MAX_JOINED_CHARACTERS: Final = 1 << 18
"""Maximum number of characters that one join queues, of all running answers of the session together."""
_QUEUE_PAUSE_SECONDS: Final = 0.05
"""Pause between two looks at the queue of a subscriber that gets a long text in parts."""
_PAUSE_SECONDS: Final = 1.0
"""Pause after a join that did not find the missing piece."""

_NOTHING_SHOWN: Final = ShownAnswers()

_SessionKey: TypeAlias = tuple[UUID, str]

_log = structlog.get_logger("breadcrumbs.hub")


class AnswerJoins:
    """Delivers deltas to subscribers, without gaps and repetitions."""

    def __init__(self, store: Store, subscribers: Subscribers) -> None:
        self._store = store
        self._subscribers = subscribers
        self._shown: WeakKeyDictionary[Subscription, ShownAnswers] = WeakKeyDictionary()
        self._joins: dict[_SessionKey, dict[Subscription, _Join]] = {}
        self._reads = _SharedReads(lambda key: read_running(store, *key))
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def deliver(self, delta: Delta) -> None:
        """Queue a delta for all subscribers that want it."""
        for subscription in self._subscribers.wanting(_as_event(delta)):
            self._deliver_to(subscription, delta)

    def join(self, subscription: Subscription, session: str) -> None:
        """Send the text so far of the session's running answers to a subscriber, without waiting."""
        key = (subscription.filter.owner_id, session)
        joins = self._joins.setdefault(key, {})
        if subscription not in joins:
            joins[subscription] = join = _Join()
            task = asyncio.get_running_loop().create_task(self._run(key, subscription, join))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def on_event(self, event: Event) -> None:
        """Note an event before it is delivered."""
        if not self._joins or event.session_id is None:
            return
        for join in self._joins.get((event.owner_id, event.session_id), {}).values():
            join.restart()

    def on_delivered(self, subscription: Subscription, event: Event) -> None:
        """Forget an answer that a subscriber gets now."""
        if (shown := self._shown.get(subscription)) is not None:
            shown.forget(event.id)

    def _deliver_to(self, subscription: Subscription, delta: Delta) -> None:
        session = delta.session_id
        # Neither an answer without a session nor one of a worker of an earlier version is saved, so there is nothing to
        # join. Such a worker does not number its attempts, so they cannot be told apart.
        if session is None or delta.run == NO_RUN:
            self._subscribers.offer(subscription, delta)
            return
        join = self._joins.get((delta.owner_id, session), {}).get(subscription)
        if join is not None:
            join.hold(delta)
        elif self._offer(subscription, delta):
            self.join(subscription, session)
            self._joins[delta.owner_id, session][subscription].hold(delta)

    def _offer(self, subscription: Subscription, delta: Delta) -> bool:
        """Queue the new part of a delta. Return whether a piece is missing that a join can find."""
        shown = self._shown.get(subscription)
        if shown is None:
            shown = self._shown[subscription] = ShownAnswers()
        value = shown.next(delta)
        if isinstance(value, Missing):
            return shown.may_join(asyncio.get_running_loop().time(), _PAUSE_SECONDS)
        if value is not None:
            self._subscribers.offer(subscription, value)
        return False

    async def _run(self, key: _SessionKey, subscription: Subscription, join: _Join) -> None:
        found: list[Delta] = []
        try:
            for _ in range(_MAX_READS):
                join.is_outdated = False
                found = await self._reads.read(key)
                if not join.is_outdated:
                    break
            else:
                found = []
        except StoreError as error:
            log_store_error(_log, "text of running answers not read", error)
        finally:
            joins = self._joins[key]
            del joins[subscription]
            if not joins:
                del self._joins[key]
        # There is no await before the last value is queued, so no delta or event can come in between.
        parts, is_complete = self._parts(subscription, found)
        for delta in (*parts, *join.held):
            if self._wants(subscription, delta):
                self._offer(subscription, delta)
        if not is_complete:
            await self._continue(key, subscription)

    def _parts(self, subscription: Subscription, found: list[Delta]) -> tuple[list[Delta], bool]:
        """Return as much of the texts so far as fits into the queue, and whether this is all."""
        shown = self._shown.get(subscription, _NOTHING_SHOWN)
        room = min(MAX_JOINED_CHARACTERS, subscription.room)
        parts: list[Delta] = []
        for delta in found:
            if not self._wants(subscription, delta):
                continue
            text, reasoning = shown.lengths(delta)
            left = len(delta.text) - text + len(delta.reasoning) - reasoning
            if left > room:
                reasoning_part = min(room, len(delta.reasoning) - reasoning)
                cut = replace(
                    delta,
                    text=delta.text[: text + room - reasoning_part],
                    reasoning=delta.reasoning[: reasoning + reasoning_part],
                )
                return ([*parts, cut] if room else parts), False
            room -= max(0, left)
            parts.append(delta)
        return parts, True

    def _wants(self, subscription: Subscription, delta: Delta) -> bool:
        return subscription in self._subscribers and self._subscribers.wants(subscription, _as_event(delta))

    async def _continue(self, key: _SessionKey, subscription: Subscription) -> None:
        """Begin another join when the subscriber has taken its values."""
        # A subscriber can also leave, which sets no event, so the queue is polled.
        while subscription in self._subscribers and not subscription.is_read:  # noqa: ASYNC110
            await asyncio.sleep(_QUEUE_PAUSE_SECONDS)
        if subscription in self._subscribers:
            self.join(subscription, key[1])


class _Join:
    """A join that is under way."""

    __slots__ = ("held", "is_outdated")

    def __init__(self) -> None:
        self.held: list[Delta] = []
        self.is_outdated = False

    def hold(self, delta: Delta) -> None:
        if len(self.held) >= _MAX_HELD:
            self.held.clear()
        self.held.append(delta)

    def restart(self) -> None:
        self.held.clear()
        self.is_outdated = True


class _SharedReads:
    """Reads values by key. Callers share a read that has not started yet, never one that has."""

    def __init__(self, read: Callable[[_SessionKey], Coroutine[Any, Any, list[Delta]]]) -> None:
        self._read = read
        self._running: dict[_SessionKey, asyncio.Future[list[Delta]]] = {}
        self._next: dict[_SessionKey, asyncio.Future[list[Delta]]] = {}

    async def read(self, key: _SessionKey) -> list[Delta]:
        upcoming = self._next.get(key)
        if upcoming is None:
            upcoming = asyncio.ensure_future(self._after(self._running.get(key), key))
            self._next[key] = upcoming
        return await asyncio.shield(upcoming)

    async def _after(self, running: asyncio.Future[list[Delta]] | None, key: _SessionKey) -> list[Delta]:
        if running is not None:
            await asyncio.wait([running])
        self._running[key] = self._next.pop(key)
        try:
            return await self._read(key)
        finally:
            del self._running[key]


def _as_event(delta: Delta) -> Event:
    """Return an event for filters. A delta is not in the event log, so its time and lane are 0."""
    return Event("created", delta.owner_id, delta.breadcrumb_id, 0, DELTA, list(delta.tags), None, 0, 0)
