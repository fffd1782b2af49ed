"""Consumers that the agents of an owner read, for the warnings and the completion of context configs."""

from __future__ import annotations

from uuid import UUID

from breadcrumbs.agents.agents_in_force import AgentsInForce, load_definitions
from breadcrumbs.context_builder.known_names import LoadConsumers
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.store import Store


def read_consumers(store: Store, settings: Settings) -> LoadConsumers | None:
    """Return a function that returns the consumers whose contexts the agents of an owner read.

    Return None if the agents of the settings cannot be loaded. An agent runner reports the reason when it starts.
    """
    try:
        agents = AgentsInForce(store, load_definitions(settings.agents, default=settings.default_agent))
    except (StartupError, OSError):
        return None

    async def load(owner: UUID) -> frozenset[str]:
        active = await agents.get(owner)
        return frozenset(consumer for agent in active for consumer in agent.definition.consumers)

    return load
