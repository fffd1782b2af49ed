"""Usage of model calls, with their cost by the price table, and budgets that limit it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from breadcrumbs.agents.models.base import ModelReply, TokenUsage
from breadcrumbs.agents.models.offered import public_name
from breadcrumbs.agents.models.prices import Price, price_of
from breadcrumbs.agents.models.providers import OFFLINE
from breadcrumbs.agents.request import AnswerRequest
from breadcrumbs.runtime.breadcrumb.session_rule import user_in
from breadcrumbs.runtime.store.budgets import Spender
from breadcrumbs.runtime.store.spending import COST_UNITS, Amounts, ModelUsage
from breadcrumbs.runtime.workers.budgets import BudgetGate


class UsageMeter:
    """Notes the usage of model calls for the next commit of their turn."""

    def __init__(self, prices: Mapping[str, Price], budgets: BudgetGate | None = None) -> None:
        self._prices = prices
        self.budgets = budgets
        """None: there are no budgets."""

    async def check_budget(self, request: AnswerRequest, model: str) -> None:
        """Raise `TurnFailed` if a budget is used up, or cannot be checked. `model` is the name of the model."""
        if self.budgets is not None:
            trigger = request.trigger
            spender = Spender(request.owner, trigger.session_id, user_in(trigger.tags))
            await self.budgets.check(spender, model=model, has_price=self.has_price(model))

    def note(self, request: AnswerRequest, model: str, reply: ModelReply, started: int) -> None:
        """Note the reply to a model call that began at `started` (microseconds)."""
        if reply.usage is None and reply.sent is None:
            return  # a model without a server, which counts no tokens
        amounts = self._amounts(model, reply.usage)
        user = user_in(request.trigger.tags)
        request.turn.unrecorded.append(
            ModelUsage(request.definition.agent_id, public_name(model), user, amounts, started)
        )

    def has_price(self, model: str) -> bool:
        """Return whether the cost of a model is known. The offline model costs nothing."""
        return model == OFFLINE or price_of(model, self._prices) is not None

    def _amounts(self, model: str, usage: TokenUsage | None) -> Amounts:
        price = price_of(model, self._prices)
        unpriced = int(not self.has_price(model))
        if usage is None:
            return Amounts(calls=1, unpriced=unpriced, unreported=1)
        figures: dict[str, Any] = {
            "input_tokens": max(0, usage.prompt_tokens),
            "output_tokens": max(0, usage.completion_tokens),
            "cached_tokens": max(0, usage.cached_tokens or 0),
            "reasoning_tokens": max(0, usage.reasoning_tokens or 0),
        }
        cost = 0.0 if price is None else price.cost(figures) or 0.0
        return Amounts(calls=1, **figures, cost=round(cost * COST_UNITS), unpriced=unpriced)
