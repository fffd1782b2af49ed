"""The agents that answer an owner's users: for the runners that publish them, and for the HTTP API that lists them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from pydantic import ValidationError

from breadcrumbs.agents.addressees import answers_users
from breadcrumbs.agents.agents_in_force import AGENT_DEFINITIONS, ActiveAgent
from breadcrumbs.agents.chosen_agent import matches_users_message
from breadcrumbs.agents.definition import AgentDefinition, AgentSelector
from breadcrumbs.agents.definition_checks import check_definition
from breadcrumbs.agents.models.offered import public_name
from breadcrumbs.agents.other_agents import LoadPosted, Reacts
from breadcrumbs.agents.runner import AgentRunner
from breadcrumbs.context_builder.builder import ContextBuilder
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_checks import ConfigError, parse_configs
from breadcrumbs.context_builder.configs_in_force import ConfigsInForce, check_posted_config
from breadcrumbs.context_builder.published_configs import published_configs
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.json_positions import DocumentPath
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION, USER, session_of
from breadcrumbs.runtime.errors import Complaint
from breadcrumbs.runtime.http.answering import AgentServices, LoadAgents
from breadcrumbs.runtime.schema_names import AGENT_DEFINITION, USER_MESSAGE
from breadcrumbs.runtime.sessions.open_turns import LoadTriggers
from breadcrumbs.runtime.store.published_agents import (
    PublishedAgent,
    living_kinds,
    read_publications,
    read_published_agents,
)
from breadcrumbs.runtime.store.published_triggers import encode_trigger
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.definitions import OwnDefinitions

_MAX_DESCRIPTION: Final = 300


def describe_agents(agents: Iterable[ActiveAgent]) -> list[PublishedAgent]:
    """Return agents in the form to publish."""
    return [describe_agent(agent.definition, fallback=agent.fallback) for agent in agents]


def describe_agent(definition: AgentDefinition, *, fallback: bool = False) -> PublishedAgent:
    """Return an agent in the form to publish."""
    return PublishedAgent(
        definition.agent_id,
        None if definition.description is None else definition.description[:_MAX_DESCRIPTION],
        next((public_name(model) for model in definition.models), None),
        tuple(sorted(definition.consumers)),
        any(matches_users_message(trigger) for trigger in definition.triggers),
        listed=answers_users(definition),
        answers=definition.is_answering,
        fallback=fallback,
        triggers=tuple(encode_trigger(one) for one in definition.triggers),
        tools=definition.tools,
    )


def read_posted_agents(store: Store) -> LoadPosted:
    """Return a function that returns the agents that the breadcrumbs of an owner define."""
    definitions = OwnDefinitions(store, AGENT_DEFINITIONS)

    async def load(owner: UUID) -> list[PublishedAgent]:
        return [describe_agent(definition) for definition in reversed(await definitions.get(owner))]

    return load


def find_reacting(configs: ConfigsInForce) -> Reacts:
    """Return a function that tells whether a message gets a context for a consumer."""

    async def reacts(owner: UUID, consumer: str, message: Breadcrumb) -> bool:
        return any(
            config.consumer_id == consumer and config.reacts_to(message)
            for config in await configs.get(owner)
        )

    return reacts


def agent_services(store: Store, configs: ConfigsInForce, triggers: LoadTriggers) -> AgentServices:
    """Return the functions about agents and definitions that the HTTP API uses."""
    definitions = OwnDefinitions(store, AGENT_DEFINITIONS)
    answering = read_answering_agents(store, configs, definitions)

    async def addressable(owner: UUID, new: BreadcrumbCreate) -> Sequence[str]:
        names = {agent.agent_id for agent in await answering(owner)}
        # Other agents can react to an additional tag of the message.
        published = await read_publications(store)
        others = [agent for one in published.by_kind.values() for agent in one.agents]
        others += [describe_agent(definition) for definition in await definitions.get(owner)]
        session = session_of(new.tags)
        names |= {
            agent.agent_id
            for agent in others
            if agent.answers and any(_matches_tags(trigger, new.tags, session) for trigger in agent.triggers)
        }
        return sorted(names)

    return AgentServices(answering, addressable, check_posted, triggers)


def _matches_tags(trigger: dict[str, Any], tags: Sequence[str], session: str | None) -> bool:
    try:
        return AgentSelector.model_validate(trigger).matches_meta(USER_MESSAGE, tags, session)
    except ValidationError:
        return False  # a later version published it


def check_posted(new: BreadcrumbCreate) -> Sequence[Complaint]:
    """Return the errors of a posted agent definition or context config."""
    restricted = find_restriction_of(new)
    if restricted is not None:
        return [restricted]
    if new.schema_name == AGENT_DEFINITION:
        return [error.as_complaint() for error in check_definition(new.context).errors]
    return [
        Complaint(fault.where, fault.message, _pointer(fault.path))
        for fault in check_posted_config(new.context)
    ]


def find_restriction_of(new: BreadcrumbCreate) -> Complaint | None:
    """Return the error of a definition that is never used because of its tags, visibility or sensitivity."""
    kind = "an agent definition" if new.schema_name == AGENT_DEFINITION else "a context config"
    if any(tag.startswith((SESSION, USER)) for tag in new.tags):
        return Complaint(
            "tags", f"{kind} applies to all sessions and users: post it without session: and user: tags"
        )
    for field in ("visibility", "sensitivity"):
        if getattr(new, field) in ("private", "secret"):
            return Complaint(field, f"{kind} that is private or secret is never used: remove this field")
    return None


def _pointer(path: DocumentPath) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def read_answering_agents(
    store: Store, configs: ConfigsInForce, definitions: OwnDefinitions[AgentDefinition]
) -> LoadAgents:
    """Return a function that returns the agents that answer the messages of an owner's users."""

    async def load(owner: UUID) -> Sequence[PublishedAgent]:
        definitions.invalidate(owner)  # a definition can be chosen as soon as it is stored
        configs.invalidate(owner)
        found = await _published(store)
        for definition in reversed(await definitions.get(owner)):
            found.pop(definition.agent_id, None)  # also if its new definition answers no users
            if answers_users(definition):
                found[definition.agent_id] = describe_agent(definition)
        silent = _silent_consumers(await load_configs(store, configs, owner))
        answering = [
            agent for agent in found.values() if agent.direct or not silent.issuperset(agent.consumers)
        ]
        return sorted(answering, key=lambda agent: agent.agent_id)

    return load


