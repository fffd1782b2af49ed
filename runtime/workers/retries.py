"""Retry policy of turns, and limits on concurrent turns.

Decides whether and when an event is attempted again, and how many turns run at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import anyio

from breadcrumbs.runtime.workers.errors import TurnCancelled, TurnFailed

_MAX_PAUSE_SECONDS: Final = 120.0
"""Longest pause before a retry. If a provider requests a longer pause, the turn is retried after this time."""
_FIRST_WINDOW: Final = 16
"""Maximum number of concurrent reruns at first. See `Reruns`."""


def is_retryable(error: Exception) -> bool:
    """Return whether another attempt can succeed. Unknown errors are assumed to be temporary."""
    if isinstance(error, TurnFailed):
        return error.retry
    return not isinstance(error, TurnCancelled)


def exponential_backoff(attempt: int) -> float:
    """Return the seconds to wait after an attempt: 0.5, 1, 2, … up to 30."""
    return min(30.0, 0.5 * 2.0 ** (attempt - 1))


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """Maximum number of concurrent turns and of attempts, and the pauses between attempts."""

    concurrency: int = 256
    """Maximum number of concurrent turns."""
    attempts: int = 4
    """Maximum number of attempts at an event."""
    backoff: Callable[[int], float] = exponential_backoff
    """Returns the seconds to wait after an attempt, given its number."""
    drain_seconds: float = 60.0
    """Longest time that a drained worker waits for its running turns."""

    def pause(self, attempt: int, error: Exception) -> float:
        """Return the seconds to wait before the next attempt."""
        requested = error.retry_after if isinstance(error, TurnFailed) else None
        return max(self.backoff(attempt), min(requested or 0.0, _MAX_PAUSE_SECONDS))


class Permits(Protocol):
    """Limit on concurrent turns."""

    async def acquire(self) -> object: ...

    def release(self) -> None: ...


class Slot:
    """Permission to run a turn.

    A turn releases its slot while it waits for the next attempt.
    """

    def __init__(self, permits: Permits) -> None:
        self._permits = permits
        self._held = False

    async def __aenter__(self) -> Slot:
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._held:
            self.release()

    async def acquire(self) -> None:
        await self._permits.acquire()
        self._held = True

    def release(self) -> None:
        self._held = False
        self._permits.release()


class Reruns:
    """Limit on concurrent reruns: turns for events that an earlier worker may have started.

    After a takeover there can be hundreds of such events. If they all started at once on a busy machine, none would
    finish before the next worker dies. So the window (the number of concurrent reruns) is small at first, and grows by
    one with each rerun that ends.

    Suspects (see `attempts.py`) run alone, without other reruns. Between two suspects, as many other events start as
    the window allows. So suspects do not wait for all other events, and other events do not wait for all suspects.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._window = min(_FIRST_WINDOW, limit)
        self._running = 0
        self._before_suspect = self._window
        """Number of other events to start before the next suspect."""
        self._suspect_runs = False
        self._waiting: deque[anyio.Event] = deque()
        self._suspects: deque[anyio.Event] = deque()
        self.together: Permits = _RerunPermits(self, alone=False)
        """Permits to run concurrently with other reruns."""
        self.alone: Permits = _RerunPermits(self, alone=True)
        """Permits to run without other reruns, for suspects."""

    async def acquire(self, *, alone: bool) -> None:
        """Wait until a rerun may start. `alone` is for suspects."""
        queue = self._suspects if alone else self._waiting
        started = anyio.Event()
        queue.append(started)
        self._start_next()
        if started.is_set():
            return
        try:
            await started.wait()
        except anyio.get_cancelled_exc_class():
            if started.is_set():
                self.release(alone=alone)
            else:
                queue.remove(started)
                self._start_next()
            raise

    def release(self, *, alone: bool) -> None:
        """End a rerun and start waiting ones."""
        self._running -= 1
        if alone:
            self._suspect_runs = False
        self._window = min(self._limit, self._window + 1)
        self._start_next()

    def _start_next(self) -> None:
        while self._waiting and self._may_start_other():
            self._running += 1
            self._before_suspect -= 1
            self._waiting.popleft().set()
        if self._suspects and not self._running and (not self._waiting or self._before_suspect <= 0):
            self._running, self._suspect_runs = 1, True
            self._before_suspect = self._window
            self._suspects.popleft().set()

    def _may_start_other(self) -> bool:
        suspect_is_next = self._suspects and self._before_suspect <= 0
        return not self._suspect_runs and not suspect_is_next and self._running < self._window


class _RerunPermits:
    """Adapter for one of the two queues of `Reruns`, used by `Slot`."""

    def __init__(self, reruns: Reruns, *, alone: bool) -> None:
        self._reruns = reruns
        self._alone = alone

    async def acquire(self) -> None:
        await self._reruns.acquire(alone=self._alone)

    def release(self) -> None:
        self._reruns.release(alone=self._alone)
