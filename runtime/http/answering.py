"""The agents of an installation, as the HTTP API sees them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from breadcrumbs.runtime.sessions.open_turns import LoadTriggers, published_triggers_only
from breadcrumbs.runtime.store.published_agents import PublishedAgent, read_published_agents
from breadcrumbs.runtime.store.store import Store

LoadAgents: TypeAlias = Callable[[UUID], Awaitable[Sequence[PublishedAgent]]]
"""Returns the agents that answer the messages of an owner's users, sorted by id."""


@dataclass(frozen=True, slots=True)
class Directory:
    """The agents that answer users, and the triggers of all agents and context configs."""

    answering: LoadAgents
    triggers: LoadTriggers


def published_only(store: Store) -> Directory:
    """Return a directory with only the agents that runners publish, for an application without agents."""

    async def load(owner: UUID) -> Sequence[PublishedAgent]:
        agents = [agent for listed in (await read_published_agents(store)).values() for agent in listed]
        return sorted(agents, key=lambda agent: agent.agent_id)

    return Directory(load, published_triggers_only(store))
