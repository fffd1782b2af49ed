"""Budgets: limits of the tokens or the money that a session, a user or an owner may spend on models.

Budgets come from the setting `budgets` and from `usage.budget.v1` breadcrumbs of an owner. All of them apply. A turn
does not start if one is used up. `spending.py` describes how usage is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Final, Literal, NamedTuple, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

from breadcrumbs.runtime.store.spending import COST_UNITS, NOTHING, Amounts
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.usage import read_days, read_session, read_total

Scope = Literal["session", "user", "owner"]
Period = Literal["day", "month", "total"]

_MAX_TOTALS: Final = 10_000
"""Sums of past months that a process keeps. Above it all are read again."""


class Budget(BaseModel):
    """One limit. It applies to each session, each user, or the whole owner."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scope: Scope = Field(description="`session`: each session, `user`: each user, `owner`: everything")
    period: Period = Field("total", description="`day` and `month` begin at 0:00 UTC")
    tokens: Annotated[int, Field(ge=0, le=1 << 60)] | None = Field(
        None, description="Maximum of input and output tokens. 0: no turn starts"
    )
    cost: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = Field(
        None, description="Maximum cost, in the currency of the price table. 0: no turn starts"
    )
    user_id: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="Only this user, for the scope `user`"
    )
    session_id: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="Only this session, for the scope `session`"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tokens is None and self.cost is None:
            raise ValueError("a budget needs tokens or cost")
        if self.scope == "session" and self.period != "total":
            raise ValueError("a budget of sessions has the period total: the usage of a session has no days")
        if self.user_id is not None and self.scope != "user":
            raise ValueError("user_id needs the scope user")
        if self.session_id is not None and self.scope != "session":
            raise ValueError("session_id needs the scope session")
        return self

    @property
    def key(self) -> str:
        """Budgets of one owner with the same key replace each other."""
        return f"{self.scope} {self.period} {self.user_id or ''} {self.session_id or ''}"

    @property
    def is_zero(self) -> bool:
        """Whether the budget allows nothing."""
        return self.tokens == 0 or self.cost == 0

    def applies_to(self, session: str | None, user: str | None) -> bool:
        """Return whether a turn in this session and for this user counts."""
        match self.scope:
            case "owner":
                return True
            case "user":
                return user is not None and self.user_id in (None, user)
            case "session":
                return session is not None and self.session_id in (None, session)

    def is_used_up(self, used: Amounts) -> bool:
        return (self.tokens is not None and used.tokens >= self.tokens) or (
            self.cost is not None and used.cost >= self.cost * COST_UNITS
        )

    def describe(self, used: Amounts, session: str | None, user: str | None) -> str:
        """Return the usage and the limit, as people read it."""
        whose = {"session": f"session {session!r}", "user": f"user {user!r}", "owner": "this owner"}[
            self.scope
        ]
        when = {"day": " of this day (UTC)", "month": " of this month (UTC)", "total": ""}[self.period]
        amounts = []
        if self.tokens is not None:
            amounts.append(f"{used.tokens:,} of {self.tokens:,} tokens")
        if self.cost is not None:
            amounts.append(f"cost {used.cost / COST_UNITS:.6g} of {self.cost:g}")
        return f"the budget{when} of {whose} is used up: {', '.join(amounts)}"


class OwnerBudget(Budget):
    """A budget of the settings. Without `owner_id` it applies to each owner."""

    owner_id: UUID | None = Field(None, description="Only this owner. Default: each owner")

    def applies_to_owner(self, owner: UUID) -> bool:
        return self.owner_id in (None, owner)


class Spender(NamedTuple):
    """The session and the user of a turn."""

    owner: UUID
    session: str | None = None
    user: str | None = None


class SpentAmounts:
    """Reads how much of budgets is used. The sums of past months are kept, because they do not change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._past: dict[tuple[UUID, str | None, date], Amounts] = {}

    async def of(self, budgets: Iterable[Budget], spender: Spender) -> list[tuple[Budget, Amounts]]:
        """Return budgets with their usage at this moment."""
        read: dict[tuple[Scope, Period], Amounts] = {}
        result = []
        for budget in budgets:
            wanted = (budget.scope, budget.period)
            if wanted not in read:
                read[wanted] = await self._read(budget, spender)
            result.append((budget, read[wanted]))
        return result

    async def _read(self, budget: Budget, spender: Spender) -> Amounts:
        owner, session, user = spender
        if budget.scope == "session":
            return NOTHING if session is None else await read_session(self._store, owner, session)
        name = user if budget.scope == "user" else None
        today = datetime.fromtimestamp(self._store.now() / 1_000_000, UTC).date()
        first = today if budget.period == "day" else today.replace(day=1)
        days = [first + timedelta(number) for number in range((today - first).days + 1)]
        total = NOTHING
        for amounts in (await read_days(self._store, owner, days, name)).values():
            total = total.plus(amounts)
        return total if budget.period != "total" else total.plus(await self._read_past(owner, name, first))

    async def _read_past(self, owner: UUID, user: str | None, month: date) -> Amounts:
        key = (owner, user, month)
        if key not in self._past:
            if len(self._past) >= _MAX_TOTALS:
                self._past.clear()
            self._past[key] = await read_total(self._store, owner, user, month)
        return self._past[key]
