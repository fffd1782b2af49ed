"""Agents of an owner, from definitions in breadcrumbs. Some definitions must be ignored."""

from __future__ import annotations

import secrets
from typing import Any
from uuid import UUID

import pytest
import structlog

from breadcrumbs.agents.agents_in_force import AgentsInForce, load_definitions
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers import definitions

OWNER, OTHER = UUID(int=1), UUID(int=2)
DEFINITION = {
    "agent_id": "helper",
    "subscriptions": {"selectors": [{"schema_name": "user.message.v1", "role": "trigger"}]},
}


async def _agents(url: str, owner: UUID = OWNER, **fields: Any) -> set[str]:
    store = await Store.open(url, namespace=secrets.token_hex(6))
    try:
        new = {"schema_name": "agent.def.v1", "title": "helper", "context": DEFINITION, **fields}
        await store.create(OWNER, BreadcrumbCreate.parse(new), by=UUID(int=3))
        found = await AgentsInForce(store, load_definitions(None)).get(owner)
        return {agent.definition.agent_id for agent in found}
    finally:
        await store.close()


async def test_a_definition_adds_an_agent_only_for_its_owner(embedded_server: Any) -> None:
    assert await _agents(embedded_server.url) == {"default-chat-assistant", "helper"}
    assert await _agents(embedded_server.url, OTHER) == {"default-chat-assistant"}


@pytest.mark.parametrize(
    "fields",
    [
        {"tags": ["session:mine"]},
        {"tags": ["user:ann"]},
        {"visibility": "private"},
        {"sensitivity": "secret"},
        {"context": {"agent_id": "helper"}},
        {"context": {**DEFINITION, "subscriptions": {"selectors": [{"role": "trigger"}]}}},
    ],
)
async def test_a_narrowed_hidden_or_invalid_definition_adds_no_agent(
    embedded_server: Any, fields: dict[str, Any]
) -> None:
    assert await _agents(embedded_server.url, **fields) == {"default-chat-assistant"}


async def _post(store: Store, prompt: str, agent_id: str = "helper") -> UUID:
    context = {**DEFINITION, "agent_id": agent_id, "system_prompt": prompt}
    new = {"schema_name": "agent.def.v1", "title": prompt, "context": context}
    return (await store.create(OWNER, BreadcrumbCreate.parse(new))).id


async def test_the_last_written_definition_of_an_agent_is_in_force(
    embedded_server: Any,
) -> None:
    store = await Store.open(embedded_server.url, namespace=secrets.token_hex(6))
    try:
        first = await _post(store, "first")
        await _post(store, "second")
        (agent,) = await AgentsInForce(store, ()).get(OWNER)
        assert agent.definition.system_prompt == "second"
        change = {"context": {**DEFINITION, "system_prompt": "first, edited"}}
        await store.update(OWNER, first, BreadcrumbUpdate.parse(change))
        (agent,) = await AgentsInForce(store, ()).get(OWNER)
        assert agent.definition.system_prompt == "first, edited"
    finally:
        await store.close()


async def test_an_invalid_edit_leaves_the_last_valid_version_in_force(
    embedded_server: Any,
) -> None:
    store = await Store.open(embedded_server.url, namespace=secrets.token_hex(6))
    try:
        written = await _post(store, "good")
        change = {"context": {**DEFINITION, "max_steps": -1}}
        await store.update(OWNER, written, BreadcrumbUpdate.parse(change))
        (agent,) = await AgentsInForce(store, ()).get(OWNER)
        assert agent.definition.system_prompt == "good"
        await store.update(OWNER, written, BreadcrumbUpdate.parse({"visibility": "private"}))
        assert await AgentsInForce(store, ()).get(OWNER) == []
    finally:
        await store.close()


async def test_only_the_newest_definitions_above_the_limit_are_used_and_a_warning_is_logged(
    embedded_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "MAX_DEFINITIONS", 3)
    store = await Store.open(embedded_server.url, namespace=secrets.token_hex(6))
    try:
        for number in range(5):
            await _post(store, "", f"helper-{number}")
        agents = AgentsInForce(store, ())
        with structlog.testing.capture_logs() as logs:
            found = await agents.get(OWNER)
            agents._own.invalidate(OWNER)
            await agents.get(OWNER)
        assert {agent.definition.agent_id for agent in found} == {"helper-2", "helper-3", "helper-4"}
        (log,) = logs
        assert log["event"] == "limit of agent definitions reached, older ones are ignored: delete some"
        assert log["owner"] == str(OWNER)
    finally:
        await store.close()
