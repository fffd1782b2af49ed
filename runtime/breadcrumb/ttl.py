"""Expiry of breadcrumbs.

| ttl_type   | requires                                    | the breadcrumb expires                                |
|------------|---------------------------------------------|-------------------------------------------------------|
| `never`    | nothing                                     | never, regardless of the default of its schema        |
| `datetime` | `ttl`                                       | at that time                                          |
| `duration` | `ttl_config.duration` or `duration_seconds` | after that time since the write                       |
| `usage`    | `ttl_config.max_reads`                      | after that many reads by id                           |
| `hybrid`   | `max_reads`, and `ttl` or a duration        | at the first limit; at the last, if `hybrid_mode: "all"` |

Without `ttl_type`, a `ttl` means `datetime`, a duration means `duration`, and `max_reads` means `usage`. A breadcrumb
without any TTL field gets the default of its schema, if there is one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_serializer,
)

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.errors import InvalidInput

TtlType = Literal["never", "datetime", "duration", "usage", "hybrid"]

_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SHORT_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_MAX_LIFETIME = timedelta(days=36500)


def parse_duration(value: object) -> timedelta:
    """Parse `90`, `"90s"`, `"15m"`, `"12h"`, `"7d"`, `"2w"` or ISO 8601 (`"PT1H30M"`)."""
    seconds: float
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    elif isinstance(value, str) and (short := _SHORT_DURATION.fullmatch(value.strip())):
        seconds = float(short[1]) * _UNIT_SECONDS[short[2]]
    elif isinstance(value, str) and value.startswith("P"):
        seconds = _iso_seconds(value)
    else:
        raise ValueError("a duration must be a number of seconds, or text such as 90s, 15m, 12h, 7d, PT1H30M")
    if not 0 < seconds <= _MAX_LIFETIME.total_seconds():
        raise ValueError("a duration must be positive and at most 100 years")
    return timedelta(seconds=seconds)


_ISO_DURATION = re.compile(r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")


def _iso_seconds(text: str) -> float:
    match = _ISO_DURATION.fullmatch(text)
    if match is None:
        raise ValueError(
            "an ISO 8601 duration must look like P7D or PT1H30M; years and months are not supported, because their "
            "length varies"
        )
    weights = (604800, 86400, 3600, 60, 1)
    return sum(float(part) * weight for part, weight in zip(match.groups(), weights, strict=True) if part)


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]


class TtlConfig(BaseModel):
    """Parameters of a `ttl_type`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    duration: Duration | None = Field(None, description="90, '90s', '15m', '12h', '7d' or ISO 8601")
    duration_seconds: Annotated[float, Field(gt=0, le=_MAX_LIFETIME.total_seconds())] | None = None
    max_reads: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    hybrid_mode: Literal["any", "all"] = "any"

    @field_serializer("duration", mode="wrap", when_used="json-unless-none")
    def _without_years(self, duration: timedelta, to_iso: SerializerFunctionWrapHandler) -> str:
        # pydantic encodes 400 days as P1Y35D, but `parse_duration` refuses years.
        days = duration.days if duration.days >= 365 else 0
        text: str = to_iso(duration - timedelta(days=days))
        return f"P{days}D{text[1:]}" if days else text

    @property
    def lifetime(self) -> timedelta | None:
        """The duration, from either field."""
        if self.duration is not None:
            return self.duration
        return timedelta(seconds=self.duration_seconds) if self.duration_seconds else None


@dataclass(frozen=True, slots=True)
class Expiry:
    """Expiry limits that the store enforces. Times are in microseconds. 0 means no limit of that kind."""

    at: int = 0
    """Time since 1970."""
    after: int = 0
    """Time since the write."""
    max_reads: int = 0
    needs_all: bool = False
    """Whether both the time and the reads must be used up. Otherwise one of them is enough."""
    reduces: bool = False
    """The breadcrumb is a context: after the time `after` it is reduced to its references instead of deleted."""


NEVER = Expiry()


def is_never(expiry: Expiry) -> bool:
    """Return whether a breadcrumb with this expiry never expires."""
    return expiry is NEVER or expiry == NEVER  # the identity is checked first because it is faster


def plan_expiry(ttl_type: TtlType | None, ttl: datetime | None, config: TtlConfig | None) -> Expiry:
    """Convert the TTL fields of a breadcrumb to limits. Raises InvalidInput if a field is missing."""
    config = config or TtlConfig()
    at, after, max_reads = _deadline_microseconds(ttl), _lifetime_microseconds(config), config.max_reads
    match ttl_type or _implied_type(ttl, config):
        case "never":
            return NEVER
        case "datetime":
            return Expiry(at=_require_value(at, "ttl_type 'datetime' needs a ttl (an RFC 3339 time)", "ttl"))
        case "duration":
            needed = "ttl_type 'duration' needs ttl_config.duration"
            return Expiry(after=_require_value(after, needed, "ttl_config.duration"))
        case "usage":
            needed = "ttl_type 'usage' needs ttl_config.max_reads"
            return Expiry(max_reads=_require_value(max_reads, needed, "ttl_config.max_reads"))
        case "hybrid":
            needed = "ttl_type 'hybrid' needs ttl_config.max_reads"
            max_reads = _require_value(max_reads, needed, "ttl_config.max_reads")
            _require_value(at or after, "ttl_type 'hybrid' needs a ttl or ttl_config.duration", "ttl")
            needs_all = config.hybrid_mode == "all"
            return Expiry(at=at, after=0 if at else after, max_reads=max_reads, needs_all=needs_all)


def _implied_type(ttl: datetime | None, config: TtlConfig) -> TtlType:
    """Return the type that the other TTL fields imply."""
    if ttl:
        return "datetime"
    if config.lifetime:
        return "duration"
    return "usage" if config.max_reads else "never"


def _deadline_microseconds(ttl: datetime | None) -> int:
    at = times.from_datetime(ttl) if ttl else 0
    if at > times.LATEST:
        raise InvalidInput("ttl is after the year 2255: omit it for no limit", where="ttl")
    if at < 0:
        raise InvalidInput("ttl is before 1970: use a later time", where="ttl")
    return at


def _lifetime_microseconds(config: TtlConfig) -> int:
    return int(config.lifetime.total_seconds() * 1_000_000) if config.lifetime else 0


def _require_value(value: int | None, message: str, where: str) -> int:
    if not value:
        raise InvalidInput(message, where=where)
    return value
