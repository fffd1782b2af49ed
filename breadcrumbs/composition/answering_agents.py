"""The agents that answer an owner's users: for the runners that publish them, and for the HTTP API that lists them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from breadcrumbs.agents.addressees import answers_users
from breadcrumbs.agents.agents_in_force import AGENT_DEFINITIONS, ActiveAgent
from breadcrumbs.agents.chosen_agent import matches_users_message
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.models.offered import public_name
from breadcrumbs.agents.runner import AgentRunner
from breadcrumbs.context_builder.builder import ContextBuilder
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_checks import ConfigError, parse_configs
from breadcrumbs.context_builder.configs_in_force import ConfigsInForce
from breadcrumbs.context_builder.published_configs import published_configs
from breadcrumbs.runtime.http.answering import LoadAgents
from breadcrumbs.runtime.store.published_agents import PublishedAgent, living_kinds, read_published_agents
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.definitions import OwnDefinitions

_MAX_DESCRIPTION: Final = 300


def describe_agents(agents: Iterable[ActiveAgent]) -> list[PublishedAgent]:
    """Return the agents that can answer users, in the form to publish."""
    return [_describe(agent.definition) for agent in agents if answers_users(agent.definition)]


def _describe(definition: AgentDefinition) -> PublishedAgent:
    return PublishedAgent(
        definition.agent_id,
        None if definition.description is None else definition.description[:_MAX_DESCRIPTION],
        next((public_name(model) for model in definition.models), None),
        tuple(sorted(definition.consumers)),
        any(matches_users_message(trigger) for trigger in definition.triggers),
    )


def read_answering_agents(store: Store, configs: ConfigsInForce) -> LoadAgents:
    """Return a function that returns the agents that answer the messages of an owner's users."""
    definitions = OwnDefinitions(store, AGENT_DEFINITIONS)

    async def load(owner: UUID) -> Sequence[PublishedAgent]:
        definitions.invalidate(owner)  # a definition can be chosen as soon as it is stored
        configs.invalidate(owner)
        found = await _published(store)
        for definition in reversed(await definitions.get(owner)):
            found.pop(definition.agent_id, None)  # also if its new definition answers no users
            if answers_users(definition):
                found[definition.agent_id] = _describe(definition)
        silent = _silent_consumers(await _configs_of(store, configs, owner))
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


async def _configs_of(store: Store, configs: ConfigsInForce, owner: UUID) -> Sequence[ContextConfig]:
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
