"""Checks budgets before a turn starts.

Turns that run at the same time can exceed a budget together, because each of them reads the usage before its first
model call: by at most the usage of the turns that are running.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import structlog
from pydantic import ValidationError

from breadcrumbs.runtime.access.policy import find_restriction
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.validation import to_complaints
from breadcrumbs.runtime.schema_names import USAGE_BUDGET
from breadcrumbs.runtime.store.batched_reads import recent_shared
from breadcrumbs.runtime.store.budgets import Budget, OwnerBudget, Spender, SpentAmounts
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry.metrics import TURNS_OVER_BUDGET
from breadcrumbs.runtime.workers.definitions import DefinitionType, PostedDefinition, resolve_definitions
from breadcrumbs.runtime.workers.errors import STORE_UNAVAILABLE, TurnFailed

_log = structlog.get_logger("breadcrumbs.budgets")

_FRESH_SECONDS: Final = 3.0
"""Age up to which the posted budgets of an owner are used without reading them again."""
_MAX_OWNERS: Final = 10_000
MAX_BUDGETS: Final = 200
"""Maximum number of posted budgets of an owner. Older ones are ignored."""


def _parse(crumb: Breadcrumb) -> tuple[Budget | None, str]:
    fields = {name: value for name, value in crumb.context.items() if name != "llm_hints"}
    try:
        return Budget.model_validate(fields), ""
    except ValidationError as error:
        return None, "; ".join(
            f"{complaint.where}: {complaint.message}" if complaint.where else complaint.message
            for complaint in to_complaints(error, Budget)
        )


def _restriction(crumb: Breadcrumb) -> str:
    match find_restriction(crumb):
        case "narrowed":
            return (
                "a budget applies to a whole owner: post it without session: and user: tags, and use user_id"
            )
        case "hidden":
            return "a private or secret budget is not used: change its visibility or sensitivity"
        case None:
            return ""


BUDGETS: Final[DefinitionType[Budget]] = DefinitionType(
    schema_name=USAGE_BUDGET,
    label="budget",
    parse=_parse,
    key=lambda budget: budget.key,
    restriction=_restriction,
)


async def posted_budgets(store: Store, owner: UUID) -> list[PostedDefinition[Budget]]:
    """Return the budgets that an owner has posted, last written first, with the problems of unusable ones."""
    (crumbs,) = await store.read_batch(recent_shared(store, owner, USAGE_BUDGET, MAX_BUDGETS))
    return await resolve_definitions(store, BUDGETS, crumbs)


@dataclass(slots=True)
class _Cached:
    budgets: tuple[Budget, ...]
    read_at: float
    """Time of the read, of the monotonic clock."""


class BudgetGate:
    """Refuses turns of spenders whose budget is used up."""

    def __init__(self, store: Store, configured: Sequence[OwnerBudget] = ()) -> None:
        self._store = store
        self._configured = configured
        self._posted: dict[UUID, _Cached] = {}
        self._loading: dict[UUID, asyncio.Task[tuple[Budget, ...]]] = {}
        self._spent = SpentAmounts(store)
        self._reported: set[tuple[UUID, int]] = set()
        for budget in configured:
            if budget.is_zero:
                _log.warning("a budget of the settings is zero, no turn starts", budget=budget.key.strip())

    async def check(self, spender: Spender, *, model: str, has_price: bool) -> None:
        """Raise `TurnFailed` if a budget is used up, or if it cannot be checked because the model has no price."""
        budgets = await self._budgets(spender)
        if not budgets:
            return
        for budget, used in await self._spent.of(budgets, spender):
            if budget.is_used_up(used):
                TURNS_OVER_BUDGET.labels(budget.scope).inc()
                raise TurnFailed(budget.describe(used, spender.session, spender.user))
            if budget.cost is not None and not has_price:
                TURNS_OVER_BUDGET.labels(budget.scope).inc()
                raise TurnFailed(
                    f"a budget in money applies, but the model {model} has no price, so its cost is unknown: add it to "
                    "the setting models.prices (0 for a model that costs nothing), or use a budget in tokens"
                )

    async def _budgets(self, spender: Spender) -> list[Budget]:
        cached = self._posted.get(spender.owner)
        if cached is None:
            posted = await asyncio.shield(self._load(spender.owner))
        else:
            posted = cached.budgets
            if time.monotonic() - cached.read_at > _FRESH_SECONDS:
                self._load(spender.owner)  # in the background: the turn does not wait for it
        configured = [budget for budget in self._configured if budget.applies_to_owner(spender.owner)]
        return [
            budget for budget in (*configured, *posted) if budget.applies_to(spender.session, spender.user)
        ]

    def _load(self, owner: UUID) -> asyncio.Task[tuple[Budget, ...]]:
        loading = self._loading.get(owner)
        if loading is None:
            loading = self._loading[owner] = asyncio.create_task(self._load_now(owner))
            loading.add_done_callback(lambda task: self._ended(owner, task))
        return loading

    def _ended(self, owner: UUID, task: asyncio.Task[tuple[Budget, ...]]) -> None:
        self._loading.pop(owner, None)
        if not task.cancelled() and isinstance(error := task.exception(), STORE_UNAVAILABLE):
            _log.debug("store unavailable, budgets not read", owner=str(owner), error=str(error))

    async def _load_now(self, owner: UUID) -> tuple[Budget, ...]:
        read_at = time.monotonic()
        posted = await posted_budgets(self._store, owner)
        for one in posted:
            self._report(one)
        budgets = tuple(one.definition for one in posted if one.in_force and one.definition is not None)
        if len(self._posted) >= _MAX_OWNERS:
            self._posted.clear()
        self._posted[owner] = _Cached(budgets, read_at)
        return budgets

    def _report(self, posted: PostedDefinition[Budget]) -> None:
        """Log an unusable or zero budget, once per version."""
        version = (posted.crumb.id, posted.crumb.version)
        if version in self._reported:
            return
        if len(self._reported) > _MAX_OWNERS:
            self._reported.clear()
        self._reported.add(version)
        if posted.problem:
            _log.warning("budget is not used", breadcrumb=str(posted.crumb.id), problem=posted.problem)
        elif posted.definition is not None and posted.definition.is_zero:
            _log.warning("budget is zero, no turn starts", breadcrumb=str(posted.crumb.id))
