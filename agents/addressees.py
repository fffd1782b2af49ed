"""Selects the agents that may answer a trigger, by the agent that was chosen for its session."""

from __future__ import annotations

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.chosen_agent import (
    AgentUnavailable,
    choice_at,
    chosen_agent,
    load_timeline,
    matches_users_message,
)
from breadcrumbs.agents.conversation import RecentAnswers, find_creator
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.request import StartingMessage, retry_time
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.schema_names import USER_MESSAGE
from breadcrumbs.runtime.store.published_agents import read_published_agents
from breadcrumbs.runtime.store.store import Store


def answers_users(definition: AgentDefinition) -> bool:
    """Return whether an agent can answer a message without additional tags, directly or through a context."""
    return bool(definition.consumers) or any(matches_users_message(one) for one in definition.triggers)


class Addressees:
    """Selects the agents that may answer a trigger.

    `reports` is set for the runners of the installation: they report a chosen agent that does not exist. Runners of a
    user's program do not know the other agents.
    """

    def __init__(self, store: Store, *, kind: str, reports: bool) -> None:
        self._store = store
        self._kind = kind
        self._reports = reports
        self._elsewhere: set[str] = set()
        """Agents of user programs. A program that stops has still to answer its messages, so none is removed."""

    def must_report(self, event: Event, agents: list[ActiveAgent]) -> bool:
        """Return whether a message needs a turn only because a missing agent can be chosen for its session."""
        return (
            self._reports
            and event.schema_name == USER_MESSAGE
            and event.operation in ("created", "retried")
            and event.session_id is not None
            and not any(answers_users(agent.definition) for agent in agents)
        )

    async def select(
        self, event: Event, trigger: Breadcrumb, agents: list[ActiveAgent], recent: RecentAnswers
    ) -> list[ActiveAgent]:
        """Return the agents that may answer a trigger: all, or only the chosen one.

        Raise `AgentUnavailable` if the chosen agent does not exist or answers no messages.
        """
        chosen = await chosen_agent(self._store, event, trigger, recent.choices)
        if chosen is None:
            return agents
        found = [agent for agent in agents if agent.definition.agent_id == chosen]
        if self._reports:
            await self._check_available(chosen, found, event, trigger)
        if found and await self._is_answered_before_retry(chosen, event, trigger, recent):
            return []
        return found

    async def _check_available(
        self, chosen: str, found: list[ActiveAgent], event: Event, trigger: Breadcrumb
    ) -> None:
        if found and answers_users(found[0].definition):
            return
        if not found and await self._runs_elsewhere(chosen):
            return
        problem = "no longer answers users' messages" if found else "does not exist any more"
        raise AgentUnavailable(
            f"the agent {chosen[:200]!r}, which was chosen for this session, {problem}: choose another agent for the "
            "session, then retry",
            chosen,
            f"{StartingMessage.of(trigger).id} {retry_time(event, trigger)}",
        )

    async def _runs_elsewhere(self, agent_id: str) -> bool:
        """Return whether a user's program has the agent, even if it is stopped now."""
        if agent_id not in self._elsewhere:
            published = await read_published_agents(self._store)
            self._elsewhere = {
                agent.agent_id for kind, agents in published.items() if kind != self._kind for agent in agents
            }
        return agent_id in self._elsewhere

    async def _is_answered_before_retry(
        self, chosen: str, event: Event, trigger: Breadcrumb, recent: RecentAnswers
    ) -> bool:
        """Return whether the agent that the message was for has answered it.

        A retry can be requested while the message still waits. If another agent is chosen meanwhile, the message would
        be answered by both.
        """
        origin = StartingMessage.of(trigger)
        if not retry_time(event, trigger) or not recent.answers:
            return False
        first = choice_at(await load_timeline(self._store, trigger, origin.created), origin.created)
        return first not in (None, chosen) and any(
            answer.context.get("trigger_id") == origin.id and find_creator(answer) == first
            for answer in recent.answers
        )
