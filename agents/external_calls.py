"""Waits for the responses to tool requests that other processes answer.

A response is a `tool.response.v1` in the session of the request, with the id of the request in `request_id`. The first
one counts. It is found in the index of the session, so a response of another session or owner is never read. The time
limit begins with the stored request, so it is the same after a takeover.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias
from uuid import UUID

import anyio

from breadcrumbs.agents.tools.base import ToolResult
from breadcrumbs.agents.tools.output import as_json, error_text
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import InvalidInput, NotFound
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.retrieval.model_view import withheld_reason
from breadcrumbs.runtime.schema_names import TOOL_RESPONSE
from breadcrumbs.runtime.store.store import Store

_POLL_SECONDS: Final = 5.0
"""A response that was found in no event, as after an import, is found after this time."""
_MAX_ERROR_CHARACTERS: Final = 2_000

_SessionKey: TypeAlias = tuple[UUID, str]


class ExternalCalls:
    """Waits for responses in sessions. The worker reports new responses of its lanes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[_SessionKey, anyio.Event] = {}

    def arrived(self, event: Event) -> None:
        """Note a new response. The calls that wait in its session look for it."""
        if event.session_id is not None and (
            waiting := self._waiting.get((event.owner_id, event.session_id))
        ):
            waiting.set()

    async def wait(self, request: Breadcrumb, seconds: float) -> Breadcrumb | None:
        """Return the first response to a request, or None if there is none within the time limit."""
        key = request.owner_id, request.session_id or ""
        deadline = request.created + int(seconds * 1e6)
        while True:
            # A turn waits for one call at a time, and a session has one turn at a time.
            arrived = self._waiting[key] = anyio.Event()
            try:
                if (found := await find_response(self._store, request)) is not None:
                    return found
                left = (deadline - self._store.now()) / 1e6
                if left <= 0:
                    return None
                with anyio.move_on_after(min(left, _POLL_SECONDS)):
                    await arrived.wait()
            finally:
                if self._waiting.get(key) is arrived:
                    del self._waiting[key]


async def find_response(store: Store, request: Breadcrumb) -> Breadcrumb | None:
    """Return the first response to a request, in its first version, or None."""
    query = Query(
        session_id=request.session_id,
        schema_name=TOOL_RESPONSE,
        created_since=request.created,
        sort="created_at",
        keep=lambda crumb: crumb.context.get("request_id") == str(request.id),
    )
    async for crumb in store.walk(request.owner_id, query):
        response = await _first_version(store, crumb)
        if response is not None and is_response(response, request):
            return response
    return None


def is_response(crumb: Breadcrumb, request: Breadcrumb) -> bool:
    """Return whether a breadcrumb is a response to a request that a model may see."""
    return (
        crumb.schema_name == TOOL_RESPONSE
        and (crumb.owner_id, crumb.session_id) == (request.owner_id, request.session_id)
        and crumb.context.get("request_id") == str(request.id)
        and withheld_reason(crumb) is None
    )


async def _first_version(store: Store, crumb: Breadcrumb) -> Breadcrumb | None:
    """Return the first version. A later edit does not change a result that a model may have seen."""
    if crumb.version == 1:
        return crumb
    try:
        return await store.get_version(crumb.owner_id, crumb.id, 1)
    except NotFound:
        return None


def external_result(context: Mapping[str, Any]) -> ToolResult:
    """Return the result in a response that another process wrote. Its fields can be any JSON values."""
    status, error = context.get("status"), context.get("error")
    if status == "success" or (status is None and error is None):
        try:
            return ToolResult(True, as_json(context.get("output")), None, 0.0)
        except InvalidInput as problem:
            return ToolResult(False, None, f"the response cannot be used: {error_text(problem)}", 0.0)
    if not isinstance(error, str) or not error.strip():
        error = "the tool failed without a message"
    return ToolResult(False, None, error[:_MAX_ERROR_CHARACTERS], 0.0)
