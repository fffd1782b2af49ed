"""The agent runner: sees an event that an agent's trigger matches, and lets the agent answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from uuid import UUID

import anyio

from breadcrumbs.agents.book import Agent, AgentBook, definition_in
from breadcrumbs.agents.definition import CONTEXT
from breadcrumbs.agents.executor import (
    CANCEL,
    Executor,
    Origin,
    Seen,
    unanswered,
)
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.store.fence import LeaseLost
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.failures import check_posted, leave_error
from breadcrumbs.runtime.workers.worker import AWAY, Turn, TurnCancelled, TurnFailed, is_worth_another_try

MESSAGE = "user.message.v1"

Consumers = Callable[[UUID], Awaitable[set[str]]]
"""The consumers that an owner's context configs make contexts for."""


class AgentRunner:
    """The handler of the runner's workers.

    Runners of one kind share the work, so each of them must know the same agents. Who brings agents that the
    others do not know gives them a kind of their own.
    """

    kind = "agents"

    def __init__(
        self,
        store: Store,
        book: AgentBook,
        executor: Executor,
        *,
        consumers: Consumers | None = None,
        inherited: tuple[str, ...],
        kind: str = kind,
    ) -> None:
        self.kind = kind
        self._store = store
        self._book = book
        self._executor = executor
        self._consumers = consumers
        self._inherited = inherited
        self._answering: dict[tuple[int, int], tuple[str, str, anyio.CancelScope]] = {}
        """Which agent is at work on an event just now, and which message it answers."""
        self._refused: dict[tuple[int, int], dict[str, str]] = {}
        """Which agents shall not answer an event, and why."""
        self._failed: dict[tuple[int, int], set[str]] = {}
        """Which agents have tried to answer an event, and failed."""

    async def wants(self, event: Event) -> bool:
        if event.operation == "deleted":
            return False
        if self._book.reads(event):
            return True
        if event.imported:
            return False
        agents = await self._book.agents(event.owner_id)
        return any(_triggers(agent, event) for agent in agents) or bool(await self._left_alone(event, agents))

    def arrived(self, event: Event, running: Turn | None, waiting: Sequence[Event]) -> bool:
        if event.operation == "deleted" or event.imported:
            return False  # that something is gone, or was long ago, asks for nothing
        # To cancel is to post a cancellation, and not to correct one that was posted long ago.
        if event.schema_name == CANCEL and event.operation == "created" and running is not None:
            running.cancel("cancelled")
        earlier = [*((running.event,) if running is not None else ()), *waiting]
        if not earlier:
            return False
        asked = [agent for agent in self._book.last(event.owner_id) if _triggers(agent, event)]
        for agent in asked:
            busy_with = [other for other in earlier if _triggers(agent, other)]
            if not busy_with:
                continue
            name = agent.definition.agent_id
            if agent.definition.when_busy == "interrupt":
                for other in busy_with:
                    self._interrupt(other, name)
                if running is not None and self._failed.get(_place(running.event)) == {name}:
                    running.next_attempt.set()  # the only one to be asked again will not answer any more
            elif agent.definition.when_busy == "reject":
                reason = "busy: still answering an earlier message, send it again later"
                self._refuse(event, name, reason)
        # Who is told no wants to know now, and not when the others are answered.
        return (
            bool(asked)
            and {agent.definition.agent_id for agent in asked} == self._refused.get(_place(event), {}).keys()
        )

    def _interrupt(self, event: Event, agent_id: str) -> None:
        self._refuse(event, agent_id, "interrupted by a newer message")
        at_work, _, scope = self._answering.get(_place(event), (None, None, None))
        if at_work == agent_id and scope is not None:
            scope.cancel()

    def _refuse(self, event: Event, agent_id: str, reason: str) -> None:
        if len(self._refused) > 10_000:  # of lanes that were lost
            self._refused.clear()
        self._refused.setdefault(_place(event), {})[agent_id] = reason

    async def handle(self, turn: Turn) -> None:
        event = turn.event
        self._failed.pop(_place(event), None)
        if self._book.reads(event):
            await check_posted(
                self._store,
                turn,
                definition_in,
                what="agent definition",
                creator=self._creator,
                inherited=self._inherited,
            )
        if event.imported:
            return
        agents = await self._book.agents(event.owner_id)
        trigger, seen = await self._executor.look(event)
        if trigger is None:
            return  # deleted or expired meanwhile: there is nothing to answer
        if alone := await self._left_alone(event, agents):
            self._note_failures(event, alone)
            names = ", ".join(sorted(alone))
            raise TurnFailed(
                f"no context config makes contexts for {names}, so nobody can answer: add one with this "
                "consumer_id to the context builder's config"
            )
        wanted = [agent for agent in agents if await self._wanted_by(agent, turn, trigger)]
        failures: dict[str, Exception] = {}
        for agent in wanted:
            try:
                await self._answer(turn, agent, trigger, seen, last=agent is wanted[-1] and not failures)
            except (LeaseLost, *AWAY):
                raise
            except Exception as error:  # the other agents answer all the same
                failures[agent.definition.agent_id] = error
        if failures:
            self._note_failures(event, failures)
            errors = list(failures.values())
            passing = [error for error in errors if is_worth_another_try(error)]
            # All of them are asked again at once: when the last of them wants to be.
            raise max(passing, key=_pause) if passing else errors[0]
        self._refused.pop(_place(event), None)

    def _note_failures(self, event: Event, agents: Iterable[str]) -> None:
        if len(self._failed) > 10_000:  # of lanes that were lost
            self._failed.clear()
        self._failed[_place(event)] = set(agents)

    async def _answer(self, turn: Turn, agent: Agent, trigger: Breadcrumb, seen: Seen, *, last: bool) -> None:
        place, name, message = _place(turn.event), agent.definition.agent_id, Origin.of(trigger).id
        if reason := self._refused.get(place, {}).get(name):
            if (name, message) in (at_work[:2] for at_work in self._answering.values()):
                return  # an edit of what is being answered: no, but not to the message itself
            raise TurnCancelled(reason)
        with anyio.CancelScope() as scope:
            self._answering[place] = (name, message, scope)
            try:
                await self._executor.answer(turn, agent, trigger, seen, last=last)
            finally:
                del self._answering[place]
        if scope.cancelled_caught:
            raise TurnCancelled(self._refused[place][name])

    async def give_up(self, turn: Turn, error: Exception) -> None:
        self._refused.pop(_place(turn.event), None)
        agent_id = self._whose(turn.event)
        origin, hops = turn.event.id, 0
        answers: list[str] = []
        try:
            trigger = await self._store.get_version(turn.event.owner_id, turn.event.id, turn.event.version)
            started_by = Origin.of(trigger)
            hops = started_by.hops
            answers = await self._merged(trigger, turn.event)
            origin = UUID(started_by.id)
        except (NotFound, ValueError):
            pass
        await leave_error(
            self._store,
            turn,
            error,
            creator=self._creator,
            origin=origin,
            inherited=self._inherited,
            hops=hops + 1,
            agent_id=agent_id,
            answers=answers,
        )
        self._failed.pop(_place(turn.event), None)

    @property
    def _creator(self) -> str:
        """Two kinds may fail on the same event; each says so, once."""
        return "agent-runner" if self.kind == AgentRunner.kind else self.kind

    def _whose(self, event: Event) -> str | None:
        """The agent whose failure this is; None where several failed, or where it was not found out."""
        agents = self._may_have_failed(event)
        return next(iter(agents)) if len(agents) == 1 else None

    def _may_have_failed(self, event: Event) -> set[str]:
        return self._failed.get(_place(event)) or {
            agent.definition.agent_id for agent in self._book.last(event.owner_id) if _triggers(agent, event)
        }

    async def _merged(self, trigger: Breadcrumb, event: Event) -> list[str]:
        """The messages that a turn was to answer, where those before its own were left to it."""
        failed = self._may_have_failed(event)
        merging = [
            agent.definition
            for agent in self._book.last(event.owner_id)
            if agent.definition.when_busy == "merge" and agent.definition.agent_id in failed
        ]
        left = [await unanswered(self._store, definition, trigger) for definition in merging]
        return max(left, key=len, default=[])

    async def _wanted_by(self, agent: Agent, turn: Turn, trigger: Breadcrumb) -> bool:
        if not any(selector.matches(trigger) for selector in agent.definition.triggers):
            return False
        return agent.definition.when_busy != "merge" or not await self._is_merged(agent, turn, trigger)

    async def _is_merged(self, agent: Agent, turn: Turn, trigger: Breadcrumb) -> bool:
        """Whether a later message waits already, and will be answered with this one in sight."""
        if trigger.schema_name != CONTEXT and not agent.definition.recalls(trigger):
            return False
        for event in turn.waiting():
            if not _triggers(agent, event):
                continue
            try:
                waiting = await self._store.get_version(event.owner_id, event.id, event.version)
            except NotFound:
                continue
            if Origin.of(waiting).created > Origin.of(trigger).created:
                return True
        return False

    async def _left_alone(self, event: Event, agents: list[Agent]) -> set[str]:
        """Agents that wait for contexts which no config makes, where somebody has just said something."""
        if (
            self._consumers is None
            or event.schema_name != MESSAGE
            or event.operation not in ("created", "retried")
        ):
            return set()
        waiting_for = {
            consumer: agent.definition.agent_id for agent in agents for consumer in agent.definition.consumers
        }
        made = await self._consumers(event.owner_id)
        return {agent for consumer, agent in waiting_for.items() if consumer not in made}


def _place(event: Event) -> tuple[int, int]:
    return event.lane, event.at


def _pause(error: Exception) -> float:
    return (error.retry_after or 0.0) if isinstance(error, TurnFailed) else 0.0


def _triggers(agent: Agent, event: Event) -> bool:
    return any(
        trigger.matches_meta(event.schema_name, event.tags, event.session_id)
        for trigger in agent.definition.triggers
    )
