"""The request that a turn answers: which agent, which trigger, and the message that started it."""

from __future__ import annotations

from dataclasses import dataclass
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
    hops: int
    """How many agents have triggered each other in a row before this turn."""

    @classmethod
    def of(cls, trigger: Breadcrumb) -> StartingMessage:
        """Return the origin of a trigger: the message of a context, or the trigger itself."""
        context = trigger.context
        hops = _positive(context.get("hops"))
        if trigger.schema_name == AGENT_CONTEXT and isinstance(context.get("trigger_id"), str):
            return cls(context["trigger_id"], _positive(context.get("trigger_created")), hops)
        return cls(str(trigger.id), trigger.created, hops)


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """One agent that is to answer one trigger."""

    turn: Turn
    agent: ActiveAgent
    trigger: Breadcrumb
    origin: StartingMessage

    @classmethod
    def of(cls, turn: Turn, agent: ActiveAgent, trigger: Breadcrumb) -> AnswerRequest:
        return cls(turn, agent, trigger, StartingMessage.of(trigger))

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
        """The id of the answer: the same in each attempt, so that a repeated turn finds its first answer."""
        return self.turn.derived_id("answer", self.definition.agent_id, self.origin.id)

    @property
    def retried_at(self) -> int:
        """When a retry was requested, or 0. It takes back cancellations from before that time."""
        event = self.turn.event
        requested = event.at if event.operation == "retried" else 0
        return max(requested, _positive(self.trigger.context.get("retried_at")))

    @property
    def may_be_repeated(self) -> bool:
        """Whether an answer may exist: the event was started before, retried, or its message was edited."""
        edits = self.trigger.context.get("trigger_version") if self.is_context else self.trigger.version
        return not self.turn.is_first or bool(self.retried_at) or _positive(edits) > 1


def _positive(value: Any) -> int:
    """Return a number that a client may have written, or 0 if it is not a positive integer."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
