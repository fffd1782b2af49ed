"""Spans of agents, model calls and tool calls, with the attributes of the GenAI semantic conventions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import orjson

from breadcrumbs.agents.models.base import Model, ModelReply, ModelRequest, PromptMessage, ToolCall
from breadcrumbs.agents.models.fallback import current_model
from breadcrumbs.agents.models.offered import public_name
from breadcrumbs.agents.models.openai_compatible import OpenAICompatibleModel
from breadcrumbs.agents.receipts import TimedCall
from breadcrumbs.agents.request import AnswerRequest
from breadcrumbs.agents.tools.base import Tool, ToolResult
from breadcrumbs.runtime.breadcrumb.text import encodable_text
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.turn_spans import TurnSpan, turn_span

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from opentelemetry.trace import Span

    from breadcrumbs.runtime.telemetry.spans import Spans

_FRAMEWORK: Final = "breadcrumbs"
"""Provider of agents and of models that run in this process."""
_COMPATIBLE: Final = "openai"
"""Provider of a model that is named by its URL. The conventions name the format of the API, which is OpenAI's."""


@dataclass(slots=True)
class _Totals:
    """Sums over the model calls of one agent."""

    input_tokens: int = 0
    output_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    """Finish reasons of the last call."""


_totals: ContextVar[_Totals | None] = ContextVar("totals", default=None)


@asynccontextmanager
async def agent_span(spans: Spans, store: Store, request: AnswerRequest) -> AsyncIterator[None]:
    """Run a block in the span `invoke_agent`."""
    definition, totals = request.definition, _Totals()
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": _FRAMEWORK,
        "gen_ai.agent.id": definition.agent_id,
        "gen_ai.agent.name": definition.agent_id,
        "breadcrumbs.owner.id": str(request.owner),
        "breadcrumbs.message.id": request.origin.id,
        **_conversation(request),
    }
    if definition.description:
        attributes["gen_ai.agent.description"] = definition.description
    is_remote = definition.kind == "adk"
    model = request.agent.chosen_model or next(iter(definition.models), None)
    if model and not is_remote and request.agent.function is None:
        attributes["gen_ai.request.model"] = public_name(model)  # without the URL of its server
    wanted = TurnSpan(
        f"invoke_agent {definition.agent_id}", attributes, kind="client" if is_remote else "internal"
    )
    counting = _totals.set(totals)
    try:
        async with turn_span(spans, store, request.turn, request.trigger, wanted) as span:
            try:
                yield
            finally:
                if totals.finish_reasons:
                    span.set_attribute("gen_ai.response.finish_reasons", totals.finish_reasons)
                if totals.input_tokens or totals.output_tokens:
                    span.set_attribute("gen_ai.usage.input_tokens", totals.input_tokens)
                    span.set_attribute("gen_ai.usage.output_tokens", totals.output_tokens)
    finally:
        _totals.reset(counting)


async def traced_complete(
    spans: Spans, request: AnswerRequest, model: Model, prompt: ModelRequest, timed: TimedCall
) -> ModelReply:
    """Call a model in the span `chat`. The span covers the retries of the call."""
    model, asked = current_model(model), model
    provider, name = _provider_and_model(model)
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": name,
        **_conversation(request),
    }
    if prompt.temperature is not None:
        attributes["gen_ai.request.temperature"] = prompt.temperature
    if prompt.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = prompt.max_tokens
    is_remote = isinstance(model, OpenAICompatibleModel)
    if isinstance(model, OpenAICompatibleModel):
        attributes |= _server(model.endpoint.url)
        attributes["gen_ai.request.stream"] = model.endpoint.streaming
    if spans.content:
        attributes |= _input_content(prompt)
    with spans.span(f"chat {name}", attributes, kind="client" if is_remote else "internal") as span:
        reply = await asked.complete(prompt, timed.write)
        _describe_reply(span, reply, timed.times()[0])
        if spans.content:
            span.set_attribute("gen_ai.output.messages", _json([_output_message(reply)]))
        return reply


