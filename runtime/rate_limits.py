"""Rate limits: budgets per class of routes, per token and per owner. They are in the store, so they hold for all
processes together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.connection import Script
from breadcrumbs.runtime.errors import RateLimited
from breadcrumbs.runtime.ids import lane_for
from breadcrumbs.runtime.rates import Class, Rate, RateLimits
from breadcrumbs.runtime.store import Store

_SPEND = Script("spend")

_MOST_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of the tightest budget after a request."""

    limit: int
    remaining: int
    reset: int
    """Seconds until all of it is there again."""


class RateLimiter:
    """Lets requests spend what their budgets have."""

    def __init__(self, store: Store, limits: RateLimits) -> None:
        self._store = store
        self._limits = limits
        self._spent: dict[bytes, int] = {}
        """Until when a budget is known to be spent: who does not stop asking is refused without the store."""

    async def spend(self, principal: Principal, spent: Class) -> Left | None:
        """Take one request from the budgets of a class. None: it has none. Raises `RateLimited`."""
        budget = self._limits.of(spent)
        owner, keys = principal.owner_id, self._store.keys
        lane = lane_for(owner, "rates", "", self._store.lanes)
        who = (str(principal.agent_id), principal.session_id or "", principal.user_id or "")
        rates: dict[bytes, tuple[Rate, str]] = {}
        if budget.per_token is not None:
            rates[keys.budget(lane, owner, spent, *who)] = (budget.per_token, "this token")
        if budget.per_owner is not None:
            rates[keys.budget(lane, owner, spent)] = (budget.per_owner, "this owner")
        if not rates:
            return None
        now = self._store.now()
        for key, (rate, whose) in rates.items():
            if (until := self._spent.get(key, 0)) > now:
                raise _refusal(spent, rate, whose, until - now)
        shares: list[bytes | str | int] = []
        for rate, _ in rates.values():
            window = round(rate.seconds * 1_000_000)
            shares += [f"{window / rate.count:.3f}", window]
        refused, place, microseconds, *left = await self._store.connection.run(
            lane, _SPEND, list(rates), shares
        )
        key, (rate, whose) = list(rates.items())[int(place) - 1]
        if int(refused):
            if len(self._spent) >= _MOST_REMEMBERED:
                self._spent.clear()
            self._spent[key] = now + int(microseconds)
            raise _refusal(spent, rate, whose, int(microseconds))
        return Left(rate.count, int(left[0]), math.ceil(int(microseconds) / 1_000_000))


def _refusal(spent: Class, rate: Rate, whose: str, microseconds: int) -> RateLimited:
    seconds = max(1, math.ceil(microseconds / 1_000_000))
    return RateLimited(
        f"{whose} may make {rate.count} requests of the class {spent!r} in {rate.seconds:g} s: "
        f"try again in {seconds} s",
        seconds,
        limit=rate.count,
    )
