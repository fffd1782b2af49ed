"""Runs the tool calls of a turn. Each call has its effect at most once.

A call is stored as three breadcrumbs: `tool.request.v1` together with its step, `tool.started.v1` before the tool runs,
and `tool.response.v1` with its result. A worker that takes over a turn decides by them:

    response stored             its result is used
    started, without response   the tool may have run. An idempotent tool runs again with the same idempotency key. Any
                                other tool does not run: its outcome is unknown, and the model is told
    not started                 the tool runs
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import anyio

from breadcrumbs.agents.commit import NewBreadcrumb, commit, commit_together
from breadcrumbs.agents.external_calls import ExternalCalls, external_result
from breadcrumbs.agents.spans import traced_tool
from breadcrumbs.agents.tool_use import ToolUse, status_of, stored_result, unknown_result
from breadcrumbs.agents.tools.base import Tool, ToolContext, ToolResult
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.tags import inherited_tags
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.schema_names import TOOL_REQUEST, TOOL_RESPONSE, TOOL_STARTED
from breadcrumbs.runtime.store.batched_reads import newest_of
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry import tracing
from breadcrumbs.runtime.workers.turn import INTERNAL

UNKNOWN_TOOL: Final = "unknown"
"""Label of calls of tools that the agent does not have. A model can invent any name."""


class ToolCalls:
    """Runs tool calls and stores their breadcrumbs."""

    def __init__(self, store: Store, inherited: tuple[str, ...]) -> None:
        self._store = store
        self._inherited = inherited
        self.external = ExternalCalls(store)

    def requested(self, use: ToolUse) -> NewBreadcrumb:
        """Return the `tool.request.v1` of a call."""
        fields = use.requested_fields()
        return use.request_id, self._breadcrumb(use, TOOL_REQUEST, use.name, use.request_tags, fields)

    def started(self, use: ToolUse) -> NewBreadcrumb:
        """Return the `tool.started.v1` of a call."""
        fields = use.started_fields()
        return use.started_id, self._breadcrumb(use, TOOL_STARTED, use.name, [INTERNAL], fields)

    async def wait(self, use: ToolUse, tool: Tool, limit: anyio.CancelScope | None) -> ToolResult:
        """Wait for the response of another process to a call. Store an error if there is none in time.

        The time limit of the attempt (`limit`) does not count while the turn waits, and the turn needs no slot.
        """
        response, _ = await self._read_progress(use)
        if response is not None:
            return stored_result(response.context)
        if (problem := _find_problem(use, tool)) is not None:
            return await self._store_error(use, problem)
        request = await self._store.get(use.request.owner, use.request_id, count_read=False)
        with _without_limit(limit), use.request.turn.waiting_outside() as back:
            response = await self.external.wait(request, tool.timeout)
            await back()
        if response is None:
            return await self._store_error(
                use,
                f"no response from {use.name} within {tool.timeout:g} s. The process that runs it may be stopped, and "
                "the call can still have had its effect.",
            )
        result = external_result(response.context)
        use.request.facts.tool_called(use.name, ok=result.ok)
        return replace(result, response_id=response.id)

    async def _store_error(self, use: ToolUse, error: str) -> ToolResult:
        result = ToolResult(False, None, error, 0.0)
        use.request.facts.tool_called(use.name, ok=False)
        await self._store_response(use, result)
        return result

    async def run(self, use: ToolUse, *, is_started: bool, may_be_stored: bool) -> ToolResult:
        """Run a tool and store its response, or return the stored response.

        `is_started`: the caller has stored that this attempt starts the call. `may_be_stored`: an earlier attempt can
        have started it.
        """
        result: ToolResult | None = None
        if may_be_stored and not is_started:
            response, started = await self._read_progress(use)
            if response is not None:
                return stored_result(response.context)
            is_started = started is not None
            if is_started and not use.is_idempotent:
                result = unknown_result(use.name)
        if result is None:
            if not is_started and use.tool is not None:
                await commit_together(self._store, use.request.turn, self.started(use))
            result = await self._run_traced(use)
        use.request.facts.tool_called(use.name if use.tool is not None else UNKNOWN_TOOL, ok=result.ok)
        await self._store_response(use, result)
        return result

    async def _read_progress(self, use: ToolUse) -> tuple[Breadcrumb | None, Breadcrumb | None]:
        """Return the stored response and the started marker of a call, if they exist."""
        store, owner = self._store, use.request.owner
        return await store.read_batch(
            newest_of(store, owner, use.response_id), newest_of(store, owner, use.started_id)
        )

    async def _run_traced(self, use: ToolUse) -> ToolResult:
        if (spans := tracing.active) is None:
            return await self._run(use)
        return await traced_tool(spans, use.name, use.call, use.tool, self._run(use))

    async def _run(self, use: ToolUse) -> ToolResult:
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
            str(use.request_id),
        )
        return await use.tool.run(use.call.arguments, context)

    async def _store_response(self, use: ToolUse, result: ToolResult) -> None:
        title = f"{use.name}: {status_of(result)}"
        fields = use.response_fields(result)
        new = self._breadcrumb(use, TOOL_RESPONSE, title, ["tool:response"], fields)
        await commit(self._store, use.request.turn, use.response_id, new)

    def _breadcrumb(
        self, use: ToolUse, schema_name: str, title: str, tags: list[str], context: dict[str, Any]
    ) -> BreadcrumbCreate:
        tags = [*tags, *inherited_tags(use.request.trigger.tags, self._inherited)]
        return BreadcrumbCreate.parse(
            {"schema_name": schema_name, "title": title, "tags": tags, "context": context}
        )


def _find_problem(use: ToolUse, tool: Tool) -> str | None:
    """Return why a call cannot be sent to another process, or None."""
    if use.request.trigger.session_id is None:
        return f"{use.name} runs in another process, which needs a session: this message has none"
    if "unreadable" in (input := use.requested_fields()["input"]) or not isinstance(input, dict):
        return f"{use.name}: the arguments are not a JSON object, or longer than 100,000 characters"
    try:
        tool.check_arguments(use.call.arguments)
    except InvalidInput as error:
        return f"{use.name}: {error.message}"
    return None


@contextmanager
def _without_limit(limit: anyio.CancelScope | None) -> Iterator[None]:
    """Suspend the time limit of an attempt."""
    if limit is None:
        yield
        return
    left = limit.deadline - anyio.current_time()
    limit.deadline = math.inf
    try:
        yield
    finally:
        limit.deadline = anyio.current_time() + left