async def traced_tool(
    spans: Spans, name: str, call: ToolCall, tool: Tool | None, running: Awaitable[ToolResult]
) -> ToolResult:
    """Run a tool in the span `execute_tool`. `name`: the printable name of the tool, also if it does not exist."""
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.id": call.id,
        "gen_ai.tool.type": "function",
    }
    if tool is not None and tool.description:
        attributes["gen_ai.tool.description"] = tool.description
    if spans.content:
        attributes["gen_ai.tool.call.arguments"] = call.arguments
    with spans.span(f"execute_tool {name}", attributes) as span:
        result = await running
        if not result.ok:
            spans.set_error(span, "tool_error" if tool is not None else "tool_not_found", result.error)
        elif spans.content:
            span.set_attribute("gen_ai.tool.call.result", _json(result.output))
        return result


def _conversation(request: AnswerRequest) -> dict[str, str]:
    session = request.trigger.session_id
    return {} if session is None else {"gen_ai.conversation.id": session}


def _provider_and_model(model: Model) -> tuple[str, str]:
    if not isinstance(model, OpenAICompatibleModel):
        return _FRAMEWORK, model.name
    provider, separator, _ = model.name.partition(":")
    is_named = separator and "://" not in model.name
    return provider if is_named else _COMPATIBLE, model.model


def _server(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {"server.address": parts.hostname or "", "server.port": port}


def _describe_reply(span: Span, reply: ModelReply, first_ms: int | None) -> None:
    # One text that is not valid Unicode would make the export of the whole batch fail.
    reasons = [] if reply.finish_reason is None else [encodable_text(reply.finish_reason)]
    if reasons:
        span.set_attribute("gen_ai.response.finish_reasons", reasons)
    if first_ms is not None:
        span.set_attribute("gen_ai.response.time_to_first_chunk", first_ms / 1000)
    if (sent := reply.sent) is not None:
        span.set_attribute("gen_ai.response.model", encodable_text(sent.model or sent.dialect.model))
        if sent.response_id is not None:
            span.set_attribute("gen_ai.response.id", encodable_text(sent.response_id))
    totals = _totals.get()
    if totals is not None:
        totals.finish_reasons = reasons
    if (usage := reply.usage) is None:
        return
    if totals is not None:
        totals.input_tokens += usage.prompt_tokens
        totals.output_tokens += usage.completion_tokens
    counts = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
    }
    span.set_attributes({name: count for name, count in counts.items() if count is not None})


# Content. The conventions define these attributes as JSON, in the form of a list of messages with parts.


def _input_content(prompt: ModelRequest) -> dict[str, str]:
    system = [_text(message.content) for message in prompt.messages if message.role == "system"]
    others = [_input_message(message) for message in prompt.messages if message.role != "system"]
    content = {"gen_ai.input.messages": _json(others)}
    if system:
        content["gen_ai.system_instructions"] = _json(system)
    if prompt.tools:
        tools = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            }
            for tool in prompt.tools
        ]
        content["gen_ai.tool.definitions"] = _json(tools)
    return content


def _input_message(message: PromptMessage) -> dict[str, Any]:
    if message.role == "tool":
        part = {"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}
        return {"role": "tool", "parts": [part]}
    return {"role": message.role, "parts": _parts(message.content, message.tool_calls)}


def _output_message(reply: ModelReply) -> dict[str, Any]:
    parts = _parts(reply.text, reply.tool_calls)
    return {"role": "assistant", "parts": parts, "finish_reason": reply.finish_reason or "stop"}


def _parts(text: str, calls: tuple[ToolCall, ...]) -> list[dict[str, Any]]:
    texts = [_text(text)] if text else []
    called = [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments} for call in calls
    ]
    return [*texts, *called]


def _text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:  # a text with a lone surrogate
        return json.dumps(value, default=str)
