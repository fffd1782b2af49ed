"""Chains: everything that follows from a message, as agents trigger each other.

A breadcrumb belongs to the chain of a message if the runtime wrote the message as its root, or if its trigger belongs
to the chain. Only the session of the message is read, so a chain never contains breadcrumbs of another session.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.roots import root_of
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT, AGENT_ERROR, TOOL_REQUEST, TOOL_RESPONSE
from breadcrumbs.runtime.sessions.open_turns import LoadTriggers, OpenTurn, open_turns
from breadcrumbs.runtime.sessions.outcome_matching import agent_of, is_answer_or_error
from breadcrumbs.runtime.sessions.wait_for import WaitFor
from breadcrumbs.runtime.store.store import Store

_MAX_SEARCHED: Final = 5_000
"""Maximum number of breadcrumbs after the message that are searched for its chain."""
_SHOWN_SCHEMAS: Final = frozenset((TOOL_REQUEST, TOOL_RESPONSE))


class Membership:
    """Decides which breadcrumbs belong to the chain of a message. They are added in the order of their time."""

    def __init__(self, message: Breadcrumb) -> None:
        self._root = message.id_text if root_of(message) == message.id_text else None
        """The message, if the chain begins with it. None: it is itself a step of a longer chain."""
        self._ids = {message.id_text}

    def add(self, crumb: Breadcrumb) -> bool:
        """Return whether a breadcrumb belongs to the chain. If it does, its followers do, too."""
        if not self.includes(crumb):
            return False
        if crumb.schema_name != AGENT_CONTEXT:  # the next version of a context can belong to another message
            self._ids.add(crumb.id_text)
        return True

    def includes(self, crumb: Breadcrumb) -> bool:
        if crumb.id_text in self._ids or (self._root is not None and root_of(crumb) == self._root):
            return True
        context = crumb.context
        merged = context.get("answers")
        return self.is_id(context.get("trigger_id")) or (
            isinstance(merged, list) and any(self.is_id(one) for one in merged)
        )

    def is_id(self, value: Any) -> bool:
        """Return whether a value is the id of a breadcrumb of the chain. A client can have written any value."""
        return isinstance(value, str) and value in self._ids


@dataclass(frozen=True, slots=True)
class Chain:
    """The chain of a message, as far as it is stored."""

    message: Breadcrumb
    steps: list[Breadcrumb]
    """Answers, errors and tool calls that a principal may see, the oldest first."""
    open: list[OpenTurn] = field(default_factory=list)
    """Turns without a result."""
    truncated: bool = False
    """The session contains more breadcrumbs after the message than are searched."""

    @property
    def outcomes(self) -> list[Breadcrumb]:
        """Answers and errors, the oldest first."""
        return [step for step in self.steps if is_answer_or_error(step.schema_name, step.context)]

    @property
    def finished(self) -> bool:
        """Whether the chain has at least one outcome, and no turn is open that could add another one."""
        return not self.open and bool(self.outcomes)

    @property
    def agents(self) -> list[str]:
        """Agents that have answered, in this order."""
        answers = (one for one in self.outcomes if one.schema_name != AGENT_ERROR)
        return list(dict.fromkeys(name for one in answers if (name := _name_of(one)) is not None))

    @property
    def waiting_for(self) -> list[str]:
        """Agents and consumers whose turns are open."""
        return sorted({agent for turn in self.open for agent in turn.agents})

    def outcome(self, wanted: WaitFor) -> Breadcrumb | None:
        """Return the outcome that a client waits for, or None if it is not stored yet.

        If the chain has ended without an answer of the wanted agent, this is its last error.
        """
        outcomes = self.outcomes
        if wanted.which == "last":
            return outcomes[-1] if self.finished else None
        errors = [step for step in outcomes if step.schema_name == AGENT_ERROR]
        answers = [step for step in outcomes if step.schema_name != AGENT_ERROR]
        if wanted.agent is not None:
            answers = [step for step in answers if agent_of(step.context) == wanted.agent]
        if answers:
            return answers[0]
        return errors[-1] if errors and self.finished else None

    def followers(self, step: Breadcrumb) -> list[str]:
        """Return the agents that a step was handed over to, in the order of their answers."""
        id = step.id_text
        done = (
            agent
            for one in self.outcomes
            if one.context.get("trigger_id") == id and (agent := _name_of(one)) is not None
        )
        return list(dict.fromkeys((*done, *_open_agents(self.open, id))))


async def read_chain(
    store: Store, principal: Principal, message: Breadcrumb, load_triggers: LoadTriggers
) -> Chain:
    """Read the chain of a message, with the turns that are open.

    Open turns are read first. If the chain has none, it had ended at that time, and the steps are complete.
    """
    session = message.session_id
    turns = (
        [turn async for turn in open_turns(store, load_triggers, message.owner_id, session)]
        if session is not None
        else []
    )
    membership, steps, truncated = await _read_steps(store, principal, message)
    return Chain(message, steps, [turn for turn in turns if membership.includes(turn.trigger)], truncated)


async def _read_steps(
    store: Store, principal: Principal, message: Breadcrumb
) -> tuple[Membership, list[Breadcrumb], bool]:
    membership, steps, searched = Membership(message), list[Breadcrumb](), 0
    query = policy.restrict_query(
        principal, Query(session_id=message.session_id, created_since=message.created, sort="created_at")
    )
    async for crumb in store.walk(principal.owner_id, query):
        if crumb.id == message.id:
            continue
        searched += 1
        if searched > _MAX_SEARCHED:
            return membership, steps, True
        if membership.add(crumb) and _is_step(crumb):
            steps.append(crumb)
    return membership, steps, False


def _is_step(crumb: Breadcrumb) -> bool:
    return crumb.schema_name in _SHOWN_SCHEMAS or is_answer_or_error(crumb.schema_name, crumb.context)


def _name_of(outcome: Breadcrumb) -> str | None:
    """Return the agent of an outcome. The creator of an error is the runner, and its agent has a field of its own."""
    name = (
        outcome.context.get("agent_id") if outcome.schema_name == AGENT_ERROR else agent_of(outcome.context)
    )
    return name if isinstance(name, str) else None


def _open_agents(turns: Iterable[OpenTurn], id: str) -> Iterable[str]:
    for turn in turns:
        trigger = turn.trigger
        origin = (
            trigger.context.get("trigger_id") if trigger.schema_name == AGENT_CONTEXT else trigger.id_text
        )
        if origin == id:
            yield from turn.agents
