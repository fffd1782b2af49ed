"""The agent runner: sees an event that an agent's trigger matches, and lets the agent answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from breadcrumbs.agents.book import Agent, AgentBook
from breadcrumbs.agents.executor import CANCEL, Executor, Origin
from breadcrumbs.runtime.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.events import Event
from breadcrumbs.runtime.failures import leave_error
from breadcrumbs.runtime.store import Store
from breadcrumbs.runtime.worker import Turn, TurnCancelled, TurnFailed

MESSAGE = "user.message.v1"

Consumers = Callable[[UUID], Awaitable[set[str]]]
"""The consumers that an owner's context configs make contexts for."""


class AgentRunner:
    """The handler of the runner's workers."""

    kind = "agents"

    def __init__(
        self,
        store: Store,
        book: AgentBook,
        executor: Executor,
        *,
        consumers: Consumers | None = None,
        inherited: tuple[str, ...],
    ) -> None:
        self._store = store
        self._book = book
        self._executor = executor
        self._consumers = consumers
        self._inherited = inherited
        self._rejected: set[tuple[int, int]] = set()

    async def wants(self, event: Event) -> bool:
        if event.operation == "deleted":
            return False
        agents = await self._book.agents(event.owner_id)
        return any(_triggers(agent, event) for agent in agents) or bool(await self._left_alone(event, agents))

    def arrived(self, event: Event, running: Turn | None, waiting: int) -> None:
        if event.schema_name == CANCEL and running is not None and event.at > running.event.at:
            running.cancel("cancelled")
            return
        if running is None and not waiting:
            return
        for agent in self._book.known(event.owner_id):
            if not _triggers(agent, event):
                continue
            if agent.definition.when_busy == "interrupt" and running is not None:
                running.cancel("interrupted by a newer message")
            elif agent.definition.when_busy == "reject":
                self._rejected.add((event.lane, event.at))

    async def handle(self, turn: Turn) -> None:
        event = turn.event
        agents = await self._book.agents(event.owner_id)
        if alone := await self._left_alone(event, agents):
            names = ", ".join(sorted(alone))
            raise TurnFailed(
                f"no context config makes contexts for {names}, so nobody can answer: add one with this "
                "consumer_id to the context builder's config"
            )
        try:
            trigger = await self._store.get_version(event.owner_id, event.id, event.version)
        except NotFound:
            return  # deleted or expired meanwhile: there is nothing to answer
        if (event.lane, event.at) in self._rejected:
            self._rejected.discard((event.lane, event.at))
            raise TurnCancelled("busy: still answering an earlier message, send it again later")
        wanted = [agent for agent in agents if self._wanted_by(agent, turn, trigger)]
        for agent in wanted:
            await self._executor.answer(turn, agent, trigger, last=agent is wanted[-1])

    async def give_up(self, turn: Turn, error: Exception) -> None:
        origin = turn.event.id
        try:
            trigger = await self._store.get_version(turn.event.owner_id, turn.event.id, turn.event.version)
            origin = UUID(Origin.of(trigger).id)
        except (NotFound, ValueError):
            pass
        await leave_error(
            self._store, turn, error, creator="agent-runner", origin=origin, inherited=self._inherited
        )

    def _wanted_by(self, agent: Agent, turn: Turn, trigger: Breadcrumb) -> bool:
        if not any(selector.matches(trigger) for selector in agent.definition.triggers):
            return False
        # Merged: a later message waits already, and its context holds this one too.
        return agent.definition.when_busy != "merge" or not any(
            _triggers(agent, event) for event in turn.waiting()
        )

    async def _left_alone(self, event: Event, agents: list[Agent]) -> set[str]:
        """Agents that wait for contexts which no config makes, where somebody has just said something."""
        if self._consumers is None or event.schema_name != MESSAGE or event.operation != "created":
            return set()
        waiting_for = {
            consumer: agent.definition.agent_id for agent in agents for consumer in agent.definition.consumers
        }
        made = await self._consumers(event.owner_id)
        return {agent for consumer, agent in waiting_for.items() if consumer not in made}


def _triggers(agent: Agent, event: Event) -> bool:
    return any(
        trigger.matches_meta(event.schema_name, event.tags, event.session_id)
        for trigger in agent.definition.triggers
    )
