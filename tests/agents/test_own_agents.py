"""Modules with a user's own agents and tools: everything in them is used, or is an error with its position."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest
import structlog

import breadcrumbs
from breadcrumbs.composition.own_agents import OwnAgents, collect_agents, load_agents
from breadcrumbs.runtime.errors import StartupError

SUBSCRIPTIONS = '{"selectors": [{"schema_name": "user.message.v1"}]}'


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(tmp_path)

    def load(text: str) -> OwnAgents:
        name = f"agents_{secrets.token_hex(4)}"
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
        return load_agents([name])

    return load


def names(own: OwnAgents) -> list[str]:
    return sorted(agent.definition.agent_id for agent in own.agents)


def test_dicts_definitions_functions_breadcrumbs_and_lists_are_loaded(load: Any) -> None:
    own = load(f"""
from breadcrumbs import AgentDefinition, agent, tool

plain = {{"agent_id": "plain", "subscriptions": {SUBSCRIPTIONS}}}
typed = AgentDefinition.model_validate({{"agent_id": "typed", "subscriptions": {SUBSCRIPTIONS}}})
crumb = {{"schema_name": "agent.def.v1", "context": {{"agent_id": "crumb", "subscriptions": {SUBSCRIPTIONS}}}}}
many = [{{"agent_id": "listed", "subscriptions": {SUBSCRIPTIONS}}}, typed]
again = plain
settings = {{"colour": "red"}}

@agent("function")
async def function(call):
    return ""

@tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
""")
    assert names(own) == ["crumb", "function", "listed", "plain", "typed"]
    assert [tool.name for tool in own.tools] == ["add"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('x = {"agent_id": "x"}', r"agents_\w+\.x: the agent definition 'x' is invalid:\n  subscriptions.selectors: "),
        (f'x = [{{"agent_id": "x", "subscriptions": {SUBSCRIPTIONS}}}, 5]', r"\.x\[1\] is neither an agent nor a tool"),
        (f'x = {{"subscriptions": {SUBSCRIPTIONS}}}', r"\.x looks like an agent definition, but it has no agent_id"),
        (f'x = {{"agent_id": "x", "subscriptions": {SUBSCRIPTIONS}, "emits": {{"schema": "a.v1"}}}}', "schema_name"),
        ("from breadcrumbs import ToolDefinition\nx = ToolDefinition('x')", "has no function"),
        ("x = 5", "contains no agents, tools or hooks"),
    ],
)  # fmt: skip
def test_an_unusable_object_is_an_error_with_its_position(load: Any, text: str, says: str) -> None:
    with pytest.raises(StartupError, match=says):
        load(text)


def test_unknown_fields_and_cycles_are_logged_with_their_position(load: Any) -> None:
    with structlog.testing.capture_logs() as logs:
        load(f'x = {{"agent_id": "x", "sytem_prompt": "", "subscriptions": {SUBSCRIPTIONS}}}')
        load('y = {"agent_id": "y", "subscriptions": {"selectors": [{"schema_name": "agent.response.v1"}]}}')
    found = [(str(log.get("position", "")), str(log.get("problem") or log.get("agents"))) for log in logs]
    assert found[0][0].endswith(".x") and "system_prompt" in found[0][1]
    assert any("triggers itself" in text for _, text in found) and ("", "y → y") in found


def test_objects_of_other_types_are_refused_with_their_index() -> None:
    good = {"agent_id": "x", "subscriptions": {"selectors": [{"schema_name": "user.message.v1"}]}}
    assert names(collect_agents([good])) == ["x"]
    with pytest.raises(StartupError, match=r"agents\[1\] is no agent, but a str"):
        collect_agents([good, "x"])  # type: ignore[list-item]
    with pytest.raises(StartupError, match=r"tools\[0\] is no tool"):
        collect_agents([good], [len])  # type: ignore[list-item]


def test_the_definition_of_a_tool_is_a_public_value() -> None:
    @breadcrumbs.tool(timeout=5, return_to_llm=False)
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    described: breadcrumbs.ToolDefinition = add.definition
    assert (described.name, described.description) == ("add", "Add two numbers.")
    assert described.parameters["required"] == ["a", "b"]
    assert (described.timeout, described.return_to_llm, described.idempotent) == (5, False, False)
    assert described.as_dict()["capabilities"]["timeout"] == 5000
