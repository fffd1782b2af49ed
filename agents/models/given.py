"""Models that a program passes as objects instead of names."""

from __future__ import annotations

from typing import Any

from breadcrumbs.agents.models.base import Model
from breadcrumbs.agents.models.scripted import FunctionModel


def as_model(given: Any) -> Model | None:
    """Return the model that an object stands for, or None if it is not a model but, for example, a name.

    A model is an object with `name`, `complete` and `close`, or a function of a `ModelRequest`.
    """
    if callable(getattr(given, "complete", None)) and isinstance(getattr(given, "name", None), str):
        model: Model = given
        return model
    if callable(given):
        return FunctionModel(given, name=getattr(given, "__name__", "function").strip("<>"))
    return None
