"""uvicorn's HTTP protocol with limits in front of the parser.

The httptools parser buffers all bytes that it receives, without a limit. It therefore receives only complete
request heads within the limits, and one request at a time. Bytes of the next request are buffered here until the
response to the current one is sent. The sweep of the `ConnectionTable` enforces deadlines. There is no timer per
request.

A response can be complete before its request was read, for example with 401 or 413. The connection is then closed,
but only after the rest of the request was read and discarded within limits. Otherwise the kernel would reset the
connection, and a client that is still sending would lose the response.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from breadcrumbs.runtime.http.api.problems import (
    HEAD_TOO_LARGE,
    MALFORMED,
    REQUEST_TIMEOUT,
    TOO_MANY_CONNECTIONS,
    URL_TOO_LONG,
    ProblemType,
    problem,
)
from breadcrumbs.runtime.http.api.replies import Header, Reply
from breadcrumbs.runtime.http.connections import (
    AUTHENTICATED,
    ConnectionTable,
    Phase,
    TrackedConnection,
    network_of,
)
from breadcrumbs.runtime.http.cycle import Cycle
from breadcrumbs.runtime.http.middleware.origin_check import NO_STORE, SECURITY_HEADERS
from breadcrumbs.runtime.http.routes.event_stream import ABORT

WAITING, HEAD, BODY, HANDLING, DRAINING = Phase

_HEAD_END: Final = b"\r\n\r\n"
_REQUEST_LINE_EXTRA: Final = 40  # longest method, two spaces, HTTP version
_SHORT_BODY_BYTES: Final = 64 << 10  # up to this length, the body of a refused request is read to its end
_CHUNKED_SLICE_BYTES: Final = 16 << 10  # passed to the parser at once; precision of the limit on trailers
_DRAIN_SECONDS: Final = 10.0
_DRAIN_BYTES: Final = 64 << 20
_REFUSED_SECONDS: Final = 1.0  # time for the client of a refused connection to read the reply
_RETRY_AFTER: Final[Header] = (b"retry-after", b"2")

_NO_FREE_CONNECTION: Final = problem(
    TOO_MANY_CONNECTIONS, "the server has no free connection: retry later", headers=[_RETRY_AFTER]
)


class _NextRequest(Exception):
    """The parser found another request in the bytes of the current one."""


class _EarlyTransport:
    """Transport of a response whose request is incomplete. Closing it drains the connection."""

    __slots__ = ("_protocol", "is_closing", "write")

    def __init__(self, protocol: LimitedProtocol) -> None:
        self._protocol = protocol
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing

    def close(self) -> None:
        self._protocol.drain()


class LimitedProtocol(HttpToolsProtocol, TrackedConnection):
    """One client connection with limits on size and time."""

    def __init__(
        self,
        table: ConnectionTable,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        limits = table.limits
        self._table = table
        self._limits = limits
        self._keep_alive_seconds = limits.keep_alive_timeout.total_seconds()
        self._max_url_bytes = limits.max_url_bytes
        self._max_head_bytes = limits.max_head_bytes
        self._max_head_lines = limits.max_headers + 2  # with the request line and the empty line
        self._head = bytearray()
        """The beginning of a head whose end has not arrived."""
        self._pipelined = bytearray()
        """Bytes of later requests."""
        self._body_left: int | None = 0
        """Bytes until the end of the body; None: the body is chunked."""
        self._body_bytes = 0
        self._body_seconds = 0.0
        self._framing_bytes = 0
        """Bytes of a chunked body since the last piece of content: chunk extensions, trailers."""
        self._keep_alive = True
        self._drain_left = _DRAIN_BYTES
        self._unsent = 0
        self._stalled_seconds = 0.0

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = network_of(self.client[0]) if self.client else ""
        self.deadline = self.loop.time() + self._limits.head_timeout.total_seconds()
        if not self._table.admit(self):
            self._refuse_connection()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._table.remove(self)
        if self.scope is not None:
            # The extensions refer to this object. Break the reference cycle, so that it is freed at once.
            self.scope["extensions"].clear()

    def shutdown(self) -> None:
        self._keep_alive = False
        if self.phase is DRAINING or self.phase is HEAD:
            self.transport.close()
        else:
            super().shutdown()

    def mark_authenticated(self) -> None:
        self._table.authenticate(self)

    # Bytes

    def data_received(self, data: bytes) -> None:
        try:
            while data:
                phase = self.phase
                if phase is BODY:
                    data = self._take_body(data)
                elif phase is HANDLING:
                    self._buffer_next_request(data)
                    return
                elif phase is DRAINING:
                    self._discard(len(data))
                    return
                else:
                    data = self._take_head(data)
        except httptools.HttpParserUpgrade:
            self._close_after_response()  # upgrades to other protocols are not supported
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _NextRequest):
                # The next request arrived in the same bytes as the end of a chunked body. It is discarded.
                self._close_after_response()
            else:
                self.refuse(MALFORMED, "the request is not valid HTTP/1.1")
        if not self.authenticated and (self.phase is HEAD or self.phase is BODY):
            size = len(self._head) if self.phase is HEAD else self._body_bytes
            self._table.set_buffered(self, size)

    def _take_head(self, data: bytes) -> bytes:
        """Pass a complete head to the parser. Returns the bytes after it."""
        if self.phase is HEAD:
            searched = max(0, len(self._head) - len(_HEAD_END))
            self._head += data
            if self._head.find(_HEAD_END, searched) < 0:
                self._check_partial_head()
                return b""
            data = bytes(self._head)
            self._head = bytearray()
        elif data[0] in b"\r\n":  # empty lines are allowed between requests
            data = data.lstrip(b"\r\n")
        end = data.find(_HEAD_END)
        if end < 0:
            if data:
                self._begin_partial_head(data)
            return b""
        end += len(_HEAD_END)
        if end > self._max_url_bytes and self._url_is_too_long(data):
            self._refuse_url()
        elif end > self._max_head_bytes or data.count(b"\n", 0, end) > self._max_head_lines:
            self._refuse_head()
        else:
            self.phase = HEAD
            self._body_left = 0
            self.parser.feed_data(data[:end])
            if self.phase is HEAD:
                self.refuse(MALFORMED, "the request head is not valid HTTP/1.1")
        return data[end:]

    def _begin_partial_head(self, data: bytes) -> None:
        self.phase = HEAD
        self._head += data
        if self.cycle is not None:  # the deadline of the first head starts when the connection opens
            self.deadline = self.loop.time() + self._limits.head_timeout.total_seconds()
        self._check_partial_head()

    def _check_partial_head(self) -> None:
        head, limits = self._head, self._limits
        line_limit = limits.max_url_bytes + _REQUEST_LINE_EXTRA
        line_end = head.find(b"\n", 0, line_limit)
        # A method starts with a capital letter, and a line ends with CR LF.
        if not 65 <= head[0] <= 90 or (line_end > 0 and head[line_end - 1] != 13):
            self.refuse(MALFORMED, "the data is not an HTTP/1.1 request")
        elif line_end < 0 and len(head) > line_limit:
            self._refuse_url()
        elif len(head) > limits.max_head_bytes:
            self._refuse_head()

    def _url_is_too_long(self, data: bytes) -> bool:
        line_end = data.find(b"\r\n")
        length = data.rfind(b" ", 0, line_end) - data.find(b" ", 0, line_end) - 1
        return length > self._max_url_bytes

    def _take_body(self, data: bytes) -> bytes:
        """Pass bytes of the body to the parser. Returns the bytes after its end."""
        left = self._body_left
        if left is None:
            return self._take_chunked(data)
        rest = data[left:]
        if rest:
            data = data[:left]
        self._body_left = left - len(data)
        self._body_bytes += len(data)
        self.parser.feed_data(data)
        return rest

    def _take_chunked(self, data: bytes) -> bytes:
        for begin in range(0, len(data), _CHUNKED_SLICE_BYTES):
            piece = data[begin : begin + _CHUNKED_SLICE_BYTES]
            before = len(self.cycle.body)
            self.parser.feed_data(piece)
            if self.phase is not BODY:
                return data[begin + _CHUNKED_SLICE_BYTES :]
            content = len(self.cycle.body) - before
            self._body_bytes += content
            self._framing_bytes = 0 if content else self._framing_bytes + len(piece)
            if self._framing_bytes > self._max_head_bytes:
                self._refuse_head()
                return b""
        return b""

    def _buffer_next_request(self, data: bytes) -> None:
        """Buffer the beginning of the next request until the current one is answered."""
        if self._keep_alive:
            self._pipelined += data
        if len(self._pipelined) > self._max_head_bytes:
            self._close_after_response()
        if not self._keep_alive:
            self.flow.pause_reading()

    def _close_after_response(self) -> None:
        """Close the connection after the response to the current request."""
        self._keep_alive = False
        self._pipelined.clear()
        if not self.cycle.response_started:
            self.cycle.keep_alive = False

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        if self.phase is not HEAD:
            raise _NextRequest
        super().on_message_begin()
        extensions: Any = {ABORT: self.transport.abort, AUTHENTICATED: self.mark_authenticated}
        self.scope["extensions"] = extensions

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase is not HEAD:
            return  # a trailer must not be taken for a header
        name = name.lower()
        if name == b"content-length":
            self._body_left = int(value)
        elif name == b"transfer-encoding":
            self._body_left = None
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser, scope = self.parser, self.scope
        version = parser.get_http_version()
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = url.path
        scope["query_string"] = url.query or b""
        self._keep_alive = version != "1.0" and parser.should_keep_alive()
        self._start_cycle()

    def _start_cycle(self) -> None:
        """Run the application. The request is the only one: bytes of the next one are buffered until its end."""
        keep_alive, left = self._keep_alive, self._body_left
        cycle: Any = Cycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=keep_alive,
            on_response=self.on_response_complete,
        )
        self.cycle = cycle
        self.phase = BODY
        self.deadline = math.inf
        self._start_asgi_task(cycle, self.app)
        if not keep_alive or left is None or left > _SHORT_BODY_BYTES or self.expect_100_continue:
            # A response before the end of the request closes the connection.
            cycle.keep_alive = False
            cycle.transport = _EarlyTransport(self)

    def on_message_complete(self) -> None:
        cycle = self.cycle
        if cycle.response_complete:
            self._wait_for_request()
            return
        cycle.more_body = False
        cycle.message_event.set()
        self.phase = HANDLING
        cycle.transport = self.transport
        if not cycle.response_started:
            cycle.keep_alive = self._keep_alive

    # Responses

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.phase is DRAINING or self.transport.is_closing():
            return
        if not self._keep_alive:
            self.transport.close()
            return
        self.flow.resume_reading()
        if self.phase is BODY:
            return
        self._wait_for_request()
        if self._pipelined:
            data = bytes(self._pipelined)
            self._pipelined.clear()
            self.data_received(data)

    def _wait_for_request(self) -> None:
        self.phase = WAITING
        self.deadline = self.loop.time() + self._keep_alive_seconds
        self._body_bytes = self._framing_bytes = 0
        self._body_seconds = 0.0
        if self.buffered:
            self._table.set_buffered(self, 0)

    def refuse(self, kind: ProblemType, detail: str, headers: Sequence[Header] = ()) -> None:
        """Reply to the request that is being read, then drain and close the connection."""
        self._table.count(kind.name)
        if self.phase is BODY and not self._abandon_request():
            self.transport.abort()
            return
        self._write(problem(kind, detail, headers=headers))
        self.drain()

    def drain(self) -> None:
        """Stop sending. Read and discard the rest of the client's data, within limits."""
        self._stop_reading_requests(_DRAIN_SECONDS)
        self.flow.resume_reading()
        if not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()

    def evict(self) -> None:
        phase = self.phase
        answered = phase is BODY and not self._abandon_request()
        self._stop_reading_requests(0)
        if answered or self._unsent_bytes() > 0:
            self.transport.abort()
            return
        if phase is HEAD or phase is BODY:
            self._write(_NO_FREE_CONNECTION)
        self.transport.close()

    def _refuse_head(self) -> None:
        limits = self._limits
        detail = (
            f"a request head must have at most {limits.max_head_bytes} bytes and {limits.max_headers} headers"
        )
        self.refuse(HEAD_TOO_LARGE, detail)

    def _refuse_url(self) -> None:
        self.refuse(URL_TOO_LONG, f"a URL must have at most {self._limits.max_url_bytes} bytes")

    def _refuse_connection(self) -> None:
        self._table.count(TOO_MANY_CONNECTIONS.name)
        if not self._table.keep_refused(self):
            self.transport.abort()
            return
        self._write(_NO_FREE_CONNECTION)
        self.drain()
        self.deadline = self.loop.time() + _REFUSED_SECONDS

    def _abandon_request(self) -> bool:
        """End the request for the application. Returns False if its response has already begun."""
        cycle = self.cycle
        cycle.disconnected = True
        cycle.message_event.set()
        return not cycle.response_started

    def _stop_reading_requests(self, seconds: float) -> None:
        self.phase = DRAINING
        self.deadline = self.loop.time() + seconds
        self._head = bytearray()
        self._pipelined.clear()
        self._table.set_buffered(self, 0)

    def _discard(self, size: int) -> None:
        self._drain_left -= size
        if self._drain_left < 0:
            self.transport.abort()

    def _write(self, reply: Reply) -> None:
        headers = [
            *self.server_state.default_headers,
            *reply.headers,
            *SECURITY_HEADERS,
            NO_STORE,
            (b"connection", b"close"),
        ]
        lines = [b"%s: %s\r\n" % header for header in headers]
        self.transport.write(b"".join([STATUS_LINE[reply.status], *lines, b"\r\n", reply.body]))

    # Time

    def check(self, now: float, elapsed: float) -> str | None:
        phase = self.phase
        if phase is DRAINING:
            if now >= self.deadline:
                self.transport.abort()
        elif phase is HEAD:
            if now >= self.deadline:
                seconds = self._limits.head_timeout.total_seconds()
                self.refuse(REQUEST_TIMEOUT, f"the request head was not complete after {seconds:g} seconds")
        elif phase is BODY and not self.flow.read_paused:
            self._check_body_rate(elapsed)
        elif self._unsent_bytes() > 0 or self.transport.is_closing():
            return self._check_progress(elapsed)
        elif phase is WAITING and now >= self.deadline:
            self.transport.close()
        return None

    def _check_body_rate(self, elapsed: float) -> None:
        limits = self._limits
        self._body_seconds += elapsed
        allowed = limits.body_grace.total_seconds() + self._body_bytes / limits.min_body_rate
        if self._body_seconds > allowed:
            detail = f"the body arrived at less than {limits.min_body_rate} bytes per second"
            self.refuse(REQUEST_TIMEOUT, detail)

    def _check_progress(self, elapsed: float) -> str | None:
        """Abort a connection whose client does not read its response."""
        unsent = self._unsent_bytes()
        self._stalled_seconds = self._stalled_seconds + elapsed if unsent == self._unsent else 0.0
        self._unsent = unsent
        if self._stalled_seconds <= self._limits.send_timeout.total_seconds():
            return None
        self.transport.abort()
        return "response-not-read"

    def _unsent_bytes(self) -> int:
        try:
            return self.transport.get_write_buffer_size()
        except RuntimeError:  # the transport is closed; connection_lost follows
            return 0
