"""GET /events/stream: what happens on the blackboard, as server-sent events.

Raw ASGI, because thousands of these are open at a time. A stream ends when its client goes, when the
server stops, or when the client does not read: then its queue (see hub.py) is full or a write hangs, and
the connection is cut, so that it can come back with `Last-Event-ID` and take what it missed.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import anyio
import orjson
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from breadcrumbs.runtime.access import Principal, policy, saved_selectors
from breadcrumbs.runtime.access.rate_limits import RateLimiter
from breadcrumbs.runtime.access.redaction import redact_context
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, check_session_id
from breadcrumbs.runtime.breadcrumb.ids import parse_id
from breadcrumbs.runtime.breadcrumb.selectors import Selector, parse_selector
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.events.event import Event, Position
from breadcrumbs.runtime.hints.jsonpath import Budget
from breadcrumbs.runtime.http.api.operations import budget_headers
from breadcrumbs.runtime.http.api.parameters import tag_list
from breadcrumbs.runtime.http.auth import Authenticator
from breadcrumbs.runtime.http.open_streams import OpenStreams
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.records import Registry
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.streams.conditions import Evaluation
from breadcrumbs.runtime.streams.hub import EventHub, Subscription

ABORT = "breadcrumbs.abort"
"""ASGI extension of our server: cut the connection now, without waiting for what is still to be sent."""

KNOWN_PARAMETERS = frozenset(
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

_WRITE_TIMEOUT = 30.0
_MAX_SAVED_SELECTORS = 100
"""Saved selectors of one stream: each is looked at for every event."""

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]


class StreamFilter:
    """What this token may see, and of that what this client asked for."""

    __slots__ = ("_any_of", "_ended", "_principal", "_selectors", "begins_after", "conditional", "owner_id")

    def __init__(self, principal: Principal, selectors: list[Selector], any_of: list[Selector]) -> None:
        self.owner_id = principal.owner_id
        self._principal = principal
        self._selectors = selectors
        self._any_of = any_of
        self._ended = False
        self.begins_after = 0
        """Events up to this time belong to an earlier session with the name of the token's session."""
        self.conditional = any(selector.context_match for selector in (*selectors, *any_of))

    @property
    def token(self) -> Principal:
        return self._principal

    @property
    def ended(self) -> bool:
        """Whether the session of a narrowed token was deleted. A later session of that name is not shown."""
        return self._ended

    def wants(self, event: Event) -> bool:
        if 0 < event.at <= self.begins_after:  # 0: a piece of an answer, which is not in the log
            return False
        if event.operation == "session_deleted" and event.session_id == self._principal.session_id:
            self._ended = True
        elif self.ended:
            return False
        if not policy.may_see_event(self._principal, event.tags, event.private_to):
            return False
        if not self._selectors and not self._any_of:
            return True
        session = event.session_id
        return all(s.matches_meta(event.schema_name, event.tags, session) for s in self._selectors) and (
            not self._any_of
            or any(s.matches_meta(event.schema_name, event.tags, session) for s in self._any_of)
        )

    def accepts(self, event: Event, evaluation: Evaluation | None) -> bool | None:
        budget = Budget()
        decisions = [
            self._matches(selector, event, evaluation, budget)
            for selector in self._selectors
            if selector.needs_context
        ]
        if self._any_of and False not in decisions:
            decisions.append(self._matches_any(event, evaluation, budget))
        return False if False in decisions else None if None in decisions else True

    def _matches_any(self, event: Event, evaluation: Evaluation | None, budget: Budget) -> bool | None:
        outcome: bool | None = False
        for selector in self._any_of:
            decision = self._matches(selector, event, evaluation, budget)
            if decision:
                return True
            outcome = None if decision is None else outcome
        return outcome

    def _matches(
        self, selector: Selector, event: Event, evaluation: Evaluation | None, budget: Budget
    ) -> bool | None:
        if not selector.needs_context:
            return selector.matches_meta(event.schema_name, event.tags, event.session_id)
        if evaluation is None:
            return False  # gone: whether its content would have matched cannot be known any more
        if selector.context_match and not policy.may_read_content(self._principal, evaluation.crumb):
            return False  # whether the event comes would tell what the content is
        return evaluation.decide(self._principal, selector, budget)

    def shows_context(self, crumb: Breadcrumb) -> bool:
        return policy.may_read_content(self._principal, crumb)

    def as_seen(self, crumb: Breadcrumb) -> Breadcrumb:
        return redact_context(self._principal, crumb)


