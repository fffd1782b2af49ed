"""The published JSON Schema is up to date, correct, and found by editors."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest

from breadcrumbs.context_builder.config import json_schema
from breadcrumbs.context_builder.config_checks import ConfigError, parse_configs
from tests.contexts.support import SHIPPED, document

PUBLISHED = SHIPPED.with_name("context-builder-config.schema.json")


def test_the_published_schema_equals_that_of_the_code() -> None:
    """To update it: python -c 'from breadcrumbs.context_builder.config import publish; publish()'"""
    assert json.loads(PUBLISHED.read_text()) == json_schema()


def test_the_shipped_config_is_valid_and_names_its_schema() -> None:
    shipped = json.loads(SHIPPED.read_text())
    assert (SHIPPED.parent / shipped["$schema"]).resolve() == PUBLISHED
    jsonschema_rs.validate(json_schema(), shipped)
    (config,) = parse_configs(SHIPPED.read_bytes())
    assert config.consumer_id == "default-chat-assistant"
    assert all(source.fetch.scope == "current" for source in config.sources)


def test_the_schema_is_a_valid_json_schema() -> None:
    jsonschema_rs.meta.validate(json_schema())


@pytest.mark.parametrize(
    "wrong",
    [
        {"consumer": "x"},
        {"consumer_id": ""},
        {"update_triggers": []},
        {"update_triggers": [{}]},
        {"sources": []},
        {"sources": [{"key": "a b", "schema_name": "x"}]},
        {"sources": [{"schema_name": "x"}]},
        {"sources": [{"key": "a", "schema_name": "x", "fetch": {"limit": -1}}]},
        {"sources": [{"key": "a", "schema_name": "x", "fetch": {"limit": "10"}}]},
        {"sources": [{"key": "a", "schema_name": "x", "fetch": {"method": "vector"}}]},
        {"formatting": {"max_tokens": 0}},
        {"formatting": {"max_token": 10}},
        {"output": {"ttl_seconds": -1}},
        {"exclude": {"tags": "secret"}},
    ],
)
def test_editor_and_builder_refuse_the_same(wrong: dict[str, Any]) -> None:
    bad = document(**wrong)
    assert not jsonschema_rs.is_valid(json_schema(), bad)
    with pytest.raises(ConfigError):
        parse_configs(json.dumps(bad).encode())


@pytest.mark.parametrize(
    "right",
    [
        {},
        {"exclude": {"schema_names": ["a.v1"], "tags": ["draft"]}},
        {"output": {"ttl_seconds": None, "schema_name": "my.context.v1", "tags": ["consumer:tester"]}},
        {"sources": [{"key": "a", "any_tags": ["x"], "fetch": {"conversation_scope": "user"}}]},
        {"sources": [{"key": "a", "fetch": {"method": "event_data"}}]},
        {
            "update_triggers": [
                {"all_tags": ["x"], "context_match": [{"path": "$.n", "op": "gt", "value": 1}]}
            ]
        },
    ],
)
def test_editor_and_builder_accept_the_same(right: dict[str, Any]) -> None:
    good = document(**right)
    jsonschema_rs.validate(json_schema(), good)
    jsonschema_rs.validate(json_schema(), [good])
    parse_configs(json.dumps(good).encode())


def test_the_config_in_the_docs_is_valid() -> None:
    page = (SHIPPED.parents[1] / "docs" / "context-config.md").read_text("utf-8")
    (example,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    jsonschema_rs.validate(json_schema(), json.loads(example))
    parse_configs(example.encode())
