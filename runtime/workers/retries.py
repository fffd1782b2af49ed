"""Decide whether and when an event is attempted again, and how many attempts run at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import anyio

from breadcrumbs.runtime.workers.errors import TurnCancelled, TurnFailed

_MAX_PAUSE_SECONDS: Final = 120.0
"""A provider that asks for a longer pause is asked again after this time."""
_FIRST_RERUNS: Final = 16


def is_retryable(error: Exception) -> bool:
    """Return whether another attempt may succeed. An unknown error may be temporary."""
    if isinstance(error, TurnFailed):
        return error.retry
    return not isinstance(error, TurnCancelled)


def exponential_backoff(attempt: int) -> float:
    """Return the seconds to wait after this attempt: 0.5, 1, 2, … up to 30."""
    return min(30.0, 0.5 * 2.0 ** (attempt - 1))


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """How many turns run at once, and how often an event is attempted."""

    concurrency: int = 256
    attempts: int = 4
    backoff: Callable[[int], float] = exponential_backoff
    """Returns the seconds to wait after an attempt, by its number."""

    def pause(self, attempt: int, error: Exception) -> float:
        """Return the seconds to wait before the next attempt."""
        requested = error.retry_after if isinstance(error, TurnFailed) else None
        return max(self.backoff(attempt), min(requested or 0.0, _MAX_PAUSE_SECONDS))


class Permits(Protocol):
    """A limit on how many turns run at once."""

    async def acquire(self) -> object: ...

    def release(self) -> None: ...


class Slot:
    """A permit to run a turn. A turn that waits for its next attempt gives it back meanwhile."""

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
    """Limits how many events run at once that an earlier worker may have started.

    After a takeover there may be hundreds of them. If they all started at once on a busy machine, none would finish
    before the next worker dies. So a few start, and one more for each that ended. Suspects run one at a time; between
    two of them a window of others runs, so that neither kind waits for all of the other.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._window = min(_FIRST_RERUNS, limit)
        self._running = 0
        self._before_suspect = self._window
        """How many others start before the next suspect."""
        self._suspect_runs = False
        self._waiting: deque[anyio.Event] = deque()
        self._suspects: deque[anyio.Event] = deque()
        self.together: Permits = _RerunPermits(self, alone=False)
        self.alone: Permits = _RerunPermits(self, alone=True)

    async def acquire(self, *, alone: bool) -> None:
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
    """One of the two queues of `Reruns`, as a `Slot` uses it."""

    def __init__(self, reruns: Reruns, *, alone: bool) -> None:
        self._reruns = reruns
        self._alone = alone

    async def acquire(self) -> None:
        await self._reruns.acquire(alone=self._alone)

    def release(self) -> None:
        self._reruns.release(alone=self._alone)
