"""Which agents an owner has: definitions in breadcrumbs, and those that must not count."""

from __future__ import annotations

import secrets
from typing import Any
from uuid import UUID

import pytest

from breadcrumbs.agents.book import AgentBook, definitions_from
from breadcrumbs.runtime.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.store import Store

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
        found = await AgentBook(store, definitions_from(None)).agents(owner)
        return {agent.definition.agent_id for agent in found}
    finally:
        await store.close()


async def test_an_owners_definition_adds_an_agent_for_that_owner_alone(embedded_server: Any) -> None:
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
async def test_what_a_narrowed_token_wrote_or_what_cannot_work_is_no_agent(
    embedded_server: Any, fields: dict[str, Any]
) -> None:
    assert await _agents(embedded_server.url, **fields) == {"default-chat-assistant"}
