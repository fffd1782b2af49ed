"""Conversion of tool results to JSON for the model."""

from __future__ import annotations

import datetime
import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import orjson
import pytest
from pydantic import BaseModel, Field, SecretStr

from breadcrumbs.agents.tools import tool
from breadcrumbs.agents.tools.output import MAX_OUTPUT_BYTES, as_json
from tests.support.tools import CONTEXT, Colour, Level, Place


@dataclass
class Report:
    when: datetime.datetime
    where: Path
    places: list[Place] = field(default_factory=list)


class Account(BaseModel):
    number: Annotated[int, Field(serialization_alias="no")]
    password: SecretStr
    ratio: float = math.inf


NOON = datetime.datetime(2026, 11, 16, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        ("text", "text"),
        ((1, (2,)), [1, [2]]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset("a"), ["a"]),
        (deque([1]), [1]),
        (range(3), [0, 1, 2]),
        ({"b": 1}.keys(), ["b"]),
        ({"b": 1}.values(), [1]),
        (OrderedDict(a=1), {"a": 1}),
        ({1: "a", 2.5: "b", Colour.RED: "c", False: "d"}, {"1": "a", "2.5": "b", "red": "c", "false": "d"}),
        ({NOON.date(): 1, UUID(int=5): 2}, {"2026-11-16": 1, "00000000-0000-0000-0000-000000000005": 2}),
        (b"bytes", "bytes"),
        (math.nan, "NaN"),
        ([math.inf, -math.inf], ["Infinity", "-Infinity"]),
        (2**63, 2**63),
        (2**64, "18446744073709551616"),
        (-(2**63) - 1, "-9223372036854775809"),
        (Colour.BLUE, "blue"),
        (Level.HIGH, 2),
        (NOON, "2026-11-16T12:00:00Z"),
        (datetime.timedelta(minutes=1), "PT1M"),
        (Decimal("1.10"), "1.10"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Path("a/b"), "a/b"),
        ("lone \ud800", "lone ?"),
        (
            Report(NOON, Path("x"), [Place(city="Ulm")]),
            {"when": "2026-11-16T12:00:00Z", "where": "x", "places": [{"city": "Ulm", "title": "none"}]},
        ),
        (
            Account(number=1, password=SecretStr("hunter22")),
            {"no": 1, "password": "**********", "ratio": "Infinity"},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_results_with_a_json_form_are_converted(result: Any, expected: Any) -> None:
    @tool
    def give() -> Any:
        return result

    answer = await give.run({}, CONTEXT)
    assert (answer.output, answer.error) == (expected, None)
    orjson.dumps(answer.output)


def _recursive() -> Any:
    inside: list[Any] = []
    inside.append({"again": inside})
    return inside


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


class Anything(BaseModel):
    thing: Any


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (object, "contains a object, which is not JSON"),
        (lambda: [{"a": threading.Lock()}], "which is not JSON"),
        (lambda: b"\xff\xfe", "contains a bytes, which is not JSON"),
        (lambda: len, "which is not JSON"),
        (lambda: Place, "which is not JSON"),
        (lambda: (i for i in range(3)), "return a list instead"),
        (lambda: {"a": iter([1])}, "return a list instead"),
        (lambda: {(1, 2): 3}, "JSON keys are text"),
        (lambda: {None: 3}, "JSON keys are text"),
        (_recursive, "contains itself"),
        (lambda: _deep(33), "nests deeper than 32 levels"),
        (lambda: _deep(100_000), "nests deeper than 32 levels"),
        (lambda: Anything(thing=object()), "contains a Anything that is not JSON"),
        (lambda: 10**5000, "thousands of digits"),
        (lambda: ["x" * 1000] * 100, "larger than 64 KiB"),
        (lambda: ["\x01" * 20_000], "larger than 64 KiB"),
        (lambda: range(10**15), "larger than 64 KiB"),
        (lambda: {str(i): i for i in range(100_000)}, "larger than 64 KiB"),
    ],
)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_results_without_a_json_form_are_errors_with_a_reason(
    kind: str, make: Callable[[], Any], message: str
) -> None:
    @tool
    def give() -> Any:
        return make()

    @tool
    async def give_async() -> Any:
        return make()

    answer = await (give if kind == "sync" else give_async).run({}, CONTEXT)
    assert (answer.ok, answer.output) == (False, None)
    assert answer.error is not None
    assert message in answer.error


def test_a_value_that_occurs_twice_in_a_result_is_not_recursion() -> None:
    shared = [1]
    assert as_json({"a": shared, "b": [shared, shared]}) == {"a": [1], "b": [[1], [1]]}
    assert as_json(_deep(32)) == _deep(32)


@pytest.mark.parametrize("character", ["a", "é", "\x01", "🍞", '"'])
def test_a_text_that_is_too_long_is_cut_with_a_note(character: str) -> None:
    whole = character * 100_000
    cut = as_json(whole)
    size = len(orjson.dumps(cut))
    assert MAX_OUTPUT_BYTES - 200 < size <= MAX_OUTPUT_BYTES
    kept, _, note = cut.partition("\n… [cut: ")
    assert whole.startswith(kept)
    assert note == f"{len(kept):,} of 100,000 characters]"


def test_a_text_at_the_size_limit_is_unchanged() -> None:
    whole = "a" * (MAX_OUTPUT_BYTES - 2)
    assert as_json(whole) == whole
    assert as_json(whole + "a") != whole + "a"
