"""One request and its response, with the head and the first piece of the body in one write.

uvicorn writes them separately. ASGI allows a server to hold the head back until the application sends the body.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    RequestResponseCycle,
)

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent, HTTPResponseStartEvent

_WITHOUT_BODY: Final = frozenset((204, 304))


class Cycle(RequestResponseCycle):
    """Sends one response. `receive` and the handling of errors are uvicorn's."""

    _head = b""
    """The encoded head until it is written."""

    async def send(self, message: ASGISendEvent) -> None:
        if not self.response_started and message["type"] == "http.response.start":
            if not self.disconnected:
                self._head = self._encode_head(message)
                self.response_started = True
                self.waiting_for_100_continue = False
            return
        if not self._head:
            await super().send(message)
            return
        # The first piece of the body. The base class writes the others.
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] != "http.response.body" or self.chunked_encoding or self.scope["method"] == "HEAD":
            head, self._head = self._head, b""
            self.transport.write(head)
            await super().send(message)
            return
        body = message.get("body", b"")
        left = self.expected_content_length = self.expected_content_length - len(body)
        complete = not message.get("more_body", False)
        if left < 0 or (complete and left):
            raise RuntimeError(f"the response and its Content-Length differ by {abs(left)} bytes")
        head, self._head = self._head, b""
        self.transport.write(head + body)
        if complete:
            self._complete()

    def _complete(self) -> None:
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _encode_head(self, message: HTTPResponseStartEvent) -> bytes:
        """Return the encoded status line and headers, and note how the length of the body is given."""
        status = message["status"]
        headers = [*self.default_headers, *message.get("headers", ())]
        if HEADER_VALUE_RE.search(b"".join([value for _, value in headers])):
            raise RuntimeError("Invalid HTTP header value.")
        lines = [STATUS_LINE[status]]
        closes = False
        for name, value in headers:
            name = _checked_name(name)
            if name == b"content-length":
                self.expected_content_length = int(value)
                self.chunked_encoding = False
            elif name == b"connection":
                closes = closes or b"close" in value.lower()
            lines.append(b"%b: %b\r\n" % (name, value))
        if closes:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in _WITHOUT_BODY:
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)


@lru_cache(maxsize=256)
def _checked_name(name: bytes) -> bytes:
    """Return the name of a header in lower case. Raise `RuntimeError` if it is not a valid name."""
    if HEADER_RE.search(name):
        raise RuntimeError("Invalid HTTP header name.")
    return name.lower()
