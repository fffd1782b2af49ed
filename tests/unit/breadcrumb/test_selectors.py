from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs.runtime.breadcrumb.selectors import ContextMatch, Selector, json_equal, parse_selector
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.hints.jsonpath import MAX_NODES

OWNER = UUID("018f0000-0000-7000-8000-000000000001")
OTHER = UUID("018f0000-0000-7000-8000-000000000002")


@dataclass(frozen=True)
class Crumb:
    schema_name: str | None = "user.message.v1"
    tags: Sequence[str] = ("user:message", "extension:chat", "session:abc")
    session_id: str | None = "abc"
    context: Mapping[str, Any] = field(default_factory=dict)
    visibility: str = "team"
    sensitivity: str = "low"
    owner_id: UUID = OWNER


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, True),
        ({"schema_name": "user.message.v1"}, True),
        ({"schema_name": "user.message"}, False),
        ({"schema_name": "user.message.*"}, False),
        ({"schema_name": None, "any_tags": None, "context_match": None}, True),
        ({"any_tags": ["user:message"]}, True),
        ({"any_tags": ["other", "extension:chat"]}, True),
        ({"any_tags": ["other"]}, False),
        ({"any_tags": []}, True),
        ({"all_tags": []}, True),
        ({"any_tags": ["user:*"]}, False),
        ({"any_tags": ["*"]}, False),
        ({"any_tags": ["user"]}, False),
        ({"any_tags": ["USER:MESSAGE"]}, False),
        ({"all_tags": ["user:message", "extension:chat"]}, True),
        ({"all_tags": ["user:message", "other"]}, False),
        ({"any_tags": ["user:message"], "all_tags": ["other"]}, False),
        ({"any_tags": ["other"], "schema_name": "user.message.v1"}, False),
        ({"any_tags": ["user:message", "session:xyz"], "session_id": "xyz"}, False),
        ({"session_id": "abc"}, True),
        ({"session_id": "xyz"}, False),
    ],
)
def test_schema_tags_and_session_match_as_written(selector: dict[str, Any], expected: bool) -> None:
    crumb = Crumb()
    parsed = parse_selector(selector)
    assert parsed.matches(crumb) is expected
    assert parsed.matches_meta(crumb.schema_name, crumb.tags, crumb.session_id) is expected
    assert parsed.matches_meta(crumb.schema_name, set(crumb.tags), crumb.session_id) is expected
    assert not parsed.needs_context


def test_a_breadcrumb_without_schema_or_session_matches_no_such_filter() -> None:
    bare = Crumb(schema_name=None, tags=(), session_id=None)
    assert Selector().matches(bare)
    assert not Selector(schema_name="None").matches(bare)
    assert not Selector(session_id="None").matches(bare)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({"owner_id": str(OWNER)}, True),
        ({"owner_id": str(OWNER).upper()}, True),
        ({"owner_id": str(OTHER)}, False),
        ({"visibility_in": ["public", "team"]}, True),
        ({"visibility_in": ["public"]}, False),
        ({"visibility_in": ["Team"]}, True),
        ({"sensitivity_in": ["low"]}, True),
        ({"sensitivity_in": ["pii", "secret"]}, False),
        ({"context_match": [{"path": "$.a", "op": "eq", "value": 1}]}, True),
        (
            {
                "context_match": [
                    {"path": "$.a", "op": "eq", "value": 1},
                    {"path": "$.a", "op": "gt", "value": 1},
                ]
            },
            False,
        ),
    ],
)
def test_conditions_on_the_content_are_decided_by_the_whole_breadcrumb(
    selector: dict[str, Any], expected: bool
) -> None:
    crumb = Crumb(context={"a": 1})
    parsed = parse_selector(selector)
    assert parsed.needs_context
    assert parsed.matches_meta(crumb.schema_name, crumb.tags, crumb.session_id)
    assert parsed.matches(crumb) is expected


def test_metadata_that_does_not_match_is_final() -> None:
    selector = parse_selector(
        {"any_tags": ["other"], "context_match": [{"path": "$.a", "op": "eq", "value": 1}]}
    )
    assert not selector.matches(Crumb(context={"a": 1}))


CONTEXT = {
    "n": 3,
    "f": 3.0,
    "yes": True,
    "text": "hello world",
    "when": "2025-11-02T10:00:00Z",
    "null": None,
    "list": [1, "two", {"k": [1]}, True],
    "ones": [1],
    "object": {"key": 1},
    "items": [{"n": 1}, {"n": 5}, {"m": 0}],
}


