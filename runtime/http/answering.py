"""Agents and definitions as the HTTP API sees them. The composition provides the functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.errors import Complaint
from breadcrumbs.runtime.sessions.open_turns import LoadTriggers, published_triggers_only
from breadcrumbs.runtime.store.published_agents import PublishedAgent, read_published_agents
from breadcrumbs.runtime.store.store import Store

LoadAgents: TypeAlias = Callable[[UUID], Awaitable[Sequence[PublishedAgent]]]
"""Returns the agents that answer the messages of an owner's users, sorted by id."""
LoadAddressable: TypeAlias = Callable[[UUID, BreadcrumbCreate], Awaitable[Sequence[str]]]
"""Returns the agents that can answer a new message of an owner, sorted. It can be addressed to one of them."""
CheckDefinition: TypeAlias = Callable[[BreadcrumbCreate], Sequence[Complaint]]
"""Returns the errors of a definition, with positions inside of its context. None for other breadcrumbs."""


@dataclass(frozen=True, slots=True)
class AgentServices:
    """Functions about agents and definitions, for an application that does not know them itself."""

    answering: LoadAgents
    addressable: LoadAddressable
    check_definition: CheckDefinition
    triggers: LoadTriggers
    """Returns the triggers of all agents and context configs."""


def published_only(store: Store) -> AgentServices:
    """Return services that know only the agents that runners publish, for an application without agents."""

    async def load(owner: UUID) -> Sequence[PublishedAgent]:
        agents = [agent for listed in (await read_published_agents(store)).values() for agent in listed]
        return sorted(agents, key=lambda agent: agent.agent_id)

    async def addressable(owner: UUID, new: BreadcrumbCreate) -> Sequence[str]:
        return [agent.agent_id for agent in await load(owner)]

    return AgentServices(load, addressable, lambda new: (), published_triggers_only(store))
