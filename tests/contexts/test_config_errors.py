"""Errors in a config are reported with line, column and the expected value."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs.context_builder.config_checks import ConfigError, parse_configs
from breadcrumbs.runtime.breadcrumb.json_positions import LocatedJson, NotJson
from tests.contexts.support import document

GOOD = """{
  "consumer_id": "a",
  "update_triggers": [{"schema_name": "user.message.v1"}],
  "sources": [
    {"key": "conversation", "schema_name": "user.message.v1",
     "fetch": {"method": "recent", "limit": 10}}
  ],
  "formatting": {"max_tokens": 100}
}
"""


def complaints(text: str | bytes) -> list[tuple[int, int, str, str]]:
    raw = text.encode() if isinstance(text, str) else text
    with pytest.raises(ConfigError) as caught:
        parse_configs(raw, name="c.json")
    found = caught.value.complaints
    assert str(caught.value).splitlines() == [
        f"c.json:{c.line}:{c.column}: {c.where + ': ' if c.where else ''}{c.message}" for c in found
    ]
    return [(c.line, c.column, c.where, c.message) for c in found]


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def test_the_valid_config_is_accepted() -> None:
    assert [config.consumer_id for config in parse_configs(GOOD.encode())] == ["a"]


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "says"),
    [
        ('"a",', '"a"', 3, 3, "a comma or } is missing"),
        ('"limit": 10', '"limit": ', 6, 45, "a value is missing here"),
        ('"limit": 10', '"limit": 010', 6, 45, "010 is not a JSON number"),
        ('"limit": 10', '"limit": ten', 6, 45, '"ten"'),
        ('"limit": 10', '"limit": None', 6, 45, "write null instead of None"),
        ('"limit": 10', '"limit": NaN', 6, 45, "not a JSON value"),
        ('"limit": 10', "'limit': 10", 6, 36, "double quotes"),
        ('"limit": 10', '"limit": 10,', 6, 47, "trailing comma before }: remove it"),
        ('"limit": 10', '"limit" 10', 6, 44, 'after "limit"'),
        ('"limit": 10', '"limit": 10 // ten', 6, 48, "no comments"),
        ('"limit": 10', '# ten\n"limit": 10', 6, 36, "no comments"),
        ('"a",', '"a,', 2, 21, "line break"),
        ('"a",', '"\\x",', 2, 19, "backslash"),
        ('"a",', '"\\ud800",', 2, 18, "surrogate"),
        (
            '"max_tokens": 100}\n}\n',
            '"max_tokens": 100}\n',
            9,
            1,
            "} is missing for the { in line 1, column 1",
        ),
        ('"max_tokens": 100}\n}\n', '"max_tokens": 100}\n}}\n', 9, 2, "unexpected text after the end"),
    ],
)
def test_invalid_json_is_reported_with_its_position(
    old: str, new: str, line: int, column: int, says: str
) -> None:
    ((found_line, found_column, where, message),) = complaints(changed(old, new))
    assert (found_line, found_column, where) == (line, column, "")
    assert message.startswith("not JSON: ") and says in message


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "where", "says"),
    [
        ('"limit"', '"limt"', 6, 36, "sources.0.fetch.limt", "did you mean 'limit'?"),
        ('"formatting"', '"formating"', 8, 3, "formating", "did you mean 'formatting'?"),
        ('"schema_name": "user.message.v1"}', '"schema": "user.message.v1"}', 3, 24,
         "update_triggers.0.schema", "did you mean 'schema_name'?"),
        ('"max_tokens"', '"colour"', 8, 18, "formatting.colour", "expected one of: max_tokens"),
        ('"limit": 10', '"limit": -1', 6, 45, "sources.0.fetch.limit", "at least 1, not -1"),
        ('"limit": 10', '"limit": 0', 6, 45, "sources.0.fetch.limit", "at least 1, not 0"),
        ('"limit": 10', '"limit": 99999', 6, 45, "sources.0.fetch.limit", "at most 1,000, not 99999"),
        ('"limit": 10', '"limit": 123456789012345678901234567890', 6, 45, "sources.0.fetch.limit", "at most"),
        ('"limit": 10', '"limit": "10"', 6, 45, "sources.0.fetch.limit", 'a whole number, not "10"'),
        ('"limit": 10', '"limit": 1.5', 6, 45, "sources.0.fetch.limit", "a whole number, not 1.5"),
        ('"limit": 10', '"limit": true', 6, 45, "sources.0.fetch.limit", "a whole number, not true"),
        ('"limit": 10', '"limit": null', 6, 45, "sources.0.fetch.limit", "a whole number, not null"),
        ('"recent"', '"recnt"', 6, 26, "sources.0.fetch.method",
         "must be one of recent, latest, event_data, not \"recnt\": did you mean 'recent'?"),
        ('"recent"', '"vector"', 6, 26, "sources.0.fetch.method", "must be one of recent, latest, event_data"),
        ('"limit": 10', '"conversation_scope": "session"', 6, 58, "sources.0.fetch.conversation_scope",
         "must be one of current, user, all"),
        ('{"schema_name": "user.message.v1"}]', "{}]", 3, 23, "update_triggers.0", "matches everything"),
        ('{"schema_name": "user.message.v1"}]', '{"any_tags": []}]', 3, 23, "update_triggers.0", "matches everything"),
        ('[{"schema_name": "user.message.v1"}]', "[]", 3, 22, "update_triggers", "at least one"),
        ('[{"schema_name": "user.message.v1"}]', '"user.message.v1"', 3, 22, "update_triggers", "must be a list"),
        ('{"schema_name": "user.message.v1"}]', '"user.message.v1"]', 3, 23, "update_triggers.0",
         'must be an object { … }, not "user.message.v1"'),
        ('{"schema_name": "user.message.v1"}]', '{"schema_name": "agent.context.v1"}]', 3, 23,
         "update_triggers.0", "would trigger itself"),
        ('{"schema_name": "user.message.v1"}]', '{"any_tags": ["extension:chat"]}]', 3, 23,
         "update_triggers.0", "would trigger itself"),
        ('"schema_name": "user.message.v1",\n', '"schema_name": "",\n', 5, 44, "sources.0.schema_name", "not be empty"),
        ('"schema_name": "user.message.v1",\n', "\n", 5, 5, "sources.0", "requires a schema_name or tags"),
        ('"key": "conversation", ', "", 5, 5, "sources.0.key", "this field is required"),
        ('"conversation", ', '"two words", ', 5, 13, "sources.0.key", "must begin with a letter"),
        ('"a",', '"",', 2, 18, "consumer_id", "not be empty"),
        ('"a",', "7,", 2, 18, "consumer_id", "must be a string, not 7"),
        ('"max_tokens": 100', '"max_tokens": -5', 8, 32, "formatting.max_tokens", "at least 1, not -5"),
        ('"formatting": {"max_tokens": 100}', '"output": {"tags": ["x", "session:abc"]}', 8, 28,
         "output.tags.1", "remove session tags"),
        ('"formatting": {"max_tokens": 100}', '"output": {"tags": ["consumer:b"]}', 8, 23,
         "output.tags.0", "a config has one consumer"),
        ('"formatting": {"max_tokens": 100}', '"exclude": {"tags": "secret"}', 8, 23, "exclude.tags", "must be a list"),
        ('"consumer_id": "a",', '"consumer_id": "a", "consumer_id": "b",', 2, 23, "consumer_id",
         "already set in line 2"),
        ('"limit": 10', '"limit": 10, "limit": 20', 6, 49, "sources.0.fetch.limit", "already set in line 6"),
    ],
)  # fmt: skip
def test_errors_are_reported_with_their_position(
    old: str, new: str, line: int, column: int, where: str, says: str
) -> None:
    ((found_line, found_column, found_where, message),) = complaints(changed(old, new))
    assert (found_line, found_column, found_where) == (line, column, where), message
    assert says in message


@pytest.mark.parametrize(
    ("raw", "line", "column", "says"),
    [
        (b"", 1, 1, "the document is empty"),
        (b"\n \n", 3, 1, "the document is empty"),
        (b"\xef\xbb\xbf" + GOOD.encode(), 1, 1, "byte order mark"),
        (GOOD.encode("utf-16"), 1, 1, "UTF-16"),
        (GOOD.replace('"a"', '"\xe4"').encode("latin-1"), 2, 19, "not UTF-8"),
        (b"[" * 200, 1, 66, "deeper than 64"),
        (b" " * (1 << 20) + b"{}", 1, 1, "at most 1048576 bytes"),
        (b"[]", 1, 1, "the list is empty"),
        (b"7", 1, 1, "must be an object { … }, not 7"),
        (b'[{"consumer_id": "a"}, null]', 1, 24, "must be an object"),
    ],
)
def test_files_with_an_invalid_structure_are_refused(raw: bytes, line: int, column: int, says: str) -> None:
    found = complaints(raw)
    assert any((at, beside) == (line, column) and says in message for at, beside, _, message in found), found


def test_all_errors_are_reported_from_top_to_bottom() -> None:
    text = changed('"a",', "1,").replace("recent", "newest").replace("100", "0")
    assert [line for line, *_ in complaints(text)] == [2, 6, 8]


def test_columns_count_characters_not_bytes() -> None:
    ((line, column, _, _),) = complaints('{"consumer_id": "äöü", "x": 1, ' + GOOD[GOOD.index('"update') :])
    assert (line, column) == (1, 24)


def test_a_consumer_has_one_config() -> None:
    text = f"[{GOOD},\n{GOOD}]"
    ((line, column, where, message),) = complaints(text)
    assert (line, column, where) == (12, 18, "1.consumer_id") and "already has a config" in message


def test_configs_that_trigger_each_other_are_refused() -> None:
    def after(consumer: str, other: str) -> dict[str, Any]:
        waits_for = {"schema_name": "agent.context.v1", "all_tags": [f"consumer:{other}"]}
        return document(consumer_id=consumer, update_triggers=[waits_for])

    first = document(consumer_id="a")
    parse_configs(orjson.dumps([first, after("b", "a"), after("c", "b")]))
    ((_, _, where, message),) = complaints(orjson.dumps([after("a", "c"), after("b", "a"), after("c", "b")]))
    assert where == "0.update_triggers" and "a → b → c → a" in message


def test_a_schema_reference_for_the_editor_is_allowed() -> None:
    parse_configs(changed('"consumer_id"', '"$schema": "./x.json", "consumer_id"').encode())


# The JSON parser with positions

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(json_values, st.sampled_from([None, 2]), st.booleans())
def test_every_json_document_is_parsed_like_the_json_module(
    value: Any, indent: int | None, ascii: bool
) -> None:
    raw = json.dumps(value, indent=indent, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    try:
        placed = LocatedJson(raw)
    except NotJson as error:
        assert "surrogate" in error.message or "not UTF-8" in error.message
    else:
        assert placed.value == value and repr(placed.value) == repr(value)
        assert not placed.repeated_keys


@given(st.text(alphabet='{}[]",:0123 \n-.etrufalsn/\\', max_size=30))
def test_parsed_values_equal_those_of_the_standard_library(text: str) -> None:
    try:
        expected = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    except ValueError:
        with pytest.raises(NotJson):
            LocatedJson(text.encode())
    else:
        assert LocatedJson(text.encode()).value == expected


@given(json_values)
def test_every_value_has_its_position(value: Any) -> None:
    raw = json.dumps(value, indent=1).encode()
    try:
        placed = LocatedJson(raw)
    except NotJson:
        return
    lines = raw.decode().split("\n")

    def check(inner: Any, path: tuple[str | int, ...]) -> None:
        line, column = placed.locate(path)
        first = lines[line - 1][column - 1 :]
        assert first.startswith(json.dumps(inner, indent=1).split("\n")[0][:1])
        members: Any = (
            inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list) else ()
        )
        for name, member in members:
            if isinstance(inner, dict):
                key_line, key_column = placed.locate((*path, name), key=True)
                assert lines[key_line - 1][key_column - 1 :].startswith(json.dumps(name))
            check(member, (*path, name))

    check(value, ())
