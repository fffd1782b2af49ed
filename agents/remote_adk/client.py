"""The client of an ADK server: its apps, its sessions, and one function that runs a turn.

Every failure is a `ModelError` with a reason for people to read. A server that does not know a session (any more)
raises `UnknownSession`. This module never makes up an id.
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
    """The server does not know the session."""

    def __init__(self, said: str) -> None:
        super().__init__(
            f"the server does not know the session it was asked to go on with: {said}", retry=False
        )


@dataclass(frozen=True, slots=True)
class RemoteSession:
    """A session as the server made it."""

    id: str
    state: dict[str, Any]
    """With what the server knew of the user and the app already."""
    events: int


class AdkServer:
    """One server. Safe to share: any number of turns may run at once."""

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self.name = name
        self._endpoint = endpoint
        self._limits = endpoint.limits
        self._streams = endpoint.streaming
        self._seen: set[str] = set()
        """Apps that the server is known to have."""

    def explain(self, error: ModelError) -> ModelError:
        """Return the error with a reason that a user may read."""
        reason = f"ADK server {self.name}: {self._endpoint.safe_reason(error.reason)}"
        return ModelError(reason, retry=error.retry, retry_after=error.retry_after)

    # Apps

    async def require_app(self, app: str, *, again: bool = False) -> None:
        """Raise ModelError unless the server has the app. The result is cached; `again` asks anew."""
        if app in self._seen and not again:
            return
        status, apps = await self._request_json("GET", "/list-apps")
        if status in _MISSING_ROUTE_STATUS:
            _log.warning("this ADK server does not list its apps", server=self.name, app=app)
        elif status != httpx.codes.OK:
            raise _refusal_error("its apps could not be listed", status, apps)
        elif not isinstance(apps, list):
            raise ModelError("what it gives for /list-apps is no list; is the URL right?", retry=False)
        elif app not in apps:
            self._seen.discard(app)
            there = ", ".join(sorted(str(name) for name in apps)) or "none"
            raise ModelError(f"there is no app {app!r}, only: {show_excerpt(there)}", retry=False)
        self._seen.add(app)

    # Sessions

    async def create_session(
        self, app: str, user: str, *, state: dict[str, Any], events: list[dict[str, Any]]
    ) -> RemoteSession:
        """Create a session with a state and a history. The server chooses its id."""
        body: dict[str, Any] = {"state": state}
        if events:
            body["events"] = events
        status, made = await self._request_json("POST", _sessions_path(app, user), body)
        if status != httpx.codes.OK:
            raise _refusal_error("it could not create a session", status, made)
        id = made.get("id") if isinstance(made, dict) else None
        if not isinstance(id, str) or not id:
            raise ModelError(f"it created a session and did not say which: {_detail_text(made)}", retry=False)
        return RemoteSession(id, _dict_or_empty(made.get("state")), len(made.get("events") or ()))

    async def add_state(self, app: str, user: str, session: str, delta: dict[str, Any]) -> None:
        status, said = await self._request_json(
            "PATCH", f"{_sessions_path(app, user)}/{quote(session, safe='')}", {"stateDelta": delta}
        )
        if status != httpx.codes.OK:
            raise _refusal_error("it did not take the state of the session", status, said)

    async def delete_session(self, app: str, user: str, session: str) -> None:
        """Delete a session that is no longer used. A failure is only logged."""
        try:
            await self._request_json("DELETE", f"{_sessions_path(app, user)}/{quote(session, safe='')}")
        except ModelError as error:
            _log.info("an old ADK session was not deleted", server=self.name, reason=error.reason)

    # Turns

    async def run(self, app: str, user: str, session: str, text: str, on_delta: OnDelta) -> AdkReply:
        """Run one turn of an app. Nothing else lets an app answer."""
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
        raise ModelError(
            f"cut off after {self._limits.total:g} s: the answer did not come to an end", retry=False
        )

    async def _run_streaming(self, request: dict[str, Any], reader: AnswerReader, on_delta: OnDelta) -> bool:
        """Run a turn with a stream. Returns False if this server cannot stream."""
        async with self._send("POST", "/run_sse", {**request, "streaming": True}) as response:
            if response.status_code in _MISSING_ROUTE_STATUS:
                said = await self._endpoint.read_body(response, _MAX_ERROR_BYTES)
                if (
                    response.status_code != httpx.codes.NOT_FOUND
                    or _detail(parse_json_or_none(said)) == "Not Found"
                ):
                    _log.info("this ADK server does not stream", server=self.name)
                    self._streams = False
                    return False
                raise UnknownSession(_detail_text(parse_json_or_none(said)))
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
                    f"this is no stream of events: {show_excerpt(bytes(parser.stray))}", retry=False
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
                f"the answer is no list of events: {show_excerpt(body) or 'an empty body'}", retry=False
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
                # A session comes back with all that was sent to begin it.
                sent = len(response.request.content)
                reply = await self._endpoint.read_body(response, self._max_body_bytes + 4 * sent)
                return response.status_code, parse_json_or_none(reply)
        raise ModelError(
            f"{path.partition('?')[0]} was not answered within {self._limits.total:g} s", retry=True
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
            # Without a stream the first byte comes when the app is done.
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
            raise ModelError(f"no answer began within {limits.read:g} s", retry=True) from None
        except httpx.HTTPError as error:
            raise ModelError(
                f"the connection broke before an answer: {describe_error(error)}", retry=True
            ) from None
        try:
            yield response
        finally:
            await response.aclose()

    @property
    def _max_body_bytes(self) -> int:
        # JSON may spell a byte with six; and an event says more than its text.
        return 12 * self._limits.max_text + (1 << 20)

    async def _read_error(self, response: httpx.Response) -> ModelError:
        try:
            said = await self._endpoint.read_body(response, _MAX_ERROR_BYTES)
        except ModelError:
            said = b""  # the status says enough
        detail = parse_json_or_none(said) or show_excerpt(said)
        return _refusal_error("it did not run the app", response.status_code, detail, response.headers)


def _sessions_path(app: str, user: str) -> str:
    return f"/apps/{quote(app, safe='')}/users/{quote(user, safe='')}/sessions"


def _parse_event(data: bytes) -> Any:
    event = parse_json_or_none(data)
    if event is None:
        raise ModelError(f"an event of the answer is not JSON: {show_excerpt(data)}", retry=False)
    return event


async def _send_delta(text: str, on_delta: OnDelta) -> None:
    if text:
        await on_delta(text)


def _refusal_error(what: str, status: int, said: Any, headers: httpx.Headers | None = None) -> ModelError:
    if status in (401, 403):
        what = f"{what}: it wants a key (key_env in the settings), or does not accept this one"
    elif 300 <= status < 400:
        what = f"{what}: it redirects, which is not followed; set the URL to where it leads"
    wait = None if headers is None else requested_pause(headers)
    return ModelError(
        f"{what} ({status}: {_detail_text(said)})", retry=status in _RETRYABLE_STATUS, retry_after=wait
    )


def _detail_text(said: Any) -> str:
    """Return the detail of an error response as one line."""
    detail = _detail(said)
    if isinstance(detail, str):
        return show_excerpt(detail) or "without a word"
    return "without a word" if detail is None else show_excerpt(orjson.dumps(detail, default=str))


def _detail(said: Any) -> Any:
    return said.get("detail", said) if isinstance(said, dict) else said


def _dict_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
