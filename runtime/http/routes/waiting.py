"""Waiting for the answer to a message: as one JSON document, or as server-sent events while it is made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

import anyio
import orjson
from starlette.datastructures import QueryParams
from starlette.types import Send

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import BreadcrumbsError, InvalidInput
from breadcrumbs.runtime.http.api.call import Call
from breadcrumbs.runtime.http.api.operations import Parameter
from breadcrumbs.runtime.http.api.problems import ClientDisconnected, problem_for
from breadcrumbs.runtime.http.api.replies import Header, Reply
from breadcrumbs.runtime.sessions.messages import ERROR, message_view
from breadcrumbs.runtime.sessions.outcomes import Delta, Watch

LONGEST_WAIT: Final = 600.0
DEFAULT_STREAM: Final = 120.0
"""Who asks for a stream waits, also where it is not said for how long."""

EVENT_STREAM: Final = "text/event-stream"

_HEADERS: Final[Sequence[Header]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
)

WAIT: Final = Parameter(
    "wait",
    "query",
    "For how many seconds to wait for the answer; 0 is not at all.",
    {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT, "default": 0},
    example=0,
)


def wants_stream(call: Call) -> bool:
    accepted = (call.header(b"accept") or "").split(",")
    return any(kind.partition(";")[0].strip().lower() == EVENT_STREAM for kind in accepted)


def seconds_to_wait(given: QueryParams, principal: Principal, *, stream: bool) -> float:
    """As long as is asked for, and no longer than the token is good."""
    text = given.get("wait")
    if text is None:
        return min(DEFAULT_STREAM, principal.seconds_left) if stream else 0.0
    try:
        seconds = float(text) if text.isascii() else -1.0
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_WAIT:  # not a number fails here too
        raise InvalidInput(f"wait must be a number of seconds from 0 to {LONGEST_WAIT:g}", where="wait")
    return min(seconds, principal.seconds_left)


async def answered(
    call: Call, watch: Watch, message: Breadcrumb, posted: dict[str, Any], seconds: float, *, look_first: bool
) -> Reply:
    """The answer as JSON: 200 with it or with an error, 202 without either when the time is up."""
    outcome: Breadcrumb | None = None
    gone = False

    async def leave() -> None:
        nonlocal gone
        await call.until_disconnected()
        gone = True
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave)
        async with aclosing(
            watch.until_answered(message, seconds, look_first=look_first, patience=seconds)
        ) as heard:
            async for piece in heard:
                if isinstance(piece, Breadcrumb):
                    outcome = piece
        tasks.cancel_scope.cancel()
    if gone and outcome is None:
        raise ClientDisconnected
    if outcome is None:
        return Reply.json(posted, status=202)
    return Reply.json({**posted, name_of(outcome): message_view(outcome, call.principal)})


class AnswerStream(Reply):
    """The answer while it is made. Ends with it, with an error, or when the time is up."""

    __slots__ = ("_call", "_end", "_look_first", "_message", "_posted", "_seconds", "_watch")

    def __init__(
        self,
        call: Call,
        watch: Watch,
        message: Breadcrumb,
        posted: dict[str, Any],
        seconds: float,
        end: Callable[[], None],
        *,
        look_first: bool,
        headers: Sequence[Header] = (),
    ) -> None:
        super().__init__(200, headers=headers)
        self._call = call
        self._watch = watch
        self._message = message
        self._posted = posted
        self._seconds = seconds
        self._end = end
        self._look_first = look_first

    async def send(self, send: Send, *, without_body: bool = False) -> None:
        headers = [header for header in self.headers if header[0] != b"content-length"]
        try:
            async with anyio.create_task_group() as tasks:

                async def leave() -> None:
                    await self._call.until_disconnected()
                    tasks.cancel_scope.cancel()

                await send({"type": "http.response.start", "status": 200, "headers": [*headers, *_HEADERS]})
                tasks.start_soon(leave)
                async with aclosing(self._frames()) as frames:
                    async for frame in frames:
                        await send({"type": "http.response.body", "body": frame, "more_body": True})
                tasks.cancel_scope.cancel()
        finally:
            self._end()
        with anyio.move_on_after(1):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        yield _frame("message", self._posted)
        ping = self._call.services.settings.ping_interval.total_seconds()
        heard = self._watch.until_answered(
            self._message, self._seconds, look_first=self._look_first, patience=ping
        )
        try:
            async with aclosing(heard):
                async for piece in heard:
                    if piece is None:
                        yield b": ping\n\n"
                    elif isinstance(piece, Delta):
                        yield _frame(
                            "delta",
                            {"text": piece.text, "offset": piece.offset, "agent_id": piece.agent_id},
                        )
                    else:
                        yield _frame(name_of(piece), message_view(piece, self._call.principal))
                        return
        except BreadcrumbsError as error:
            # The status is long on its way; the same words, as an event.
            yield b"event: problem\ndata: %s\n\n" % problem_for(error).body
            return
        yield _frame("timeout", {"message_id": str(self._message.id), "seconds": self._seconds})


def name_of(outcome: Breadcrumb) -> str:
    """What the outcome of a message is called in a reply."""
    return "error" if outcome.schema_name == ERROR else "answer"


def _frame(event: str, document: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event.encode(), orjson.dumps(document))
