"""Counts the attempts at an event, and decides which events run alone.

A worker that handles an event again (after a takeover or a failure) stores a mark before it starts the handler, and
removes the mark when the handler ends. A mark that the next holder of the lane finds was therefore left by a worker
that died or stalled while this handler was running. Other events are not blamed.

All handlers that were running are suspects, and at most one of them is guilty. The more often a worker was lost while
an event ran, the fewer other suspects run beside it: first any number, then `SUSPECTS_TOGETHER`, then none. An event
is only given up because of losses if the last one happened while no other suspect ran. Events that are no suspects
are never held back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

SUSPECTS_TOGETHER: Final = 16
_LOSSES_BEFORE_GROUPS: Final = 2
_LOSSES_BEFORE_ALONE: Final = 3
_STALLS_PER_ATTEMPT: Final = 2
"""A stalled worker was probably frozen from outside, so stalls count less than deaths. They do count: a handler that
blocks the event loop stalls one worker after another."""


class Company(Enum):
    """The other events that may run beside an event."""

    ANY = "any"
    SOME_SUSPECTS = "some"
    NO_SUSPECTS = "none"


@dataclass(frozen=True, slots=True)
class Mark:
    """A handler is running: which worker runs it, and whether it is the only suspect there."""

    worker: str
    alone: bool


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts at one event that did not finish it."""

    failures: int = 0
    """Attempts that ended with an exception."""
    deaths: int = 0
    """Attempts during which the worker died."""
    stalls: int = 0
    """Attempts during which the worker lost its lease but kept its connection."""
    lost_alone: bool = False
    """Whether the last death or stall happened while no other suspect was running."""
    mark: Mark | None = None

    @property
    def counted(self) -> int:
        """Attempts that count against the limit."""
        return self.failures + self.deaths

    @property
    def unfinished(self) -> int:
        return self.counted + self.stalls

    def company(self, limit: int) -> Company:
        """Decide which other events may run beside this one. `limit`: the number of attempts allowed."""
        losses = self.deaths + self.stalls
        if losses >= _LOSSES_BEFORE_ALONE or (self.deaths and self.counted >= limit - 1):
            return Company.NO_SUSPECTS
        return Company.SOME_SUSPECTS if losses >= _LOSSES_BEFORE_GROUPS else Company.ANY

    def exhausted(self, limit: int) -> bool:
        """Whether the event is given up without another attempt."""
        used_up = self.counted >= limit or self.stalls >= _STALLS_PER_ATTEMPT * limit
        return used_up and self.lost_alone

    def begun(self, worker: str, *, alone: bool) -> Attempts:
        return replace(self, mark=Mark(worker, alone))

    def ended(self) -> Attempts:
        """Without the mark: the handler is not running, and nothing is counted."""
        return replace(self, mark=None)

    def failed(self) -> Attempts:
        return replace(self, failures=self.failures + 1, mark=None)

    def lost(self, *, stalled: bool) -> Attempts:
        """The worker that left the mark lost its lease while the handler was running."""
        if self.mark is None:
            return self
        return replace(
            self,
            deaths=self.deaths + (not stalled),
            stalls=self.stalls + stalled,
            lost_alone=self.mark.alone,
            mark=None,
        )

    def encode(self) -> bytes:
        """The stored form; empty: nothing to store."""
        if self == NO_ATTEMPTS:
            return b""
        counts = f"{self.failures} {self.deaths} {self.stalls} {int(self.lost_alone)}"
        mark = "" if self.mark is None else f" {int(self.mark.alone)} {self.mark.worker}"
        return (counts + mark).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Attempts:
        """Read the stored form. Earlier versions stored one number that also counted healthy events: it is dropped."""
        fields = raw.decode().split(" ", 5)
        if len(fields) < 4:
            return NO_ATTEMPTS
        failures, deaths, stalls, lost_alone = map(int, fields[:4])
        mark = Mark(fields[5], fields[4] == "1") if len(fields) == 6 else None
        return cls(failures, deaths, stalls, bool(lost_alone), mark)


NO_ATTEMPTS: Final = Attempts()
