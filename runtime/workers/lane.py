"""The state of a lane that this worker holds: events that wait, turns that run, and the low-water mark."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

import anyio

from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.store.fence import Lease
from breadcrumbs.runtime.workers.attempts import NO_ATTEMPTS, Attempts
from breadcrumbs.runtime.workers.leases import Leases, Progress

if TYPE_CHECKING:
    from breadcrumbs.runtime.workers.turn import Turn

SessionKey: TypeAlias = tuple[UUID, str | UUID]
"""An owner and a session: two owners may use the same name. An event without a session has its own id instead."""


def session_key(event: Event) -> SessionKey:
    """Return the key of the events that are handled in order, one at a time."""
    return event.owner_id, event.session_id or event.id


@dataclass(slots=True)
class Lane:
    """A held lane."""

    lease: Lease
    leases: Leases
    position: int
    """The newest event that was read."""
    held_until: float
    """The time (`time.monotonic`) up to which no other worker can have taken the lane, unless this one was evicted."""
    done: frozenset[int] = frozenset()
    """Events above the low-water mark that an earlier worker finished."""
    attempts: dict[int, Attempts] = field(default_factory=dict)
    """Attempts at events that are stored on the server: those of earlier workers, and our own after the first."""
    known_until: int = 0
    """An earlier worker may have started events up to this one."""
    unfinished: dict[int, None] = field(default_factory=dict)
    """Events that were read and are not finished, in the order of the lane."""
    waiting: dict[SessionKey, deque[Event]] = field(default_factory=dict)
    """Events not yet started, by session. A session with a running task has an entry, which may be empty."""
    running: dict[SessionKey, Turn] = field(default_factory=dict)
    acknowledged_up_to: int = 0
    """The low-water mark that the server has."""
    closing: bool = False
    """The lane is being given back or is lost: no event is accepted any more."""
    idle: anyio.Event = field(default_factory=anyio.Event)
    """Set when a closing lane has no running turn any more."""

    @classmethod
    def from_progress(cls, lease: Lease, leases: Leases, progress: Progress, *, held_until: float) -> Lane:
        """Return a lane that continues where the worker before stopped."""
        return cls(
            lease,
            leases,
            progress.acknowledged_up_to,
            held_until,
            progress.done,
            dict(progress.attempts),
            known_until=progress.newest_event,
            acknowledged_up_to=progress.acknowledged_up_to,
        )

    @property
    def number(self) -> int:
        return self.lease.lane

    def low_water_mark(self, *, finished: int | None = None) -> int:
        """Return the time up to which every event is finished. `finished`: count this event as finished, too."""
        first = next((at for at in self.unfinished if at != finished), None)
        # The position limits it, too: a closing lane does not list its waiting events as unfinished.
        return self.position if first is None else min(self.position, first - 1)

    def is_new(self, event: Event) -> bool:
        """Return whether no worker before this one can have started the event."""
        return event.at > self.known_until

    def attempts_at(self, event: Event) -> Attempts:
        return self.attempts.get(event.at, NO_ATTEMPTS)

    def record_attempts(self, attempts: Mapping[int, Attempts]) -> None:
        for at, one in attempts.items():
            if one == NO_ATTEMPTS:
                self.attempts.pop(at, None)
            else:
                self.attempts[at] = one

    def add_event(self, event: Event, session: SessionKey) -> bool:
        """Queue an event. Returns whether its session needs a task."""
        self.unfinished[event.at] = None
        if (queue := self.waiting.get(session)) is not None:
            queue.append(event)
            return False
        self.waiting[session] = deque([event])
        return True

    def finish(self, event: Event) -> None:
        self.unfinished.pop(event.at, None)

    def drop_session(self, session: SessionKey) -> None:
        """Forget the waiting events of a deleted session and stop its turn, which then writes nothing."""
        for event in self.waiting.get(session, ()):
            self.finish(event)
        if session in self.waiting:
            self.waiting[session].clear()
        if (turn := self.running.get(session)) is not None:
            turn.session_gone = True
            turn.scope.cancel()

    def drop_waiting(self) -> None:
        """Forget the events that were not started. The next holder of the lane reads them again."""
        self.waiting = {session: deque() for session in self.running}
        running = {turn.event.at for turn in self.running.values()}
        first_waiting = next((at for at in self.unfinished if at not in running), None)
        if first_waiting is not None:
            self.position = min(self.position, first_waiting - 1)
            self.unfinished = dict.fromkeys(at for at in self.unfinished if at in running)

    def drop_all(self) -> None:
        """Forget all events and stop all turns: another worker handles them."""
        self.closing = True
        self.waiting.clear()
        self.unfinished.clear()
        self.stop_turns()

    def stop_turns(self) -> None:
        for turn in list(self.running.values()):
            turn.scope.cancel()
