"""Checks of agent definitions: errors, warnings, and their positions."""

from __future__ import annotations

from typing import Any

import pytest

from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.definition_checks import KnownNames, check_definition, check_text, find_trigger_cycle

TRIGGER = {"schema_name": "user.message.v1"}
VALID: dict[str, Any] = {"agent_id": "one", "subscriptions": {"selectors": [TRIGGER]}}


def test_unknown_fields_are_kept_and_the_nearest_name_is_suggested() -> None:
    checked = check_definition({**VALID, "sytem_prompt": "x", "metadata": {}, "colour": 1})
    assert checked.definition is not None and not checked.errors
    assert checked.definition.model_dump()["sytem_prompt"] == "x"
    assert [(one.pointer, "system_prompt" in one.message) for one in checked.warnings] == [
        ("/sytem_prompt", True),
        ("/colour", False),
    ]


@pytest.mark.parametrize(
    ("fields", "pointer", "says"),
    [
        ({"subscriptions": {"selectors": [{**TRIGGER, "any_tag": ["x"]}]}}, "/subscriptions/selectors/0/any_tag", ""),
        ({"subscriptions": {"selectors": [TRIGGER], "exclude": []}}, "/subscriptions/exclude", "selectors"),
        ({"emits": {"schema": "note.v1"}}, "/emits/schema", "schema_name"),
        ({"subscriptions": {"selectors": []}}, "/subscriptions/selectors", "trigger"),
        ({"subscriptions": {"selectors": [TRIGGER, {}]}}, "/subscriptions/selectors/1", "condition"),
        ({"temperature": "hot"}, "/temperature", "number"),
        ({"when_busy": "que"}, "/when_busy", "queue"),
        ({"adk": {}}, "/adk", "kind"),
        ({"answers_users": "no way"}, "/answers_users", "true or false"),
        ({"agent_id": None}, "/agent_id", "required"),
    ],
)  # fmt: skip
def test_an_error_has_its_position_and_a_correction(fields: dict[str, Any], pointer: str, says: str) -> None:
    checked = check_definition({**VALID, **fields})
    assert checked.definition is None
    assert [one.pointer for one in checked.errors] == [pointer] and says in checked.errors[0].message


def test_errors_of_a_text_have_lines_also_inside_of_a_breadcrumb() -> None:
    raw = b'{"schema_name": "agent.def.v1",\n "context": {"agent_id": "one",\n  "max_stepps": 3, "max_steps": 0}}'
    checked = check_text(raw)
    found = {one.where: (one.line, one.column) for one in (*checked.errors, *checked.warnings)}
    assert found["context.max_steps"] == (3, 33) and found["context.max_stepps"] == (3, 3)
    (broken,) = check_text(b'{"agent_id": "one",}').errors
    assert (broken.line, broken.column) == (1, 19) and "trailing comma" in broken.message
    twice = check_text(
        b'{"agent_id": "a", "agent_id": "b", "subscriptions": {"selectors": [{"schema_name": "x.v1"}]}}'
    )
    assert "duplicate" in twice.errors[0].message
    assert check_text(b"[]").errors[0].message == "a definition must be an object { … }"


def test_unknown_tools_models_and_schemas_are_warnings() -> None:
    known = KnownNames(
        frozenset({"calculator"}),
        frozenset({"user.message.v1"}),
        model_problem=lambda name: f"{name} not found",
    )
    fields = {
        **VALID,
        "tools": ["calculator", "calculater"],
        "model": "gpt",
        "subscriptions": {"selectors": [{"schema_name": "user.mesage.v1"}, {"schema_name": "order.*"}]},
    }
    found = {one.pointer: one.message for one in check_definition(fields, known).warnings}
    assert set(found) == {
        "/tools/1",
        "/model",
        "/subscriptions/selectors/0/schema_name",
        "/subscriptions/selectors/1/schema_name",
    }
    assert "'calculator'" in found["/tools/1"] and found["/model"] == "gpt not found"


def _agent(name: str, reads: str, writes: str) -> AgentDefinition:
    return AgentDefinition.model_validate(
        {
            "agent_id": name,
            "subscriptions": {"selectors": [{"schema_name": "agent.response.v1", "all_tags": [reads]}]},
            "emits": {"tags": [writes]},
        }
    )


def test_agents_that_trigger_themselves_or_each_other_are_found() -> None:
    itself = {"agent_id": "one", "subscriptions": {"selectors": [{"schema_name": "agent.response.v1"}]}}
    (warning,) = check_definition(itself).warnings
    assert warning.pointer == "/subscriptions" and "triggers itself" in warning.message
    ann, ben, carl = _agent("ann", "c", "a"), _agent("ben", "a", "b"), _agent("carl", "b", "c")
    agents = {one.agent_id: one for one in (ann, ben, carl)}
    assert find_trigger_cycle("ben", agents) == ["ben", "carl", "ann"]
    assert find_trigger_cycle("ben", {"ben": ben, "carl": carl}) is None
    (warning,) = check_definition(ann.model_dump(exclude_none=True), KnownNames(agents=agents)).warnings
    assert "ann → ben → carl → ann" in warning.message


def test_definitions_as_rcrt_writes_them_are_accepted() -> None:
    checked = check_definition(
        {
            "agent_id": "default-chat-assistant",
            "llm_config_id": "config-uuid",
            "llm_config_comment": "set by the dashboard",
            "system_prompt": "You are a helpful assistant.",
            "capabilities": {"can_create_breadcrumbs": True},
            "metadata": {"version": "2.0.0"},
            "subscriptions": {
                "selectors": [
                    {
                        "comment": "the assembled context",
                        "schema_name": "agent.context.v1",
                        "all_tags": ["consumer:default-chat-assistant"],
                        "role": "trigger",
                        "key": "assembled_context",
                        "fetch": {"method": "event_data"},
                    }
                ]
            },
        }
    )
    assert checked.definition is not None and not checked.warnings
    assert checked.definition.model == "config-uuid"
