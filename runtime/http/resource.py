"""Dispatches the requests of one path to its operations."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.http.api.problems import (
    METHOD_NOT_ALLOWED,
    ClientDisconnected,
    problem,
    problem_from_error,
)
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.connections import mark_authenticated
from breadcrumbs.runtime.telemetry import tracing

if TYPE_CHECKING:
    from breadcrumbs.runtime.http.services import Services

from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import Operation, OperationHandler
from breadcrumbs.runtime.http.request_spans import perform_traced

_NOT_COUNTED: Final = nullcontext()

SLASH: Final = "\x1f"
"""Replaces a slash inside a name while the path is matched. Names cannot contain this character."""


class Resource:
    """ASGI application of one path, with one operation per method."""

    def __init__(
        self, path: str, operations: Sequence[Operation], services: Services, stream: ASGIApp
    ) -> None:
        self.path = path
        self._services = services
        self._stream = stream
        self._by_method: dict[str, Operation] = {operation.method: operation for operation in operations}
        if "GET" in self._by_method:
            self._by_method["HEAD"] = self._by_method["GET"]
        self._allow = ", ".join(sorted(self._by_method)).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if SLASH in scope["path"]:
            given = scope["path_params"].items()
            scope["path_params"] = {name: value.replace(SLASH, "/") for name, value in given}
        operation = self._by_method.get(scope["method"])
        if operation is not None and operation.handle is None:
            await self._serve_stream(scope, receive, send)
            return
        unsent: ExitStack | nullcontext[None] = _NOT_COUNTED
        try:
            if operation is None or operation.handle is None:
                reply = self._not_allowed(scope["method"])
            else:
                call = HttpCall(operation, self._services, scope, receive)
                if tracing.active is None and b"traceparent" not in call.headers:
                    reply = await self._perform(call, operation.handle)
                else:
                    reply = await perform_traced(call, partial(self._perform, call, operation.handle))
                if operation.rule.access != "open" and reply.status < 400:
                    mark_authenticated(scope)  # covers development mode, where requests need no token
                if operation.rule.access == "token" and operation.method == "GET":
                    unsent = ExitStack()
                    unsent.enter_context(self._services.unsent.count_until_sent(call.principal, reply.size))
        except ClientDisconnected:
            return
        except Exception as error:
            reply = problem_from_error(error)
        with unsent:
            await reply.send(send, without_body=scope["method"] == "HEAD")

    def _perform(self, call: HttpCall, handle: OperationHandler) -> Awaitable[Reply]:
        """Check the principal and the query, and return the awaitable of the handler."""
        # This is the hot path. It is not `async`, because each coroutine adds a step to every resumption.
        services = self._services
        call.admit()
        is_token = call.operation.rule.access == "token"
        if is_token and not services.auth.development_mode:
            mark_authenticated(call.scope)
        if call.scope["query_string"]:
            call.query()
        for_session = is_token and call.principal.session_id is not None
        if services.limiter is None and not for_session:
            return handle(call)
        return self._perform_limited(call, handle, for_session=for_session)

    async def _perform_limited(self, call: HttpCall, handle: OperationHandler, *, for_session: bool) -> Reply:
        """Check the budget and the session token, and run the handler."""
        limiter = self._services.limiter
        left = () if limiter is None else await call.spend(limiter)
        reads = call.operation.method == "GET"
        if for_session and not reads:
            await call.check_session_token()
        try:
            reply = await handle(call)
        except NotFound:
            if for_session and reads:
                await call.check_session_token()  # 401 if the session was deleted, as for writes
            raise
        if for_session:
            # Check again. If the session was replaced meanwhile, the reply must not contain data of the new one. A
            # write can be the deletion of the session itself.
            await call.check_session_token(missing_is_fine=not reads)
        reply.headers += left
        return reply

    def _not_allowed(self, method: str) -> Reply:
        allow = [(b"allow", self._allow)]
        if method == "OPTIONS":
            return Reply(204, headers=allow)
        return problem(METHOD_NOT_ALLOWED, f"this path supports {self._allow.decode()}", headers=allow)

    async def _serve_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        # A plain function that returns the awaitable of `send` is cheaper than another coroutine.
        def send_and_mark(message: Any) -> Awaitable[None]:
            nonlocal started
            if not started and message["status"] < 400:
                mark_authenticated(scope)
            started = True
            return send(message)

        try:
            await self._stream(scope, receive, send_and_mark)
        except Exception as error:
            if started:
                raise
            await problem_from_error(error).send(send)
