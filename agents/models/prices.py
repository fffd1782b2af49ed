"""Prices of models, from the setting `models.prices` and the table of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from breadcrumbs.agents.models.table import LiveValues, table_in


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of a million input tokens and a million output tokens."""

    input: float
    output: float

    def cost(self, figures: Mapping[str, Any]) -> float | None:
        """Return the cost of an answer, or None if its tokens are unknown."""
        prompt, completion = figures.get("input_tokens"), figures.get("output_tokens")
        if prompt is None or completion is None:
            return None
        return round(float(prompt * self.input + completion * self.output) / 1_000_000, 9)


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """Return the price of a model, or None if it is unknown. The settings can omit the provider of the model."""
    return prices.get(model) or prices.get(model.partition(":")[2])


def prices_in(models: Mapping[str, Any]) -> Mapping[str, Price]:
    """Return the prices of the setting `models`. They change with the table.

    The agent runner checks the settings, so invalid ones are ignored here.
    """
    prices, table = models.get("prices"), table_in(models)
    given = prices if isinstance(prices, dict) else {}
    valid = {str(name): Price(*pair) for name, pair in given.items() if _is_pair(pair)}

    def find(model: str) -> Price | None:
        price = table.price(model)
        return None if price is None else Price(*price)

    def names() -> list[str]:
        return [name for name, facts in table.own_entries.items() if facts.price is not None]

    return LiveValues(valid, find, names)


def _is_pair(value: Any) -> bool:
    is_list = isinstance(value, list | tuple) and len(value) == 2
    return is_list and all(isinstance(one, int | float) and one >= 0 for one in value)
