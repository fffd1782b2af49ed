"""Selects the agents that may answer a trigger.

A message can be addressed to one agent. Otherwise the agent that was chosen for the session answers. Otherwise the rule
of the installation decides, if several agents match. Agents that do not answer users are not affected.
"""

from __future__ import annotations

from uuid import UUID

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.answer_rules import Candidate, is_claimed, select_answering
from breadcrumbs.agents.chosen_agent import (
    AgentUnavailable,
    choice_at,
    chosen_agent,
    load_timeline,
    matches_users_message,
    starts_with_users_message,
)
from breadcrumbs.agents.conversation import RecentAnswers, find_creator
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.other_agents import OtherAgents
from breadcrumbs.agents.request import StartingMessage, retry_time
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.schema_names import ADDRESSEE, AGENT_CONTEXT, USER_MESSAGE
from breadcrumbs.runtime.store.published_agents import read_publications
from breadcrumbs.runtime.store.store import Store


def answers_users(definition: AgentDefinition) -> bool:
    """Return whether an agent answers messages without additional tags, directly or through a context."""
    if not definition.is_answering:
        return False
    return bool(definition.consumers) or any(matches_users_message(one) for one in definition.triggers)


def addressee_of(trigger: Breadcrumb) -> str | None:
    """Return the agent that a message, or the message of a context, is addressed to. None: to no particular one."""
    name = trigger.context.get(ADDRESSEE)
    return name if isinstance(name, str) else None


