"""Call a model and its tools until the model answers without a tool call.

Each reply with tool calls is stored as a step before its tools run (`step_journal.py`), and each tool call is stored
with its progress (`tool_calls.py`). So a turn that is taken over continues: no stored reply is paid for twice, and no
tool has its effect twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import anyio

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.hooks import Hooks
from breadcrumbs.agents.models.base import (
    CallObserver,
    Model,
    ModelReply,
    ModelRequest,
    OnDelta,
    PromptMessage,
    TokenUsage,
)
from breadcrumbs.agents.models.offered import public_name
from breadcrumbs.agents.parallel_calls import run_all
from breadcrumbs.agents.prompt_cache import prompt_cache_key
from breadcrumbs.agents.receipts import RecordedCall, TimedCall, TurnRecord
from breadcrumbs.agents.request import AnswerRequest
from breadcrumbs.agents.spans import traced_complete
from breadcrumbs.agents.step_journal import MadeWith, StepJournal, storable_reply
from breadcrumbs.agents.structured_output import OutputCheck
from breadcrumbs.agents.tool_calls import ToolCalls
from breadcrumbs.agents.tool_use import ToolUse, result_text, step_messages, tool_uses
from breadcrumbs.agents.tools.base import Toolbox, ToolResult
from breadcrumbs.agents.tools.external import DeclaredTool
from breadcrumbs.agents.usage import UsageMeter
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry import tracing
from breadcrumbs.runtime.telemetry.turns import Tokens
from breadcrumbs.runtime.workers.errors import TurnFailed

PARAGRAPH: Final = "\n\n"
"""Separates the texts before and after a tool call."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The texts of a model, the answer last, and the record of its calls."""

    texts: list[str]
    record: TurnRecord


@dataclass(frozen=True, slots=True)
class ModelInput:
    """The prompt of a turn, and where the pieces of its answer go."""

    messages: tuple[PromptMessage, ...]
    made_with: MadeWith
    """Returns the setup and the context of the prompt, for steps."""
    on_delta: OnDelta
    observer: CallObserver | None = None
    limit: anyio.CancelScope | None = None
    """The time limit of the attempt. It does not count while the turn waits for another process."""


@dataclass(frozen=True, slots=True)
class _ModelTurn:
    """The model, the tools and the journal of one turn."""

    request: AnswerRequest
    model: Model
    toolbox: Toolbox
    journal: StepJournal
    record: TurnRecord

    def uses(self, call: RecordedCall, number: int) -> list[ToolUse]:
        """Return the tool calls of a step."""
        return tool_uses(self.request, call.reply, self.toolbox, number)


