"""Limits on chains: agents that trigger each other, beginning with one message.

A chain has a limited number of hops (answers in a row) and a limited number of turns in all its branches. A branch that
reaches a limit ends with one error in its session, which names the agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final
from uuid import UUID

import structlog

from breadcrumbs.agents.request import AnswerRequest
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.roots import root_of
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.schema_names import AGENT_ERROR
from breadcrumbs.runtime.sessions.outcome_matching import agent_of, is_answer_or_error
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.errors import TurnFailed

_log = structlog.get_logger("breadcrumbs.agents")

_SEARCHED_PER_TURN: Final = 20
"""Breadcrumbs of a session that are searched for each turn of the limit. A chain shares its session with others."""
_MAX_NAMED: Final = 6
"""Hops that an error names. Of a longer chain, these are the last ones."""


class ChainStopped(TurnFailed):
    """A chain has reached a limit. `agents` are the agents of the branch, in the order in which they answered."""

    def __init__(self, reason: str, agents: Sequence[str]) -> None:
        super().__init__(reason)
        self.agents = tuple(dict.fromkeys(agents))


@dataclass(frozen=True, slots=True)
class ChainLimits:
    """Limits of all chains of a runner. The definition of an agent can have a lower limit of hops."""

    hops: int = 16
    turns: int = 100

    async def stops(self, store: Store, request: AnswerRequest) -> bool:
        """Return whether a turn is left out without an error, because its branch has already ended with one.

        Raise `ChainStopped` if the branch ends here. A turn that answers a message directly is never stopped, and costs
        no read.
        """
        if not request.origin.hops:
            return False
        reason = await self._reached_limit(store, request)
        if reason is None:
            return False
        if _follows_error(request) and not self._is_at_hop_limit(request):
            # The error that the agent reacts to is the end of the branch. Another error would trigger the agent again.
            _log.info("chain was stopped", agent=request.definition.agent_id, trigger=request.origin.id)
            return True
        raise await _stopped(store, request, reason)

    def _hop_limit(self, request: AnswerRequest) -> int:
        return min(request.definition.hop_limit, self.hops)

    def _is_at_hop_limit(self, request: AnswerRequest) -> bool:
        return request.origin.hops == self._hop_limit(request)

    async def _reached_limit(self, store: Store, request: AnswerRequest) -> str | None:
        """Return the limit that a turn has reached, in words, or None."""
        definition, hops, limit = request.definition, request.origin.hops, self._hop_limit(request)
        if hops >= limit:
            own = limit == definition.hop_limit
            name = f"hop limit of {definition.agent_id}" if own else "setting chain_hops"
            return f"agents triggered each other {hops} times in a row, and the {name} is {limit}"
        if await self._has_too_many_turns(store, request):
            return (
                f"the message led to {self.turns} turns of agents, and the setting chain_turns allows no more"
            )
        return None

    async def _has_too_many_turns(self, store: Store, request: AnswerRequest) -> bool:
        """Return whether the chain already has as many answers and errors as it may have turns."""
        root, session = request.origin.root, request.trigger.session_id
        if session is None:
            return False  # a chain without a session has a new trigger for each hop, and only its hops are limited
        first = await _find(store, request.owner, root)
        query = Query(session_id=session, created_since=first.created if first else None, sort="created_at")
        turns, searched = 0, count()
        async for crumb in store.walk(request.owner, query):
            turns += root_of(crumb) == root and is_answer_or_error(crumb.schema_name, crumb.context)
            if turns >= self.turns:
                return True
            if next(searched) >= _SEARCHED_PER_TURN * self.turns:
                return False
        return False


DEFAULT_LIMITS: Final = ChainLimits()


def _follows_error(request: AnswerRequest) -> bool:
    trigger = request.trigger
    schema: Any = trigger.context.get("trigger_schema_name") if request.is_context else trigger.schema_name
    return bool(schema == AGENT_ERROR)


async def _stopped(store: Store, request: AnswerRequest, reason: str) -> ChainStopped:
    agents = [*await _agents_before(store, request), request.definition.agent_id]
    named = " → ".join(("…", *agents[-_MAX_NAMED:]) if len(agents) > _MAX_NAMED else agents)
    return ChainStopped(f"{reason}: {named}. Make their triggers narrower, or raise the limit", agents)


async def _agents_before(store: Store, request: AnswerRequest) -> list[str]:
    """Return the agents that led to a turn, the first one first. Deleted breadcrumbs end the search."""
    found: list[str] = []
    id: Any = request.origin.id
    for _ in range(request.origin.hops):
        crumb = await _find(store, request.owner, id)
        if crumb is None or (agent := agent_of(crumb.context) or crumb.context.get("agent_id")) is None:
            break
        found.append(str(agent))
        id = crumb.context.get("trigger_id")
    return found[::-1]


async def _find(store: Store, owner: UUID, id: Any) -> Breadcrumb | None:
    try:
        return await store.get(owner, UUID(id), count_read=False)
    except (NotFound, ValueError, TypeError, AttributeError):
        return None
