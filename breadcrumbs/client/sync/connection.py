# Generated from breadcrumbs/client/aio/connection.py by `python -m tests.support.sync_client`. Do not edit.
"""Connection to one server. Sends requests with retries and opens event streams."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import httpx

from breadcrumbs.client.concurrency import shield, sleep
from breadcrumbs.client.errors import BreadcrumbsError
from breadcrumbs.client.http import (
    ServerAccess,
    connection_lost,
    is_stream,
    send_options,
    stream_options,
    to_reply,
)
from breadcrumbs.client.replies import (
    ConnectionLost,
    Reply,
    ReplyReader,
    backoff,
    is_retryable,
    retry_after,
)
from breadcrumbs.client.requests import Request
from breadcrumbs.client.values import Written

T = TypeVar("T")

_MIN_TIMEOUT_SECONDS: Final = 0.05


class ByteStream:
    """Body of a streamed response."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces = response.iter_raw()

    def read(self) -> bytes:
        """Return the next bytes, or `b""` at the end of the stream."""
        try:
            return next(self._pieces, b"")
        except httpx.HTTPError as error:
            raise connection_lost(error) from error

    def close(self) -> None:
        with shield():  # close the connection also if the reader was cancelled
            self._response.close()


class ServerConnection:
    """Sends requests to one server with the credentials of the client."""

    def __init__(self, server: ServerAccess, *, timeout: float, retries: int) -> None:
        self.url = server.url
        self.retries = retries
        self.replies = ReplyReader(server.url)
        self.http = httpx.Client(**server.client_options(timeout))

    def close(self) -> None:
        self.http.close()

    def fetch(self, request: Request, convert: Callable[[Any], T]) -> T:
        """Perform a request and return its JSON reply, converted by `convert`."""
        return self.replies.read(self.perform(request), convert)

    def write(self, request: Request, *, deadline: float | None = None) -> Written:
        """Perform a request that writes a breadcrumb."""
        return self.replies.read_written(self.perform(request, deadline=deadline))

    def perform(self, request: Request, *, deadline: float | None = None) -> Reply:
        """Send a request, with retries if it is idempotent. Raise the error of the last attempt.

        `deadline` is a time of the monotonic clock. No retry starts after it.
        """
        attempt = 0
        while True:
            timeout = None if deadline is None else max(_MIN_TIMEOUT_SECONDS, deadline - time.monotonic())
            is_last = not request.idempotent or attempt >= self.retries
            failure: BreadcrumbsError
            try:
                reply = self.send(request, timeout)
            except ConnectionLost as lost:
                failure, wait = self.replies.unreachable(lost), backoff(attempt)
                failure.__cause__ = lost
            else:
                error = self.replies.error_in(reply, request)
                if error is None:
                    return reply
                failure, wait = error, retry_after(reply) or backoff(attempt)
                is_last = is_last or not is_retryable(error)
            if is_last or (deadline is not None and time.monotonic() + wait >= deadline):
                raise failure
            self.pause(wait)
            attempt += 1

    def send(self, request: Request, timeout: float | None) -> Reply:
        """Send a request once. The `timeout` of the client applies if it is shorter, or if this one is None."""
        try:
            return to_reply(self.http.request(**send_options(request, timeout, self.http.timeout)))
        except httpx.HTTPError as error:
            raise connection_lost(error) from error

    def open_stream(self, request: Request, read_timeout: float) -> ByteStream | Reply:
        """Open an event stream. Return the reply instead if it is not a stream."""
        try:
            opening = self.http.build_request(**stream_options(request, read_timeout))
            response = self.http.send(opening, stream=True)
            if is_stream(response):
                return ByteStream(response)
            response.read()
            return to_reply(response)
        except httpx.HTTPError as error:
            raise connection_lost(error) from error

    def pause(self, seconds: float) -> None:
        sleep(seconds)
