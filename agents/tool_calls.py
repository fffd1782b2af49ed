"""Runs the tool calls of a turn. Each call has its effect at most once.

A call is stored as three breadcrumbs: `tool.request.v1` together with its step, `tool.started.v1` before the tool runs,
and `tool.response.v1` with its result. A worker that takes over a turn decides by them:

    response stored             its result is used
    started, without response   the tool may have run. An idempotent tool runs again with the same idempotency key. Any
                                other tool does not run: its outcome is unknown, and the model is told
    not started                 the tool runs
"""

from __future__ import annotations

from typing import Any, Final

from breadcrumbs.agents.commit import NewBreadcrumb, commit, commit_together
from breadcrumbs.agents.spans import traced_tool
from breadcrumbs.agents.tool_use import ToolUse, status_of, stored_result, unknown_result
from breadcrumbs.agents.tools.base import ToolContext, ToolResult
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.tags import inherited_tags
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

    def requested(self, use: ToolUse) -> NewBreadcrumb:
        """Return the `tool.request.v1` of a call."""
        fields = use.requested_fields()
        return use.request_id, self._breadcrumb(use, TOOL_REQUEST, use.name, ["tool:request"], fields)

    def started(self, use: ToolUse) -> NewBreadcrumb:
        """Return the `tool.started.v1` of a call."""
        fields = use.started_fields()
        return use.started_id, self._breadcrumb(use, TOOL_STARTED, use.name, [INTERNAL], fields)

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
