from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.hints.jsonpath import MAX_LENGTH, MAX_NODES, MAX_STEPS, MISSING, compile_path

TOOLS = {
    "requestedBy": "agent-1",
    "nothing": None,
    "tools": [{"name": "search", "io": {"name": "deep"}}, {"name": "random"}, "text"],
    "meta": {"a b": 1, "it's": 2, 'say "x"': 3, "back\\slash": 4, "": 5, "a.b": 6, "größe": 7},
    "$ref": "#",
    "@type": "T",
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("$", [TOOLS]),
        ("$.requestedBy", ["agent-1"]),
        ("requestedBy", ["agent-1"]),
        (".requestedBy", ["agent-1"]),
        ("$['requestedBy']", ["agent-1"]),
        ("['requestedBy']", ["agent-1"]),
        ("$.nothing", [None]),
        ("$.absent", []),
        ("$.requestedBy.length", []),
        ("$.tools[0].name", ["search"]),
        ("tools[-1]", ["text"]),
        ("$.tools[3]", []),
        ("$.tools[-4]", []),
        ("$.tools[99999999999999999999999]", []),
        ("$.meta[0]", []),
        ("$.tools.name", []),
        ("$.tools[*].name", ["search", "random"]),
        ("$.tools.*.name", ["search", "random"]),
        ("$.meta.*", [1, 2, 3, 4, 5, 6, 7]),
        ("*", list(TOOLS.values())),
        ("$.requestedBy[*]", []),
        ("$..name", ["search", "deep", "random"]),
        ("..name", ["search", "deep", "random"]),
        ("$.tools..['name']", ["search", "deep", "random"]),
        ("$..absent", []),
        ("$.meta['a b']", [1]),
        (r"$.meta['it\'s']", [2]),
        ("""$.meta["it's"]""", [2]),
        ("""$.meta['say "x"']""", [3]),
        (r"$.meta['back\\slash']", [4]),
        ("$.meta['']", [5]),
        ("$.meta['a.b']", [6]),
        ("$.meta.a.b", []),
        ("$.meta.größe", [7]),
        ("$.$ref", ["#"]),
        ("$.@type", ["T"]),
    ],
)
def test_a_path_selects_these_values(path: str, expected: list[Any]) -> None:
    assert compile_path(path).find(TOOLS) == expected


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("", "the path is empty"),
        ("$.", "character 3: expected a name"),
        (".", "character 2: expected a name"),
        ("$a", "character 2: expected '.' or '['"),
        ("$ref", "character 2: expected '.' or '['"),
        (" $.a", "character 1: expected a name"),
        ("$.a ", "character 4: expected '.' or '['"),
        ("$.a.", "character 5: expected a name"),
        ("$.a b", "character 4"),
        ("$.a[", "character 4: expected [0], [*] or ['name']"),
        ("$.a[]", "filters, slices and unions are not supported"),
        ("$.a[1:2]", "filters, slices and unions are not supported"),
        ("$.a[0,1]", "filters, slices and unions are not supported"),
        ("$.a[?(@.b > 1)]", "filters, slices and unions are not supported"),
        ("$.a[(@.length-1)]", "filters, slices and unions are not supported"),
        ("$.a[b]", "expected [0], [*] or ['name']"),
        ("$.a[٣]", "expected [0], [*] or ['name']"),
        ("$.a['b]", "expected [0], [*] or ['name']"),
        ("$.a['b\"]", "expected [0], [*] or ['name']"),
        (r"$.a['b\']", "expected [0], [*] or ['name']"),
        ("$..", "character 4: expected a name"),
        ("$..*", "character 4: expected a name"),
        ("$..[*]", "only a name or ['name'] can follow '..'"),
        ("$...a", "character 4: expected a name"),
        ("$.a*", "character 4: expected '.' or '['"),
        ("a" * (MAX_LENGTH + 1), f"at most {MAX_LENGTH}"),
        ("$" + ".a" * (MAX_STEPS + 1), f"more than {MAX_STEPS} steps"),
    ],
)
def test_a_bad_path_is_refused_with_its_position(path: str, complaint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        compile_path(path)
    assert complaint in refused.value.message


def test_the_longest_allowed_paths_are_accepted() -> None:
    assert compile_path("a" * MAX_LENGTH).find({"a" * MAX_LENGTH: 1}) == [1]
    assert len(compile_path("$" + ".a" * MAX_STEPS).steps) == MAX_STEPS


def test_first_distinguishes_null_from_missing() -> None:
    assert compile_path("$.nothing").first(TOOLS) is None
    assert compile_path("$.absent").first(TOOLS) is MISSING
    assert compile_path("$.absent").first(TOOLS, default=0) == 0
    assert compile_path("$.tools[*].name").first(TOOLS) == "search"


def test_any_mapping_is_an_object_and_text_is_not_an_array() -> None:
    assert compile_path("a.b").find(MappingProxyType({"a": MappingProxyType({"b": 1})})) == [1]
    assert compile_path("a[0]").find({"a": "text"}) == []


def test_the_same_text_compiles_once() -> None:
    assert compile_path("$.compiled.once") is compile_path("$.compiled.once")


def nested(depth: int) -> dict[str, Any]:
    document: dict[str, Any] = {"a": 1}
    for _ in range(depth):
        document = {"a": document}
    return document


def test_repeated_descent_stops_at_the_limit_and_reports_it() -> None:
    found = compile_path("$" + "..a" * 10).search(nested(60))
    assert not found.complete
    assert 0 < len(found.values) <= MAX_NODES


def test_a_search_that_stopped_early_finds_nothing() -> None:
    document = {"filler": list(range(2 * MAX_NODES)), "wanted": {"x": 1}}
    assert compile_path("..x").find(document) == []
    assert compile_path("..x").first(document) is MISSING
    assert not compile_path("..x").search(document).complete


def test_a_document_of_exactly_the_limit_is_searched_completely() -> None:
    # the document, the array and its elements each count
    found = compile_path("$.a[*]").search({"a": list(range(MAX_NODES - 2))})
    assert found.complete
    assert len(found.values) == MAX_NODES - 2
    assert not compile_path("$.a[*]").search({"a": list(range(MAX_NODES - 1))}).complete


def test_a_document_deeper_than_the_stack_is_searched() -> None:
    assert compile_path("$..a").first(nested(5_000))
    assert len(compile_path("$..a").find(nested(2_000))) == 2_001


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=20,
)


@given(st.text(max_size=40) | st.text("$.[]*'\"ab0-\\ ", max_size=20), JSON)
def test_any_text_is_a_path_or_is_refused(text: str, document: Any) -> None:
    try:
        path = compile_path(text)
    except InvalidInput as error:
        assert error.message
    else:
        assert len(path.find(document)) <= MAX_NODES


@given(st.text(max_size=20), JSON)
def test_any_key_can_be_written_in_quotes(key: str, value: Any) -> None:
    quoted = key.replace("\\", "\\\\").replace("'", "\\'")
    assert compile_path(f"$['{quoted}']").find({key: value}) == [value]
