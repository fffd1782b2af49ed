"""The setting `rate_limits`: rates and budgets of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from breadcrumbs.runtime.breadcrumb.ttl import parse_duration

RouteClass = Literal["posting", "managing", "reading"]
"""Class of a route. Each class has its own budget, so that one class cannot use up the budget of another."""

_MAX_RATE = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of requests per time. They can all be made at once if none were made during that time."""

    count: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.count}/{self.seconds:g}s"


def parse_rate(value: object) -> Rate | None:
    """Parse a rate such as `600/1m`. `off` gives None, which means no limit."""
    if value is None or isinstance(value, Rate):
        return value
    count, slash, window = str(value).partition("/")
    if value == "off":
        return None
    try:
        if not (slash and count.strip().isascii() and count.strip().isdigit()):
            raise ValueError
        seconds = parse_duration(window.strip()).total_seconds()
    except ValueError:
        raise ValueError("a rate must be a number of requests and a time, such as 600/1m, or off") from None
    if not 1 <= int(count) <= _MAX_RATE or not 1 <= seconds <= 86_400:
        raise ValueError("a rate must have 1 to 1,000,000,000 requests and a time from one second to one day")
    return Rate(int(count), seconds)


AnyRate = Annotated[
    Rate | None,
    BeforeValidator(parse_rate),
    PlainSerializer(lambda rate: "off" if rate is None else str(rate), return_type=str),
]


class RateBudget(BaseModel):
    """The rates of one class of routes: per token, per API key and per owner."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    per_token: AnyRate = None
    per_key: AnyRate = None
    per_owner: AnyRate = None


class RateLimits(BaseModel):
    """The budgets of all classes of routes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool | None = Field(None, description="None: enabled except in development mode")
    posting: RateBudget = RateBudget(
        per_token=Rate(1_000, 10), per_key=Rate(5_000, 10), per_owner=Rate(10_000, 10)
    )
    managing: RateBudget = RateBudget(
        per_token=Rate(200, 10), per_key=Rate(1_000, 10), per_owner=Rate(2_000, 10)
    )
    reading: RateBudget = RateBudget(
        per_token=Rate(5_000, 10), per_key=Rate(25_000, 10), per_owner=Rate(50_000, 10)
    )

    def of(self, route_class: RouteClass) -> RateBudget:
        """Return the budget of a class."""
        budget: RateBudget = getattr(self, route_class)
        return budget
