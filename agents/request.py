"""The request of a turn: an agent, a trigger, and the message behind the trigger."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT
from breadcrumbs.runtime.workers.turn import Turn


@dataclass(frozen=True, slots=True)
class StartingMessage:
    """The message that started a turn."""

    id: str
    created: int
    """Creation time in microseconds since 1970, or 0 if it is unknown."""
    hops: int
    """Number of agents that triggered each other in a row before this turn."""

    @classmethod
    def of(cls, trigger: Breadcrumb) -> StartingMessage:
        """Return the message that a context was built for, or the trigger itself."""
        context = trigger.context
        hops = _positive(context.get("hops"))
        if trigger.schema_name == AGENT_CONTEXT and isinstance(context.get("trigger_id"), str):
            return cls(context["trigger_id"], _positive(context.get("trigger_created")), hops)
        return cls(str(trigger.id), trigger.created, hops)


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """One agent and the trigger that it has to answer."""

    turn: Turn
    agent: ActiveAgent
    trigger: Breadcrumb
    origin: StartingMessage

    @classmethod
    def of(
        cls, turn: Turn, agent: ActiveAgent, trigger: Breadcrumb, model: str | None = None
    ) -> AnswerRequest:
        """Return the request of a turn. `model` is the model that was chosen for its session."""
        answering = agent if model is None else replace(agent, chosen_model=model)
        return cls(turn, answering, trigger, StartingMessage.of(trigger))

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
    def retried_at(self) -> int:
        """Time of a requested retry, in microseconds since 1970, or 0. The retry overrides earlier cancellations."""
        event = self.turn.event
        requested = event.at if event.operation == "retried" else 0
        return max(requested, _positive(self.trigger.context.get("retried_at")))

    @property
    def may_be_repeated(self) -> bool:
        """Whether an answer can already exist.

        This is the case if the event was retried or started before, or if the message was edited.
        """
        edits = self.trigger.context.get("trigger_version") if self.is_context else self.trigger.version
        return not self.turn.is_first or bool(self.retried_at) or _positive(edits) > 1


def _positive(value: Any) -> int:
    """Return the value if it is a positive integer, otherwise 0. A client can have written it."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
