"""Waits for the answer to a message. The reply is JSON or server-sent events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import anyio
import orjson
from starlette.datastructures import QueryParams
from starlette.types import Send

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import BreadcrumbsError, InvalidInput
from breadcrumbs.runtime.events.deltas import Delta
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import Parameter
from breadcrumbs.runtime.http.api.problems import ClientDisconnected, problem_from_error
from breadcrumbs.runtime.http.api.replies import Header, Reply
from breadcrumbs.runtime.http.middleware.metrics import add_waited
from breadcrumbs.runtime.http.routes.event_stream import STREAM_HEADERS
from breadcrumbs.runtime.sessions.chains import Chain
from breadcrumbs.runtime.sessions.messages import message_view
from breadcrumbs.runtime.sessions.outcomes import outcome_kind
from breadcrumbs.runtime.sessions.wait_for import FIRST, WaitFor
from breadcrumbs.runtime.sse import encode_comment, encode_event
from breadcrumbs.runtime.streams.chain_watch import ChainReader, ChainWatch, Ended, Hop
from breadcrumbs.runtime.streams.watch import AnswerWatch, SessionWatch

MAX_WAIT_SECONDS: Final = 600.0
DEFAULT_WAIT_SECONDS: Final = 120.0  # for a stream without the parameter `wait`

EVENT_STREAM: Final = "text/event-stream"

WAIT: Final = Parameter(
    "wait",
    "query",
    "Seconds to wait for the answer. 0: do not wait. For a stream the default is 120.",
    {"type": "number", "minimum": 0, "maximum": MAX_WAIT_SECONDS, "default": 0},
    example=0,
)

WAIT_FOR: Final = Parameter(
    "wait_for",
    "query",
    "The answer to wait for. `first`: the first answer to the message. `last`: the last answer of the chain of agents "
    "that the message starts. `agent:NAME`: the first answer of this agent in the chain.",
    {"type": "string", "maxLength": 206, "pattern": "^(first|last|agent:.+)$", "default": "first"},
    example="last",
)

Piece: TypeAlias = Delta | Hop | Breadcrumb | Ended | None
"""Piece of a wait: a delta, an answer on the way, the outcome, the end of a chain, or None after a pause."""


def wants_stream(call: HttpCall) -> bool:
    """Return whether the Accept header contains `text/event-stream`."""
    accepted = (call.header(b"accept") or "").split(",")
    return any(kind.partition(";")[0].strip().lower() == EVENT_STREAM for kind in accepted)


def seconds_to_wait(given: QueryParams, principal: Principal, *, stream: bool) -> float:
    """Return the seconds to wait, limited by the lifetime of the token."""
    text = given.get("wait")
    if text is None:
        return min(DEFAULT_WAIT_SECONDS, principal.seconds_left) if stream else 0.0
    try:
        seconds = float(text) if text.isascii() else -1.0
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT_SECONDS:  # NaN fails here too
        raise InvalidInput(f"wait must be a number of seconds from 0 to {MAX_WAIT_SECONDS:g}", where="wait")
    return min(seconds, principal.seconds_left)


@dataclass(frozen=True, slots=True)
class AwaitedAnswer:
    """A message whose answer the client waits for."""

    call: HttpCall
    watch: SessionWatch
    message: Breadcrumb
    posted: dict[str, Any]
    """The view of the message in the reply."""
    seconds: float
    """Seconds to wait."""
    look_first: bool
    """Whether the outcome can already be stored."""
    wanted: WaitFor = FIRST

    def pieces(self, patience: float) -> AsyncGenerator[Piece, None]:
        """Yield deltas and the outcome, or None after `patience` seconds without either."""
        services, principal = self.call.services, self.call.principal
        if self.wanted.which == "first":
            first = AnswerWatch(services.store, principal, self.watch)
            return first.until_answered(
                self.message, self.seconds, look_first=self.look_first, patience=patience
            )
        reader = ChainReader(services.store, principal, services.agents.triggers)
        chain = ChainWatch(self.watch, reader, self.message, self.wanted)
        return chain.until_ended(self.seconds, patience=patience)

    def view_outcome(self, outcome: Breadcrumb) -> dict[str, Any]:
        """Return the view of the outcome for the principal."""
        return message_view(outcome, self.call.principal)

    def view_end(self, end: Ended | Breadcrumb | None) -> dict[str, Any]:
        """Return the view of the message with its outcome, and with the state of an awaited chain."""
        outcome = end.outcome if isinstance(end, Ended) else end
        body = dict(self.posted)
        if outcome is not None:
            body[outcome_kind(outcome)] = self.view_outcome(outcome)
        if isinstance(end, Ended):
            body["chain"] = chain_state(end.chain)
        return body


def chain_state(chain: Chain) -> dict[str, Any]:
    """Return the state of a chain for a reply: whether it has ended, and the agents that answered and that work."""
    return {"finished": chain.finished, "agents": chain.agents, "waiting_for": chain.waiting_for}


async def wait_for_answer(awaited: AwaitedAnswer, *, unanswered_status: int = 202) -> Reply:
    """Return the message with its outcome (200), or without an outcome after the timeout (202)."""
    end: Ended | Breadcrumb | None = None
    disconnected = False

    async def cancel_on_disconnect() -> None:
        nonlocal disconnected
        await awaited.call.until_disconnected()
        disconnected = True
        tasks.cancel_scope.cancel()

    began = time.perf_counter()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_on_disconnect)
            async with aclosing(awaited.pieces(patience=awaited.seconds)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Breadcrumb | Ended):
                        end = piece
            tasks.cancel_scope.cancel()
    finally:
        add_waited(awaited.call.scope, time.perf_counter() - began)
    if disconnected and end is None:
        raise ClientDisconnected
    outcome = end.outcome if isinstance(end, Ended) else end
    return Reply.json(awaited.view_end(end), status=unanswered_status if outcome is None else 200)


class AnswerStream(Reply):
    """Streams an answer while it is generated.

    The last event is the answer, an error, a problem or a timeout.
    """

    __slots__ = ("_awaited", "_end")

    def __init__(
        self, awaited: AwaitedAnswer, end: Callable[[], None], *, headers: Sequence[Header] = ()
    ) -> None:
        super().__init__(200, headers=headers)
        self._awaited = awaited
        self._end = end

    async def send(self, send: Send, *, without_body: bool = False) -> None:
        headers = [header for header in self.headers if header[0] != b"content-length"]
        opening = {"type": "http.response.start", "status": 200, "headers": [*headers, *STREAM_HEADERS]}
        try:
            async with anyio.create_task_group() as tasks:

                async def cancel_on_disconnect() -> None:
                    await self._awaited.call.until_disconnected()
                    tasks.cancel_scope.cancel()

                await send(opening)
                tasks.start_soon(cancel_on_disconnect)
                async with aclosing(self._frames()) as frames:
                    async for frame in frames:
                        await send({"type": "http.response.body", "body": frame, "more_body": True})
                tasks.cancel_scope.cancel()
        finally:
            self._end()
        with anyio.move_on_after(1):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        awaited = self._awaited
        yield _encode_frame("message", awaited.posted)
        ping_seconds = awaited.call.services.settings.ping_interval.total_seconds()
        try:
            async with aclosing(awaited.pieces(patience=ping_seconds)) as pieces:
                async for piece in pieces:
                    yield self._piece_frame(piece)
                    if isinstance(piece, Breadcrumb | Ended):
                        return
        except BreadcrumbsError as error:
            # The status is already sent, so the problem document is sent as an event.
            yield encode_event(problem_from_error(error).body, event="problem")
            return
        yield _encode_frame("timeout", {"message_id": str(awaited.message.id), "seconds": awaited.seconds})

    def _piece_frame(self, piece: Piece) -> bytes:
        if piece is None:
            return encode_comment("ping")
        if isinstance(piece, Delta):
            return _encode_frame("delta", piece.piece_document())
        if isinstance(piece, Hop):
            return _encode_frame("hop", self._awaited.view_outcome(piece.crumb))
        if isinstance(piece, Ended):
            if piece.outcome is None:
                return self._end_frame(piece.chain)
            piece = piece.outcome
        return _encode_frame(outcome_kind(piece), self._awaited.view_outcome(piece))

    def _end_frame(self, chain: Chain) -> bytes:
        """Return the last event of a chain without the wanted answer."""
        awaited = self._awaited
        ended = {"message_id": str(awaited.message.id), "chain": chain_state(chain)}
        if chain.finished:
            return _encode_frame("ended", ended)
        return _encode_frame("timeout", {**ended, "seconds": awaited.seconds})


def _encode_frame(event: str, document: Any) -> bytes:
    return encode_event(orjson.dumps(document), event=event)
