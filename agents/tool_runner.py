"""The tool runner: the handler that answers the requests of one external tool.

It has the same guarantees as the agent runner. Each request gets one response, also if processes die. A call that a
dead process had started runs again only if the tool is idempotent. Otherwise the response says that its outcome is
unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import orjson

from breadcrumbs.agents.commit import commit, commit_together
from breadcrumbs.agents.external_calls import find_response
from breadcrumbs.agents.tool_use import status_of, unknown_result
from breadcrumbs.agents.tools.base import Tool, ToolContext, ToolResult
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.tags import inherited_tags
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.schema_names import TOOL_REQUEST, TOOL_RESPONSE, TOOL_STARTED
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry.turns import count_tool_call
from breadcrumbs.runtime.workers.errors import TurnStopped, error_reason
from breadcrumbs.runtime.workers.turn import INTERNAL, Turn


class ToolRunner:
    """Handler of the workers that run one external tool. Workers of a tool share its requests."""

    def __init__(self, store: Store, tool: Tool, *, inherited: tuple[str, ...]) -> None:
        self.kind = f"tools/{tool.name}"
        self._store = store
        self._tool = tool
        self._inherited = inherited

    async def wants(self, event: Event) -> bool:
        """Return whether the event is a new request of the tool."""
        return (
            event.schema_name == TOOL_REQUEST
            and event.operation == "created"
            and not event.imported
            and f"tool:{self._tool.name}" in event.tags
        )

    def arrived(self, event: Event, running: Turn | None, waiting: Sequence[Event]) -> bool:
        return False

    async def handle(self, turn: Turn) -> None:
        """Run the tool and store its response, unless the request is answered, cancelled or too old."""
        request = await self._open_request(turn)
        if request is None:
            return
        turn.requested_at = request.created
        is_started = not turn.is_first and await self._store.exists(
            request.owner_id, _id(turn, request, "started")
        )
        if is_started and not self._tool.idempotent:
            result = unknown_result(self._tool.name)
        else:
            if not is_started:
                started = self._breadcrumb(
                    request, TOOL_STARTED, self._tool.name, [INTERNAL], {"attempt": turn.attempt}
                )
                await commit_together(self._store, turn, (_id(turn, request, "started"), started))
            result = await self._tool.run(_arguments(request), self._context(request))
        count_tool_call(self._tool.name, ok=result.ok)
        await self._respond(turn, request, result)

    async def give_up(self, turn: Turn, error: Exception) -> None:
        """Answer a request that failed with the reason. A cancelled request gets no response."""
        request = await self._open_request(turn)
        if request is not None and not isinstance(error, TurnStopped):
            await self._respond(turn, request, ToolResult(False, None, error_reason(error), 0.0))

    async def _open_request(self, turn: Turn) -> Breadcrumb | None:
        """Return the request of a turn if it needs a response."""
        event = turn.event
        try:
            request = await self._store.get(event.owner_id, event.id, count_read=False)
        except NotFound:
            return None
        context = request.context
        # Only the runtime writes requests without an author. A client cannot make this process run a tool.
        if request.created_by is not None or request.version != 1 or context.get("external") is not True:
            return None
        if context.get("tool") != self._tool.name or self._store.now() > _deadline(context, request.created):
            return None
        return None if await find_response(self._store, request) is not None else request

    def _context(self, request: Breadcrumb) -> ToolContext:
        context = request.context
        return ToolContext(
            request.owner_id,
            request.session_id,
            str(context.get("requestedBy", "")),
            str(context.get("trigger_id", "")),
            self._store,
            str(request.id),
        )

    async def _respond(self, turn: Turn, request: Breadcrumb, result: ToolResult) -> None:
        fields = {
            "status": status_of(result),
            "execution_time_ms": round(result.duration_ms, 3),
            **({"output": result.output} if result.ok else {"error": result.error}),
        }
        title = f"{self._tool.name}: {fields['status']}"
        new = self._breadcrumb(request, TOOL_RESPONSE, title, ["tool:response"], fields)
        await commit(self._store, turn, _id(turn, request, "response"), new)

    def _breadcrumb(
        self, request: Breadcrumb, schema_name: str, title: str, tags: list[str], fields: dict[str, Any]
    ) -> BreadcrumbCreate:
        context = {
            "tool": self._tool.name,
            "request_id": str(request.id),
            "trigger_id": request.context.get("trigger_id"),
            "hops": request.context.get("hops", 1),
            **fields,
        }
        tags = [*tags, *inherited_tags(request.tags, self._inherited)]
        return BreadcrumbCreate.parse(
            {"schema_name": schema_name, "title": title, "tags": tags, "context": context}
        )


def _id(turn: Turn, request: Breadcrumb, kind: str) -> UUID:
    """Return the id of a breadcrumb that belongs to a request. It is the same in each attempt."""
    return turn.derived_id("external", kind, str(request.id))


def _arguments(request: Breadcrumb) -> str:
    return orjson.dumps(request.context.get("input")).decode()


def _deadline(context: dict[str, Any], created: int) -> float:
    """Return the time after which the agent does not wait any more, in microseconds since 1970."""
    seconds = context.get("timeout_seconds")
    return created + (seconds * 1e6 if isinstance(seconds, int | float) else 0)
