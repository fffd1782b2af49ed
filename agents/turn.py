"""One turn of one agent, from a trigger to an answer in its session.

The runtime copies the session tag to the answer. Models and tools never see it and cannot change it. The id of the
answer is derived from the message that started the turn. So a retried turn finds its first answer and does not make
another one.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

import anyio
import structlog

from breadcrumbs.agents.answer import Answer, answer_breadcrumb, function_text, without_state_change
from breadcrumbs.agents.answer_gate import AnswerGate, has_answer_hooks
from breadcrumbs.agents.chain_limits import DEFAULT_LIMITS
from breadcrumbs.agents.commit import commit
from breadcrumbs.agents.conversation import RecentAnswers, find_creator, unanswered_messages
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.functions import AgentFunction, Call
from breadcrumbs.agents.models.base import ModelError, OnDelta, PromptMessage
from breadcrumbs.agents.models.offered import public_name
from breadcrumbs.agents.prompt import build_prompt, find_parts_problem
from breadcrumbs.agents.prompt_images import load_images
from breadcrumbs.agents.receipt_writer import FUNCTION, ReceiptWriter, ShownParts
from breadcrumbs.agents.request import AnswerRequest
from breadcrumbs.agents.spans import agent_span
from breadcrumbs.agents.structured_output import with_instruction
from breadcrumbs.agents.tool_steps import ModelInput, ToolSteps
from breadcrumbs.agents.tools.base import is_being_cancelled
from breadcrumbs.agents.tools.output import error_text
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, Content
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.errors import InvalidInput, NotFound, QuotaExceeded, StateTooLarge
from breadcrumbs.runtime.events.deltas import DeltaWriter
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.events.notices import Notice
from breadcrumbs.runtime.schema_names import REASONING, RECEIPT, ROOT
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry import tracing
from breadcrumbs.runtime.telemetry.redaction import log_reason
from breadcrumbs.runtime.workers.errors import TurnFailed, TurnStopped, error_reason
from breadcrumbs.runtime.workers.turn import Turn

_log = structlog.get_logger("breadcrumbs.agents")

_KEPT_AFTER_TIMEOUT_SECONDS: Final = 60.0
"""The text so far is kept for the timeout of the agent and this time, in case the worker dies."""
_MAX_FAILING_ANSWERS: Final = 10_000

PromptParts: TypeAlias = Sequence[dict[str, Any]]
"""The parts of a context, as JSON objects."""

RefreshContext: TypeAlias = Callable[[Turn, Breadcrumb], Awaitable[Breadcrumb]]
"""Builds a context again for the same message, with the newer breadcrumbs of the session."""

Gathered: TypeAlias = tuple[list[dict[str, Any]], dict[str, Any]]
"""The parts of a prompt, and the references of their items."""

GatherParts: TypeAlias = Callable[[AgentDefinition, Breadcrumb], Awaitable[Gathered]]
"""Returns the parts of the prompt for a trigger that is not a context."""

RemoteAnswer: TypeAlias = Callable[[AnswerRequest, PromptParts, OnDelta], Awaitable[Answer]]
"""Returns the answer of an agent on an ADK server."""


class AgentTurns:
    """Runs the turns of agents."""

    def __init__(
        self,
        store: Store,
        steps: ToolSteps,
        *,
        gather: GatherParts,
        refresh: RefreshContext,
        inherited: tuple[str, ...],
        remote: RemoteAnswer | None = None,
    ) -> None:
        self._store = store
        self._steps = steps
        self._gather = gather
        self._refresh = refresh
        self._inherited = inherited
        self._remote = remote
        self.limits = DEFAULT_LIMITS
        """Limits on agents that trigger each other. The composition sets those of the settings."""
        self._receipts = ReceiptWriter(store)
        self._failures: dict[UUID, int] = {}
        """Number of failed model calls and attempts of each answer, for notices."""

    async def answer(self, request: AnswerRequest, recent_answers: RecentAnswers, *, last: bool) -> None:
        """Answer a trigger, unless it is already answered, cancelled or deleted.

        With `last`, the write of the answer also acknowledges the event.
        """
        turn = request.turn
        current = await self._current_request(request, recent_answers)
        if current is None:
            if last:
                await turn.acknowledge()
            return
        turn.report.begin(request.definition.agent_id, self._model_name(request), message=request.origin.id)
        await self._check_quota(request.owner)
        await self._check_budget(request)
        turn.requested_at = request.requested_at
        if (spans := tracing.active) is None:
            await self._write_answer(current, last=last)
        else:
            async with agent_span(spans, self._store, current):
                await self._write_answer(current, last=last)

    def note_response(self, event: Event) -> None:
        """Note a new `tool.response.v1`, which a turn can wait for."""
        self._steps.note_response(event)

    async def _write_answer(self, request: AnswerRequest, *, last: bool) -> None:
        """Run the agent and commit its answer."""
        turn = request.turn
        new, content = await self._make_answer(request)
        ends: Literal["answer", "turn"] = "turn" if last else "answer"
        try:
            await commit(self._store, turn, request.answer_id, new, content, ends=ends)
        except StateTooLarge as error:
            # The text was already streamed, so it is stored. The answer records that its state was refused.
            _log.warning(
                "state too large, storing the answer without it",
                agent=request.definition.agent_id,
                session=request.trigger.session_id,
                trigger=request.origin.id,
                error=log_reason(error),
            )
            plain = without_state_change(new, error)
            await commit(self._store, turn, request.answer_id, plain, ends=ends)
        request.facts.answered = True
        self._failures.pop(request.answer_id, None)

    def _model_name(self, request: AnswerRequest) -> str:
        """Return the name of the model for metrics and the log, or the kind of an agent without a model."""
        if request.agent.function is not None:
            return FUNCTION
        if request.definition.kind != "model":
            return request.definition.kind
        return self._steps.model_name(request.agent)

    async def _current_request(
        self, request: AnswerRequest, recent_answers: RecentAnswers
    ) -> AnswerRequest | None:
        """Return the request with a current context, or None if no answer is needed."""
        if await self._is_answered(request, recent_answers):
            return None
        if any(cancel.created > request.requested_at for cancel in recent_answers.cancels):
            raise TurnStopped
        if await self.limits.stops(self._store, request):
            return None
        try:
            trigger = await self._fresh_trigger(request, recent_answers.answers)
            return request if trigger is request.trigger else replace(request, trigger=trigger)
        except NotFound:
            return None  # deleted or expired meanwhile

    async def _is_answered(self, request: AnswerRequest, recent_answers: RecentAnswers) -> bool:
        answer_id = request.answer_id
        if any(answer.id == answer_id for answer in recent_answers.answers):
            return True
        return recent_answers.may_miss_answer(request) and await self._store.exists(request.owner, answer_id)

    async def _check_quota(self, owner: UUID) -> None:
        """Raise `TurnFailed` if a quota is used up.

        The check comes before the model call, because a finished answer is always stored.
        """
        if self._store.quotas is not None:
            try:
                await self._store.quotas.check(owner)
            except QuotaExceeded as error:
                raise TurnFailed(str(error)) from error

    async def _check_budget(self, request: AnswerRequest) -> None:
        """Raise `TurnFailed` if a budget is used up. Only the usage of models is counted and limited."""
        if request.agent.function is None and request.definition.kind == "model":
            await self._steps.check_budget(request)

    async def _fresh_trigger(self, request: AnswerRequest, answers: list[Breadcrumb]) -> Breadcrumb:
        """Return the trigger. Rebuild a context that is older than the agent's last answer, and so lacks it."""
        trigger, agent_id = request.trigger, request.definition.agent_id
        if not request.is_context:
            return trigger
        as_of = trigger.context.get("as_of", 0)
        if not isinstance(as_of, int):
            raise TurnFailed("the context was not made by the context builder: as_of is not a time")
        stale = any(crumb.created > as_of and find_creator(crumb) == agent_id for crumb in answers)
        # Older versions of a context contain only references. The refresh fetches the referenced breadcrumbs.
        if stale or "parts" not in trigger.context:
            return await self._refresh(request.turn, trigger)
        if problem := find_parts_problem(trigger.context["parts"]):
            raise TurnFailed(f"the context was not made by the context builder: {problem}")
        return trigger

    async def _make_answer(self, request: AnswerRequest) -> tuple[BreadcrumbCreate, Content]:
        """Run the agent and return its answer as a breadcrumb."""
        definition, trigger = request.definition, request.trigger
        # Read before the model call: if the store is unavailable later, the answer must not be lost.
        merged = (
            await unanswered_messages(
                self._store, definition, trigger, with_choices=request.choices.agent_since > 0
            )
            if definition.when_busy == "merge"
            else None
        )
        writer = self._delta_writer(request)
        observer = _Observer(request, writer, lambda reason, seconds: self._notice(request, reason, seconds))
        try:
            answer = await self._run_in_time(request, writer, observer)
        except Exception:
            request.turn.on_retry = observer.failed
            raise
        fields = _runtime_fields(request, merged) | answer.runtime_fields
        reasoning = {REASONING: writer.reasoning} if writer.reasoning else {}
        problem: InvalidInput | None = None
        # A model can add fields that cannot be stored. Then only the text is stored.
        for candidate, more in (
            (answer, reasoning),
            (Answer(answer.text), reasoning),
            (Answer(answer.text), {}),
        ):
            try:
                new = answer_breadcrumb(
                    candidate, definition, trigger.tags, {**fields, **more}, self._inherited
                )
                return new, self._store.content(new)
            except InvalidInput as error:
                problem = error
        raise TurnFailed(f"the answer cannot be stored: {problem}") from problem

    def _delta_writer(self, request: AnswerRequest) -> DeltaWriter:
        turn, definition, answer_id = request.turn, request.definition, request.answer_id
        return DeltaWriter(
            self._store,
            turn.event,
            definition.agent_id,
            request.origin.id,
            str(answer_id),
            turn.saving(answer_id, definition.timeout_seconds + _KEPT_AFTER_TIMEOUT_SECONDS),
        )

    def _notice(self, request: AnswerRequest, reason: str, seconds: float) -> Notice:
        if len(self._failures) > _MAX_FAILING_ANSWERS:
            self._failures.clear()
        failures = self._failures[request.answer_id] = self._failures.get(request.answer_id, 0) + 1
        return Notice.of(reason, seconds, attempt=failures + 1, now=self._store.now())

    async def _run_in_time(self, request: AnswerRequest, writer: DeltaWriter, observer: _Observer) -> Answer:
        """Run the agent within its timeout. Raises `TurnFailed` if there is no answer."""
        definition = request.definition
        try:
            with anyio.move_on_after(definition.timeout_seconds) as limit:
                return await self._run_agent(request, writer, observer, limit)
        except ModelError as error:
            raise TurnFailed(error.reason, retry=error.retry, retry_after=error.retry_after) from error
        raise TurnFailed(f"no answer within {definition.timeout_seconds:g} s", retry=True)

    async def _run_agent(
        self, request: AnswerRequest, writer: DeltaWriter, observer: _Observer, limit: anyio.CancelScope
    ) -> Answer:
        """Call the function, the remote server or the model of the agent."""
        definition = request.definition
        parts = request.trigger.context.get("parts") if request.is_context else None
        references: dict[str, Any] | None = None
        if parts is None:
            parts, references = await self._gather(definition, request.trigger)
        messages = build_prompt(definition.system_prompt, parts, definition.agent_id)
        messages = with_instruction(messages, definition.output_schema)
        messages = await load_images(self._store, request.owner, messages)
        request.facts.hidden = [message.content for message in messages if message.role != "system"]
        shown = ShownParts(parts, references)
        async with writer as deltas:
            gate = AnswerGate(self._steps.hooks, request, deltas.write)
            if (function := request.agent.function) is not None:
                call = _function_call(request, messages, gate.on_delta)
                return await self._run_function(request, shown, call, gate, function)
            if definition.kind == "adk":
                return await self._run_remote(request, shown, gate)
            made_with = partial(self._receipts.made_with, request, shown)
            given = ModelInput(messages, made_with, gate.on_delta, observer, limit)
            result = await self._steps.run(request, given)
            answer = await gate.answer(result.texts)
        creator = {**_creator(definition), "model": public_name(result.record.calls[-1].model)}
        receipt = await self._receipts.of_model(request, shown, result.record)
        return _with_fields(answer, creator=creator, **{RECEIPT: receipt | gate.receipt})

    async def _run_function(
        self, request: AnswerRequest, shown: ShownParts, call: Call, gate: AnswerGate, function: AgentFunction
    ) -> Answer:
        agent_id, began = request.definition.agent_id, time.perf_counter()
        text, parse = function_text(agent_id, await _call_function(agent_id, function, call))
        answer = await gate.answer([text], parse)
        receipt = await self._receipts.of_function(request, shown, call.messages, began)
        return _with_fields(answer, **{RECEIPT: receipt | gate.receipt})

    async def _run_remote(self, request: AnswerRequest, shown: ShownParts, gate: AnswerGate) -> Answer:
        if self._remote is None:
            agent_id = request.definition.agent_id
            raise TurnFailed(f"{agent_id} runs on an ADK server, which is not available in this process")
        began = time.perf_counter()
        remote = await self._remote(request, shown.parts, gate.on_delta)
        answer = await gate.answer([remote.text])
        receipt = await self._receipts.of_remote(request, shown, began)
        return _with_fields(answer, **remote.runtime_fields, **{RECEIPT: receipt | gate.receipt})


