"""Bounded label values: names that clients chose cannot create an unlimited number of series."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

_T = TypeVar("_T")

MAX_LABEL_SETS: Final = 200
"""Number of different label sets that a group of metrics keeps. Later ones are counted as `OTHER`."""
OTHER: Final = "other"
"""Value of each label of a label set above the bound."""
_MAX_CHARACTERS: Final = 100


class BoundedLabels(Generic[_T]):
    """The children of a group of metrics, one per label set. A lookup of a known set is one dictionary access.

    Names of agents, models and tools come from clients. The first `limit` label sets get their own series. All others
    share one, with the value `OTHER` for each label.
    """

    def __init__(self, make: Callable[..., _T], *, limit: int = MAX_LABEL_SETS) -> None:
        """Create an empty group. `make` gets the label values and returns the children."""
        self._make = make
        self._limit = limit
        self._children: dict[tuple[str, ...], _T] = {}
        self._other: _T | None = None

    def get(self, *values: str) -> _T:
        """Return the children of a label set."""
        found = self._children.get(values)
        return self._add(values) if found is None else found

    def _add(self, values: tuple[str, ...]) -> _T:
        if len(self._children) < self._limit:
            made = self._children[values] = self._make(*(_shortened(value) for value in values))
            return made
        if self._other is None:
            self._other = self._make(*(OTHER for _ in values))
        return self._other


def _shortened(value: str) -> str:
    # A lone surrogate cannot be encoded, and would make every later scrape fail.
    return value[:_MAX_CHARACTERS].encode(errors="replace").decode()
