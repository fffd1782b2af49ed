"""Prices of models, from the setting `models.prices`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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


def prices_in(models: Mapping[str, Any]) -> dict[str, Price]:
    """Return the prices of the setting `models`. The agent runner checks them, so invalid ones are ignored here."""
    given = models.get("prices")
    if not isinstance(given, dict):
        return {}
    return {str(name): Price(*pair) for name, pair in given.items() if _is_pair(pair)}


def _is_pair(value: Any) -> bool:
    is_list = isinstance(value, list | tuple) and len(value) == 2
    return is_list and all(isinstance(one, int | float) and one >= 0 for one in value)
