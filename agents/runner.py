"""The agent runner: the handler that runs agents when events match their triggers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias
from uuid import UUID

import anyio

from breadcrumbs.agents.addressees import Addressees
from breadcrumbs.agents.agents_in_force import AGENT_DEFINITIONS, ActiveAgent, AgentsInForce
from breadcrumbs.agents.chain_limits import ChainStopped
from breadcrumbs.agents.chosen_agent import AgentUnavailable, chosen_agent
from breadcrumbs.agents.conversation import (
    RecentAnswers,
    read_choices,
    read_trigger,
    unanswered_messages,
)
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.request import AnswerRequest, StartingMessage, retry_time
from breadcrumbs.agents.turn import AgentTurns
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.schema_names import (
    AGENT_CANCEL,
    AGENT_CONTEXT,
    FEEDBACK,
    TOOL_RESPONSE,
    USER_MESSAGE,
)
from breadcrumbs.runtime.store.fence import LeaseLost, TriggerGone
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.definitions import report_unusable
from breadcrumbs.runtime.workers.errors import STORE_UNAVAILABLE, TurnCancelled, TurnFailed, TurnStopped
from breadcrumbs.runtime.workers.failures import ErrorDetails, leave_error, stopped_error_id
from breadcrumbs.runtime.workers.retries import is_retryable
from breadcrumbs.runtime.workers.turn import Turn

_MAX_NOTED_EVENTS: Final = 10_000
"""Maximum number of events with notes (`_refused`, `_failed`). Above it, all notes are dropped.

