"""The triggers of agents and context configs, from which the HTTP API derives whether a chain has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from breadcrumbs.agents.agents_in_force import AGENT_DEFINITIONS
from breadcrumbs.agents.runner import AgentRunner
from breadcrumbs.composition.answering_agents import load_configs
from breadcrumbs.context_builder.builder import ContextBuilder
from breadcrumbs.context_builder.configs_in_force import ConfigsInForce
from breadcrumbs.runtime.sessions.open_turns import LoadTriggers
from breadcrumbs.runtime.store.published_triggers import AgentTriggers, read_published_triggers
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.definitions import OwnDefinitions


def read_triggers(store: Store, configs: ConfigsInForce) -> LoadTriggers:
    """Return a function that returns the triggers in force for an owner."""
    definitions = OwnDefinitions(store, AGENT_DEFINITIONS)

    async def load(owner: UUID) -> Mapping[str, Sequence[AgentTriggers]]:
        found = dict[str, Sequence[AgentTriggers]](await read_published_triggers(store))
        if (published := found.get(AgentRunner.kind)) is not None:
            own = {
                one.agent_id: AgentTriggers(one.agent_id, one.triggers)
                for one in reversed(await definitions.get(owner))
            }
            found[AgentRunner.kind] = list(({one.agent_id: one for one in published} | own).values())
        consumers = await load_configs(store, configs, owner)
        found[ContextBuilder.kind] = [
            AgentTriggers(config.consumer_id, tuple(config.update_triggers)) for config in consumers
        ]
        return found

    return load