async def _published(store: Store) -> dict[str, PublishedAgent]:
    """Return the agents of the installation, and those of user programs that are running."""
    published = await read_published_agents(store)
    programs = [kind for kind in published if kind != AgentRunner.kind]
    shown = await living_kinds(store, programs) if programs else set()
    return {
        agent.agent_id: agent
        for kind, agents in sorted(published.items())
        if kind == AgentRunner.kind or kind in shown
        for agent in agents
    }


async def load_configs(store: Store, configs: ConfigsInForce, owner: UUID) -> Sequence[ContextConfig]:
    """Return the configs in force. A process without a config file uses the one that the builders publish."""
    if configs.valid_content:
        return await configs.get(owner)
    builders = await published_configs(store, ContextBuilder.kind)
    try:
        text = builders[0][0].text or "" if builders else ""
        shared = parse_configs(text.encode(), name="published") if text else ()
    except ConfigError:
        shared = ()
    return await configs.get(owner, shared)


def _silent_consumers(configs: Iterable[ContextConfig]) -> set[str]:
    """Return the consumers that get no contexts of users' messages.

    A consumer without a config is not one of them: its agent reports the missing config in the session.
    """
    return {
        config.consumer_id
        for config in configs
        if not any(matches_users_message(trigger) for trigger in config.update_triggers)
    }
