"""Connection to one server. Sends requests with retries and opens event streams."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import httpx

from breadcrumbs.client.concurrency import async_shield, async_sleep
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


class AsyncByteStream:
    """Body of a streamed response."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces = response.aiter_raw()

    async def read(self) -> bytes:
        """Return the next bytes, or `b""` at the end of the stream."""
        try:
            return await anext(self._pieces, b"")
        except httpx.HTTPError as error:
            raise connection_lost(error) from error

    async def close(self) -> None:
        with async_shield():  # close the connection also if the reader was cancelled
            await self._response.aclose()


class AsyncServerConnection:
    """Sends requests to one server with the credentials of the client."""

    def __init__(self, server: ServerAccess, *, timeout: float, retries: int) -> None:
        self.url = server.url
        self.retries = retries
        self.replies = ReplyReader(server.url)
        self.http = httpx.AsyncClient(**server.client_options(timeout))

    async def close(self) -> None:
        await self.http.aclose()

    async def fetch(self, request: Request, convert: Callable[[Any], T]) -> T:
        """Perform a request and return its JSON reply, converted by `convert`."""
        return self.replies.read(await self.perform(request), convert)

    async def write(self, request: Request, *, deadline: float | None = None) -> Written:
        """Perform a request that writes a breadcrumb."""
        return self.replies.read_written(await self.perform(request, deadline=deadline))

    async def perform(self, request: Request, *, deadline: float | None = None) -> Reply:
        """Send a request, with retries if it is idempotent. Raise the error of the last attempt.

        `deadline` is a time of the monotonic clock. No retry starts after it.
        """
        attempt = 0
        while True:
            timeout = None if deadline is None else max(_MIN_TIMEOUT_SECONDS, deadline - time.monotonic())
            is_last = not request.idempotent or attempt >= self.retries
            failure: BreadcrumbsError
            try:
                reply = await self.send(request, timeout)
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
            await self.pause(wait)
            attempt += 1

    async def send(self, request: Request, timeout: float | None) -> Reply:
        """Send a request once. The `timeout` of the client applies if it is shorter, or if this one is None."""
        try:
            return to_reply(await self.http.request(**send_options(request, timeout, self.http.timeout)))
        except httpx.HTTPError as error:
            raise connection_lost(error) from error

    async def open_stream(self, request: Request, read_timeout: float) -> AsyncByteStream | Reply:
        """Open an event stream. Return the reply instead if it is not a stream."""
        try:
            opening = self.http.build_request(**stream_options(request, read_timeout))
            response = await self.http.send(opening, stream=True)
            if is_stream(response):
                return AsyncByteStream(response)
            await response.aread()
            return to_reply(response)
        except httpx.HTTPError as error:
            raise connection_lost(error) from error

    async def pause(self, seconds: float) -> None:
        await async_sleep(seconds)