class Addressees:
    """Selects the agents that may answer a trigger.

    `reports` is set for the runners of the installation: they report a missing agent. Runners of a user's program do
    not know the other agents. `others` are the agents of other processes. None: there are none.
    """

    def __init__(self, store: Store, *, kind: str, reports: bool, others: OtherAgents | None = None) -> None:
        self._store = store
        self._kind = kind
        self._reports = reports
        self._others = others
        self._elsewhere: set[str] = set()
        """Agents of user programs. A program that stops has still to answer its messages, so none is removed."""

    def must_report(self, event: Event, agents: list[ActiveAgent]) -> bool:
        """Return whether a message needs a turn only because it can be for an agent that does not exist."""
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
        """Return the agents that may answer a trigger.

        Raise `AgentUnavailable` if the message is for an agent that does not exist or answers no messages.
        """
        if not starts_with_users_message(trigger):
            return agents
        if (addressee := addressee_of(trigger)) is not None:
            return await self._named(addressee, event, trigger, agents)
        if recent.choices.agent_since:
            chosen = await chosen_agent(self._store, event, trigger, recent.choices)
            if chosen is not None:
                return await self._chosen(chosen, event, trigger, agents, recent)
        return await self._by_rule(event, trigger, agents, recent)

    # One agent

    async def _named(
        self, name: str, event: Event, trigger: Breadcrumb, agents: list[ActiveAgent]
    ) -> list[ActiveAgent]:
        found = [agent for agent in agents if agent.definition.agent_id == name]
        if self._reports:
            can_answer = bool(found) and await self._can_answer(found[0].definition, trigger)
            if problem := await self._find_problem(name, found, can_answer=can_answer):
                reason = f"the agent {name[:200]!r}, which this message is for, {problem}: send it to another agent"
                raise AgentUnavailable(reason, name, _report_key(event, trigger))
        return [*found, *_beside(agents, name)]

    async def _can_answer(self, definition: AgentDefinition, trigger: Breadcrumb) -> bool:
        """Return whether an agent can answer the message, also because of an additional tag."""
        if answers_users(definition):
            return True
        message = await self._message_of(trigger)
        return message is None or any(one.matches(message) for one in definition.triggers)

    async def _chosen(
        self,
        chosen: str,
        event: Event,
        trigger: Breadcrumb,
        agents: list[ActiveAgent],
        recent: RecentAnswers,
    ) -> list[ActiveAgent]:
        found = [agent for agent in agents if agent.definition.agent_id == chosen]
        if self._reports:
            can_answer = bool(found) and answers_users(found[0].definition)
            if problem := await self._find_problem(chosen, found, can_answer=can_answer):
                reason = (
                    f"the agent {chosen[:200]!r}, which was chosen for this session, {problem}: choose another agent "
                    "for the session, then retry"
                )
                raise AgentUnavailable(reason, chosen, _report_key(event, trigger))
        if found and await self._is_answered_before_retry(chosen, event, trigger, recent):
            found = []
        return [*found, *_beside(agents, chosen)]

    async def _find_problem(self, name: str, found: list[ActiveAgent], *, can_answer: bool) -> str:
        """Return why an agent cannot answer, or an empty string."""
        if can_answer or (not found and await self._runs_elsewhere(name)):
            return ""
        return "no longer answers users' messages" if found else "does not exist any more"

    async def _runs_elsewhere(self, agent_id: str) -> bool:
        """Return whether a user's program has the agent, even if it is stopped now."""
        if agent_id not in self._elsewhere:
            published = await read_publications(self._store)
            self._elsewhere = {agent.agent_id for agent in published.of_others(self._kind)}
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

    # Several agents

    async def _by_rule(
        self, event: Event, trigger: Breadcrumb, agents: list[ActiveAgent], recent: RecentAnswers
    ) -> list[ActiveAgent]:
        """Return the agents that the rule of the installation selects, and those that do not answer users."""
        time = max(StartingMessage.of(trigger).created, retry_time(event, trigger))
        if not await self._must_decide(agents, time):
            return agents
        message = await self._message_of(trigger)
        if message is None:
            return agents  # it was deleted, so the commit of an answer is refused
        candidates = await self._candidates(message, agents, time)
        rule = "all" if self._others is None else self._others.rule
        selected = select_answering(candidates, rule, message.tags)
        known = {one.agent_id for one in candidates}
        if any(
            answer.context.get("trigger_id") == message.id_text and find_creator(answer) in known - selected
            for answer in recent.answers
        ):
            selected = frozenset()  # answered by another agent, before a retry changed the decision
        return [
            agent
            for agent in agents
            if not agent.definition.is_answering
            or agent.definition.agent_id in selected
            or agent.definition.agent_id not in known
        ]

    async def _must_decide(self, agents: list[ActiveAgent], time: int) -> bool:
        """Return whether the rule can exclude one of the agents."""
        others = self._others
        own = [agent for agent in agents if agent.definition.is_answering]
        has_fallback = any(agent.fallback for agent in own)
        if others is None:
            return has_fallback and len(own) > 1
        await others.ensure_recent()
        if len(own) + len(others.answering) < 2:
            return False
        if others.is_program and not is_claimed(others.claims, time):
            return True
        return others.rule != "all" or has_fallback

    async def _candidates(self, message: Breadcrumb, agents: list[ActiveAgent], time: int) -> list[Candidate]:
        others = self._others
        found: dict[str, Candidate] = {}
        claimed = True
        if others is not None:
            await others.refresh()  # a claim can have ended since it was read
            for one in [*others.answering, *await others.posted(message.owner_id)]:
                if await others.matches(one, message):
                    found[one.agent_id] = Candidate(one.agent_id, one.fallback, is_claimed(one.claims, time))
            claimed = not others.is_program or is_claimed(others.claims, time)
        for agent in agents:
            if agent.definition.is_answering and await self._matches(agent.definition, message):
                name = agent.definition.agent_id
                found[name] = Candidate(name, agent.fallback, claimed)
        return list(found.values())

    async def _matches(self, definition: AgentDefinition, message: Breadcrumb) -> bool:
        if any(trigger.matches(message) for trigger in definition.triggers):
            return True
        if self._others is None:
            return bool(definition.consumers)
        reacts = self._others.reacts
        return any([await reacts(message.owner_id, consumer, message) for consumer in definition.consumers])

    async def _message_of(self, trigger: Breadcrumb) -> Breadcrumb | None:
        """Return the message that a context was built for, or the trigger itself. None: it was deleted."""
        if trigger.schema_name != AGENT_CONTEXT:
            return trigger
        try:
            id, version = UUID(trigger.context["trigger_id"]), int(trigger.context["trigger_version"])
            return await self._store.get_version(trigger.owner_id, id, version)
        except (KeyError, TypeError, ValueError, NotFound):
            return None


def _beside(agents: list[ActiveAgent], name: str) -> list[ActiveAgent]:
    """Return the agents that work beside the one that answers."""
    return [
        agent for agent in agents if not agent.definition.is_answering and agent.definition.agent_id != name
    ]


def _report_key(event: Event, trigger: Breadcrumb) -> str:
    return f"{StartingMessage.of(trigger).id} {retry_time(event, trigger)}"
