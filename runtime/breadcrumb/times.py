"""Times as the store keeps them (microseconds since 1970, UTC) and as clients read them (RFC 3339)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# The index scores are doubles: beyond 2**53 microseconds (year 2255) they would lose precision.
LATEST = (1 << 53) - 1


def to_text(microseconds: int) -> str:
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds")[:-6] + "Z"


def from_datetime(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND
