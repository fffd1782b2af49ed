from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs.runtime.breadcrumb.json_input import MAX_DEPTH, canonical, nesting_depth, parse_json
from breadcrumbs.runtime.errors import InvalidInput

integers = st.integers(-(1 << 63), (1 << 64) - 1)
documents = st.recursive(
    st.none() | st.booleans() | integers | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(documents)
def test_json_is_parsed_exactly(document: Any) -> None:
    raw = json.dumps(document).encode()
    assert parse_json(raw) == document
    assert orjson.loads(canonical(parse_json(raw))) == document


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"{",
        b"nothing",
        b"{'a': 1}",
        b'{"a": 1,}',
        b"[1, 2",
        b'{"a": NaN}',
        b"[Infinity]",
        b"[-Infinity]",
        b"[1e999]",
        b'"\\ud800"',
        b'"\\ud800\\u0041"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b'"a\nb"',
        b"01",
        b"{} {}",
        b"[" * 100_000,
        b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
    ],
)
def test_invalid_json_is_refused_with_an_explanation(raw: bytes) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_json(raw)
    assert "JSON" in refused.value.message
    assert refused.value.complaints[0].where == "body"


@pytest.mark.parametrize("number", [(1 << 64) - 1, 1 << 63, -(1 << 63), 9007199254740993, 10**18])
def test_the_largest_integers_are_parsed_exactly(number: int) -> None:
    assert parse_json(b'{"n": [%d]}' % number) == {"n": [number]}


@pytest.mark.parametrize(
    "digits",
    [b"%d" % (1 << 64), b"%d" % (-(1 << 63) - 1), b"1" + b"0" * 20, b"-1" + b"0" * 30, b"1" + b"0" * 300],
    ids=["one too many", "one too few", "20 digits", "30 digits", "300 digits"],
)
def test_integers_past_64_bits_are_refused_and_not_rounded(digits: bytes) -> None:
    for raw in (b'{"n": %s}', b"%s", b"[[%s]]", b'{"a": "b", "n": [1, %s]}'):
        with pytest.raises(InvalidInput, match="64 bits"):
            parse_json(raw % digits)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"n": "123456789012345678901234567890"}',
        b'{"123456789012345678901234567890": 1}',
        b"[12345678901234567890123.0]",
        b"[0.1234567890123456789012345]",
        b"[1.5e300]",
    ],
)
def test_long_digits_outside_of_integers_are_accepted(raw: bytes) -> None:
    assert parse_json(raw) == json.loads(raw)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_above_the_limit_is_refused(opening: bytes, closing: bytes) -> None:
    assert nesting_depth(parse_json(opening * MAX_DEPTH + b"1" + closing * MAX_DEPTH)) == MAX_DEPTH
    with pytest.raises(InvalidInput, match="deeper than 64"):
        parse_json(opening * (MAX_DEPTH + 1) + b"1" + closing * (MAX_DEPTH + 1))


def test_brackets_in_text_and_side_by_side_are_not_nesting() -> None:
    assert parse_json(b'"' + b"[" * 1000 + b'"') == "[" * 1000
    assert len(parse_json(b"[" + b",".join([b"[]"] * 1000) + b"]")) == 1000


@given(documents)
def test_depth_counts_levels(document: Any) -> None:
    def recursive(value: Any) -> int:
        if isinstance(value, dict):
            return 1 + max((recursive(child) for child in value.values()), default=0)
        if isinstance(value, list):
            return 1 + max((recursive(child) for child in value), default=0)
        return 0

    assert nesting_depth(document) == recursive(document)


def test_canonical_json_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical({"b": {"d": 1, "c": 2}, "a": 3}) == canonical({"a": 3, "b": {"c": 2, "d": 1}})
    assert canonical([1, 2]) != canonical([2, 1])
