"""One tool call of a turn: the tool that it names, the ids of its breadcrumbs and their contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import orjson

from breadcrumbs.agents.models.base import ModelReply, PromptMessage, ToolCall
from breadcrumbs.agents.receipts import MAX_STORED_CHARACTERS
from breadcrumbs.agents.request import AnswerRequest
from breadcrumbs.agents.tools.base import Tool, Toolbox, ToolResult
from breadcrumbs.runtime.breadcrumb.json_input import MAX_DEPTH, canonical, parse_json
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.schema_names import RECEIPT, ROOT

_MAX_INPUT_CHARACTERS: Final = 100_000
_MAX_UNREADABLE_CHARACTERS: Final = 10_000
_MAX_INPUT_LEVELS: Final = MAX_DEPTH - 4
"""The input is nested in the context of a breadcrumb, which has a limit itself."""

UNKNOWN_OUTCOME: Final = "unknown"
"""Status of a response to a call that a dead worker had started. The call can have had its effect."""


@dataclass(frozen=True, slots=True)
class ToolUse:
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
        return printable_name(self.call.name)

    @property
    def returns_to_model(self) -> bool:
        """Whether the model is called again with the result."""
        return self.tool is None or self.tool.return_to_llm

    @property
    def is_idempotent(self) -> bool:
        """Whether the tool can run again after a crash. A call of a missing tool has no effect."""
        return self.tool is None or self.tool.idempotent

    @property
    def is_external(self) -> bool:
        """Whether another process runs the tool."""
        return self.tool is not None and self.tool.external

    @property
    def request_tags(self) -> list[str]:
        """The tags of the request. Another process finds its requests by the name of the tool."""
        return ["tool:request", f"tool:{self.name}"] if self.is_external else ["tool:request"]

    @property
    def request_id(self) -> UUID:
        return self.derived_id("request")

    @property
    def response_id(self) -> UUID:
        return self.derived_id("response")

    @property
    def started_id(self) -> UUID:
        return self.derived_id("started")

    def derived_id(self, kind: str) -> UUID:
        """Return the id of a breadcrumb of the call. It is the same in each attempt and after a requested retry.

        So a call that has had its effect does not have it again.
        """
        agent_id, origin = self.request.definition.agent_id, self.request.origin
        return self.request.turn.derived_id(
            kind, agent_id, origin.id, self.step, self.call.name, self.call.arguments
        )

    # Contents of its breadcrumbs

    def requested_fields(self) -> dict[str, Any]:
        """Return the context of the `tool.request.v1`."""
        input = _parse_input(self.call.arguments)
        external = (
            {"external": True, "timeout_seconds": self.tool.timeout} if self.is_external and self.tool else {}
        )
        return {
            **self._common_fields(),
            **external,
            "input": input,
            "input_digest": sha256(canonical(input)).hexdigest(),
            "requestedBy": self.request.definition.agent_id,
            RECEIPT: self._call_facts(input),
        }

    def started_fields(self) -> dict[str, Any]:
        """Return the context of the `tool.started.v1`."""
        return {**self._common_fields(), "attempt": self.request.turn.attempt}

    def response_fields(self, result: ToolResult) -> dict[str, Any]:
        """Return the context of the `tool.response.v1`."""
        return {
            **self._common_fields(),
            "status": status_of(result),
            "execution_time_ms": round(result.duration_ms, 3),
            "return_to_llm": self.returns_to_model,
            **_result_fields(result),
        }

    def _common_fields(self) -> dict[str, Any]:
        origin = self.request.origin
        return {
            "tool": self.name,
            "request_id": str(self.request_id),
            "trigger_id": origin.id,
            ROOT: origin.root,
            "hops": origin.hops + 1,
        }

    def _call_facts(self, input: Any) -> dict[str, Any]:
        """Return the facts about the call that a rebuilt request needs and that the breadcrumb does not contain."""
        facts: dict[str, Any] = {"call": self.call.id}
        if self.call.name != self.name:
            facts["name"] = self.call.name
        if self.call.arguments != orjson.dumps(input).decode():
            facts["arguments"] = self.call.arguments
        too_long = [name for name, value in facts.items() if len(value) > MAX_STORED_CHARACTERS]
        return {**facts, **dict.fromkeys(too_long)}


def tool_uses(request: AnswerRequest, reply: ModelReply, toolbox: Toolbox, step: int) -> list[ToolUse]:
    """Return the tool calls of a reply with their tools."""
    return [
        ToolUse(request, call, toolbox.get(call.name) if call.name in toolbox else None, f"{step}.{number}")
        for number, call in enumerate(reply.tool_calls)
    ]


def printable_name(name: str) -> str:
    """Return a name that a model chose, printable and at most 100 characters long."""
    return "".join(c if c.isprintable() else " " for c in name[:100])


def status_of(result: ToolResult) -> str:
    """Return the status of a response."""
    if result.is_unknown:
        return UNKNOWN_OUTCOME
    return "success" if result.ok else "error"


def unknown_result(name: str) -> ToolResult:
    """Return the result of a call that a dead worker had started and that must not run again."""
    error = (
        f"the outcome of this call of {name} is unknown: the worker stopped while the tool was running. The call can "
        "have had its effect, so it was not repeated. Check whether it had, or tell the user."
    )
    return ToolResult(False, None, error, 0.0, is_unknown=True)


def step_messages(text: str, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> list[PromptMessage]:
    """Return the messages that a step adds to the prompt: the reply with its tool calls, and their results."""
    return [
        PromptMessage("assistant", text, tool_calls=tuple(calls)),
        *(
            PromptMessage("tool", result_text(result), tool_call_id=call.id, name=call.name)
            for call, result in zip(calls, results, strict=True)
        ),
    ]


def stored_result(context: Mapping[str, Any]) -> ToolResult:
    """Return the result that a `tool.response.v1` contains."""
    return ToolResult(context["status"] == "success", context.get("output"), context.get("error"), 0.0)


def result_text(result: ToolResult) -> str:
    """Return a result as the model reads it."""
    return orjson.dumps(_result_fields(result)).decode()


def _result_fields(result: ToolResult) -> dict[str, Any]:
    return {"output": result.output} if result.ok else {"error": result.error}


def _parse_input(raw: str) -> Any:
    """Return the arguments of a call for its breadcrumb. Text that is not JSON is kept, cut if it is long."""
    if len(raw) <= _MAX_INPUT_CHARACTERS:
        try:
            return parse_json(raw.encode(), levels=_MAX_INPUT_LEVELS)
        except InvalidInput:
            pass
    return {"unreadable": raw[:_MAX_UNREADABLE_CHARACTERS]}
