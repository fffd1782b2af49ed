"""W3C trace context: parsing of headers and encoding in events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs.runtime.telemetry.trace_context import TraceContext, decode, parse_headers, trace_headers

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VALID = f"00-{TRACE}-{SPAN}-01"


def parse(parent: str, *states: str) -> TraceContext | None:
    headers = [(b"host", b"x"), (b"traceparent", parent.encode("latin-1"))]
    return parse_headers([*headers, *((b"tracestate", state.encode("latin-1")) for state in states)])


def test_a_valid_header_is_carried_as_it_is() -> None:
    context = parse(VALID, "vendor=1,other@x=abc")
    assert context == TraceContext(int(TRACE, 16), int(SPAN, 16), 1, "vendor=1,other@x=abc")
    assert context.encode() == f"{VALID} vendor=1,other@x=abc"
    assert decode(context.encode()) == context
    assert trace_headers(context.encode()) == {"traceparent": VALID, "tracestate": "vendor=1,other@x=abc"}


@pytest.mark.parametrize(
    "header",
    [
        "",
        "garbage",
        VALID.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"{VALID}\n{VALID}",
        f"{VALID},{VALID}",
        "é" * 55,
    ],
)
def test_an_invalid_header_is_ignored(header: str) -> None:
    assert parse(header) is None


def test_two_parents_are_ignored() -> None:
    assert parse_headers([(b"traceparent", VALID.encode())] * 2) is None


def test_a_later_version_is_accepted_and_continued_as_version_0() -> None:
    context = parse(f"cc-{TRACE}-{SPAN}-01-what-the-future-brings")
    assert context is not None and context.encode() == VALID


@pytest.mark.parametrize(
    ("states", "kept"),
    [
        (["a=1", "b=2"], "a=1,b=2"),
        (["a=1 , ,b=2"], "a=1,b=2"),
        (["A=1"], ""),
        (["a=1\x00"], ""),
        (["a=1,no member"], ""),
        (["a=" + "x" * 510], ""),
        (["a=" + "x" * 100, "b=" + "x" * 100], "a=" + "x" * 100 + ",b=" + "x" * 100),
        ([",".join(f"k{number}=1" for number in range(33))], ""),
    ],
)
def test_the_state_is_bounded_and_an_invalid_one_is_dropped(states: list[str], kept: str) -> None:
    context = parse(VALID, *states)
    assert context is not None and context.state == kept


@pytest.mark.parametrize("carried", [None, "", "x", 5, ["00"], f"{VALID}extra"])
def test_a_damaged_trace_of_an_event_is_ignored(carried: object) -> None:
    assert decode(carried) is None  # type: ignore[arg-type]


@given(st.binary(max_size=200), st.binary(max_size=600))
def test_no_header_raises_and_whatever_is_accepted_can_be_carried(parent: bytes, state: bytes) -> None:
    context = parse_headers([(b"traceparent", parent), (b"tracestate", state)])
    assert context is None or decode(context.encode()) == context
