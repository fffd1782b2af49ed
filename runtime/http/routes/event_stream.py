"""Serves GET /events/stream: events and deltas as server-sent events.

It uses plain ASGI, because thousands of streams can be open at a time. A stream ends when its client disconnects,
when its token expires, when the server stops, or when the client does not read. In the last case its queue (see
subscription.py) is full or a write hangs. The connection is then aborted, and the client can resume with
`Last-Event-ID`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import anyio
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from breadcrumbs.runtime.access import Principal, policy, saved_selectors
from breadcrumbs.runtime.breadcrumb.ids import parse_id
from breadcrumbs.runtime.breadcrumb.selectors import Selector, parse_selector
from breadcrumbs.runtime.breadcrumb.session_rule import check_session_id
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.events.log import Position
from breadcrumbs.runtime.http.api.call import budget_headers
from breadcrumbs.runtime.http.api.parameters import read_tags
from breadcrumbs.runtime.http.api.replies import Header
from breadcrumbs.runtime.http.routes.stream_filter import StreamFilter
from breadcrumbs.runtime.http.routes.stream_frames import GAP, GREETING, FrameRenderer
from breadcrumbs.runtime.http.services import Services
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.streams.subscription import Subscription

ABORT: Final = "breadcrumbs.abort"
"""ASGI extension of this server: a function that aborts the connection and drops unsent bytes."""

KNOWN_PARAMETERS: Final = frozenset(
    (
        "schema_name",
        "tag",
        "tags",
        "any_tags",
        "all_tags",
        "session_id",
        "filters",
        "agent_id",
        "selector_id",
        "last_event_id",
        "token",
        "access_token",
    )
)

_REPEATABLE_PARAMETERS: Final = frozenset(("tag", "tags", "any_tags", "all_tags", "selector_id"))

_WRITE_TIMEOUT_SECONDS: Final = 30.0
_MAX_SAVED_SELECTORS: Final = 100  # per stream; each is matched against every event

STREAM_HEADERS: Final[tuple[Header, ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would buffer events
)


@dataclass(frozen=True, slots=True)
class _Start:
    """Start position of a stream."""

    position: Position | None
    """None: the stream starts with new events."""
    outdated: bool
    """The client sent a position in the format of an earlier version. It cannot be used."""


class EventStream:
    """ASGI application of the event stream."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._hub = services.hub
        self._sessions = Sessions(services.store)
        self._ping_seconds = services.settings.ping_interval.total_seconds()
        self._frames = FrameRenderer(self._hub.encode_position, rcrt_events=services.settings.rcrt_events)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        principal = self._services.auth.authenticate(request, query_token=True)
        policy.check_operation(principal, "streamEvents")
        headers = list(STREAM_HEADERS)
        if self._services.limiter is not None:
            headers += budget_headers(await self._services.limiter.spend(principal, "reading"))
        filter = await self._parse_filter(principal, request.query_params)
        start = self._parse_start(principal, request)
        if start.position is not None:
            filter.begins_after = await self._sessions.earlier_session_until(principal)
        if scope["method"] == "HEAD":
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        with self._services.streams.count_stream(principal):
            client = _StreamConnection(Subscription(filter), filter.named_sessions(), receive, send)
            await self._serve(client, principal, start, headers)
            await _end_reply(scope, client)

    async def _serve(
        self, client: _StreamConnection, principal: Principal, start: _Start, headers: list[Header]
    ) -> None:
        subscription = client.subscription
        expiry: asyncio.TimerHandle | None = None
        try:
            # The store is read before the response starts. If the store is unavailable, the client gets a problem with
            # Retry-After instead of a stream that breaks.
            missed = start.outdated
            if start.position is None:
                position = await self._hub.subscribe(subscription)
            else:
                position = start.position
                trimmed = await self._hub.log.beginning()
                missed = any(removed > seen for removed, seen in zip(trimmed, position, strict=True))
            await self._sessions.check_token(principal)
            if principal.expires < math.inf:
                expiry = asyncio.get_running_loop().call_later(principal.seconds_left, subscription.drop)
            await client.send({"type": "http.response.start", "status": 200, "headers": headers})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.until_disconnected, tasks.cancel_scope.cancel)
                subscription.on_drop = tasks.cancel_scope.cancel
                await self._greet(client, position, missed=missed)
                if start.position is not None:
                    await self._catch_up(client, position)
                for session in client.sessions:
                    self._hub.join_answers(subscription, session)
                await self._stream(client)
                tasks.cancel_scope.cancel()
        finally:
            if expiry is not None:
                expiry.cancel()
            self._hub.leave(subscription)

    async def _greet(self, client: _StreamConnection, position: Position, *, missed: bool) -> None:
        # The first event has an id, so that a client that loses its connection before the next event can resume here.
        # It has data, because EventSource does not pass an event without data to scripts.
        owner = client.subscription.filter.owner_id
        await client.write(GREETING + self._frames.render_ping(owner, position))
        if missed:
            await client.write(GAP)

    async def _catch_up(self, client: _StreamConnection, position: Position) -> None:
        async with aclosing(self._hub.catch_up(client.subscription, position)) as values:
            async for value in values:
                frame = self._frames.render([value])
                del value  # with a slow client, only the frame stays in memory, not the breadcrumb
                await client.write(frame)

    async def _stream(self, client: _StreamConnection) -> None:
        subscription = client.subscription
        owner = subscription.filter.owner_id
        while not subscription.dropped and not (subscription.filter.ended and subscription.is_empty):
            values = await subscription.take(self._ping_seconds)
            if subscription.dropped:
                return
            if values:
                frames = self._frames.render(values)
                del values
            else:
                # The id of a ping advances the position of an idle client past events that its filter rejected.
                frames = self._frames.render_ping(owner, self._hub.served(subscription))
            await client.write(frames)

    async def _parse_filter(self, principal: Principal, query: QueryParams) -> StreamFilter:
        if unknown := set(query) - KNOWN_PARAMETERS:
            known = ", ".join(sorted(KNOWN_PARAMETERS))
            raise InvalidInput(
                f"unknown query parameter {sorted(unknown)[0]!r}; known parameters: {known}",
                where=sorted(unknown)[0],
            )
        for name in KNOWN_PARAMETERS - _REPEATABLE_PARAMETERS:
            if len(query.getlist(name)) > 1:
                raise InvalidInput(f"{name} must not be repeated", where=name)
        conditions: dict[str, Any] = {
            "schema_name": query.get("schema_name"),
            "session_id": check_session_id(query["session_id"]) if "session_id" in query else None,
            "any_tags": read_tags(query, "any_tags"),
            "all_tags": [*read_tags(query, "tag"), *read_tags(query, "tags"), *read_tags(query, "all_tags")],
        }
        selectors = [parse_selector(conditions)]
        if "filters" in query:
            selectors.append(parse_selector(query["filters"]))
        return StreamFilter(
            principal,
            [selector for selector in selectors if not selector.is_empty],
            await self._load_selectors(principal, query),
        )

    async def _load_selectors(self, principal: Principal, query: QueryParams) -> list[Selector]:
        """Return the saved selectors of `selector_id` and `agent_id`. An agent without selectors gets all events."""
        ids = [parse_id(text, what="selector_id") for text in query.getlist("selector_id")]
        agent = parse_id(query["agent_id"], what="agent_id") if "agent_id" in query else None
        registry = self._services.registry
        found = [await saved_selectors.get_usable(registry, principal, id) for id in ids]
        if agent is not None:
            found += await saved_selectors.list_usable(registry, principal, agent)
        if len(found) > _MAX_SAVED_SELECTORS:
            raise InvalidInput(
                f"a stream can use at most {_MAX_SAVED_SELECTORS} saved selectors, not {len(found)}: "
                "choose some with selector_id",
                where="selector_id",
            )
        return found

    def _parse_start(self, principal: Principal, request: Request) -> _Start:
        text = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
        if not text:
            return _Start(None, outdated=False)
        position = self._hub.decode_position(principal.owner_id, text)
        return _Start(position, outdated=position is None)


@dataclass(frozen=True, slots=True)
class _StreamConnection:
    """The subscription of a client and the ASGI channels to it."""

    subscription: Subscription
    sessions: list[str]
    """Sessions that the request names. The client gets the text so far of their running answers at once."""
    receive: Receive
    send: Send

    async def write(self, body: bytes) -> None:
        """Send frames. If the write hangs, the client does not read and the subscription is dropped."""
        timer = asyncio.get_running_loop().call_later(_WRITE_TIMEOUT_SECONDS, self.subscription.give_up)
        try:
            await self.send({"type": "http.response.body", "body": body, "more_body": True})
        finally:
            timer.cancel()

    async def until_disconnected(self, cancel: Callable[[], None]) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        cancel()


async def _end_reply(scope: Scope, client: _StreamConnection) -> None:
    """End the response. The connection of a client that does not read is aborted."""
    abort = scope.get("extensions", {}).get(ABORT)
    if client.subscription.overflowed and abort is not None:
        abort()
        return
    with anyio.move_on_after(1):
        await client.send({"type": "http.response.body", "body": b"", "more_body": False})
