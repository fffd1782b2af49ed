"""Traces of requests: accepts the trace of a client, and starts the server span if tracing is on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.problems import ClientDisconnected, status_of
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.telemetry import tracing
from breadcrumbs.runtime.telemetry.trace_context import parse_headers

if TYPE_CHECKING:
    from breadcrumbs.runtime.telemetry.spans import Spans


async def perform_traced(call: HttpCall, perform: Callable[[], Awaitable[Reply]]) -> Reply:
    """Run a request as a part of the trace that its headers name.

    Events that the request writes carry the trace, also if tracing is off in this process. Workers with tracing then
    continue the trace of the client.
    """
    parent = parse_headers(call.scope["headers"])
    carrying = tracing.carried.set(None if parent is None else parent.encode())
    try:
        spans = tracing.active
        # The page, its files, health checks and metrics need no token. Their spans would only be noise.
        if spans is None or call.operation.rule.access != "token":
            return await perform()
        return await _perform_in_span(spans, call, perform)
    finally:
        tracing.carried.reset(carrying)


async def _perform_in_span(spans: Spans, call: HttpCall, perform: Callable[[], Awaitable[Reply]]) -> Reply:
    scope, operation = call.scope, call.operation
    method = operation.method
    attributes: dict[str, Any] = {
        "http.request.method": method,
        "http.route": operation.path,
        "url.path": scope["path"],  # without the query, which can contain a token
        "url.scheme": scope["scheme"],
    }
    problem: Exception | None = None
    with spans.span(f"{method} {operation.path}", attributes, kind="server") as span:
        try:
            reply = await perform()
            status = reply.status
        except ClientDisconnected:
            raise
        except Exception as error:
            # The caller makes the reply. A status below 500 is an error of the client, not of this span.
            problem, status = error, status_of(error)
        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            spans.set_error(span, str(status), problem)
    if problem is not None:
        raise problem
    return reply
