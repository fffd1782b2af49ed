"""Counts the attempts at an event, and decides which events run alone.

A worker that handles an event again (after a takeover or a failure) stores a mark before it starts the handler, and
removes the mark when the handler ends. A mark that the next holder of the lane finds was therefore left by a worker
that died or stalled while this handler was running. Other events are not blamed.

All handlers that were running are suspects, and at most one of them is guilty. A loss beside others therefore counts
as no attempt: it only makes the event a suspect. After `_LOSSES_BEFORE_ALONE` such losses the event runs alone, which
means that no other marked event runs in the same worker. The death of a worker then is an attempt of that event. So a
deadly event uses up its own attempts and no others, and a healthy one has to be alone at each of several deaths before
it is given up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

_LOSSES_BEFORE_ALONE: Final = 3
"""Two losses are common when workers are restarted by force: the events that ran go on beside each other."""
_STALLS_PER_ATTEMPT: Final = 2
"""A stalled worker was probably frozen from outside, so stalls count less than deaths. They do count: a handler that
blocks the event loop stalls one worker after another."""


@dataclass(frozen=True, slots=True)
class RunningMark:
    """Records which worker runs a handler, and whether that worker runs no other marked event."""

    worker: str
    alone: bool


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts at one event that did not finish it."""

    failures: int = 0
    """Attempts that ended with an exception."""
    shared_losses: int = 0
    """Attempts during which the worker died or stalled while other marked events were running, too."""
    deaths: int = 0
    """Attempts during which the worker died while this event ran alone."""
    stalls: int = 0
    """The same for a worker that lost its lease but kept its connection."""
    mark: RunningMark | None = None

    @property
    def counted(self) -> int:
        """Attempts that count against the limit."""
        return self.failures + self.deaths

    @property
    def runs_alone(self) -> bool:
        return self.shared_losses >= _LOSSES_BEFORE_ALONE or self.deaths + self.stalls > 0

    def exhausted(self, limit: int) -> bool:
        """Whether the event is given up without another attempt. `limit`: the number of attempts allowed."""
        return self.counted >= limit or self.stalls >= _STALLS_PER_ATTEMPT * limit

    def begun(self, worker: str, *, alone: bool) -> Attempts:
        return replace(self, mark=RunningMark(worker, alone))

    def ended(self) -> Attempts:
        """Without the mark: the handler is not running, and nothing is counted."""
        return replace(self, mark=None)

    def failed(self) -> Attempts:
        return replace(self, failures=self.failures + 1, mark=None)

    def lost(self, *, stalled: bool) -> Attempts:
        """The worker that left the mark lost its lease while the handler was running."""
        if self.mark is None:
            return self
        if not self.mark.alone:
            return replace(self, shared_losses=self.shared_losses + 1, mark=None)
        return replace(self, deaths=self.deaths + (not stalled), stalls=self.stalls + stalled, mark=None)

    def encode(self) -> bytes:
        """The stored form; empty: nothing to store."""
        if self == NO_ATTEMPTS:
            return b""
        counts = f"{self.failures} {self.shared_losses} {self.deaths} {self.stalls}"
        mark = "" if self.mark is None else f" {int(self.mark.alone)} {self.mark.worker}"
        return (counts + mark).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Attempts:
        """Read the stored form. Earlier versions stored one number that also counted healthy events: it is dropped."""
        fields = raw.decode().split(" ", 5)
        if len(fields) < 4:
            return NO_ATTEMPTS
        failures, shared_losses, deaths, stalls = map(int, fields[:4])
        mark = RunningMark(fields[5], fields[4] == "1") if len(fields) == 6 else None
        return cls(failures, shared_losses, deaths, stalls, mark)


NO_ATTEMPTS: Final = Attempts()
