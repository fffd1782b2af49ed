"""Converts times between the store's form (microseconds since 1970, UTC) and RFC 3339."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# Index scores are doubles, which lose precision above 2**53 microseconds (year 2255).
LATEST = (1 << 53) - 1


def to_text(microseconds: int) -> str:
    """Format a time as RFC 3339 in UTC, with six decimal places."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return f"{_second_text(seconds)}.{rest:06d}Z"


@lru_cache(256)
def _second_text(seconds: int) -> str:
    # Cached, because most times of a turn are in the same second.
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:-6]


def from_datetime(moment: datetime) -> int:
    """Return the microseconds since 1970. `moment` must have a time zone."""
    return (moment - _EPOCH) // _MICROSECOND