@pytest.mark.parametrize(
    ("path", "op", "value", "expected"),
    [
        ("$.n", "eq", 3, True),
        ("n", "eq", 3, True),
        ("$.n", "eq", 3.0, True),
        ("$.f", "eq", 3, True),
        ("$.n", "eq", "3", False),
        ("$.yes", "eq", True, True),
        ("$.yes", "eq", 1, False),
        ("$.null", "eq", None, True),
        ("$.absent", "eq", None, False),
        ("$.object", "eq", {"key": 1.0}, True),
        ("$.object", "eq", {"key": True}, False),
        ("$.ones", "eq", [1], True),
        ("$.ones", "eq", [True], False),
        ("$.n", "ne", 4, True),
        ("$.n", "ne", 3.0, False),
        ("$.absent", "ne", 3, True),
        ("$.absent", "ne", None, True),
        ("$.null", "ne", None, False),
        ("$.yes", "ne", 1, True),
        ("$.n", "gt", 2, True),
        ("$.n", "gt", 3, False),
        ("$.n", "gte", 3.0, True),
        ("$.n", "lt", 3.5, True),
        ("$.n", "lte", 2, False),
        ("$.n", "gt", "2", False),
        ("$.n", "gt", None, False),
        ("$.yes", "gt", 0, False),
        ("$.n", "gt", False, False),
        ("$.when", "gt", "2025-11-01", True),
        ("$.when", "lt", "2025-11-01", False),
        ("$.list", "gt", [0], False),
        ("$.absent", "lt", 3, False),
        ("$.absent", "gte", 3, False),
        ("$.text", "contains", "lo wo", True),
        ("$.text", "contains", "Hello", False),
        ("$.text", "contains", 1, False),
        ("$.list", "contains", "two", True),
        ("$.list", "contains", "tw", False),
        ("$.list", "contains", {"k": [1.0]}, True),
        ("$.ones", "contains", 1.0, True),
        ("$.ones", "contains", True, False),
        ("$.object", "contains", "key", True),
        ("$.object", "contains", 1, False),
        ("$.n", "contains", 3, False),
        ("$.null", "contains", None, False),
        ("$.absent", "contains", "x", False),
        ("$.text", "contains_any", ["bye", "world"], True),
        ("$.text", "contains_any", ["bye"], False),
        ("$.text", "contains_any", [], False),
        ("$.list", "contains_any", [0, "two"], True),
        ("$.ones", "contains_any", [True, "1"], False),
        ("$.object", "contains_any", ["other", "key"], True),
        ("$.absent", "contains_any", ["x"], False),
        ("$.items[*].n", "eq", 5, True),
        ("$.items[*].n", "gt", 4, True),
        ("$.items[*].n", "gt", 5, False),
        ("$.items[*].n", "ne", 5, False),
        ("$.items[*].n", "ne", 7, True),
        ("$..n", "eq", 5, True),
    ],
)
def test_a_context_match_compares_as_json_does(path: str, op: Any, value: Any, expected: bool) -> None:
    assert ContextMatch(path=path, op=op, value=value).matches(CONTEXT) is expected


def test_ne_is_undecided_for_a_document_that_is_too_large() -> None:
    condition = ContextMatch(path="$..x", op="ne", value=1)
    assert condition.matches({"filler": [0] * 10})
    assert not condition.matches({"filler": [0] * (MAX_NODES + 1), "last": {"x": 1}})


