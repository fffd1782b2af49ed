"""The shipped tools calculator, random and clock. `test_tools_search.py` tests the search."""

from __future__ import annotations

import datetime
import math
import time
import zoneinfo
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs.agents.tools import SHIPPED, ToolContext, shipped_tools
from breadcrumbs.agents.tools import shipped as shipped_module
from breadcrumbs.agents.tools.calculator import MAX_LENGTH, evaluate
from breadcrumbs.agents.tools.shipped import calculator, clock, random_
from breadcrumbs.runtime.errors import InvalidInput

CONTEXT = ToolContext(UUID(int=1), None, "assistant", "trigger-1", None)


def test_every_shipped_tool_and_parameter_has_a_description() -> None:
    assert [one.name for one in SHIPPED] == shipped_tools().names
    for one in SHIPPED:
        assert one.description.endswith("."), one
        assert one.timeout <= 10
        for name, part in one.parameters["properties"].items():
            assert part.get("description"), f"{one.name}.{name}"


# --- calculator ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("-2 ** 2", -4),
        ("+3 - -4", 7),
        ("7 / 2", 3.5),
        ("7 // 2", 3),
        ("-7 % 3", 2),
        ("2 ** 0.5", math.sqrt(2)),
        ("2 ** -1", 0.5),
        ("2 ** -5000", 0.0),
        ("2 ** 64", 2**64),
        ("2 ** 4095", 2**4095),
        ("(-1) ** 10 ** 9", 1),
        ("0.1 + 0.2", 0.3),
        ("1_000 * 1e3", 1e6),
        (".5 + 1.", 1.5),
        ("3 × 4 ÷ 2 − 1", 5),
        ("1 +\n 1", 2),
        ("pi * 2", math.tau),
        ("sqrt(16) + max(1, 2, 3) + min(4, 5) + sum(1, 2)", 14),
        ("round(2.567, 2) + round(2.4)", 4.57),
        ("log(e) + log10(1000) + log2(8) + log(9, 3)", 9),
        ("sin(pi / 2) + cos(0) + atan2(0, 1)", 2),
        ("factorial(20)", math.factorial(20)),
        ("comb(49, 6)", math.comb(49, 6)),
        ("gcd(12, 18) + lcm(4, 6)", 18),
        ("pow(2, 10)", 1024),
        ("floor(2.9) + ceil(2.1) + trunc(-2.5) + abs(-1)", 4),
        ("+".join(["1"] * 250), 250),
    ],
)
def test_the_calculator_evaluates_expressions(expression: str, expected: float) -> None:
    assert evaluate(expression) == pytest.approx(expected, rel=1e-14)
    assert type(evaluate(expression)) in (int, float)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("9**9**9", "too large"),
        ("9**9**9**9**9", "too large"),
        ("(2**4000)**4000", "too large"),
        ("pow(10, 10**9)", "too large"),
        ("2**4096 * 2", "too large"),
        ("factorial(10**9)", "too large"),
        ("factorial(401)", "too large"),
        ("comb(10**6, 10**5)", "too large"),
        ("perm(10**6, 10**5)", "too large"),
        ("lcm(10**1200, 10**1200 - 1)", "too large"),
        ("1e308 * 10", "too large"),
        ("1e999", "too large"),
        ("exp(1000)", "too large"),
        ("10**400 / 3.0", "too large"),
        ("2.0 ** 10**9", "too large"),
        ("round(5, -10**9)", "the digits of round"),
        ("round(5.5, 0.5)", "the digits of round"),
        ("1/0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("sqrt(-1)", "no value"),
        ("(-8) ** (1/3)", "not a real number"),
        ("min()", "no value"),
        ("sqrt(1, 2)", "no value"),
        ("gcd(2.5, 1)", "no value"),
        ("1" * (MAX_LENGTH + 1), f"longer than {MAX_LENGTH}"),
        ("-" * 499 + "1", "deeper"),
        ("(" * 240 + "1" + ")" * 240, "not an arithmetic expression"),
        ("", "not an arithmetic expression"),
        ("1 +", "not an arithmetic expression"),
        ("1 2", "not an arithmetic expression"),
        ("1,000", "not an arithmetic expression"),
        ("2^3", "write ** for powers"),
        ("2pi", "put * between"),
        ("1if 2else 3", "put * between"),
        ("0x10", "put * between"),
        ("1j", "put * between"),
        ("x + 1", "'x' is not supported"),
        ("eval(1)", "'eval' is not supported"),
        ("__import__(1)", "'__import__' is not supported"),
        ("True", "not an arithmetic expression"),
        ("None", "not an arithmetic expression"),
        ("(1).__class__", "not an arithmetic expression"),
        ("pi.real", "not an arithmetic expression"),
        ("sqrt.__self__", "not an arithmetic expression"),
        ("(1).real()", "not an arithmetic expression"),
        ("round(1, ndigits=2)", "not supported"),
        ("max(*(1, 2))", "not an arithmetic expression"),
        ("(1, 2)", "not an arithmetic expression"),
        ("1 if 1 else 2", "not an arithmetic expression"),
        ("1 and 2", "not an arithmetic expression"),
        ("not 1", "not an arithmetic expression"),
        ("lambda", "not an arithmetic expression"),
        ("1 is 1", "not an arithmetic expression"),
        ("1(2)", "not an arithmetic expression"),
        ("yield", "not an arithmetic expression"),
        ("'a' * 9", "is not supported"),
        ("[1] * 9", "is not supported"),
        ("1 << 9", "is not supported"),
        ("~1", "is not supported"),
        ("1; 2", "is not supported"),
        ("a := 1", "is not supported"),
        ("1 # 2", "is not supported"),
        ("1 \\\n + 1", "is not supported"),
        ("１ + 1", "is not supported"),
        ("1\x00", "is not supported"),
    ],
)
def test_the_calculator_refuses_anything_but_bounded_arithmetic(expression: str, message: str) -> None:
    began = time.perf_counter()
    with pytest.raises(InvalidInput) as caught:
        evaluate(expression)
    assert message in caught.value.message
    assert time.perf_counter() - began < 1


