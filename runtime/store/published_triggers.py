"""Triggers of the agents that agent runners publish.

A process that serves the API has to know whether an answer triggers another agent. Agents from breadcrumbs are not
published: every process can read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from breadcrumbs.runtime.breadcrumb.selectors import Selector
from breadcrumbs.runtime.store.published_agents import Publication, read_publications
from breadcrumbs.runtime.store.store import Store

_FIELDS: Final = frozenset(Selector.model_fields)


@dataclass(frozen=True, slots=True)
class AgentTriggers:
    """The selectors of the breadcrumbs that an agent, or the context of a consumer, reacts to."""

    agent_id: str
    selectors: tuple[Selector, ...]


def encode_trigger(selector: Selector) -> dict[str, Any]:
    """Return a selector in the form of `PublishedAgent.triggers`."""
    return selector.model_dump(mode="json", include=set(_FIELDS), exclude_none=True)


async def read_published_triggers(store: Store) -> dict[str, tuple[AgentTriggers, ...]]:
    """Return the published triggers by kind of worker.

    A kind is absent if its workers run an earlier version, or if a newer version uses selectors of another form.
    """
    published = await read_publications(store)
    decoded = {kind: _decode(one) for kind, one in published.by_kind.items()}
    return {kind: triggers for kind, triggers in decoded.items() if triggers is not None}


def _decode(published: Publication) -> tuple[AgentTriggers, ...] | None:
    """Return the triggers of the agents. None: an agent has no triggers, so an earlier version published it."""
    if not all(agent.triggers for agent in published.agents):
        return None
    try:
        return tuple(
            AgentTriggers(agent.agent_id, tuple(Selector.model_validate(one) for one in agent.triggers))
            for agent in published.agents
        )
    except ValidationError:
        return None
