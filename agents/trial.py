"""Runs a definition once with a message, without storing anything.

The prompt contains the system prompt and the message. There is no session, so there is no conversation. Built-in tools
run. Other tools can have effects outside, so the model is told that they were not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import anyio

from breadcrumbs.agents.answer import check_text, parse_answer
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.models.base import Model, ModelError, ModelRequest, PromptMessage, ToolCall
from breadcrumbs.agents.models.offered import public_name
from breadcrumbs.agents.models.prices import Price, price_of
from breadcrumbs.agents.receipts import TimedCall
from breadcrumbs.agents.tool_steps import PARAGRAPH
from breadcrumbs.agents.tool_use import step_messages
from breadcrumbs.agents.tools import SHIPPED, Toolbox, ToolContext, ToolResult
from breadcrumbs.runtime.breadcrumb.text import encodable_text
from breadcrumbs.runtime.workers.errors import TurnFailed

_TOKENS: Final = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
_BUILT_IN: Final = frozenset(tool.name for tool in SHIPPED)


@dataclass(slots=True)
class Trial:
    """The result of a trial."""

    model: str
    answer: str | None = None
    error: str | None = None
    """Reason why there is no answer."""
    calls: int = 0
    """Number of model calls."""
    duration_ms: int = 0
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    """Tokens of all model calls, as far as the model reported them."""

    def as_dict(self, prices: Mapping[str, Price]) -> dict[str, Any]:
        document: dict[str, Any] = {"model": self.model, "calls": self.calls, "duration_ms": self.duration_ms}
        if self.error is None:
            document["answer"] = self.answer
        else:
            document["error"] = self.error
        document |= {"tool_calls": self.tool_calls, **self.usage}
        price = price_of(self.model, prices)
        cost = None if price is None else price.cost(self.usage)
        return document if cost is None else {**document, "cost": cost}


@dataclass(frozen=True, slots=True)
class TrialInputs:
    """The definition and the message of a trial, and the model and tools to run them with."""

    definition: AgentDefinition
    message: str
    model: Model
    toolbox: Toolbox
    owner: UUID


async def run_trial(inputs: TrialInputs, *, seconds: float) -> Trial:
    """Run a definition with a message. Errors are in the result."""
    trial = Trial(public_name(inputs.model.name))
    limit = min(seconds, inputs.definition.timeout_seconds)
    try:
        with anyio.move_on_after(limit) as scope:
            await _run(inputs, trial)
        if scope.cancelled_caught:
            trial.error = f"no answer within {limit:g} s"
    except ModelError as error:
        trial.error = error.reason
    except TurnFailed as error:
        trial.error = str(error)
    return trial


async def _run(inputs: TrialInputs, trial: Trial) -> None:
    definition = inputs.definition
    system = (PromptMessage("system", definition.system_prompt),) if definition.system_prompt else ()
    messages = (*system, PromptMessage("user", inputs.message))
    texts: list[str] = []
    for _ in range(definition.max_steps):
        timed = TimedCall(_ignore, None)
        request = ModelRequest(
            messages, inputs.toolbox.specs, definition.temperature, definition.max_tokens, timed
        )
        reply = await inputs.model.complete(request, timed.write)
        trial.calls += 1
        trial.duration_ms += timed.times()[1]
        if reply.usage is not None:
            usage = reply.usage
            counts = (
                usage.prompt_tokens,
                usage.completion_tokens,
                usage.cached_tokens,
                usage.reasoning_tokens,
            )
            for name, count in zip(_TOKENS, counts, strict=True):
                if count is not None:
                    trial.usage[name] = trial.usage.get(name, 0) + count
        if not reply.tool_calls:
            trial.answer = _answer([*texts, reply.text])
            return
        calls = [_clean(call) for call in reply.tool_calls]
        results = [await _run_tool(inputs, trial, call) for call in calls]
        if reply.text.strip():
            texts.append(reply.text.rstrip())
        messages = (*messages, *step_messages(reply.text, calls, results))
    raise TurnFailed(f"the model still called tools after max_steps ({definition.max_steps}) calls")


async def _run_tool(inputs: TrialInputs, trial: Trial, call: ToolCall) -> ToolResult:
    if call.name in inputs.toolbox and call.name in _BUILT_IN:
        context = ToolContext(inputs.owner, None, inputs.definition.agent_id, "", None)
        result = await inputs.toolbox.get(call.name).run(call.arguments, context)
        ran = True
    else:
        known = call.name in inputs.toolbox
        reason = "not run: this is a trial" if known else "not found"
        result, ran = ToolResult(False, None, f"tool {call.name[:100]} was {reason}", 0.0), False
    outcome = {"output": result.output} if result.ok else {"error": result.error}
    trial.tool_calls.append({"name": call.name[:100], "arguments": call.arguments, "ran": ran, **outcome})
    return result


def _clean(call: ToolCall) -> ToolCall:
    return ToolCall(encodable_text(call.id), encodable_text(call.name), encodable_text(call.arguments))


def _answer(texts: list[str]) -> str:
    *before, last = texts
    return check_text(PARAGRAPH.join([*before, parse_answer(check_text(last)).text]))


async def _ignore(text: str) -> None:
    return None
