"""The request of a turn: an agent, a trigger, and the message behind the trigger."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.roots import root_of
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT
from breadcrumbs.runtime.store.state import NO_CHOICES, Choices
from breadcrumbs.runtime.telemetry.turns import AnswerFacts
from breadcrumbs.runtime.workers.turn import Turn


@dataclass(frozen=True, slots=True)
class StartingMessage:
    """The message that started a turn."""

    id: str
    created: int
    """Creation time in microseconds since 1970, or 0 if it is unknown."""
    hops: int
    """Number of agents that triggered each other in a row before this turn."""
    root: str
    """Id of the message that the chain of these agents began with."""

    @classmethod
    def of(cls, trigger: Breadcrumb) -> StartingMessage:
        """Return the message that a context was built for, or the trigger itself."""
        context = trigger.context
        hops = _positive(context.get("hops"))
        if trigger.schema_name == AGENT_CONTEXT and isinstance(context.get("trigger_id"), str):
            return cls(
                context["trigger_id"], _positive(context.get("trigger_created")), hops, root_of(trigger)
            )
        return cls(str(trigger.id), trigger.created, hops, root_of(trigger))


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """One agent and the trigger that it has to answer."""

    turn: Turn
    agent: ActiveAgent
    trigger: Breadcrumb
    origin: StartingMessage
    choices: Choices = NO_CHOICES

    @classmethod
    def of(
        cls, turn: Turn, agent: ActiveAgent, trigger: Breadcrumb, choices: Choices = NO_CHOICES
    ) -> AnswerRequest:
        """Return the request of a turn. `choices` are those of its session."""
        answering = agent if choices.model is None else replace(agent, chosen_model=choices.model)
        return cls(turn, answering, trigger, StartingMessage.of(trigger), choices)

    @property
    def definition(self) -> AgentDefinition:
        return self.agent.definition

    @property
    def owner(self) -> UUID:
        return self.trigger.owner_id

    @property
    def is_context(self) -> bool:
        """Whether the trigger is a context that the context builder made."""
        return self.trigger.schema_name == AGENT_CONTEXT

    @property
    def answer_id(self) -> UUID:
        """The id of the answer. It is the same in each attempt, so a retried turn finds its first answer."""
        return self.turn.derived_id("answer", self.definition.agent_id, self.origin.id)

    @property
    def facts(self) -> AnswerFacts:
        """The facts about this answer for metrics and the log. The turn of the agent must have begun."""
        return self.turn.report.facts(self.definition.agent_id)

    @property
    def retried_at(self) -> int:
        """Time of a requested retry, in microseconds since 1970, or 0. The retry overrides earlier cancellations."""
        return retry_time(self.turn.event, self.trigger)

    @property
    def requested_at(self) -> int:
        """Time of the message or of its last retry. A later cancellation stops the turn."""
        return max(self.origin.created, self.retried_at)

    @property
    def may_be_repeated(self) -> bool:
        """Whether an answer can already exist.

        This is the case if the event was retried or started before, or if the message was edited.
        """
        return not self.turn.is_first or bool(self.retried_at) or self.message_version > 1

    @property
    def message_version(self) -> int:
        """Version of the message. It is greater than 1 if the message was edited, and 0 if it is unknown."""
        version = self.trigger.context.get("trigger_version") if self.is_context else self.trigger.version
        return _positive(version)


def retry_time(event: Event, trigger: Breadcrumb) -> int:
    """Return the time of the requested retry that an event belongs to, or 0."""
    requested = event.at if event.operation == "retried" else 0
    return max(requested, _positive(trigger.context.get("retried_at")))


def _positive(value: Any) -> int:
    """Return the value if it is a positive integer, otherwise 0. A client can have written it."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
