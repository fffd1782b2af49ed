"""Rate limits: budgets per class of routes, for each token, API key and owner.

The budgets are in the store, so they apply to all processes together.
"""

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

_MAX_CACHED_BUDGETS: Final = 10_000  # a cache is cleared above this size
_RESERVED_SECONDS: Final = 1.0  # reserved requests that are not used within this time are lost
_RESERVATIONS_PER_BUDGET: Final = 200
"""A process reserves 1/200 of a budget at a time, so that it does not call the store for each request."""


@dataclass(frozen=True, slots=True)
class RemainingBudget:
    """The budget with the fewest requests left, after a request."""

    limit: int
    remaining: int
    reset: int
    """Seconds until the budget is full again."""


class _ReservedRequests:
    """Requests that were reserved in the store and not made yet."""

    __slots__ = ("count", "left", "taking", "until")

    def __init__(self) -> None:
        self.count = 0
        self.left = RemainingBudget(0, 0, 0)
        """Reply of the store to the reservation. It does not include the reserved requests."""
        self.until = 0.0
        """Time (`time.monotonic`) when the reservation ends."""
        self.taking = anyio.Lock()
        """Held during a reservation, so that concurrent requests share one call to the store."""

    def take(self) -> RemainingBudget | None:
        """Use one reserved request, or return None if there is none left."""
        if not self.count or time.monotonic() >= self.until:
            return None
        self.count -= 1
        return replace(self.left, remaining=self.left.remaining + self.count)


class RateLimiter:
    """Charges requests to their budgets, and refuses those that exceed a budget."""

    def __init__(self, store: Store, limits: RateLimits) -> None:
        self._store = store
        self._limits = limits
        self._reserved: dict[tuple[RouteClass, Principal], _ReservedRequests] = {}
        self._exhausted_until: dict[bytes, int] = {}
        """Time until which a budget is exhausted, by its key. Until then, requests are refused without the store."""

    async def spend(self, principal: Principal, route_class: RouteClass) -> RemainingBudget | None:
        """Charge one request to the budgets of a class. Return None if there are none. Raises `RateLimited`."""
        reserved = self._reserved.get((route_class, principal))
        if reserved is not None and (left := reserved.take()) is not None:
            return left
        rates = self._applicable_rates(principal, route_class)
        if not rates:
            return None
        now = self._store.now()
        for key, (rate, whose) in rates.items():
            if (until := self._exhausted_until.get(key, 0)) > now:
                raise _rate_limited_error(route_class, rate, whose, until - now)
        batch = min(max(1, rate.count // _RESERVATIONS_PER_BUDGET) for rate, _ in rates.values())
        if batch == 1:
            return await self._take_from_store(principal.owner_id, rates, route_class, 1)
        if reserved is None:
            if len(self._reserved) >= _MAX_CACHED_BUDGETS:
                self._reserved.clear()
            reserved = self._reserved.setdefault((route_class, principal), _ReservedRequests())
        async with reserved.taking:
            if (left := reserved.take()) is not None:
                return left
            try:
                reserved.left = await self._take_from_store(principal.owner_id, rates, route_class, batch)
            except RateLimited:  # the batch does not fit, but a single request might
                return await self._take_from_store(principal.owner_id, rates, route_class, 1)
            reserved.count, reserved.until = batch, time.monotonic() + _RESERVED_SECONDS
            return reserved.take()

    def _applicable_rates(
        self, principal: Principal, route_class: RouteClass
    ) -> dict[bytes, tuple[Rate, str]]:
        """Return the rates that apply to a request, by the key of their budget.

        Each rate has the name of its holder for error messages, such as "this token".
        """
        budget, owner, keys = self._limits.of(route_class), principal.owner_id, self._store.keys
        lane = self._lane(owner)
        rates: dict[bytes, tuple[Rate, str]] = {}
        if budget.per_token is not None:
            # All agents of an API key share one budget. Development mode has no keys.
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
        f"retry in {seconds} s",
        seconds,
        limit=rate.count,
    )
