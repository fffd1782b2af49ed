"""Call a model and its tools until the model answers without a tool call.

Each tool call is stored as two breadcrumbs, `tool.request.v1` and `tool.response.v1`. Their ids are derived from the
message, the step and the call. So a retried turn finds the stored results and does not run the tools again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

import orjson

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.commit import commit
from breadcrumbs.agents.hooks import Hooks
from breadcrumbs.agents.models.base import (
    CallObserver,
    Model,
    ModelReply,
    ModelRequest,
    OnDelta,
    PromptMessage,
    TokenUsage,
    ToolCall,
)
from breadcrumbs.agents.models.offered import public_name
from breadcrumbs.agents.parallel_calls import run_all
from breadcrumbs.agents.prompt_cache import prompt_cache_key
from breadcrumbs.agents.receipts import (
    MAX_STORED_CHARACTERS,
    RecordedCall,
    TimedCall,
    ToolUseRecord,
    TurnRecord,
)
from breadcrumbs.agents.request import AnswerRequest
from breadcrumbs.agents.spans import traced_complete, traced_tool
from breadcrumbs.agents.structured_output import OutputCheck
from breadcrumbs.agents.tools.base import Tool, Toolbox, ToolContext, ToolResult
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.tags import inherited_tags
from breadcrumbs.runtime.breadcrumb.text import encodable_text
from breadcrumbs.runtime.errors import InvalidInput, NotFound
from breadcrumbs.runtime.schema_names import RECEIPT, TOOL_REQUEST, TOOL_RESPONSE
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry import tracing
from breadcrumbs.runtime.telemetry.turns import Tokens
from breadcrumbs.runtime.workers.errors import TurnFailed

UNKNOWN_TOOL: Final = "unknown"
"""Label of calls of tools that the agent does not have. A model can invent any name."""
PARAGRAPH: Final = "\n\n"
"""Separates the texts before and after a tool call."""

_MAX_INPUT_CHARACTERS: Final = 100_000
_MAX_UNREADABLE_CHARACTERS: Final = 10_000


@dataclass(frozen=True, slots=True)
class _ToolUse:
    """One tool call of a turn, with the tool that it names."""

    request: AnswerRequest
    call: ToolCall
    tool: Tool | None
    """None if the agent does not have the tool."""
    step: str
    """Number of the step and of the call in it, such as `0.1`."""

    @property
    def name(self) -> str:
        """The name of the tool, printable and at most 100 characters long."""
        return "".join(c if c.isprintable() else " " for c in self.call.name[:100])

    @property
    def returns_to_model(self) -> bool:
        """Whether the model is called again with the result."""
        return self.tool is None or self.tool.return_to_llm

    def derived_id(self, kind: str) -> UUID:
        """Return the id of the request or the response. It is the same in each attempt."""
        agent_id, origin = self.request.definition.agent_id, self.request.origin
        return self.request.turn.derived_id(
            kind, agent_id, origin.id, self.step, self.call.name, self.call.arguments
        )


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The texts of a model, the answer last, and the record of its calls."""

    texts: list[str]
    record: TurnRecord


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
    ) -> None:
        self._store = store
        self.hooks = hooks or Hooks()
        self._model_of = model_of
        self._toolbox = toolbox
        self._inherited = inherited

    def model_name(self, agent: ActiveAgent) -> str:
        """Return the public name of an agent's model. Empty if the agent has no usable model."""
        try:
            return public_name(self._model_of(agent).name)
        except TurnFailed:
            return ""  # the call of the model reports the reason

    async def run(
        self,
        request: AnswerRequest,
        messages: tuple[PromptMessage, ...],
        on_delta: OnDelta,
        observer: CallObserver | None = None,
    ) -> ModelAnswer:
        """Call the model and its tools until the model calls no tool. Return its texts, the answer last."""
        definition, model = request.definition, self._model_of(request.agent)
        toolbox = self._allowed_tools(request)
        specs = tuple(tool.spec for tool in toolbox)
        record = TurnRecord(model.name, specs)
        output = OutputCheck(definition.output_schema, max_calls=definition.max_steps)
        texts: list[str] = []
        for step in range(definition.max_steps):
            timed = TimedCall(_after_paragraph(on_delta) if texts else on_delta, observer)
            prompt = ModelRequest(
                messages,
                specs,
                definition.temperature,
                definition.max_tokens,
                timed,
                prompt_cache_key(request.owner, request.trigger.session_id, definition.agent_id),
                definition.parallel_tool_calls,
                definition.output_schema,
            )
            hooked = await self.hooks.before_model(request, prompt)
            reply = await _complete(request, model, hooked.prompt, timed)
            call = RecordedCall.of(model.name, hooked.prompt, reply, timed)
            call.hooks = hooked.entries(call.sent.dialect)
            record.calls.append(call)
            uses = _tool_uses(request, reply, toolbox, step)
            if not uses:
                if (repair := output.repair(call, step)) is None:
                    return ModelAnswer([*texts, reply.text], record)
                messages = (*messages, *repair)
                continue
            results = await run_all(
                [partial(self._run_tool, use, call) for use in uses],
                one_by_one=definition.parallel_tool_calls is False,
            )
            order = [use.derived_id("request") for use in uses]
            call.tools.sort(key=lambda made: order.index(made.request_id))
            if not any(use.returns_to_model for use in uses):
                return ModelAnswer([*texts, reply.text or _results_text(uses, results)], record)
            if reply.text.strip():
                texts.append(reply.text.rstrip())
            messages = (*messages, *step_messages(reply.text, [use.call for use in uses], results))
        raise TurnFailed(
            f"the model was stopped after max_steps ({definition.max_steps}) model calls: it still called tools"
        )

    def _allowed_tools(self, request: AnswerRequest) -> Toolbox:
        try:
            return self._toolbox.allowed(request.definition.tools)
        except InvalidInput as error:
            raise TurnFailed(f"{request.definition.agent_id}: {error}") from error

    async def _run_tool(self, use: _ToolUse, call: RecordedCall) -> ToolResult:
        """Run a tool and store its request and its response, or return the stored response."""
        request_id, response_id = use.derived_id("request"), use.derived_id("response")
        stored = await self._stored_result(use.request.owner, response_id)
        # The request of an earlier attempt can be stored without its response.
        repeated = stored is not None or use.request.may_be_repeated
        call.tools.append(ToolUseRecord(request_id, use.call.id, repeated))
        if stored is not None:
            return stored
        origin = use.request.origin
        common = {
            "tool": use.name,
            "request_id": str(request_id),
            "trigger_id": origin.id,
            "hops": origin.hops + 1,
        }
        requested = {
            **common,
            "input": _parse_input(use.call.arguments),
            "requestedBy": use.request.definition.agent_id,
        }
        requested[RECEIPT] = _call_facts(use, requested["input"], call.reply.text)
        await self._commit(use, request_id, TOOL_REQUEST, use.name, requested)
        if (spans := tracing.active) is None:
            result = await self._result(use)
        else:
            result = await traced_tool(spans, use.name, use.call, use.tool, self._result(use))
        use.request.facts.tool_called(use.name if use.tool is not None else UNKNOWN_TOOL, ok=result.ok)
        response = {
            **common,
            "status": "success" if result.ok else "error",
            "execution_time_ms": round(result.duration_ms, 3),
            "return_to_llm": use.returns_to_model,
            **_result_fields(result),
        }
        await self._commit(use, response_id, TOOL_RESPONSE, f"{use.name}: {response['status']}", response)
        return result

    async def _stored_result(self, owner: UUID, response_id: UUID) -> ToolResult | None:
        """Return the result that an earlier attempt stored, or None."""
        try:
            context = (await self._store.get(owner, response_id, count_read=False)).context
        except NotFound:
            return None
        return stored_result(context)

    async def _result(self, use: _ToolUse) -> ToolResult:
        request = use.request
        if use.tool is None:
            allowed = ", ".join(sorted(request.definition.tools)) or "none"
            return ToolResult(False, None, f"tool {use.name} not found; your tools: {allowed}", 0.0)
        context = ToolContext(
            request.owner,
            request.trigger.session_id,
            request.definition.agent_id,
            request.origin.id,
            self._store,
        )
        return await use.tool.run(use.call.arguments, context)

    async def _commit(
        self, use: _ToolUse, id: UUID, schema_name: str, title: str, context: dict[str, Any]
    ) -> None:
        tags = [
            schema_name.removesuffix(".v1").replace(".", ":"),
            *inherited_tags(use.request.trigger.tags, self._inherited),
        ]
        new = BreadcrumbCreate.parse(
            {"schema_name": schema_name, "title": title, "tags": tags, "context": context}
        )
        await commit(self._store, use.request.turn, id, new)


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


