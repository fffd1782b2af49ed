# Generated from breadcrumbs/client/aio/events.py by `python -m tests.support.sync_client`. Do not edit.
"""Event stream of a server, continued across reconnects."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterable
from typing import Final

import orjson

from breadcrumbs.client.options import EventOptions, OnConnection
from breadcrumbs.client.replies import ConnectionLost, Reply, backoff, is_retryable, retry_after
from breadcrumbs.client.requests import Request, event_params, stream_request
from breadcrumbs.client.sync.connection import ByteStream, ServerConnection
from breadcrumbs.client.values import Event, event_of
from breadcrumbs.runtime.sse import Parser

_MAX_SILENCE_SECONDS: Final = 60.0
"""A connection without data for this long is dead. The server pings every `ping_interval`, 10 s by default."""


class DeadlinePassed(Exception):
    """The deadline of an event follower has passed."""


class EventFollower:
    """Reads an event stream. Reconnects after the last event received."""

    def __init__(
        self,
        connection: ServerConnection,
        params: Iterable[tuple[str, str]],
        *,
        last_event_id: str | None = None,
        timeout: float | None = None,
        on_connection: OnConnection | None = None,
    ) -> None:
        self._connection = connection
        self._params = tuple(params)
        self._last_id = last_event_id
        self._timeout = timeout
        self.deadline: float | None = None
        """A time of the monotonic clock. None until `connect`, or without a timeout."""
        self._slack = 0.0 if timeout is None else max(0.25, timeout / 10)
        """Seconds by which a read can exceed the deadline before the stream is opened again."""
        self._on_connection = on_connection
        self._stream: ByteStream | None = None
        self._parser = Parser()
        self._read_timeout = _MAX_SILENCE_SECONDS
        self._failures = 0
        """Failed connections in a row."""
        self._was_connected = False
        self._was_greeted = False
        """Whether the first message of this connection was received. It is always a ping."""
        self._was_pinged = False
        """Whether the server has sent a ping since the last event, apart from the first message."""
        self._events: deque[Event] = deque()

    def connect(self) -> None:
        """Connect. Every event from now on will be received. The timeout starts here."""
        if self._timeout is not None:
            self.deadline = time.monotonic() + self._timeout
        while self._last_id is None or not self._was_connected:
            self._advance()

    def next_event(self) -> Event:
        """Return the next event. Reconnects as often as needed."""
        while not self._events:
            self._advance()
        return self._events.popleft()

    def next_event_or_ping(self) -> Event | None:
        """Return the next event, or None when the server has sent a ping instead."""
        self._was_pinged = False
        while not self._events:
            if self._was_pinged:
                return None
            self._advance()
        return self._events.popleft()

    def close(self) -> None:
        if self._stream is not None:
            stream, self._stream = self._stream, None
            stream.close()

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _advance(self) -> None:
        """Do one step: open the stream, close it, or read from it."""
        if self._stream is None:
            self._open_stream()
        elif self.deadline is not None and self._read_timeout > self._seconds_left() + self._slack:
            # The read timeout was set when the stream was opened and now exceeds the deadline. Open it again.
            self.close()
        else:
            self._read_piece(self._stream)

    def _read_piece(self, stream: ByteStream) -> None:
        try:
            piece = stream.read()
        except ConnectionLost as lost:
            self._seconds_left()
            self._reconnect_later(str(lost))
            return
        if not piece:
            self._reconnect_later("the server ended the stream")
            return
        for message in self._parser.feed(piece):
            self._last_id = message.id or self._last_id
            if message.data and message.event != "ping":
                self._events.append(event_of(orjson.loads(message.text), self._last_id))
            if message.data and (self._was_greeted or message.event != "ping"):
                # The first ping alone does not prove that the stream works: a broken server can end it after that.
                self._failures = 0
            self._was_pinged = self._was_pinged or (self._was_greeted and message.event == "ping")
            self._was_greeted = True

    def _open_stream(self) -> None:
        self._read_timeout = min(_MAX_SILENCE_SECONDS, self._seconds_left())
        request = stream_request(self._params, self._last_id)
        try:
            opened = self._connection.open_stream(request, self._read_timeout)
        except ConnectionLost as lost:
            self._seconds_left()
            if self._gives_up():
                raise self._connection.replies.unreachable(lost) from lost
            self._reconnect_later(str(lost))
            return
        if isinstance(opened, Reply):
            self._handle_refusal(opened, request)
            return
        self._stream, self._parser, self._was_greeted = opened, Parser(), False
        if self._was_connected and self._failures and self._on_connection is not None:
            self._on_connection("back", "")
        self._was_connected = True

    def _handle_refusal(self, reply: Reply, request: Request) -> None:
        error = self._connection.replies.error_in(reply, request)
        if error is None:
            raise self._connection.replies.unreachable(ConnectionLost("the server sent no event stream"))
        if not is_retryable(error) or self._gives_up():
            raise error
        self._reconnect_later(error.detail, retry_after(reply))

    def _gives_up(self) -> bool:
        """Return whether to stop retrying. Only a client that was never connected stops: its URL can be wrong."""
        return not self._was_connected and self._failures >= self._connection.retries

    def _reconnect_later(self, reason: str, wait: float | None = None) -> None:
        self.close()
        if wait is None:
            wait = backoff(self._failures)
        if self._was_connected and self._on_connection is not None:
            self._on_connection("lost", reason)
        self._failures += 1
        self._connection.pause(min(wait, self._seconds_left()))

    def _seconds_left(self) -> float:
        """Return the seconds until the deadline. Raise `DeadlinePassed` after it."""
        if self.deadline is None:
            return float("inf")
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlinePassed
        return left


def follow_events(connection: ServerConnection, wanted: EventOptions) -> Generator[Event, None, None]:
    """Yield events without end, and close the connection afterwards."""
    follower = EventFollower(
        connection,
        event_params(wanted),
        last_event_id=wanted.get("last_event_id"),
        on_connection=wanted.get("on_connection"),
    )
    try:
        while True:
            yield follower.next_event()
    finally:
        follower.close()