@pytest.mark.parametrize(
    ("raw", "where", "complaint"),
    [
        ("{", "", "not valid JSON"),
        (b"\xff", "", "not valid JSON"),
        ("[]", "", "a selector must be a JSON object"),
        ("null", "", "a selector must be a JSON object"),
        ({"tags": ["a"]}, "tags", "unknown field; use one of schema_name, any_tags"),
        ({"context_matches": []}, "context_matches", "use one of schema_name"),
        ({"any_tags": "a"}, "any_tags", "valid list"),
        ({"any_tags": [1]}, "any_tags[0]", "valid string"),
        ({"any_tags": [""]}, "any_tags[0]", "at least 1 character"),
        ({"all_tags": ["a", "b" * 257]}, "all_tags[1]", "at most 256 characters"),
        ({"any_tags": ["a"] * 65}, "any_tags", "List should have at most 64 items"),
        ({"session_id": ""}, "session_id", "at least 1 character"),
        ({"schema_name": ""}, "schema_name", "at least 1 character"),
        ({"schema_name": 1}, "schema_name", "valid string"),
        ({"owner_id": "me"}, "owner_id", "valid UUID"),
        ({"context_match": {}}, "context_match", "valid list"),
        (
            {"context_match": [{"path": "$.a", "op": "eq", "value": 1}] * 33},
            "context_match",
            "at most 32 items",
        ),
        (
            {"context_match": [{"path": "$.a[", "op": "eq", "value": 1}]},
            "context_match[0].path",
            "character 4",
        ),
        (
            {"context_match": [{"path": "$.a", "op": "like", "value": 1}]},
            "context_match[0].op",
            "'contains_any'",
        ),
        ({"context_match": [{"path": "$.a", "op": "eq"}]}, "context_match[0].value", "required"),
        (
            {"context_match": [{"path": "$.a", "op": "contains_any", "value": "x"}]},
            "context_match[0].value",
            "contains_any needs a list",
        ),
        (
            {"context_match": [{"path": "$.a", "op": "contains_any", "value": [0] * 65}]},
            "context_match[0].value",
            "at most 64 values",
        ),
        (
            {"context_match": [{"path": "$.a", "op": "eq", "value": 1, "flags": "i"}]},
            "context_match[0].flags",
            "use one of path, op, value",
        ),
    ],
)
def test_a_bad_selector_is_refused_with_the_field(raw: Any, where: str, complaint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_selector(raw)
    assert [c.where for c in refused.value.complaints] == [where]
    assert complaint in refused.value.complaints[0].message


def test_invalid_fields_are_listed_up_to_a_limit() -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_selector({"session_id": 1, "any_tags": 2})
    assert {c.where for c in refused.value.complaints} == {"session_id", "any_tags"}
    with pytest.raises(InvalidInput) as refused:
        parse_selector({f"x{number}": 1 for number in range(1000)})
    assert len(refused.value.complaints) == 20


def test_json_text_bytes_and_objects_give_the_same_selector() -> None:
    text = '{"any_tags": ["a"], "context_match": [{"path": "$.x", "op": "ne", "value": null}]}'
    selector = parse_selector(text)
    assert selector == parse_selector(text.encode()) == parse_selector(selector.model_dump(mode="json"))


@pytest.mark.parametrize(
    ("raw", "empty"),
    [
        ({}, True),
        ({"any_tags": [], "all_tags": [], "context_match": [], "schema_name": None}, True),
        ({"visibility_in": [], "sensitivity_in": []}, True),
        ({"any_tags": ["a"]}, False),
        ({"session_id": "abc"}, False),
        ({"context_match": [{"path": "$", "op": "ne", "value": 0}]}, False),
    ],
)
def test_a_selector_reports_if_it_filters_anything(raw: dict[str, Any], empty: bool) -> None:
    assert parse_selector(raw).is_empty is empty


GLOBBY = st.text("ab:*?[]\\.%_-", min_size=1, max_size=6)


@given(GLOBBY, st.lists(GLOBBY, max_size=6))
def test_special_characters_in_tags_match_only_themselves(wanted: str, tags: list[str]) -> None:
    expected = any(tag == wanted for tag in tags)
    for selector in (Selector(any_tags=[wanted]), Selector(all_tags=[wanted])):
        assert selector.matches_meta(None, tags, None) is expected


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from([0.0, 1.0, 1.5])
    | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=8,
)


@given(JSON, JSON)
def test_equality_is_symmetric_and_ne_is_its_opposite(left: Any, right: Any) -> None:
    assert json_equal(left, left)
    assert json_equal(left, right) is json_equal(right, left)
    eq, ne = (ContextMatch(path="$.x", op=op, value=right).matches({"x": left}) for op in ("eq", "ne"))
    assert eq is not ne


@given(JSON, st.sampled_from(["eq", "ne", "gt", "lt", "gte", "lte", "contains"]), JSON)
def test_any_two_values_can_be_compared(found: Any, op: Any, value: Any) -> None:
    assert ContextMatch(path="$.x", op=op, value=value).matches({"x": found}) in (True, False)


def test_equality_of_documents_deeper_than_the_stack_is_decided() -> None:
    left: Any = 1
    right: Any = 1.0
    for _ in range(5_000):
        left, right = [left], [right]
    assert json_equal(left, right)
    assert not json_equal(left, [right])
