"""Agents of other processes, as they are published in the store, for the decision which agents answer a message.

A process reads them in the background, so a turn needs no command for them. A program that starts claims messages from
a moment in the near future on (`CLAIM_DELAY`). Every process has read the claim by then, or reads it before it decides.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeAlias
from uuid import UUID

from pydantic import ValidationError

from breadcrumbs.agents.definition import AgentSelector
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.settings.answering import Answering
from breadcrumbs.runtime.store.published_agents import (
    RUNNERS,
    Claims,
    Publications,
    PublishedAgent,
    read_publications,
)
from breadcrumbs.runtime.store.store import Store

CLAIM_DELAY: Final = 700_000
"""Microseconds between the publication of a claim and its begin."""
REFRESH_SECONDS: Final = 0.2
"""Time between two reads of the published agents."""
_MAX_AGE_SECONDS: Final = 0.5
"""Age from which on the agents are read again before a decision. Less than `CLAIM_DELAY`."""

CLAIM_LENGTH: Final = 30_000_000
"""Microseconds that a claim lasts without renewal. Messages of this time wait for a program that was killed."""
_RENEWABLE: Final = 10_000_000
"""A claim that ends sooner than this is not renewed, because others can have seen its end. A new one begins instead."""
_MAX_CLAIMS: Final = 16

Reacts: TypeAlias = Callable[[UUID, str, Breadcrumb], Awaitable[bool]]
"""Returns whether a message of an owner gets a context for a consumer."""
LoadPosted: TypeAlias = Callable[[UUID], Awaitable[list[PublishedAgent]]]
"""Returns the agents that the breadcrumbs of an owner define. The runners of the installation run them."""


class OtherAgents:
    """The published agents of other kinds of workers, and the rule of the installation."""

    def __init__(
        self,
        store: Store,
        *,
        kind: str,
        answering: Answering,
        reacts: Reacts,
        posted: LoadPosted | None = None,
    ) -> None:
        """`answering` is the rule of the settings. It is used until the runners of the installation publish theirs.

        `posted` is for programs, which do not run the agents of breadcrumbs themselves.
        """
        self._store = store
        self._kind = kind
        self._answering = answering
        self._published = Publications()
        self._read_at = float("-inf")
        self._selectors: dict[int, tuple[PublishedAgent, tuple[AgentSelector, ...]]] = {}
        self.reacts = reacts
        self._posted = posted

    @property
    def is_program(self) -> bool:
        """Whether this process runs agents of a user's program."""
        return self._kind != RUNNERS

    @property
    def rule(self) -> Answering:
        return self._published.answering or self._answering

    @property
    def claims(self) -> Claims:
        """The claims of this kind of worker."""
        own = self._published.by_kind.get(self._kind)
        return own.agents[0].claims if own is not None and own.agents else ()

    async def refresh(self) -> None:
        """Read the published agents."""
        began = time.monotonic()
        self._published = await read_publications(self._store)
        self._read_at = began

    async def ensure_recent(self) -> None:
        """Read the published agents, unless they were read just now."""
        if time.monotonic() - self._read_at > _MAX_AGE_SECONDS:
            await self.refresh()

    @property
    def answering(self) -> list[PublishedAgent]:
        """The agents of other kinds that answer users."""
        return [agent for agent in self._published.of_others(self._kind) if agent.answers]

    async def posted(self, owner: UUID) -> list[PublishedAgent]:
        """Return the agents of the owner's breadcrumbs, if other processes run them."""
        if self._posted is None:
            return []
        # An edited copy of the built-in assistant is still the built-in assistant.
        fallbacks = {agent.agent_id for agent in self.answering if agent.fallback}
        return [
            replace(agent, fallback=agent.agent_id in fallbacks)
            for agent in await self._posted(owner)
            if agent.answers
        ]

    async def matches(self, agent: PublishedAgent, message: Breadcrumb) -> bool:
        """Return whether a message triggers an agent, directly or through a context."""
        if any(selector.matches(message) for selector in self._triggers(agent)):
            return True
        return any([await self.reacts(message.owner_id, consumer, message) for consumer in agent.consumers])

    def _triggers(self, agent: PublishedAgent) -> tuple[AgentSelector, ...]:
        known = self._selectors.get(id(agent))
        if known is not None and known[0] is agent:
            return known[1]
        if len(self._selectors) > 1_000:
            self._selectors.clear()
        selectors = tuple(_parse_selectors(agent))
        self._selectors[id(agent)] = (agent, selectors)
        return selectors


def _parse_selectors(agent: PublishedAgent) -> list[AgentSelector]:
    found = []
    for fields in agent.triggers:
        try:
            found.append(AgentSelector.model_validate(fields))
        except ValidationError:
            continue  # a later version published it
    return found


def extend_claims(claims: Claims, now: int) -> Claims:
    """Return claims that cover the near future. A claim that ended, or ends soon, is followed by a new one."""
    if claims and claims[-1][1] - now > _RENEWABLE:
        return (*claims[:-1], (claims[-1][0], max(claims[-1][1], now + CLAIM_LENGTH)))
    begin = max(now + CLAIM_DELAY, claims[-1][1] if claims else 0)
    return (*claims, (begin, begin + CLAIM_LENGTH))[-_MAX_CLAIMS:]


def end_claims(claims: Claims, now: int) -> Claims:
    """Return claims without the future, for a program that stops.

    A program that stops before its first claim has begun keeps an empty interval: no claims at all mean all messages.
    """
    return tuple((begin, min(end, now)) for begin, end in claims if begin < now) or ((now, now),)
