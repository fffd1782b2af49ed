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

_SPEND_SCRIPT = Script("spend")

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


class _TakenRequests:
    """Requests that were taken from the store and not made yet."""

    __slots__ = ("count", "left", "taking", "until")

    def __init__(self) -> None:
        self.count = 0
        self.left = RemainingBudget(0, 0, 0)
        self.until = 0.0
        self.taking = anyio.Lock()
        """One of several concurrent requests asks the store for all of them."""

    def take(self) -> RemainingBudget | None:
        """Take one request, or return None. Requests that were not used for a while are lost."""
        if not self.count or time.monotonic() >= self.until:
            return None
        self.count -= 1
        return replace(self.left, remaining=self.left.remaining + self.count)


class RateLimiter:
    """Takes requests from their budgets, and refuses those that exceed them."""

    def __init__(self, store: Store, limits: RateLimits) -> None:
        self._store = store
        self._limits = limits
        self._taken_requests: dict[tuple[RouteClass, Principal], _TakenRequests] = {}
        self._exhausted_until: dict[bytes, int] = {}
        """Until when a budget is known to be exhausted. Until then, requests are refused without the store."""

    async def spend(self, principal: Principal, route_class: RouteClass) -> RemainingBudget | None:
        """Take one request from the budgets of a class. None: it has none. Raises `RateLimited`."""
        taken = self._taken_requests.get((route_class, principal))
        if taken is not None and (left := taken.take()) is not None:
            return left
        rates = self._applicable_rates(principal, route_class)
        if not rates:
            return None
        now = self._store.now()
        for key, (rate, whose) in rates.items():
            if (until := self._exhausted_until.get(key, 0)) > now:
                raise _rate_limited_error(route_class, rate, whose, until - now)
        some = min(max(1, rate.count // _COARSENESS) for rate, _ in rates.values())
        if some == 1:
            return await self._take_from_store(principal.owner_id, rates, route_class, 1)
        if taken is None:
            if len(self._taken_requests) >= _MAX_CACHED_BUDGETS:
                self._taken_requests.clear()
            taken = self._taken_requests.setdefault((route_class, principal), _TakenRequests())
        async with taken.taking:
            if (left := taken.take()) is not None:
                return left
            try:
                taken.left = await self._take_from_store(principal.owner_id, rates, route_class, some)
            except RateLimited:  # not as many any more, but perhaps one
                return await self._take_from_store(principal.owner_id, rates, route_class, 1)
            taken.count, taken.until = some, time.monotonic() + _KEPT_SECONDS
            return taken.take()

    def _applicable_rates(
        self, principal: Principal, route_class: RouteClass
    ) -> dict[bytes, tuple[Rate, str]]:
        """Return the rates that apply to a request, and whose they are."""
        budget, owner, keys = self._limits.of(route_class), principal.owner_id, self._store.keys
        lane = self._lane(owner)
        rates: dict[bytes, tuple[Rate, str]] = {}
        if budget.per_token is not None:
            # An API key may have several agents: they share one budget. Development mode has no keys.
            holder = principal.key_id or str(principal.agent_id)
            who = (holder, principal.session_id or "", principal.user_id or "")
            rates[keys.budget(lane, owner, route_class, *who)] = (budget.per_token, "this token")
        if budget.per_key is not None and principal.key_id is not None:
            rates[keys.budget(lane, owner, route_class, principal.key_id)] = (budget.per_key, "this API key")
        if budget.per_owner is not None:
            rates[keys.budget(lane, owner, route_class)] = (budget.per_owner, "this owner")
        return rates

    async def _take_from_store(
        self, owner: UUID, rates: dict[bytes, tuple[Rate, str]], route_class: RouteClass, count: int
    ) -> RemainingBudget:
        shares: list[bytes | str | int] = [count]
        for rate, _ in rates.values():
            window = round(rate.seconds * 1_000_000)
            shares += [f"{window / rate.count:.3f}", window]
        refused, index, microseconds, *left = await self._store.connection.run(
            self._lane(owner), _SPEND_SCRIPT, list(rates), shares
        )
        key, (rate, whose) = list(rates.items())[int(index) - 1]
        if not int(refused):
            return RemainingBudget(rate.count, int(left[0]), math.ceil(int(microseconds) / 1_000_000))
        if count == 1:
            if len(self._exhausted_until) >= _MAX_CACHED_BUDGETS:
                self._exhausted_until.clear()
            self._exhausted_until[key] = self._store.now() + int(microseconds)
        raise _rate_limited_error(route_class, rate, whose, int(microseconds))

    def _lane(self, owner: UUID) -> int:
        return lane_for(owner, "rates", "", self._store.lanes)


def _rate_limited_error(route_class: RouteClass, rate: Rate, whose: str, microseconds: int) -> RateLimited:
    seconds = max(1, math.ceil(microseconds / 1_000_000))
    return RateLimited(
        f"{whose} may make {rate.count} requests of the class {route_class!r} in {rate.seconds:g} s: "
        f"try again in {seconds} s",
        seconds,
        limit=rate.count,
    )
