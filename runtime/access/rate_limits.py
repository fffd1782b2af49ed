"""Rate limits: budgets per class of routes, per token and per owner. They are in the store, so they hold for all
processes together."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

import anyio

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.breadcrumb.ids import lane_for
from breadcrumbs.runtime.errors import RateLimited
from breadcrumbs.runtime.settings.rates import Rate, RateLimits, RouteClass
from breadcrumbs.runtime.store.store import Store

_SPEND = Script("spend")

_MAX_CACHED_BUDGETS: Final = 10_000
_KEPT_SECONDS: Final = 1.0
_COARSENESS: Final = 200
"""Of a budget of n requests a process takes n/200 at a time, and asks the store that much less often."""


@dataclass(frozen=True, slots=True)
class RemainingBudget:
    """The rest of the tightest budget after a request."""

    limit: int
    remaining: int
    reset: int
    """Seconds until the whole budget is available again."""


class _Taken:
    """Requests that were taken from the store and not made yet."""

    __slots__ = ("count", "left", "taking", "until")

    def __init__(self) -> None:
        self.count = 0
        self.left = RemainingBudget(0, 0, 0)
        self.until = 0.0
        self.taking = anyio.Lock()
        """Of many who come at once one asks the store, for all of them."""

    def take(self) -> RemainingBudget | None:
        """One of them, if there is any. Those that nobody has used for a while are lost."""
        if not self.count or time.monotonic() >= self.until:
            return None
        self.count -= 1
        return replace(self.left, remaining=self.left.remaining + self.count)


class RateLimiter:
    """Lets requests spend what their budgets have."""

    def __init__(self, store: Store, limits: RateLimits) -> None:
        self._store = store
        self._limits = limits
        self._taken: dict[tuple[RouteClass, Principal], _Taken] = {}
        self._spent: dict[bytes, int] = {}
        """Until when a budget is known to be spent: who does not stop asking is refused without the store."""

    async def spend(self, principal: Principal, spent: RouteClass) -> RemainingBudget | None:
        """Take one request from the budgets of a class. None: it has none. Raises `RateLimited`."""
        taken = self._taken.get((spent, principal))
        if taken is not None and (left := taken.take()) is not None:
            return left
        rates = self._rates(principal, spent)
        if not rates:
            return None
        now = self._store.now()
        for key, (rate, whose) in rates.items():
            if (until := self._spent.get(key, 0)) > now:
                raise _refusal(spent, rate, whose, until - now)
        some = min(max(1, rate.count // _COARSENESS) for rate, _ in rates.values())
        if some == 1:
            return await self._take(principal.owner_id, rates, spent, 1)
        if taken is None:
            if len(self._taken) >= _MAX_CACHED_BUDGETS:
                self._taken.clear()
            taken = self._taken.setdefault((spent, principal), _Taken())
        async with taken.taking:
            if (left := taken.take()) is not None:
                return left
            try:
                taken.left = await self._take(principal.owner_id, rates, spent, some)
            except RateLimited:  # not as many any more, but perhaps one
                return await self._take(principal.owner_id, rates, spent, 1)
            taken.count, taken.until = some, time.monotonic() + _KEPT_SECONDS
            return taken.take()

    def _rates(self, principal: Principal, spent: RouteClass) -> dict[bytes, tuple[Rate, str]]:
        """The budgets that a request is paid from, and whose they are."""
        budget, owner, keys = self._limits.of(spent), principal.owner_id, self._store.keys
        lane = self._lane(owner)
        rates: dict[bytes, tuple[Rate, str]] = {}
        if budget.per_token is not None:
            # An API key may have several agents: they share one budget. Development mode has no keys.
            holder = principal.key_id or str(principal.agent_id)
            who = (holder, principal.session_id or "", principal.user_id or "")
            rates[keys.budget(lane, owner, spent, *who)] = (budget.per_token, "this token")
        if budget.per_key is not None and principal.key_id is not None:
            rates[keys.budget(lane, owner, spent, principal.key_id)] = (budget.per_key, "this API key")
        if budget.per_owner is not None:
            rates[keys.budget(lane, owner, spent)] = (budget.per_owner, "this owner")
        return rates

    async def _take(
        self, owner: UUID, rates: dict[bytes, tuple[Rate, str]], spent: RouteClass, count: int
    ) -> RemainingBudget:
        shares: list[bytes | str | int] = [count]
        for rate, _ in rates.values():
            window = round(rate.seconds * 1_000_000)
            shares += [f"{window / rate.count:.3f}", window]
        refused, place, microseconds, *left = await self._store.connection.run(
            self._lane(owner), _SPEND, list(rates), shares
        )
        key, (rate, whose) = list(rates.items())[int(place) - 1]
        if not int(refused):
            return RemainingBudget(rate.count, int(left[0]), math.ceil(int(microseconds) / 1_000_000))
        if count == 1:
            if len(self._spent) >= _MAX_CACHED_BUDGETS:
                self._spent.clear()
            self._spent[key] = self._store.now() + int(microseconds)
        raise _refusal(spent, rate, whose, int(microseconds))

    def _lane(self, owner: UUID) -> int:
        return lane_for(owner, "rates", "", self._store.lanes)


def _refusal(spent: RouteClass, rate: Rate, whose: str, microseconds: int) -> RateLimited:
    seconds = max(1, math.ceil(microseconds / 1_000_000))
    return RateLimited(
        f"{whose} may make {rate.count} requests of the class {spent!r} in {rate.seconds:g} s: "
        f"try again in {seconds} s",
        seconds,
        limit=rate.count,
    )
