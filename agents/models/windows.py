"""Context windows of models in tokens, from the setting `models.windows` and the table of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from breadcrumbs.agents.models.table import LiveValues, bare_name, table_in


def windows_in(models: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the windows of the setting `models`. They change with the table.

    The agent runner checks the settings, so invalid ones are ignored here.
    """
    windows, table = models.get("windows"), table_in(models)
    given = windows if isinstance(windows, dict) else {}
    valid = {str(name): size for name, size in given.items() if isinstance(size, int) and size > 0}

    def names() -> list[str]:
        return [name for name, facts in table.own_entries.items() if facts.window is not None]

    return LiveValues(valid, table.window, names)


def window_of(model: str, windows: Mapping[str, int] | None = None) -> int | None:
    """Return the context window of a model, or None if it is unknown. `model` can begin with its provider."""
    given = None if windows is None else windows.get(model, windows.get(bare_name(model).lower()))
    return table_in({}).window(model) if given is None else given
