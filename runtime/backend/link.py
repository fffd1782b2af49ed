"""One socket shared by every caller.

redis-py takes a connection out of a pool for each command and waits for its reply before it sends the
next. Here every command that is issued in one turn of the event loop leaves in one write, and replies
are handed out in the order in which the commands went. An idle link sends at once; a busy one batches by
itself, without a timer. redis-py still reads the URLs.

Nothing is retried here: a link that breaks fails everything that was under way with `LinkLost`, because
only the caller knows whether a command may run twice.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import hiredis

Command: TypeAlias = tuple[bytes | str | int | float, ...]

_HIGH_WATER: Final = 4 << 20


class LinkLost(ConnectionError):
    """The connection broke. Whether commands under way were carried out is not known."""


class ReplyError(Exception):
    """The server answered with an error."""

    @property
    def code(self) -> str:
        return str(self).split(" ", 1)[0]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is and how to get in."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str = ""
    """A unix socket; wins over host and port."""
    username: str | None = None
    password: str | None = None
    database: int = 0
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


class Multiplexer:
    """A connection that opens itself on first use, and again after it broke."""

    def __init__(
        self, address: Address, *, reply_timeout: float | None = 10.0, connect_timeout: float = 5.0
    ) -> None:
        self.address = address
        self._reply_timeout = reply_timeout
        self._connect_timeout = connect_timeout
        self._wire: _Wire | None = None
        self._opening: asyncio.Task[_Wire] | None = None
        self._closed = False

    @property
    def connected(self) -> bool:
        return self._wire is not None and not self._wire.lost

    async def call(self, command: Command) -> Any:
        """Send one command and wait for its reply; an error reply is raised as `ReplyError`."""
        wire = self._wire
        if wire is None or wire.lost:
            wire = await self._open()
        if wire.congested:
            await wire.drained()
        reply = await wire.send(command)
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def post(self, command: Command) -> None:
        """Send one command and do not look back. Where that is not possible at once, it is lost."""
        wire = self._wire
        if wire is not None and not wire.lost and not wire.congested:
            wire.send(command).add_done_callback(_forget)

    async def call_all(self, commands: list[Command]) -> list[Any]:
        """Send commands together; error replies come back in their places."""
        if not commands:
            return []
        wire = self._wire
        if wire is None or wire.lost:
            wire = await self._open()
        if wire.congested:
            await wire.drained()
        waiting = [wire.send(command) for command in commands]
        try:
            return [await reply for reply in waiting]
        except BaseException:
            for reply in waiting:
                # A link that broke fails all of them; the first failure speaks for the others.
                if not reply.cancel() and not reply.cancelled():
                    reply.exception()
            raise

    async def close(self) -> None:
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    async def _open(self) -> _Wire:
        """Connect, once for everybody who is waiting: what fails for one has failed for all of them."""
        if self._closed:
            raise LinkLost("the store is closed")
        if self._opening is None:
            self._opening = asyncio.create_task(self._dial())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _opened(self, opening: asyncio.Task[_Wire]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # nobody may be waiting for it any more

    async def _dial(self) -> _Wire:
        try:
            async with asyncio.timeout(self._connect_timeout):
                wire = await self._connect()
                await self._introduce(wire)
        except (OSError, TimeoutError) as error:
            raise LinkLost(f"cannot reach {self.address}: {error or type(error).__name__}") from error
        except asyncio.CancelledError:  # by `close`: those who wait were not cancelled
            raise LinkLost("the store is closed") from None
        self._wire = wire
        return wire

    async def _connect(self) -> _Wire:
        loop = asyncio.get_running_loop()
        address = self.address

        def new_wire() -> _Wire:
            return _Wire(self._reply_timeout)

        if address.path:
            _, wire = await loop.create_unix_connection(new_wire, address.path)
        else:
            _, wire = await loop.create_connection(new_wire, address.host, address.port, ssl=address.tls)
        return wire

    async def _introduce(self, wire: _Wire) -> None:
        greetings: list[Command] = []
        if self.address.password is not None:
            name = (self.address.username,) if self.address.username else ()
            greetings.append(("AUTH", *name, self.address.password))
        if self.address.database:
            greetings.append(("SELECT", self.address.database))
        try:
            for greeting in greetings:
                reply = await wire.send(greeting)
                if isinstance(reply, ReplyError):
                    raise reply
        except BaseException:
            wire.close()
            raise


def _forget(reply: asyncio.Future[Any]) -> None:
    if not reply.cancelled():
        reply.exception()


class _Wire(asyncio.Protocol):
    """The socket itself: what was sent, and who waits for the answers."""

    def __init__(self, reply_timeout: float | None) -> None:
        self.lost = False
        self._reply_timeout = reply_timeout
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader(protocolError=LinkLost, replyError=ReplyError)
        self._unsent: list[bytes] = []
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._writable: asyncio.Future[None] | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._answered = 0

    @property
    def congested(self) -> bool:
        return self._writable is not None

    async def drained(self) -> None:
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def send(self, command: Command) -> asyncio.Future[Any]:
        reply: asyncio.Future[Any] = self._loop.create_future()
        if self.lost:
            reply.set_exception(LinkLost("the connection to the server broke"))
            return reply
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(hiredis.pack_command(cast(Any, command)))  # typed there as a tuple of one
        self._waiting.append(reply)
        if self._watchdog is None and self._reply_timeout is not None:
            self._watch()
        return reply

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._fail("the connection was closed")

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (answer := self._reader.gets()) is not False:
                self._answered += 1
                reply = self._waiting.popleft()
                if not reply.done():
                    reply.set_result(answer)
        except (LinkLost, IndexError):
            self.close()  # not the protocol we speak

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection to the server broke{f': {exc}' if exc else ''}")

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    def _flush(self) -> None:
        if self._transport is not None and not self.lost:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def _fail(self, reason: str) -> None:
        if self.lost:
            return
        self.lost = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        self.resume_writing()
        for reply in self._waiting:
            if not reply.done():
                reply.set_exception(LinkLost(reason))
        self._waiting.clear()

    def _watch(self) -> None:
        """Give up a link on which nothing was answered for the whole time limit."""
        limit = self._reply_timeout or 0.0
        seen = self._answered

        def check() -> None:
            self._watchdog = None
            if not self._waiting or self.lost:
                return
            if self._answered == seen:
                if self._transport is not None:
                    self._transport.abort()
                self._fail(f"no answer for {limit} s")
            else:
                self._watch()

        self._watchdog = self._loop.call_later(limit, check)