@given(st.text(alphabet="0123456789.e+-*/%() ,", max_size=MAX_LENGTH) | st.text(max_size=50))
def test_the_calculator_returns_a_number_or_an_error_for_any_text(expression: str) -> None:
    try:
        assert math.isfinite(evaluate(expression)) or isinstance(evaluate(expression), int)
    except OverflowError:
        assert isinstance(evaluate(expression), int)  # an exact integer beyond the range of a float
    except InvalidInput as error:
        assert error.message


_operand = st.sampled_from(["9", "99", "2.5", "(9**9)", "factorial(300)", "10**300", "e"])


@given(
    st.lists(st.tuples(_operand, st.sampled_from(["+", "*", "**", "//", "%", "/", "-"])), max_size=12),
    _operand,
)
def test_no_chain_of_operations_takes_long(chain: list[tuple[str, str]], last: str) -> None:
    expression = "".join(operand + sign for operand, sign in chain) + last
    began = time.perf_counter()
    try:
        evaluate(expression)
    except InvalidInput:
        pass
    assert time.perf_counter() - began < 1


async def test_the_calculator_is_a_tool() -> None:
    answer = await calculator.run('{"expression": "6 * 7"}', CONTEXT)
    assert answer.output == {"expression": "6 * 7", "result": 42}
    large = await calculator.run({"expression": "2**100"}, CONTEXT)
    assert large.output["result"] == str(2**100)
    refused = await calculator.run({"expression": "9**9**9"}, CONTEXT)
    assert refused.error == "calculator: the result is too large"
    too_long = await calculator.run({"expression": "1" * 501}, CONTEXT)
    assert too_long.error is not None
    assert "at most 500 characters" in too_long.error


# --- random --------------------------------------------------------------------------------------------


async def test_random_draws_every_number_of_the_range_and_no_other() -> None:
    drawn = [(await random_.run({"min": 1, "max": 6}, CONTEXT)).output["number"] for _ in range(200)]
    assert set(drawn) == {1, 2, 3, 4, 5, 6}
    assert (await random_.run({"min": -3, "max": -3}, CONTEXT)).output == {"number": -3}
    assert 0 <= (await random_.run("", CONTEXT)).output["number"] <= 100


async def test_random_draws_one_of_the_choices() -> None:
    drawn = [(await random_.run({"choices": ["tea", "coffee"]}, CONTEXT)).output["choice"] for _ in range(60)]
    assert set(drawn) == {"tea", "coffee"}
    assert (await random_.run({"choices": [7]}, CONTEXT)).output == {"choice": 7}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min": 5, "max": 1}, "random: min (5) is greater than max (1): swap them"),
        ({"choices": []}, "at least 1 item"),
        ({"min": 10**18}, "less than or equal to"),
        ({"min": "a"}, "valid integer"),
        ({"from": 1}, "unknown argument 'from'"),
    ],
)
async def test_random_explains_invalid_arguments(arguments: dict[str, object], message: str) -> None:
    result = await random_.run(arguments, CONTEXT)
    assert result.error is not None
    assert message in result.error


# --- clock ---------------------------------------------------------------------------------------------


async def test_the_clock_returns_the_time_in_utc_and_in_a_zone() -> None:
    output = (await clock.run({"zone": "Asia/Tokyo"}, CONTEXT)).output
    utc, local = (
        datetime.datetime.fromisoformat(output["utc"]),
        datetime.datetime.fromisoformat(output["local"]),
    )
    assert utc == local
    assert abs((datetime.datetime.now(datetime.UTC) - utc).total_seconds()) < 10
    assert local.utcoffset() == datetime.timedelta(hours=9)
    assert (output["zone"], output["weekday"]) == ("Asia/Tokyo", local.strftime("%A"))
    assert output["utc"].endswith("Z")
    assert output["daylight_saving"] is False


@pytest.mark.parametrize(
    ("name", "zone"),
    [("utc", "UTC"), ("europe/berlin", "Europe/Berlin"), (" America/New York ", "America/New_York")],
)
async def test_the_clock_accepts_a_zone_in_any_spelling(name: str, zone: str) -> None:
    assert (await clock.run({"zone": name}, CONTEXT)).output["zone"] == zone
    assert (await clock.run("", CONTEXT)).output["zone"] == "UTC"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Europe/Berln", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("new york", "America/New_York"),
        ("qqqqqq", "a name such as"),
        ("", "a name such as"),
        ("../../../etc/passwd", "a name such as"),
        ("/etc/localtime", "not found: use"),
        ("Europe", "not found: use"),
        ("\x00", "not found: use"),
    ],
)
async def test_the_clock_suggests_zones_for_an_unknown_zone(name: str, message: str) -> None:
    result = await clock.run({"zone": name}, CONTEXT)
    assert result.error is not None
    assert message in result.error
    assert result.error.startswith("clock: time zone")


async def test_without_zone_data_the_clock_supports_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    shipped_module._zone_names.cache_clear()
    try:
        assert (await clock.run({"zone": "UTC"}, CONTEXT)).ok
        refused = await clock.run({"zone": "Europe/Berlin"}, CONTEXT)
        assert refused.error == "clock: this machine has no time zone data: use UTC"
    finally:
        shipped_module._zone_names.cache_clear()