class _Observer:
    """Passes the reasoning of a model and its failures to the clients of an answer."""

    def __init__(
        self, request: AnswerRequest, writer: DeltaWriter, notice: Callable[[str, float], Notice]
    ) -> None:
        self._request = request
        self._writer = writer
        self._notice = notice
        self._shows_reasoning = not has_answer_hooks(request.definition)

    async def reason(self, text: str) -> None:
        if self._shows_reasoning:
            await self._writer.reason(text)

    def retrying(self, reason: str, seconds: float) -> None:
        """Tell the clients that the model is called again."""
        self._writer.notify(self._notice(reason, seconds))

    def switched(self, model: str, *, failed: bool) -> None:
        """Count the call for the model that is called now."""
        self._request.facts.call_moved(public_name(model), failed=failed)

    def log_fields(self) -> dict[str, str]:
        request = self._request
        session = request.trigger.session_id
        named = {} if session is None else {"session": session}
        return named | {"agent": request.definition.agent_id, "message_id": request.origin.id}

    def failed(self, error: Exception, seconds: float) -> None:
        """Tell the clients that the turn is attempted again."""
        self.retrying(error_reason(error), seconds)


def _runtime_fields(request: AnswerRequest, merged: list[str] | None) -> dict[str, Any]:
    """Return the fields that the runtime adds to the context of an answer."""
    trigger, origin = request.trigger, request.origin
    fields: dict[str, Any] = {
        "trigger_id": origin.id,
        ROOT: origin.root,
        "creator": _creator(request.definition),
        "hops": origin.hops + 1,
    }
    if trigger.session_id is not None:
        fields["session_id"] = trigger.session_id
    if request.is_context:
        fields |= {"context_id": str(trigger.id), "context_version": trigger.version}
    if merged is not None:
        fields["answers"] = merged
    return fields


def _with_fields(answer: Answer, **fields: Any) -> Answer:
    """Return an answer with more fields of the runtime."""
    return replace(answer, runtime_fields={**answer.runtime_fields, **fields})


def _creator(definition: AgentDefinition) -> dict[str, str]:
    return {"type": "agent", "agent_id": definition.agent_id}


def _function_call(request: AnswerRequest, messages: tuple[PromptMessage, ...], on_delta: OnDelta) -> Call:
    trigger = request.trigger
    return Call(
        text=messages[-1].content if messages else plain_text(trigger.context),
        messages=messages,
        session_id=trigger.session_id,
        owner_id=trigger.owner_id,
        trigger_id=request.origin.id,
        say=on_delta,
    )


async def _call_function(agent_id: str, function: AgentFunction, call: Call) -> object:
    """Call a function agent. It cannot stop the worker, and it cannot end its turn without an error."""
    try:
        return await function(call)
    except anyio.get_cancelled_exc_class():
        if is_being_cancelled():
            raise
        raise TurnFailed(f"{agent_id} was cancelled by its own code", retry=True) from None
    except SystemExit as error:
        raise TurnFailed(f"{agent_id} failed: {error_text(error)}", retry=True) from error