class EventStream:
    """The ASGI endpoint."""

    def __init__(
        self,
        store: Store,
        hub: EventHub,
        auth: Authenticator,
        registry: Registry,
        settings: Settings,
        streams: OpenStreams,
        limiter: RateLimiter | None = None,
    ) -> None:
        self._store = store
        self._limiter = limiter
        self._hub = hub
        self._auth = auth
        self._registry = registry
        self._ping = settings.ping_interval.total_seconds()
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        principal = self._auth.authenticate(request, query_token=True)
        policy.check_operation(principal, "streamEvents")
        headers = list(_HEADERS)
        if self._limiter is not None:
            headers += budget_headers(await self._limiter.spend(principal, "reading"))
        filter = await self._filter(principal, request.query_params)
        position, outdated = self._position(principal, request)
        if position is not None:
            filter.begins_after = await Sessions(self._store).earlier_session_until(principal)
        if scope["method"] == "HEAD":
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        with self._streams.stream(principal):
            await self._serve(scope, receive, send, principal, filter, position, headers, outdated=outdated)

    async def _serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        principal: Principal,
        filter: StreamFilter,
        position: Position | None,
        headers: list[tuple[bytes, bytes]],
        *,
        outdated: bool,
    ) -> None:
        subscription = Subscription(filter)
        ending: asyncio.TimerHandle | None = None
        try:
            # The store is asked before anything is said: who cannot be served shall be told so, and when to
            # come again, instead of being let in and cut off.
            resuming, missed = position is not None, outdated
            if position is None:
                position = await self._hub.subscribe(subscription)
            else:
                beginning = await self._hub.log.beginning()
                missed = any(gone > seen for gone, seen in zip(beginning, position, strict=True))
            await Sessions(self._store).check_token(principal)
            if principal.expires < math.inf:
                ending = asyncio.get_running_loop().call_later(principal.seconds_left, subscription.drop)
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_disconnected, receive, tasks.cancel_scope.cancel)
                subscription.on_drop = tasks.cancel_scope.cancel
                await self._stream(subscription, position, send, resuming=resuming, missed=missed)
                tasks.cancel_scope.cancel()
        finally:
            if ending is not None:
                ending.cancel()
            self._hub.leave(subscription)
        await _finish(scope, send, subscription)

    async def _stream(
        self, subscription: Subscription, position: Position, send: Send, *, resuming: bool, missed: bool
    ) -> None:
        # An id at once, and with data, for only then scripts see it: a client that is cut off before its first
        # event can come back to here.
        await _write(
            subscription, send, b"retry: 2000\n: connected\n\n" + self._ping_frame(subscription, position)
        )
        if missed:
            await _write(
                subscription,
                send,
                b'event: gap\ndata: {"type":"gap","detail":"events between your Last-Event-ID and now are '
                b'no longer kept: list what you need again"}\n\n',
            )
        if resuming:
            async with aclosing(self._hub.catch_up(subscription, position)) as catching_up:
                async for frame in catching_up:
                    await _write(subscription, send, frame)
        while not subscription.dropped and not (subscription.filter.ended and subscription.is_empty):
            frames = await subscription.take(self._ping)
            if not subscription.dropped:
                # A ping moves a quiet client on: it need not look through again what was not for it.
                served = None if frames else self._hub.served(subscription)
                await _write(subscription, send, frames or self._ping_frame(subscription, served))

    def _ping_frame(self, subscription: Subscription, position: Position | None) -> bytes:
        """A ping; with an `id:` unless it is not known how far the client has been served."""
        ping = {"type": "ping", "ts": times.to_text(time.time_ns() // 1000)}
        frame = b"event: ping\ndata: %s\n\n" % orjson.dumps(ping)
        if position is None:
            return frame
        return b"id: %s\n%s" % (
            self._hub.encode_position(subscription.filter.owner_id, position).encode(),
            frame,
        )

    async def _filter(self, principal: Principal, query: QueryParams) -> StreamFilter:
        if unknown := set(query) - KNOWN_PARAMETERS:
            raise InvalidInput(
                f"there is no parameter {sorted(unknown)[0]!r} here; there are {', '.join(sorted(KNOWN_PARAMETERS))}",
                where=sorted(unknown)[0],
            )
        asked: dict[str, Any] = {
            "schema_name": query.get("schema_name"),
            "session_id": check_session_id(query["session_id"]) if "session_id" in query else None,
            "any_tags": tag_list(query, "any_tags"),
            "all_tags": [*tag_list(query, "tag"), *tag_list(query, "tags"), *tag_list(query, "all_tags")],
        }
        selectors = [parse_selector(asked)]
        if "filters" in query:
            selectors.append(parse_selector(query["filters"]))
        return StreamFilter(
            principal,
            [selector for selector in selectors if not selector.is_empty],
            await self._saved(principal, query),
        )

    async def _saved(self, principal: Principal, query: QueryParams) -> list[Selector]:
        """Saved selectors: those named, or all of an agent's; an agent without any gets everything."""
        ids = [parse_id(text, what="selector_id") for text in query.getlist("selector_id")]
        agent = parse_id(query["agent_id"], what="agent_id") if "agent_id" in query else None
        found: list[Selector] = []
        if ids:
            found += [await saved_selectors.get_usable(self._registry, principal, id) for id in ids]
        if agent is not None:
            found += await saved_selectors.list_usable(self._registry, principal, agent)
        if len(found) > _MAX_SAVED_SELECTORS:
            raise InvalidInput(
                f"a stream takes at most {_MAX_SAVED_SELECTORS} saved selectors, these are {len(found)}: "
                "name some with selector_id",
                where="selector_id",
            )
        return found

    def _position(self, principal: Principal, request: Request) -> tuple[Position | None, bool]:
        """Where a client wants to go on, and whether it gave a position of an older version, which is not used."""
        text = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
        if not text:
            return None, False
        position = self._hub.decode_position(principal.owner_id, text)
        return position, position is None


async def _write(subscription: Subscription, send: Send, body: bytes) -> None:
    """A write that hangs is a client that does not read."""
    timer = asyncio.get_running_loop().call_later(_WRITE_TIMEOUT, subscription.give_up)
    try:
        await send({"type": "http.response.body", "body": body, "more_body": True})
    finally:
        timer.cancel()


async def _until_disconnected(receive: Receive, cancel: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    cancel()


async def _finish(scope: Scope, send: Send, subscription: Subscription) -> None:
    abort = scope.get("extensions", {}).get(ABORT)
    if subscription.overflowed and abort is not None:
        abort()
        return
    with anyio.move_on_after(1):
        await send({"type": "http.response.body", "body": b"", "more_body": False})
