"""State of one lane in the memory of the worker that holds its lease.

It contains the waiting events, the running turns and the low-water mark (the time up to which all events are finished).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import anyio

from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.store.fence import Lease
from breadcrumbs.runtime.workers.attempts import NO_ATTEMPTS, Attempts
from breadcrumbs.runtime.workers.leases import Leases, Progress
from breadcrumbs.runtime.workers.session_cache import SessionCache

if TYPE_CHECKING:
    from breadcrumbs.runtime.workers.turn import Turn

SessionKey: TypeAlias = tuple[int, str | int]
"""Owner and session. Two owners can use the same session name. An event without a session has its own id instead.

Ids are integers, which are hashed and compared much faster than UUIDs.
"""


def session_key(event: Event) -> SessionKey:
    """Return the key of an event's queue.

    Events with the same key are handled in order, one at a time.
    """
    return event.owner_id.int, event.session_id or event.id.int


@dataclass(slots=True)
class Lane:
    """Lane whose lease this worker holds, with its events and turns."""

    lease: Lease
    leases: Leases
    position: int
    """Time of the newest event that was read."""
    held_until: float
    """Time (`time.monotonic`) until which no other worker can take the lane, unless this worker is evicted."""
    done: frozenset[int] = frozenset()
    """Times of the events above the low-water mark that an earlier worker finished."""
    attempts: dict[int, Attempts] = field(default_factory=dict)
    """Attempts that are stored on the server, by time of the event.

    These are the attempts of earlier workers, and the attempts of this worker after the first.
    """
    newest_at_takeover: int = 0
    """Time of the newest event when this worker took the lane. An earlier worker may have started events up to it."""
    unfinished: dict[int, None] = field(default_factory=dict)
    """Times of the events that were read and are not finished, in the order of the lane. Used as an ordered set."""
    waiting: dict[SessionKey, deque[Event]] = field(default_factory=dict)
    """Events that are not started, by session. A session with a running task has an entry, which can be empty."""
    running: dict[SessionKey, Turn] = field(default_factory=dict)
    """Running turn of each session."""
    acknowledged_up_to: int = 0
    """Low-water mark that is stored on the server."""
    saved_answers: set[int] = field(default_factory=set)
    """Times of the events whose running answers this worker has saved."""
    sessions: SessionCache = field(default_factory=SessionCache)
    """Cache of the worker."""
    closing: bool = False
    """The lane is being released or is lost. No more events are accepted."""
    idle: anyio.Event = field(default_factory=anyio.Event)
    """Set when a closing lane has no running turns."""

    @classmethod
    def from_progress(cls, lease: Lease, leases: Leases, progress: Progress, *, held_until: float) -> Lane:
        """Create a lane that continues at the progress of the previous worker."""
        return cls(
            lease,
            leases,
            progress.acknowledged_up_to,
            held_until,
            progress.done,
            dict(progress.attempts),
            newest_at_takeover=progress.newest_event,
            acknowledged_up_to=progress.acknowledged_up_to,
        )

    @property
    def number(self) -> int:
        return self.lease.lane

    def low_water_mark(self, *, finished: int | None = None) -> int:
        """Return the time up to which every event is finished.

        The event at the time `finished` counts as finished, too.
        """
        first = next((at for at in self.unfinished if at != finished), None)
        # The position is also a limit, because a closing lane removes its waiting events from `unfinished`.
        return self.position if first is None else min(self.position, first - 1)

    def is_new(self, event: Event) -> bool:
        """Return whether no earlier worker can have started the event."""
        return event.at > self.newest_at_takeover

    def attempts_at(self, event: Event) -> Attempts:
        """Return the stored attempts at an event."""
        return self.attempts.get(event.at, NO_ATTEMPTS)

    def record_attempts(self, attempts: Mapping[int, Attempts]) -> None:
        """Replace the attempts at events in memory.

        The keys are the times of the events.
        """
        for at, one in attempts.items():
            if one == NO_ATTEMPTS:
                self.attempts.pop(at, None)
            else:
                self.attempts[at] = one

    def add_event(self, event: Event, session: SessionKey) -> bool:
        """Queue an event.

        Return True if its session has no task yet and one must be started.
        """
        self.unfinished[event.at] = None
        if (queue := self.waiting.get(session)) is not None:
            queue.append(event)
            return False
        self.waiting[session] = deque([event])
        return True

    def finish(self, event: Event) -> None:
        """Mark an event as finished."""
        self.unfinished.pop(event.at, None)
        self.saved_answers.discard(event.at)

    def drop_session(self, session: SessionKey) -> None:
        """Discard the waiting events of a deleted session and stop its turn.

        The turn ends without an answer or an error.
        """
        for event in self.waiting.get(session, ()):
            self.finish(event)
        if session in self.waiting:
            self.waiting[session].clear()
        if (turn := self.running.get(session)) is not None:
            turn.session_gone = True
            turn.scope.cancel()

    def drop_waiting(self) -> None:
        """Discard the events that were not started.

        The next holder of the lane reads them again.
        """
        self.waiting = {session: deque() for session in self.running}
        running = {turn.event.at for turn in self.running.values()}
        first_waiting = next((at for at in self.unfinished if at not in running), None)
        if first_waiting is not None:
            self.position = min(self.position, first_waiting - 1)
            self.unfinished = dict.fromkeys(at for at in self.unfinished if at in running)

    def drop_all(self) -> None:
        """Discard all events and stop all turns, because another worker handles them."""
        self.closing = True
        self.waiting.clear()
        self.unfinished.clear()
        self.stop_turns()

    def stop_turns(self) -> None:
        """Cancel all running turns."""
        for turn in list(self.running.values()):
            turn.scope.cancel()
