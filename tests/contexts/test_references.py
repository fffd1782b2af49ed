"""The compact rows of older and reduced contexts."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson
import pytest

from breadcrumbs.context_builder.references import read_record
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.store.reduction import references_only

USUAL: dict[str, Any] = {
    "id": "01a1ecaf-bcf8-700b-9e88-5ec16c93b7d0",
    "version": 1,
    "source": "conversation",
    "number": 0,
    "place": "conversation",
    "rank": 17,
    "tokens": 13,
}
ITEMS: dict[str, tuple[dict[str, Any], int]] = {
    "usual": (USUAL, 4),
    "trigger that no source found": ({**USUAL, "number": -1}, 4),
    "edited": (USUAL | {"version": 2}, 6),
    "elsewhere": (USUAL | {"place": "elsewhere"}, 6),
    "shared": (USUAL | {"place": "shared"}, 6),
    "matched": (USUAL | {"matched": ["a", "b"]}, 7),
    "cut": (USUAL | {"cut": {"kept": 5, "of": 9}}, 8),
    "matched and cut": (USUAL | {"matched": ["a"], "cut": {"kept": 5, "of": 9}}, 8),
}
SOURCES = [
    {
        "key": "conversation",
        "schema_name": "user.message.v1",
        "method": "recent",
        "scope": "current",
        "found": 1,
    },
    {"key": "notes", "schema_name": "note.v1", "method": "latest", "scope": "all", "found": 0},
]


def context(item: dict[str, Any]) -> Breadcrumb:
    document = {
        "context": {
            "consumer_id": "agent",
            "trigger_id": str(UUID(int=7)),
            "trigger_version": 1,
            "as_of": 1,
            "config": "0123456789abcdef",
            "parts": [],
            "explain": {
                "tokens": 1,
                "budget": 2,
                "counted_by": "estimate",
                "checksum": "x",
                "sources": SOURCES,
                "items": [item],
                "left_out": [],
                "notes": [],
            },
        }
    }
    nobody = UUID(int=0)
    return Breadcrumb(UUID(int=1), nobody, 1, 1, 1, 0, 0, None, None, orjson.dumps(document))


@pytest.mark.parametrize(("item", "length"), ITEMS.values(), ids=ITEMS)
def test_a_row_is_as_short_as_possible_and_keeps_every_fact(item: dict[str, Any], length: int) -> None:
    full = context(item)
    reduced = Breadcrumb(full.id, full.owner_id, 1, 1, 1, 0, 0, None, None, references_only(full))
    (row,) = reduced.context["explain"]["items"]
    assert len(row) == length
    assert read_record(reduced) == read_record(full)
    # A reduced context that is reduced again stays the same.
    assert references_only(reduced) == reduced.json


def test_the_description_of_a_source_stores_no_defaults() -> None:
    full = context(USUAL)
    reduced = Breadcrumb(full.id, full.owner_id, 1, 1, 1, 0, 0, None, None, references_only(full))
    stored = reduced.context["explain"]["sources"]
    assert stored[0] == {"key": "conversation", "schema_name": "user.message.v1", "found": 1}
    assert stored[1] == SOURCES[1]
    assert read_record(reduced).sources == SOURCES
