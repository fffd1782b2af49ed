"""HTTP client for an ADK server: list apps, manage sessions, and run a turn.

Every failure raises a `ModelError` with a reason that a user can read. If the server does not have the session (any
more), `UnknownSession` is raised. The server chooses all session ids.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import anyio
import httpx
import orjson
import structlog

from breadcrumbs.agents.models.base import ModelError, OnDelta
from breadcrumbs.agents.models.chat_format import parse_json_or_none, show_excerpt
from breadcrumbs.agents.models.endpoint import (
    Endpoint,
    describe_error,
    last_event,
    read_events,
    requested_pause,
)
from breadcrumbs.agents.remote_adk.answer import AdkReply, AnswerReader
from breadcrumbs.runtime.sse import Parser

_log = structlog.get_logger("breadcrumbs.adk")

_RETRYABLE_STATUS = frozenset((429, 502, 503, 504))
_MISSING_ROUTE_STATUS = frozenset((404, 405, 501))
_MAX_ERROR_BYTES = 64 << 10


class UnknownSession(ModelError):
    """The server does not have the session."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"the server does not have the session: {detail}", retry=False)


@dataclass(frozen=True, slots=True)
class RemoteSession:
    """A session that the server created."""

    id: str
    state: dict[str, Any]
    """The state, including `user:` and `app:` state that the server already had."""
    events: int
    """Number of events in the session."""


