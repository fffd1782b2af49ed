"""Warnings about settings of a config that have no effect."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from breadcrumbs.context_builder.config_checks import parse_configs
from breadcrumbs.context_builder.config_warnings import KnownNames, find_warnings, locate_warnings
from breadcrumbs.context_builder.known_names import load_known_names, load_values
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store.store import Store
from tests.contexts.support import ANSWERS, MESSAGES, OWNER, SHIPPED, config, document, post
from tests.contexts.test_cli_contexts import Shell, shell

__all__ = ["shell"]

LATEST: dict[str, Any] = {**MESSAGES, "fetch": {"method": "latest", "limit": 3}}
KNOWN = KnownNames(frozenset(("user.message.v1", "agent.thinking.v1")), frozenset(("tester", "writer")))


@pytest.mark.parametrize(
    ("changes", "where", "message"),
    [
        (
            {"sources": [LATEST]},
            "sources.0.fetch.limit",
            "no effect: the method latest returns one breadcrumb",
        ),
        (
            {
                "sources": [{**MESSAGES, "fetch": {"limit": 9}}],
                "limits": [{"key": "conversation", "limit": 3}],
            },
            "sources.0.fetch.limit",
            "no effect: limits allows only 3 for the key 'conversation'",
        ),
        (
            {"sources": [{**ANSWERS, "schema_name": "agent.*"}]},
            "sources.0.schema_name",
            "matches nothing: schema names have no wildcards",
        ),
        (
            {"update_triggers": [{"schema_name": "user.*.v1"}]},
            "update_triggers.0.schema_name",
            "schema names have no wildcards",
        ),
        ({"exclude": {"tags": ["draft:*"]}}, "exclude.tags.0", "matches nothing: tags have no wildcards"),
        (
            {"exclude": {"schema_names": ["agent.thinkin.v1"]}},
            "exclude.schema_names.0",
            "no effect yet: no breadcrumb has this schema. Did you mean 'agent.thinking.v1'?",
        ),
        (
            {"exclude": {"schema_names": ["agent.context.v1"]}},
            "exclude.schema_names.0",
            "no effect: internal breadcrumbs are never included",
        ),
        (
            {"consumer_id": "tseter"},
            "consumer_id",
            "no agent of this server reads the contexts of this consumer. Did you mean 'tester'?",
        ),
        ({"consumer_id": "zzz"}, "consumer_id", "Agents read the contexts of tester, writer"),
    ],
)
def test_a_setting_without_effect_is_a_warning(changes: dict[str, Any], where: str, message: str) -> None:
    (warning,) = find_warnings(config(**changes), KNOWN)
    assert warning.where == where and message in warning.message


def test_a_useful_config_has_no_warnings() -> None:
    used = config(exclude={"schema_names": ["agent.thinking.v1"], "tags": ["draft"]})
    assert list(find_warnings(used, KNOWN)) == []
    assert locate_warnings(SHIPPED.read_bytes(), parse_configs(SHIPPED.read_bytes())) == []


def test_without_a_store_names_are_not_compared() -> None:
    assert list(find_warnings(config(consumer_id="zzz", exclude={"schema_names": ["none.v1"]}))) == []


def test_a_warning_has_the_line_of_its_setting_also_in_a_list_of_configs() -> None:
    raw = orjson.dumps(
        [document(), document(consumer_id="second", sources=[LATEST])], option=orjson.OPT_INDENT_2
    )
    (warning,) = locate_warnings(raw, parse_configs(raw))
    assert warning.where == "1.sources.0.fetch.limit"
    assert raw.decode().splitlines()[warning.line - 1].strip() == '"limit": 3'


async def test_names_come_from_the_store_and_the_agents(store: Store) -> None:
    await post(store, "hello", session="s", tags=("user:message", "topic:tea"))
    await post(store, "secret", session="s", tags=("topic:hidden",), schema="note.v1")

    async def consumers(owner: object) -> frozenset[str]:
        return frozenset(("tester",))

    known = await load_known_names(store, OWNER, consumers)
    assert known.schemas is not None and {"user.message.v1", "note.v1"} <= known.schemas
    assert known.consumers == frozenset(("tester",))
    values = await load_values(store, OWNER, consumers, lambda crumb: crumb.schema_name != "note.v1")
    assert values.consumers == ["tester"] and {"user.message.v1", "note.v1"} <= set(values.schemas)
    assert "topic:tea" in values.tags and "topic:hidden" not in values.tags
    assert not any(tag.startswith("session:") for tag in values.tags)


async def say_hello(store: Store) -> None:
    await post(store, "hello", session="s", owner=DEVELOPER)


def test_the_command_prints_warnings_and_fails_only_with_strict(shell: Shell) -> None:
    shell.on_store(say_hello)
    odd = document(consumer_id="nobody", sources=[LATEST], exclude={"schema_names": ["never.v1"]})
    file = shell.file("odd.json", odd)
    checked = shell.json("context", "check", file, "--json")
    assert checked["ok"] and checked["complaints"] == []
    assert [warning["where"] for warning in checked["warnings"]] == [
        "consumer_id", "sources.0.fetch.limit", "exclude.schema_names.0",
    ]  # fmt: skip
    assert all(warning["line"] == 1 and warning["file"] == file for warning in checked["warnings"])
    strict = shell.run("context", "check", file, "--strict", "--json")
    assert strict.exit_code == 1 and ": warning: sources.0.fetch.limit: no effect" in strict.stderr
    good = shell.file("good.json", document(consumer_id="default-chat-assistant"))
    assert shell.json("context", "check", good, "--strict")["warnings"] == []


def test_the_command_needs_no_store(shell: Shell) -> None:
    file = shell.file("odd.json", document(consumer_id="nobody", sources=[LATEST]))
    done = shell.run("context", "check", file, "--json", CRUMB_NAMESPACE="not-there")
    assert done.exit_code == 0
    assert [w["where"] for w in orjson.loads(done.stdout)["warnings"]] == ["sources.0.fetch.limit"]
