"""Counts the attempts at an event, and decides which events run alone.

A worker that handles an event again (after a takeover or a failure) stores a mark before it starts the handler. It
removes the mark when the handler ends. So if the next holder of the lane finds a mark, the previous worker died or
stalled while this handler was running. Events without a mark are not blamed.

Several handlers may have been running, and at most one of them caused the death. A loss while other marked events ran
is therefore not counted as an attempt. It only makes the event a suspect. After `_LOSSES_BEFORE_ALONE` such losses the
event runs alone: no other marked event runs in the same worker. If the worker dies then, an attempt is counted.

As a result, an event that kills workers uses up only its own attempts. A harmless event becomes a dead letter only if
it happened to run alone at each of several deaths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

_LOSSES_BEFORE_ALONE: Final = 3
"""Two losses are common when workers are killed and restarted. Events with fewer losses than this run concurrently."""
_STALLS_PER_ATTEMPT: Final = 2
"""The limit of stalls is this many times the limit of attempts. A stalled worker was probably frozen from outside, so
stalls count less than deaths. They are counted because a handler that blocks the event loop stalls one worker after
another."""


@dataclass(frozen=True, slots=True)
class RunningMark:
    """Mark of a handler that was started and has not ended."""

    worker: str
    alone: bool
    """Whether no other marked event runs in the same worker."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """Attempts at one event that did not finish it."""

    failures: int = 0
    """Attempts that ended with an exception."""
    shared_losses: int = 0
    """Attempts during which the worker died or stalled while other marked events were also running."""
    deaths: int = 0
    """Attempts during which the worker died while this event ran alone."""
    stalls: int = 0
    """Attempts during which the worker lost its lease but kept its connection, while this event ran alone."""
    mark: RunningMark | None = None
    """Set while the handler is running."""

    @property
    def counted(self) -> int:
        """Number of attempts that count against the limit."""
        return self.failures + self.deaths

    @property
    def runs_alone(self) -> bool:
        """Whether the event must run without other marked events."""
        return self.shared_losses >= _LOSSES_BEFORE_ALONE or self.deaths + self.stalls > 0

    def exhausted(self, limit: int) -> bool:
        """Return whether no attempt is left. `limit` is the maximum number of attempts."""
        return self.counted >= limit or self.stalls >= _STALLS_PER_ATTEMPT * limit

    def started(self, worker: str, *, alone: bool) -> Attempts:
        """Return a copy with the mark of a handler that starts."""
        return replace(self, mark=RunningMark(worker, alone))

    def ended(self) -> Attempts:
        """Return a copy without the mark. Nothing is counted."""
        return replace(self, mark=None)

    def failed(self) -> Attempts:
        """Return a copy with one more failure and without the mark."""
        return replace(self, failures=self.failures + 1, mark=None)

    def lost(self, *, stalled: bool) -> Attempts:
        """Return a copy that counts a lost attempt, without the mark.

        The worker that stored the mark lost its lease while the handler was running. `stalled` is true if that worker
        is still connected, so it did not die. Without a mark nothing is counted.
        """
        if self.mark is None:
            return self
        if not self.mark.alone:
            return replace(self, shared_losses=self.shared_losses + 1, mark=None)
        return replace(self, deaths=self.deaths + (not stalled), stalls=self.stalls + stalled, mark=None)

    def encode(self) -> bytes:
        """Return the stored form: the counts and the mark, separated by spaces.

        Empty if there are none.
        """
        if self == NO_ATTEMPTS:
            return b""
        counts = f"{self.failures} {self.shared_losses} {self.deaths} {self.stalls}"
        mark = "" if self.mark is None else f" {int(self.mark.alone)} {self.mark.worker}"
        return (counts + mark).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Attempts:
        """Decode the stored form.

        Earlier versions stored a single number, which also counted harmless events. It is ignored.
        """
        fields = raw.decode().split(" ", 5)
        if len(fields) < 4:
            return NO_ATTEMPTS
        failures, shared_losses, deaths, stalls = map(int, fields[:4])
        mark = RunningMark(fields[5], fields[4] == "1") if len(fields) == 6 else None
        return cls(failures, shared_losses, deaths, stalls, mark)


NO_ATTEMPTS: Final = Attempts()
"""Attempts at an event that was not attempted yet, or whose attempts are not stored."""
