"""Runners of different kinds decide from stored data which of their agents answer a message."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from breadcrumbs.agents.addressees import Addressees
from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.chosen_agent import AgentUnavailable
from breadcrumbs.agents.conversation import RecentAnswers
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.other_agents import OtherAgents
from breadcrumbs.composition.answering_agents import describe_agents
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.settings.answering import Answering
from breadcrumbs.runtime.store.published_agents import Claims, publish_agents, read_publications
from breadcrumbs.runtime.store.store import Store

OWNER = UUID(int=1)
MESSAGE: dict[str, Any] = {"schema_name": "user.message.v1"}
ALWAYS: Claims = ((0, 1 << 62),)
NEVER: Claims = ((1, 2),)


@pytest.fixture
async def store(embedded_server: Any) -> AsyncIterator[Store]:
    opened = await Store.open(embedded_server.url, namespace=secrets.token_hex(6))
    yield opened
    await opened.close()


def agent(
    name: str, trigger: dict[str, Any] = MESSAGE, *, fallback: bool = False, **fields: Any
) -> ActiveAgent:
    definition = {"agent_id": name, "subscriptions": {"selectors": [trigger]}, **fields}
    return ActiveAgent(AgentDefinition.model_validate(definition), fallback=fallback)


ASSISTANT = agent(
    "assistant", {"schema_name": "agent.context.v1", "all_tags": ["consumer:assistant"]}, fallback=True
)
NOTES = agent("notes", emits={"schema_name": "note.v1"})
SILENT = agent("silent", answers_users=False)


async def reacts(owner: UUID, consumer: str, message: Breadcrumb) -> bool:
    return consumer == "assistant" and message.schema_name == "user.message.v1"


class Site:
    """Runners of the installation and one program for each further agent, over one store."""

    def __init__(self, store: Store, *shared: ActiveAgent, rule: Answering = "all") -> None:
        self.store = store
        self.shared = list(shared)
        self.programs: dict[str, ActiveAgent] = {}
        self.rule: Answering = rule

    async def publish(self, claims: Claims = ALWAYS, *programs: ActiveAgent) -> None:
        await publish_agents(self.store, "agents", describe_agents(self.shared), answering=self.rule)
        for one in programs:
            self.programs[one.definition.agent_id] = one
            described = replace(describe_agents([one])[0], claims=claims)
            await publish_agents(self.store, f"agents/{described.agent_id}", [described])

    async def answering(self, message: Breadcrumb, recent: RecentAnswers | None = None) -> list[str]:
        """Return all agents of all runners that run for a message, each runner deciding alone."""
        event = Event(
            "created", OWNER, message.id, 1, message.schema_name, message.tags, None, 0, message.created
        )
        return [
            name
            for kind, agents in [
                ("agents", self.shared),
                *((f"agents/{name}", [one]) for name, one in self.programs.items()),
            ]
            for name in await self._decide(kind, agents, event, message, recent or RecentAnswers([], []))
        ]

    async def _decide(
        self, kind: str, agents: list[ActiveAgent], event: Event, message: Breadcrumb, recent: RecentAnswers
    ) -> list[str]:
        async def posted(owner: UUID) -> list[Any]:
            return []

        others = OtherAgents(
            self.store, kind=kind, answering="all", reacts=reacts, posted=None if kind == "agents" else posted
        )
        chosen = Addressees(self.store, kind=kind, reports=kind == "agents", others=others)
        return [one.definition.agent_id for one in await chosen.select(event, message, agents, recent)]


async def post(store: Store, *tags: str, **context: Any) -> Breadcrumb:
    fields = {
        "schema_name": "user.message.v1",
        "title": "x",
        "tags": ["user:message", "session:s", *tags],
        "context": {"message": "Hello", **context},
    }
    written = await store.create(OWNER, BreadcrumbCreate.parse(fields))
    return await store.get(OWNER, written.id)


async def test_the_assistant_leaves_messages_to_an_agent_of_a_program_while_it_claims_them(
    store: Store,
) -> None:
    site = Site(store, ASSISTANT, NOTES, SILENT)
    message = await post(store)
    await site.publish()
    beside = ["notes", "silent"]
    assert await site.answering(message) == ["assistant", *beside]
    await site.publish(ALWAYS, agent("poet"))
    assert await site.answering(message) == [*beside, "poet"]
    await site.publish(NEVER, agent("poet"))  # it was stopped before the message
    assert await site.answering(message) == ["assistant", *beside]


async def test_a_program_answers_messages_from_before_its_start_if_no_other_agent_does(store: Store) -> None:
    site = Site(store, NOTES)
    await site.publish(NEVER, agent("poet"))
    assert await site.answering(await post(store)) == ["notes", "poet"]


@pytest.mark.parametrize(
    ("rule", "tags", "selected"),
    [
        ("all", (), ["carl", "ann", "ben"]),
        ("first", (), ["ann"]),
        ("first", ("for:ben",), ["ann"]),
        ("by_tag", ("for:carl",), ["carl"]),
        ("by_tag", ("for:ben",), ["ben"]),
        ("by_tag", (), ["ann"]),
    ],
)
async def test_all_runners_apply_the_rule_that_the_installation_publishes(
    store: Store, rule: Answering, tags: tuple[str, ...], selected: list[str]
) -> None:
    site = Site(store, agent("carl"), ASSISTANT, rule=rule)
    await site.publish(ALWAYS, agent("ann"), agent("ben"))
    assert (await read_publications(store)).answering == rule
    assert await site.answering(await post(store, *tags)) == selected


async def test_an_agent_for_a_tag_counts_only_for_messages_with_the_tag(store: Store) -> None:
    site = Site(store, ASSISTANT)
    await site.publish(ALWAYS, agent("drafter", {**MESSAGE, "any_tags": ["draft"]}))
    assert await site.answering(await post(store, "draft")) == ["drafter"]
    # The program runs the agent only for messages that match its triggers.
    assert await site.answering(await post(store)) == ["assistant", "drafter"]


async def test_a_message_has_one_agent_also_in_the_context_of_another_one(store: Store) -> None:
    site = Site(store, ASSISTANT, NOTES)
    await site.publish(ALWAYS, agent("poet"))
    assert await site.answering(await post(store, addressed_to="poet")) == ["notes", "poet"]
    assert await site.answering(await post(store, addressed_to="assistant")) == ["assistant", "notes"]
    message = await post(store)
    fields = {
        "schema_name": "agent.context.v1",
        "title": "x",
        "tags": ["session:s", "consumer:assistant"],
        "context": {"trigger_id": str(message.id), "trigger_version": 1, "trigger_created": message.created},
    }
    written = await store.create(OWNER, BreadcrumbCreate.parse(fields))
    assert await site.answering(await store.get(OWNER, written.id)) == ["notes", "poet"]
    with pytest.raises(AgentUnavailable, match="'gone', which this message is for, does not exist"):
        await site.answering(await post(store, addressed_to="gone"))


async def test_a_message_that_another_agent_has_answered_gets_no_second_answer(store: Store) -> None:
    site = Site(store, ASSISTANT)
    await site.publish(ALWAYS, agent("poet"))
    message = await post(store)
    fields = {
        "schema_name": "agent.response.v1",
        "title": "x",
        "tags": ["session:s"],
        "context": {"trigger_id": str(message.id), "creator": {"agent_id": "poet"}},
    }
    answer = await store.get(OWNER, (await store.create(OWNER, BreadcrumbCreate.parse(fields))).id)
    await site.publish(NEVER, agent("poet"))
    assert await site.answering(message, RecentAnswers([answer], [])) == []