class AdkServer:
    """Client of one ADK server. Safe to share: any number of turns can run at once."""

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self.name = name
        self._endpoint = endpoint
        self._limits = endpoint.limits
        self._streams = endpoint.streaming
        self._checked_apps: set[str] = set()
        """Apps that passed the check. If the server cannot list its apps, every app passes."""

    def explain(self, error: ModelError) -> ModelError:
        """Return the error with the name of the server and without secrets."""
        reason = f"ADK server {self.name}: {self._endpoint.safe_reason(error.reason)}"
        return ModelError(reason, retry=error.retry, retry_after=error.retry_after)

    # Apps

    async def require_app(self, app: str, *, again: bool = False) -> None:
        """Raise `ModelError` if the server does not have the app.

        A server that cannot list its apps is assumed to have it. The result is cached. `again` repeats the check.
        """
        if app in self._checked_apps and not again:
            return
        status, apps = await self._request_json("GET", "/list-apps")
        if status in _MISSING_ROUTE_STATUS:
            _log.warning("adk server does not list its apps", server=self.name, app=app)
        elif status != httpx.codes.OK:
            raise _refusal_error("cannot list the apps", status, apps)
        elif not isinstance(apps, list):
            raise ModelError("the response of /list-apps is not a list: check the URL", retry=False)
        elif app not in apps:
            self._checked_apps.discard(app)
            names = ", ".join(sorted(str(name) for name in apps)) or "none"
            raise ModelError(f"app {app!r} not found; available: {show_excerpt(names)}", retry=False)
        self._checked_apps.add(app)

    # Sessions

    async def create_session(
        self, app: str, user: str, *, state: dict[str, Any], events: list[dict[str, Any]]
    ) -> RemoteSession:
        """Create a session with a state and a history. The server chooses its id."""
        body: dict[str, Any] = {"state": state}
        if events:
            body["events"] = events
        status, created = await self._request_json("POST", _sessions_path(app, user), body)
        if status != httpx.codes.OK:
            raise _refusal_error("cannot create a session", status, created)
        id = created.get("id") if isinstance(created, dict) else None
        if not isinstance(id, str) or not id:
            raise ModelError(f"the new session has no id: {_detail_text(created)}", retry=False)
        return RemoteSession(id, _dict_or_empty(created.get("state")), len(created.get("events") or ()))

    async def add_state(self, app: str, user: str, session: str, delta: dict[str, Any]) -> None:
        """Merge a change into the state of a session."""
        status, body = await self._request_json(
            "PATCH", f"{_sessions_path(app, user)}/{quote(session, safe='')}", {"stateDelta": delta}
        )
        if status != httpx.codes.OK:
            raise _refusal_error("cannot set the state of the session", status, body)

    async def delete_session(self, app: str, user: str, session: str) -> None:
        """Delete a session that is no longer used. A failure is only logged."""
        try:
            await self._request_json("DELETE", f"{_sessions_path(app, user)}/{quote(session, safe='')}")
        except ModelError as error:
            _log.info("adk session not deleted", server=self.name, reason=error.reason)

    # Turns

    async def run(self, app: str, user: str, session: str, text: str, on_delta: OnDelta) -> AdkReply:
        """Run one turn of an app and return its reply. Streams the text to `on_delta`.

        No other method makes an app answer.
        """
        reader = AnswerReader(max_bytes=self._limits.max_text)
        request = {
            "appName": app,
            "userId": user,
            "sessionId": session,
            "newMessage": {"role": "user", "parts": [{"text": text}]},
        }
        with anyio.move_on_after(self._limits.total):
            if not (self._streams and await self._run_streaming(request, reader, on_delta)):
                await self._run_whole(request, reader, on_delta)
            return reader.reply()
        raise ModelError(f"cut off after {self._limits.total:g} s, the answer was not complete", retry=False)

    async def _run_streaming(self, request: dict[str, Any], reader: AnswerReader, on_delta: OnDelta) -> bool:
        """Run a turn with streaming. Return False if the server cannot stream."""
        async with self._send("POST", "/run_sse", {**request, "streaming": True}) as response:
            if response.status_code in _MISSING_ROUTE_STATUS:
                body = await self._endpoint.read_body(response, _MAX_ERROR_BYTES)
                # Without the route, the web framework returns this detail. Any other 404 is about the session.
                if (
                    response.status_code != httpx.codes.NOT_FOUND
                    or _detail(parse_json_or_none(body)) == "Not Found"
                ):
                    _log.info("adk server does not stream", server=self.name)
                    self._streams = False
                    return False
                raise UnknownSession(_detail_text(parse_json_or_none(body)))
            if response.status_code != httpx.codes.OK:
                raise await self._read_error(response)
            if "event-stream" not in response.headers.get("Content-Type", ""):
                await self._add_events(
                    await self._endpoint.read_body(response, self._max_body_bytes), reader, on_delta
                )
                return True
            parser = Parser(max_line_bytes=self._max_body_bytes)
            async with aclosing(
                self._endpoint.read_pieces(response, 64 * self._limits.max_text + (1 << 20))
            ) as pieces:
                async for piece in pieces:
                    for event in read_events(parser, piece):
                        await _send_delta(reader.add_event(_parse_event(event)), on_delta)
            if (rest := last_event(parser)) is not None:
                await _send_delta(reader.add_event(_parse_event(rest)), on_delta)
            if parser.stray.strip():
                raise ModelError(
                    f"the response is not an event stream: {show_excerpt(bytes(parser.stray))}", retry=False
                )
        return True

    async def _run_whole(self, request: dict[str, Any], reader: AnswerReader, on_delta: OnDelta) -> None:
        async with self._send("POST", "/run", request, whole=True) as response:
            if response.status_code == httpx.codes.NOT_FOUND:
                raise UnknownSession(
                    _detail_text(
                        parse_json_or_none(await self._endpoint.read_body(response, _MAX_ERROR_BYTES))
                    )
                )
            if response.status_code != httpx.codes.OK:
                raise await self._read_error(response)
            await self._add_events(
                await self._endpoint.read_body(response, self._max_body_bytes), reader, on_delta
            )

    async def _add_events(self, body: bytes, reader: AnswerReader, on_delta: OnDelta) -> None:
        events = parse_json_or_none(body)
        if not isinstance(events, list):
            raise ModelError(
                f"the response is not a list of events: {show_excerpt(body) or 'an empty body'}", retry=False
            )
        for event in events:
            await _send_delta(reader.add_event(event), on_delta)

    # HTTP

    async def _request_json(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> tuple[int, Any]:
        """Send a request and return the status and the JSON of the response."""
        with anyio.move_on_after(self._limits.total):
            async with self._send(method, path, body) as response:
                # The response to a new session repeats the state and events of the request.
                sent = len(response.request.content)
                reply = await self._endpoint.read_body(response, self._max_body_bytes + 4 * sent)
                return response.status_code, parse_json_or_none(reply)
        raise ModelError(
            f"no response to {path.partition('?')[0]} within {self._limits.total:g} s", retry=True
        )

    @asynccontextmanager
    async def _send(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, whole: bool = False
    ) -> AsyncIterator[httpx.Response]:
        client, limits = self._endpoint.client, self._limits
        request = client.build_request(
            method,
            self._endpoint.url + path,
            content=b"" if body is None else orjson.dumps(body),
            headers=self._endpoint.headers(stream=path == "/run_sse"),
            # Without streaming, the first byte arrives when the app has finished.
            timeout=httpx.Timeout(limits.total, connect=limits.connect) if whole else client.timeout,
        )
        try:
            response = await client.send(request, stream=True)
        except httpx.ConnectTimeout:
            raise ModelError(f"cannot connect within {limits.connect:g} s", retry=True) from None
        except httpx.ConnectError as error:
            raise ModelError(
                f"cannot connect to {self._endpoint.url}: {error}; is it running?", retry=True
            ) from None
        except httpx.TimeoutException:
            raise ModelError(f"no data within {limits.read:g} s", retry=True) from None
        except httpx.HTTPError as error:
            raise ModelError(
                f"the connection was lost before the answer: {describe_error(error)}", retry=True
            ) from None
        try:
            yield response
        finally:
            await response.aclose()

    @property
    def _max_body_bytes(self) -> int:
        # JSON can escape one byte with six, and an event contains more than its text.
        return 12 * self._limits.max_text + (1 << 20)

    async def _read_error(self, response: httpx.Response) -> ModelError:
        try:
            body = await self._endpoint.read_body(response, _MAX_ERROR_BYTES)
        except ModelError:
            body = b""  # report the status alone
        detail = parse_json_or_none(body) or show_excerpt(body)
        return _refusal_error("cannot run the app", response.status_code, detail, response.headers)


def _sessions_path(app: str, user: str) -> str:
    return f"/apps/{quote(app, safe='')}/users/{quote(user, safe='')}/sessions"


def _parse_event(data: bytes) -> Any:
    event = parse_json_or_none(data)
    if event is None:
        raise ModelError(f"an event of the response is not JSON: {show_excerpt(data)}", retry=False)
    return event


async def _send_delta(text: str, on_delta: OnDelta) -> None:
    if text:
        await on_delta(text)


def _refusal_error(problem: str, status: int, body: Any, headers: httpx.Headers | None = None) -> ModelError:
    if status in (401, 403):
        problem = f"{problem}: the key is missing or rejected, check key_env in the settings"
    elif 300 <= status < 400:
        problem = (
            f"{problem}: the server redirects, and redirects are not followed; set the URL to the target"
        )
    wait = None if headers is None else requested_pause(headers)
    return ModelError(
        f"{problem} ({status}: {_detail_text(body)})", retry=status in _RETRYABLE_STATUS, retry_after=wait
    )


def _detail_text(body: Any) -> str:
    """Return the detail of an error response as one line."""
    detail = _detail(body)
    if isinstance(detail, str):
        return show_excerpt(detail) or "no details"
    return "no details" if detail is None else show_excerpt(orjson.dumps(detail, default=str))


def _detail(body: Any) -> Any:
    return body.get("detail", body) if isinstance(body, dict) else body


def _dict_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
