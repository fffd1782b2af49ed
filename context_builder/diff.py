"""Compares two explanations of contexts.

They belong to two versions of a context, or to a context and a preview.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from breadcrumbs.context_builder.explanation import ExplainedItem, Explanation


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes from an old explanation to a new one."""

    tokens: tuple[int, int]
    budget: tuple[int, int]
    config: tuple[str, str]
    added: list[ExplainedItem]
    removed: list[tuple[ExplainedItem, str | None]]
    """Items with the reason why they were left out, if the new explanation contains one."""
    moved: list[tuple[ExplainedItem, int, int]]
    """Common items that changed their order, part or source, with the old and the new position, from 1."""
    changed: list[tuple[ExplainedItem, ExplainedItem]]
    """Common items with another version or other tokens, as old and new item."""
    unchanged: int
    """Number of common items that neither moved nor changed."""

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.moved or self.changed)

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens": {
                "old": self.tokens[0],
                "new": self.tokens[1],
                "change": self.tokens[1] - self.tokens[0],
            },
            "budget": {"old": self.budget[0], "new": self.budget[1]},
            "config": {"old": self.config[0], "new": self.config[1]},
            "in": [item.as_dict() for item in self.added],
            "out": [
                item.as_dict() | ({} if reason is None else {"reason": reason})
                for item, reason in self.removed
            ],
            "moved": [item.as_dict() | {"from": old, "to": new} for item, old, new in self.moved],
            "changed": [
                new.as_dict() | {"was": {"version": old.version, "tokens": old.tokens}}
                for old, new in self.changed
            ],
            "stayed": self.unchanged,
        }


@dataclass(frozen=True, slots=True)
class _CommonItem:
    """An item that is in both explanations, with its positions."""

    old: ExplainedItem
    new: ExplainedItem
    old_position: int
    new_position: int

    @property
    def changed_part(self) -> bool:
        return (self.old.place, self.old.source) != (self.new.place, self.new.source)

    @property
    def changed_content(self) -> bool:
        return (self.old.version, self.old.tokens) != (self.new.version, self.new.tokens)


def diff(old: Explanation, new: Explanation) -> Difference:
    """Compare two explanations."""
    before, after = _items_by_id(old), _items_by_id(new)
    common = _common_items(before, after)
    in_order = _longest_increasing([item.old_position for item in common])
    moved = [item for item in common if item.changed_part or item.old_position not in in_order]
    changed = [item for item in common if item.changed_content]
    reasons = {out.id: out.reason for out in new.left_out if out.reason != "duplicate"}
    return Difference(
        tokens=(old.tokens, new.tokens),
        budget=(old.budget, new.budget),
        config=(old.config, new.config),
        added=[item for id, item in after.items() if id not in before],
        removed=[(item, reasons.get(id)) for id, item in before.items() if id not in after],
        moved=[(item.new, item.old_position, item.new_position) for item in moved],
        changed=[(item.old, item.new) for item in changed],
        unchanged=len(common) - len({item.new.id for item in (*moved, *changed)}),
    )


def _items_by_id(explanation: Explanation) -> dict[str, ExplainedItem]:
    """Return the items that the reader may see, by id."""
    return {item.id: item for item in explanation.items if item.id is not None}


def _common_items(before: dict[str, ExplainedItem], after: dict[str, ExplainedItem]) -> list[_CommonItem]:
    """Return the items that are in both, in the new order."""
    old_positions = {id: position for position, id in enumerate(before, 1)}
    return [
        _CommonItem(before[id], item, old_positions[id], position)
        for position, (id, item) in enumerate(after.items(), 1)
        if id in before
    ]


def _longest_increasing(numbers: Sequence[int]) -> set[int]:
    """Return the longest increasing subsequence. These are the items that kept their order."""
    ends: list[int] = []
    chains: list[tuple[int, ...]] = []
    for number in numbers:
        at = bisect_left(ends, number)
        chain = (*(chains[at - 1] if at else ()), number)
        ends[at : at + 1] = [number]
        chains[at : at + 1] = [chain]
    return set(chains[-1]) if chains else set()
