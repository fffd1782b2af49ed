"""How much somebody may ask for: rates and budgets, as settings spell them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from breadcrumbs.runtime.breadcrumb.ttl import parse_duration

RouteClass = Literal["posting", "managing", "reading"]
"""What a request spends: each class of routes has a budget of its own, so that no one starves the others."""

_MAX_RATE = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """So many requests in so many seconds; all of them at once, if it is the first time in a while."""

    count: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.count}/{self.seconds:g}s"


def parse_rate(value: object) -> Rate | None:
    """Read `600/1m`; `off` is no limit."""
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
        raise ValueError("a rate is a number of requests and a time, such as 600/1m, or off") from None
    if not 1 <= int(count) <= _MAX_RATE or not 1 <= seconds <= 86_400:
        raise ValueError("a rate has at least one request, and a time from one second to one day")
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
    """The budgets of all classes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool | None = Field(None, description="None: unless in the development mode")
    posting: RateBudget = RateBudget(
        per_token=Rate(1_000, 10), per_key=Rate(5_000, 10), per_owner=Rate(10_000, 10)
    )
    managing: RateBudget = RateBudget(
        per_token=Rate(200, 10), per_key=Rate(1_000, 10), per_owner=Rate(2_000, 10)
    )
    reading: RateBudget = RateBudget(
        per_token=Rate(5_000, 10), per_key=Rate(25_000, 10), per_owner=Rate(50_000, 10)
    )

    def of(self, spent: RouteClass) -> RateBudget:
        budget: RateBudget = getattr(self, spent)
        return budget
