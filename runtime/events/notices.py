"""Notices: what a client is told while a model fails and is called again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.text import shorten_line

_MAX_REASON_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True)
class Notice:
    """A call of a model or an attempt of a turn failed, and another one follows."""

    attempt: int
    """Number of the attempt that follows. The first attempt was 1."""
    reason: str
    """Reason of the failure. Secrets are already removed."""
    retry_at: int
    """Time of the next attempt in microseconds since 1970, by the clock of the store."""
    retry_in: float
    """Seconds until the next attempt."""

    @classmethod
    def of(cls, reason: str, seconds: float, *, attempt: int, now: int) -> Notice:
        """Return a notice about a failure at the time `now`."""
        short = shorten_line(reason, _MAX_REASON_CHARACTERS)
        return cls(attempt, short, now + int(seconds * 1_000_000), round(seconds, 1))

    def at(self, now: int) -> Notice:
        """Return the notice with the seconds that are left at the time `now`."""
        return replace(self, retry_in=round(max(0.0, (self.retry_at - now) / 1_000_000), 1))

    def encode(self) -> list[Any]:
        return [self.attempt, self.reason, self.retry_at, self.retry_in]

    @classmethod
    def decode(cls, value: Any) -> Notice | None:
        """Decode a notice. Raises TypeError if it is invalid."""
        return None if value is None else cls(*value)

    def document(self) -> dict[str, Any]:
        """Return the fields that clients get."""
        return {
            "attempt": self.attempt,
            "reason": self.reason,
            "retry_at": times.to_text(self.retry_at),
            "retry_in": self.retry_in,
        }
