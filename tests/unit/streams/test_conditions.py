"""Conditions of streams: decided once per event, within a budget, and at a pace that leaves time for others."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import UUID

import orjson
import pytest

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb import selectors
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.selectors import ContextMatch, Selector, parse_selector
from breadcrumbs.runtime.hints import jsonpath
from breadcrumbs.runtime.hints.jsonpath import MAX_NODES, SearchBudget
from breadcrumbs.runtime.streams.conditions import Evaluation, Pacer

OWNER = UUID(int=1)
WHOLE = Principal(OWNER, UUID(int=2))


def crumb(context: dict[str, Any]) -> Breadcrumb:
    document = {"title": "", "tags": [], "context": context}
    return Breadcrumb(UUID(int=9), OWNER, 1, 1, 1, 0, 0, None, None, orjson.dumps(document))


def matching(path: str, op: str = "eq", value: Any = 1) -> Selector:
    return parse_selector({"context_match": [{"path": path, "op": op, "value": value}]})


def test_a_path_is_compiled_once_when_the_selector_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    selector = matching("$..deep")

    def compile_path(text: str) -> jsonpath.JsonPath:
        raise AssertionError("compiled again")

    monkeypatch.setattr(selectors, "compile_path", compile_path)
    assert Evaluation(crumb({"deep": 1})).decide(WHOLE, selector, SearchBudget())


def test_equal_conditions_of_many_streams_are_decided_once() -> None:
    evaluation = Evaluation(crumb({"filler": list(range(500)), "x": 2}))
    first, later = SearchBudget(), SearchBudget()
    assert evaluation.decide(WHOLE, matching("$..y", value={"a": 1, "b": 2}), first) is False
    assert (
        evaluation.decide(Principal(OWNER, UUID(int=3)), matching("$..y", value={"b": 2, "a": 1}), later)
        is False
    )
    assert first.left < MAX_NODES == later.left


def test_all_conditions_of_a_stream_share_one_budget() -> None:
    evaluation, budget = Evaluation(crumb({"filler": list(range(1_000))})), SearchBudget()
    paths = [f"$..x{number}" for number in range(16)]
    decisions = [evaluation.decide(WHOLE, matching(path, "ne"), budget) for path in paths]
    assert decisions == [True] * 9 + [None] * 7
    assert budget.left == 0


def test_an_undecided_condition_can_be_decided_by_a_stream_with_more_budget() -> None:
    evaluation, condition = (
        Evaluation(crumb({"filler": list(range(100)), "last": {"x": 1}})),
        matching("$..x"),
    )
    assert evaluation.decide(WHOLE, condition, SearchBudget(10)) is None
    assert evaluation.decide(WHOLE, condition, SearchBudget()) is True


def test_one_false_condition_decides_among_undecided_ones() -> None:
    selector = parse_selector(
        {
            "context_match": [
                {"path": "$..x", "op": "eq", "value": 1},
                {"path": "$.kind", "op": "eq", "value": "other"},
            ]
        }
    )
    evaluation = Evaluation(crumb({"kind": "this", "filler": list(range(100))}))
    assert evaluation.decide(WHOLE, selector, SearchBudget(50)) is None
    assert evaluation.decide(WHOLE, selector, SearchBudget(105)) is False


def _nested(levels: int, leaf: Any) -> Any:
    for _ in range(levels):
        leaf = {"a": leaf}
    return leaf


@pytest.mark.parametrize(
    ("context", "path", "op", "value"),
    [
        pytest.param(
            _nested(200, {"s": "x" * 500_000}), "$..a..s", "contains", "y", id="long text, many ways"
        ),
        pytest.param(
            _nested(200, {"s": "x" * 500_000}),
            "$..a..s",
            "contains_any",
            [f"y{n}" for n in range(64)],
            id="long text, many ways, many choices",
        ),
        pytest.param(_nested(800, 1), "$..a", "eq", _nested(700, 2), id="deep value in deep document"),
        pytest.param({"a": [[0] * 9_000] * 30}, "$.a[*]", "eq", [0] * 8_999 + [1], id="wide value"),
        pytest.param({"a": [[0] * 9_000] * 30}, "$.a[*]", "contains", {"no": 1}, id="wide lists"),
        pytest.param({"a": ["x" * 99_999] * 99}, "$.a[*]", "eq", "x" * 99_998 + "y", id="long equal prefix"),
        pytest.param(
            {"a": ["x" * 99_999] * 99}, "$.a[*]", "gt", "x" * 99_998 + "y", id="order of long texts"
        ),
        pytest.param(_nested(900, 1), "$" + "..a" * 16, "eq", 2, id="every combination of levels"),
    ],
)
def test_expensive_comparisons_are_undecided_instead_of_slow(
    context: dict[str, Any], path: str, op: Any, value: Any
) -> None:
    condition = ContextMatch(path=path, op=op, value=value)
    began = time.thread_time()
    assert condition.decide(context, SearchBudget()) is None
    assert time.thread_time() - began < 0.25  # milliseconds; without a limit seconds


async def test_evaluations_leave_most_of_the_time_to_others() -> None:
    pacer, waited = Pacer(), list[float]()

    def work() -> None:
        until = time.thread_time() + 0.003
        while time.thread_time() < until:
            pass

    async def evaluate(token: int) -> None:
        while True:
            await pacer.run(token, work)

    evaluations = [asyncio.create_task(evaluate(number % 4)) for number in range(40)]
    cpu, wall = time.thread_time(), time.perf_counter()
    while time.perf_counter() - wall < 1:
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        waited.append(time.perf_counter() - began)
    share = (time.thread_time() - cpu) / (time.perf_counter() - wall)
    for task in evaluations:
        task.cancel()
    await asyncio.gather(*evaluations, return_exceptions=True)
    assert share < 0.5
    assert sorted(waited)[len(waited) // 2] < 0.02


async def test_a_token_with_many_evaluations_does_not_delay_another() -> None:
    pacer, order = Pacer(), list[str]()

    async def evaluate(token: str) -> None:
        await pacer.run(token, lambda: order.append(token))

    async with pacer._turn:
        busy = [asyncio.create_task(evaluate("busy")) for _ in range(50)]
        await asyncio.sleep(0)
        other = asyncio.create_task(evaluate("other"))
        await asyncio.sleep(0)
    await asyncio.gather(*busy, other)
    assert order.index("other") <= 1