class ToolSteps:
    """Runs the model calls and tool calls of a turn."""

    def __init__(
        self,
        store: Store,
        *,
        model_of: Callable[[ActiveAgent], Model],
        toolbox: Toolbox,
        inherited: tuple[str, ...],
        hooks: Hooks | None = None,
        meter: UsageMeter | None = None,
    ) -> None:
        self._store = store
        self.hooks = hooks or Hooks()
        self._meter = meter or UsageMeter({})
        self._model_of = model_of
        self._toolbox = toolbox
        self._inherited = inherited
        self._calls = ToolCalls(store, inherited)

    def model_name(self, agent: ActiveAgent) -> str:
        """Return the public name of an agent's model. Empty if the agent has no usable model."""
        try:
            return public_name(self._model_of(agent).name)
        except TurnFailed:
            return ""  # the call of the model reports the reason

    async def check_budget(self, request: AnswerRequest) -> None:
        """Raise `TurnFailed` if a budget is used up, or cannot be checked."""
        if self._meter.budgets is not None:
            await self._meter.check_budget(request, self.model_name(request.agent))

    async def run(self, request: AnswerRequest, given: ModelInput) -> ModelAnswer:
        """Call the model and its tools until the model calls no tool. Return its texts, the answer last."""
        model, toolbox = self._model_of(request.agent), self._allowed_tools(request)
        record = TurnRecord(model.name, tuple(tool.spec for tool in toolbox))
        journal = StepJournal(self._store, request, given.made_with, self._inherited)
        turn = _ModelTurn(request, model, toolbox, journal, record)
        messages, texts = given.messages, list[str]()
        max_steps = request.definition.max_steps
        output = OutputCheck(request.definition.output_schema, max_calls=max_steps)
        for number in range(max_steps):
            on_delta = _after_paragraph(given.on_delta) if texts else given.on_delta
            call = await self._next_call(turn, messages, number, TimedCall(on_delta, given.observer))
            reply = call.reply
            if not reply.tool_calls:
                if (repair := output.repair(call, number)) is None:
                    return ModelAnswer([*texts, reply.text], record)
                if call.step_id is None:
                    await self._store_step(turn, number, call)
                messages = (*messages, *repair)
                continue
            uses = tool_uses(request, reply, toolbox, number)
            results = await self._run_tools(uses, call, given.limit)
            if not any(use.returns_to_model for use in uses):
                return ModelAnswer([*texts, reply.text or _results_text(uses, results)], record)
            if reply.text.strip():
                texts.append(reply.text.rstrip())
            messages = (*messages, *step_messages(reply.text, reply.tool_calls, results))
        raise TurnFailed(
            f"the model was stopped after max_steps ({max_steps}) model calls: it still called tools"
        )

    async def _next_call(
        self, turn: _ModelTurn, messages: tuple[PromptMessage, ...], number: int, timed: TimedCall
    ) -> RecordedCall:
        """Return the next model call: a stored one, or a new one. A new one that calls tools is stored."""
        stored = await turn.journal.load(number)
        if stored is not None:
            stored.tool_requests = [use.request_id for use in turn.uses(stored, number)]
            turn.record.calls.append(stored)
            await _replay(stored, timed)
            return stored
        request, model = turn.request, turn.model
        definition = request.definition
        prompt = ModelRequest(
            messages,
            turn.record.tools,
            definition.temperature,
            definition.max_tokens,
            timed,
            prompt_cache_key(request.owner, request.trigger.session_id, definition.agent_id),
            definition.parallel_tool_calls,
            definition.output_schema,
        )
        hooked = await self.hooks.before_model(request, prompt)
        started = self._store.now()
        reply = await _complete(request, model, hooked.prompt, timed)
        self._meter.note(request, reply.model or model.name, reply, started)
        call = RecordedCall.of(model.name, hooked.prompt, reply, timed)
        call.hooks = hooked.entries(call.sent.dialect)
        turn.record.calls.append(call)
        return await self._store_step(turn, number, call) if reply.tool_calls else call

    async def _store_step(self, turn: _ModelTurn, number: int, call: RecordedCall) -> RecordedCall:
        """Store a reply as a step, with its tool requests and the start of the first tool, in one commit.

        A reply without tool calls is stored if the model has to correct it.
        """
        call.reply = storable_reply(call.reply)
        uses = turn.uses(call, number)
        call.tool_requests = [use.request_id for use in uses]
        along = [self._calls.requested(use) for use in uses]
        if uses and _starts_with_step(uses[0], call):
            along.append(self._calls.started(uses[0]))
        stored = await turn.journal.write(number, call, turn.record, *along)
        if stored is not call:
            stored.tool_requests = [use.request_id for use in turn.uses(stored, number)]
            turn.record.calls[-1] = stored
        return stored

    async def _run_tools(
        self, uses: list[ToolUse], call: RecordedCall, limit: anyio.CancelScope | None
    ) -> list[ToolResult]:
        """Run the tool calls of a step at the same time, and return their results in order."""
        own = [use for use in uses if not use.is_external]
        # Usage that is not recorded yet belongs to one commit, so the commits must follow each other.
        one_by_one = uses[0].request.definition.parallel_tool_calls is False or bool(
            uses[0].request.turn.unrecorded
        )
        ran = await run_all([partial(self._run_tool, use, call) for use in own], one_by_one=one_by_one)
        results = {use.step: result for use, result in zip(own, ran, strict=True)}
        # Other processes work at the same time, so it is enough to wait for one after the other.
        for use in uses:
            if use.tool is not None and use.tool.external:
                result = results[use.step] = await self._calls.wait(use, use.tool, limit)
                if result.response_id is not None:
                    call.responses[str(use.request_id)] = str(result.response_id)
        return [results[use.step] for use in uses]

    async def _run_tool(self, use: ToolUse, call: RecordedCall) -> ToolResult:
        may_be_stored = call.is_replayed or use.request.may_be_repeated
        is_started = use.step.endswith(".0") and _starts_with_step(use, call)
        return await self._calls.run(use, is_started=is_started, may_be_stored=may_be_stored)

    def note_response(self, event: Event) -> None:
        """Note a new `tool.response.v1`, which a turn can wait for."""
        self._calls.external.arrived(event)

    def _allowed_tools(self, request: AnswerRequest) -> Toolbox:
        definition = request.definition
        try:
            toolbox = self._toolbox.allowed(definition.tools)
            for external in definition.external_tools:
                toolbox.add(DeclaredTool(external))
        except InvalidInput as error:
            raise TurnFailed(f"{definition.agent_id}: {error}") from error
        return toolbox


def _starts_with_step(use: ToolUse, call: RecordedCall) -> bool:
    """Return whether the commit of a new step also starts its first tool. This saves a commit.

    If an earlier attempt can have started the same call, its progress has to be read first.
    """
    if use.tool is None or use.is_external:
        return False
    return not call.is_replayed and not use.request.may_be_repeated


async def _replay(call: RecordedCall, timed: TimedCall) -> None:
    """Write the text and the reasoning of a stored step to the answer."""
    if call.reasoning:
        await timed.reason(call.reasoning)
    if call.reply.text:
        await timed.write(call.reply.text)


async def _complete(
    request: AnswerRequest, model: Model, prompt: ModelRequest, timed: TimedCall
) -> ModelReply:
    """Call the model, and count and trace the call."""
    facts = request.facts
    facts.call_started()
    try:
        if (spans := tracing.active) is None:
            reply = await model.complete(prompt, timed.write)
        else:
            reply = await traced_complete(spans, request, model, prompt, timed)
    except Exception:
        facts.call_failed()
        raise
    facts.call_ended(timed.first_seconds, None if reply.usage is None else _tokens(reply.usage))
    return reply


def _tokens(usage: TokenUsage) -> Tokens:
    return Tokens(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens)


def _after_paragraph(on_delta: OnDelta) -> OnDelta:
    """Write a paragraph break before the first text of a reply. A reply without text writes nothing."""
    pending: str | None = PARAGRAPH

    async def write(text: str) -> None:
        nonlocal pending
        if pending is not None:
            text = pending + text
            if not text.strip():
                pending = text
                return
            pending = None
        await on_delta(text)

    return write


def _results_text(uses: list[ToolUse], results: list[ToolResult]) -> str:
    """Return the results as the answer of a turn that ends with tool calls."""
    return "\n".join(
        f"{use.call.name}: {result_text(result)}" for use, result in zip(uses, results, strict=True)
    )