Without this limit, notes about events of lost lanes would never be removed.
"""

LoadConsumers: TypeAlias = Callable[[UUID], Awaitable[set[str]]]
"""Returns the consumers for which the owner has a context config."""
EventKey: TypeAlias = tuple[int, int]
"""Lane and time of an event."""


@dataclass(frozen=True, slots=True)
class _Running:
    """An agent that is answering an event now."""

    agent_id: str
    message_id: str
    scope: anyio.CancelScope


class AgentRunner:
    """Handler of the workers that run agents.

    Runners of one kind share the work, so all of them must have the same agents. A process with its own agents uses
    its own kind.
    """

    kind = "agents"

    def __init__(
        self,
        store: Store,
        agents: AgentsInForce,
        turns: AgentTurns,
        *,
        consumers: LoadConsumers | None = None,
        inherited: tuple[str, ...],
        kind: str = kind,
    ) -> None:
        self.kind = kind
        self._store = store
        self._agents = agents
        self._turns = turns
        self._consumers = consumers
        self._inherited = inherited
        self._addressees = Addressees(
            store, kind=kind, reports=kind == AgentRunner.kind, others=agents.others
        )
        self._running: dict[EventKey, _Running] = {}
        self._refused: dict[EventKey, dict[str, str]] = {}
        """Agents that must not answer an event, with the reason."""
        self._failed: dict[EventKey, set[str]] = {}
        """Agents that have failed to answer an event."""

    async def wants(self, event: Event) -> bool:
        """Return whether the event needs a turn.

        It does if it can trigger an agent, if it is about an agent definition, or if it is a message that an agent
        cannot answer because it has no context config or does not exist. An event of a definition also drops the cached
        definitions of its owner.
        """
        if self._agents.is_definition(event):
            self._agents.invalidate(event.owner_id)
            return event.operation != "deleted"
        if event.operation == "deleted":
            return False
        if event.imported:
            return False
        agents = await self._agents.get(event.owner_id)
        if any(_is_triggered(agent.definition, event) for agent in agents):
            return True
        if await self._agents_without_contexts(event, agents):
            return True
        return self._addressees.must_report(event, agents)

    # New events

    def arrived(self, event: Event, running: Turn | None, waiting: Sequence[Event]) -> bool:
        """Cancel, interrupt or refuse turns, according to `when_busy` of the agents.

        Return whether all triggered agents refuse the event. The refusal is then sent immediately.
        """
        if event.operation == "deleted" or event.imported:
            return False  # deleted and imported breadcrumbs start no turn
        # Only a new breadcrumb cancels. An edit of an old one does not.
        if event.schema_name == AGENT_CANCEL and event.operation == "created" and running is not None:
            running.stop()
        if event.schema_name == TOOL_RESPONSE:
            self._turns.note_response(event)
        earlier = [*((running.event,) if running is not None else ()), *waiting]
        if not earlier:
            return False
        triggered = [
            agent.definition
            for agent in self._agents.get_stale(event.owner_id)
            if _is_triggered(agent.definition, event)
        ]
        for definition in triggered:
            if busy_with := [other for other in earlier if _is_triggered(definition, other)]:
                self._apply_when_busy(definition, event, busy_with, running)
        refused = self._refused.get(_event_key(event), {})
        return bool(triggered) and all(definition.agent_id in refused for definition in triggered)

    def _apply_when_busy(
        self, definition: AgentDefinition, event: Event, busy_with: list[Event], running: Turn | None
    ) -> None:
        agent_id = definition.agent_id
        match definition.when_busy:
            case "interrupt":
                for earlier in busy_with:
                    self._interrupt(earlier, agent_id)
                if running is not None and self._failed.get(_event_key(running.event)) == {agent_id}:
                    running.next_attempt.set()  # only the interrupted agent awaits a retry: end the pause now
            case "reject":
                self._refuse(
                    event, agent_id, "the agent is busy with an earlier message: send it again later"
                )

    def _interrupt(self, event: Event, agent_id: str) -> None:
        self._refuse(event, agent_id, "interrupted by a newer message")
        running = self._running.get(_event_key(event))
        if running is not None and running.agent_id == agent_id:
            running.scope.cancel()

    def _refuse(self, event: Event, agent_id: str, reason: str) -> None:
        if len(self._refused) > _MAX_NOTED_EVENTS:
            self._refused.clear()
        self._refused.setdefault(_event_key(event), {})[agent_id] = reason

    # Turns

    async def handle(self, turn: Turn) -> None:
        """Run all agents whose triggers match the event. If the event is about an invalid definition, report it."""
        event = turn.event
        self._failed.pop(_event_key(event), None)
        if self._agents.is_definition(event):
            await report_unusable(
                self._store, turn, AGENT_DEFINITIONS, creator=self._creator, inherited=self._inherited
            )
        if event.imported:
            return
        agents = await self._agents.get(event.owner_id)
        trigger, recent_answers = await read_trigger(self._store, turn)
        if trigger is None:
            return  # deleted or expired meanwhile
        agents = await self._addressed(turn, trigger, agents, recent_answers)
        await self._check_contexts(turn, agents)
        requests = [
            AnswerRequest.of(turn, agent, trigger, recent_answers.choices)
            for agent in agents
            if await self._should_answer(agent.definition, turn, trigger)
        ]
        if not requests:
            # No commit acknowledges the event. A client that waits for the end of a chain needs it now, not with the
            # next low-water mark.
            await turn.acknowledge()
        await self._answer_all(turn, requests, recent_answers)
        self._refused.pop(_event_key(event), None)

    async def _addressed(
        self, turn: Turn, trigger: Breadcrumb, agents: list[ActiveAgent], recent: RecentAnswers
    ) -> list[ActiveAgent]:
        """Return the agents that may answer a trigger."""
        try:
            return await self._addressees.select(turn.event, trigger, agents, recent)
        except AgentUnavailable as error:
            self._note_failures(turn, [error.agent_id])
            raise

    async def _check_contexts(self, turn: Turn, agents: list[ActiveAgent]) -> None:
        """Raise `TurnFailed` if an agent has no context config. Otherwise the user would wait forever."""
        if failed := await self._agents_without_contexts(turn.event, agents):
            self._note_failures(turn, failed)
            names = ", ".join(sorted(failed))
            raise TurnFailed(
                f"no context config for {names}, so the message cannot be answered: add a config with this "
                "consumer_id"
            )

    async def _answer_all(
        self, turn: Turn, requests: list[AnswerRequest], recent_answers: RecentAnswers
    ) -> None:
        """Answer the requests one after the other. A failed request does not stop the others."""
        failures: dict[str, Exception] = {}
        for request in requests:
            try:
                last = request is requests[-1] and not failures
                await self._answer(request, recent_answers, last=last)
            except (LeaseLost, TriggerGone, *STORE_UNAVAILABLE):
                raise
            except Exception as error:
                failures[request.definition.agent_id] = error
        if failures:
            self._note_failures(turn, failures)
            errors = list(failures.values())
            retryable = [error for error in errors if is_retryable(error)]
            # One retry covers all failed agents, so use the longest pause that any of them requested.
            raise max(retryable, key=_requested_pause) if retryable else errors[0]

    async def _answer(self, request: AnswerRequest, recent_answers: RecentAnswers, *, last: bool) -> None:
        key, agent_id, message_id = (
            _event_key(request.turn.event),
            request.definition.agent_id,
            request.origin.id,
        )
        if reason := self._refused.get(key, {}).get(agent_id):
            if self._is_answering(agent_id, message_id):
                return  # the event is an edit of the message that is being answered: do not refuse that message
            raise TurnCancelled(reason)
        with anyio.CancelScope() as scope:
            self._running[key] = _Running(agent_id, message_id, scope)
            try:
                await self._turns.answer(request, recent_answers, last=last)
            finally:
                del self._running[key]
        if scope.cancelled_caught:
            raise TurnCancelled(self._refused[key][agent_id])

    def _is_answering(self, agent_id: str, message_id: str) -> bool:
        return any(
            running.agent_id == agent_id and running.message_id == message_id
            for running in self._running.values()
        )

    async def _should_answer(self, definition: AgentDefinition, turn: Turn, trigger: Breadcrumb) -> bool:
        if not any(selector.matches(trigger) for selector in definition.triggers):
            return False
        return definition.when_busy != "merge" or not await self._is_merged(definition, turn, trigger)

    async def _is_merged(self, definition: AgentDefinition, turn: Turn, trigger: Breadcrumb) -> bool:
        """Return whether the answer to a later, waiting message will also answer this trigger."""
        if trigger.schema_name != AGENT_CONTEXT and not definition.recalls(trigger):
            return False
        for event in turn.waiting():
            if not _is_triggered(definition, event):
                continue
            waiting, choices = await read_choices(self._store, event)
            if waiting is None or StartingMessage.of(waiting).created <= StartingMessage.of(trigger).created:
                continue
            if await chosen_agent(self._store, event, waiting, choices) in (None, definition.agent_id):
                return True
        return False

    async def _agents_without_contexts(self, event: Event, agents: list[ActiveAgent]) -> set[str]:
        """Return the agents without a context config, if the event is a new message."""
        if (
            self._consumers is None
            or event.schema_name != USER_MESSAGE
            or event.operation not in ("created", "retried")
        ):
            return set()
        waiting_for = {
            consumer: agent.definition.agent_id for agent in agents for consumer in agent.definition.consumers
        }
        configured = await self._consumers(event.owner_id)
        return {agent for consumer, agent in waiting_for.items() if consumer not in configured}

    # Failures

    async def give_up(self, turn: Turn, error: Exception) -> None:
        """Write an error into the session of a turn that will not be retried."""
        event = turn.event
        self._refused.pop(_event_key(event), None)
        failed = self._failed_agents(event)
        origin, root, hops, retried_at = event.id, None, 0, 0
        answers: list[str] = []
        try:
            trigger = await self._store.get_version(event.owner_id, event.id, event.version)
            started_by = StartingMessage.of(trigger)
            root, hops, retried_at = started_by.root, started_by.hops, retry_time(event, trigger)
            answers = await self._merged_messages(trigger, failed)
            origin = UUID(started_by.id)
        except (NotFound, ValueError):
            pass
        agent_id = next(iter(failed)) if len(failed) == 1 else None
        details = ErrorDetails(self._creator, origin, self._inherited, hops + 1, agent_id, answers, root)
        if isinstance(error, TurnStopped):
            # A cancellation stops all agents, so its error names none. The API can write the same error.
            stop_id = stopped_error_id(event.lane, origin, retried_at)
            details = replace(details, agent_id=None, id=stop_id)
        elif isinstance(error, AgentUnavailable):
            # Several turns of a message can find that the agent is missing. They write one error together.
            details = replace(details, id=turn.derived_id("error", self._creator, error.report_key))
        elif isinstance(error, ChainStopped):
            details = replace(details, agents=error.agents)
        await leave_error(self._store, turn, error, details)
        self._failed.pop(_event_key(event), None)

    @property
    def _creator(self) -> str:
        """The creator of errors. Runners of different kinds can fail on the same event, and each writes one error."""
        return "agent-runner" if self.kind == AgentRunner.kind else self.kind

    def _note_failures(self, turn: Turn, agents: Iterable[str]) -> None:
        if len(self._failed) > _MAX_NOTED_EVENTS:
            self._failed.clear()
        failed = self._failed[_event_key(turn.event)] = set(agents)
        for agent in failed:
            turn.report.begin(agent)  # an agent can fail before its turn begins

    def _failed_agents(self, event: Event) -> set[str]:
        """Return the agents that failed on an event. If they are unknown, return all that it triggers."""
        return self._failed.get(_event_key(event)) or {
            agent.definition.agent_id
            for agent in self._agents.get_stale(event.owner_id)
            if _is_triggered(agent.definition, event)
        }

    async def _merged_messages(self, trigger: Breadcrumb, failed: set[str]) -> list[str]:
        """Return the messages that were merged into a failed turn, if there are any."""
        merging = [
            agent.definition
            for agent in self._agents.get_stale(trigger.owner_id)
            if agent.definition.when_busy == "merge" and agent.definition.agent_id in failed
        ]
        merged = [await unanswered_messages(self._store, definition, trigger) for definition in merging]
        return max(merged, key=len, default=[])


def _event_key(event: Event) -> EventKey:
    return event.lane, event.at


def _requested_pause(error: Exception) -> float:
    return (error.retry_after or 0.0) if isinstance(error, TurnFailed) else 0.0


def _is_triggered(definition: AgentDefinition, event: Event) -> bool:
    if event.schema_name == FEEDBACK:  # models never see it
        return False
    return any(
        trigger.matches_meta(event.schema_name, event.tags, event.session_id)
        for trigger in definition.triggers
    )