def _tool_uses(request: AnswerRequest, reply: ModelReply, toolbox: Toolbox, step: int) -> list[_ToolUse]:
    calls = [
        ToolCall(encodable_text(call.id), encodable_text(call.name), encodable_text(call.arguments))
        for call in reply.tool_calls
    ]
    return [
        _ToolUse(request, call, toolbox.get(call.name) if call.name in toolbox else None, f"{step}.{number}")
        for number, call in enumerate(calls)
    ]


def step_messages(text: str, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> list[PromptMessage]:
    """Return the messages that a step adds to the prompt: the reply with its tool calls, and their results."""
    return [
        PromptMessage("assistant", text, tool_calls=tuple(calls)),
        *(
            PromptMessage("tool", _result_text(result), tool_call_id=call.id, name=call.name)
            for call, result in zip(calls, results, strict=True)
        ),
    ]


def stored_result(context: Mapping[str, Any]) -> ToolResult:
    """Return the result that a `tool.response.v1` contains."""
    return ToolResult(context["status"] == "success", context.get("output"), context.get("error"), 0.0)


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


def _parse_input(raw: str) -> Any:
    """Return the arguments of a call for its breadcrumb. Text that is not JSON is kept, cut if it is long."""
    if len(raw) <= _MAX_INPUT_CHARACTERS:
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError:
            pass
    return {"unreadable": raw[:_MAX_UNREADABLE_CHARACTERS]}


def _call_facts(use: _ToolUse, input: Any, text: str) -> dict[str, Any]:
    """Return the facts about a call that a rebuilt request needs and that the breadcrumb does not contain yet."""
    facts: dict[str, Any] = {"call": use.call.id}
    if use.call.name != use.name:
        facts["name"] = use.call.name
    if use.call.arguments != orjson.dumps(input).decode():
        facts["arguments"] = use.call.arguments
    if text and use.step.endswith(".0"):  # one of the calls of a step stores the text
        facts["text"] = text
    too_long = [name for name, value in facts.items() if len(value) > MAX_STORED_CHARACTERS]
    return {**facts, **dict.fromkeys(too_long)}


def _result_fields(result: ToolResult) -> dict[str, Any]:
    return {"output": result.output} if result.ok else {"error": result.error}


def _result_text(result: ToolResult) -> str:
    return orjson.dumps(_result_fields(result)).decode()


def _results_text(uses: list[_ToolUse], results: list[ToolResult]) -> str:
    """Return the results as the answer of a turn that ends with tool calls."""
    return "\n".join(
        f"{use.call.name}: {_result_text(result)}" for use, result in zip(uses, results, strict=True)
    )
