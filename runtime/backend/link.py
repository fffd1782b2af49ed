"""Shared socket for many callers, and subscriptions to Pub/Sub channels.

redis-py takes a connection from a pool for each command and waits for the reply before it sends the next one.
`Multiplexer` sends all commands of one event loop iteration in one write, and assigns the replies in the order of
the commands. An idle link sends at once. A busy link batches without a timer. redis-py is used only to parse URLs.

Nothing is retried here. A broken link fails all pending commands with `LinkLost`. Only the caller can decide
whether a command may run twice.

This module uses asyncio directly. It is an `asyncio.Protocol`: futures, transports and timers have no equivalent
in anyio that allows one write per loop iteration.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar, cast

import hiredis

from breadcrumbs.runtime.backend.address import Address
from breadcrumbs.runtime.telemetry.store_calls import STORE_CALLS

Command: TypeAlias = tuple[bytes | str | int | float, ...]
MessageHandler: TypeAlias = Callable[[bytes], None]
ChannelHandler: TypeAlias = Callable[[bytes, bytes | None], None]
"""Called with a channel and a message. None instead of a message: the subscription begins now."""
SendAll: TypeAlias = Callable[[list[Command]], Awaitable[list[Any]]]
"""Sends commands on one connection. Error replies are returned at their positions."""
RecordReplies: TypeAlias = Callable[[float, int], None]
"""Gets the seconds from a write to its last reply, and the number of commands in it."""
Verify: TypeAlias = Callable[[SendAll], Awaitable[None]]
"""Checks a new connection before it is used for anything else, and raises if it must not be used."""

_CONNECT_TIMEOUT: Final = 5.0  # seconds
_REPLY_TIMEOUT: Final = 10.0  # seconds
_WRITE_BUFFER_LIMIT: Final = 4 << 20  # bytes; callers wait while more than this is unsent

SILENCE_SECONDS = 10.0
"""Seconds without a message after which a subscription sends PING. Without a reply for as long, the link is lost."""


class LinkLost(ConnectionError):
    """The connection broke. It is unknown whether pending commands were executed. Raised only inside the backend."""


class LinkClosed(LinkLost):
    """The connection was closed by this process. The store is not at fault."""


class ReplyError(Exception):
    """The server replied with an error. Raised only inside the backend."""

    @property
    def code(self) -> str:
        """The first word of the error, such as `MOVED`."""
        return str(self).split(" ", 1)[0]


class Multiplexer:
    """Shared connection. Opens on first use, and reconnects after it broke.

    `verify` runs on each new connection after the login. No other command is sent before it has succeeded. If it
    fails, the connection stays open, and the next command starts with another verification.
    """

    def __init__(
        self,
        address: Address,
        *,
        reply_timeout: float | None = _REPLY_TIMEOUT,
        connect_timeout: float = _CONNECT_TIMEOUT,
        verify: Verify | None = None,
    ) -> None:
        self.address = address
        self._reply_timeout = reply_timeout
        self._connect_timeout = connect_timeout
        self._verify = verify
        self._socket: _Socket | None = None
        """The verified connection. None: the next command verifies one first."""
        self._unverified: _Socket | None = None
        self._rechecks = 0
        self._opening: asyncio.Task[_Socket] | None = None
        self._connecting: asyncio.Task[_Socket] | None = None
        self._closed = False

    @property
    def connected(self) -> bool:
        return self._living_socket() is not None

    async def call(self, command: Command) -> Any:
        """Send one command and return its reply. Raises `ReplyError` for an error reply."""
        socket = self._socket
        if socket is None or socket.lost or socket.is_congested:
            socket = await self._writable_socket()
        reply = await socket.send(command)
        if isinstance(reply, ReplyError):
            raise reply
        if not STORE_CALLS.settled:
            STORE_CALLS.replied()
        return reply

    async def call_all(self, commands: list[Command]) -> list[Any]:
        """Send commands together. Error replies are returned at their positions."""
        if not commands:
            return []
        socket = self._socket
        if socket is None or socket.lost or socket.is_congested:
            socket = await self._writable_socket()
        received = await socket.call_all(commands)
        # A server that is loading its data replies with errors.
        if not STORE_CALLS.settled and not isinstance(received[-1], ReplyError):
            STORE_CALLS.replied()
        return received

    async def probe(self, commands: list[Command]) -> list[Any]:
        """Send commands that only read, also on a connection that is not verified."""
        return await (await self._connect_shared()).call_all(commands)

    def post(self, command: Command) -> None:
        """Send one command without waiting for its reply. It is dropped if it cannot be sent at once."""
        socket = self._socket
        if socket is not None and not socket.lost and not socket.is_congested:
            socket.send(command).add_done_callback(_ignore_exception)

    def recheck(self) -> None:
        """Verify the connection again before the next command."""
        self._rechecks += 1
        # A lost socket must not replace a newer connection.
        if self._socket is not None and not self._socket.lost:
            self._unverified = self._socket
        self._socket = None

    async def close(self) -> None:
        self._closed = True
        tasks = [task for task in (self._opening, self._connecting) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for socket in (self._socket, self._unverified):
            if socket is not None:
                socket.close(LinkClosed)
        self._socket = self._unverified = None

    def _living_socket(self) -> _Socket | None:
        for socket in (self._socket, self._unverified):
            if socket is not None and not socket.lost:
                return socket
        return None

    async def _writable_socket(self) -> _Socket:
        socket = self._socket
        if socket is None or socket.lost:
            socket = await self._open()
        # A recheck during the wait makes the connection unverified again. A lost one fails when it is used.
        while not socket.lost and (socket.is_congested or socket is not self._socket):
            await socket.wait_writable()
            if socket is not self._socket:
                socket = await self._open()
        return socket

    async def _open(self) -> _Socket:
        """Open and verify the connection. Concurrent callers share one attempt and its failure."""
        if self._closed:
            raise LinkClosed("the store is closed")
        # The result of an attempt that has ended can be older than a recheck.
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open_socket())
            self._opening.add_done_callback(self._end_opening)
        return await asyncio.shield(self._opening)

    async def _open_socket(self) -> _Socket:
        try:
            while True:
                rechecks, socket = self._rechecks, await self._connect_shared()
                if self._verify is not None:
                    await self._verify(socket.call_all)
                if rechecks == self._rechecks:  # else a recheck was requested during this one
                    break
        except asyncio.CancelledError:  # by `close`; the callers were not cancelled
            raise LinkClosed("the store is closed") from None
        self._socket, self._unverified = socket, None
        return socket

    def _end_opening(self, opening: asyncio.Task[_Socket]) -> None:
        if self._opening is opening:
            self._opening = None
        _ignore_exception(opening)  # in case all callers were cancelled

    async def _connect_shared(self) -> _Socket:
        """Return a connection, verified or not. Concurrent callers share one attempt and its failure."""
        if self._closed:
            raise LinkClosed("the store is closed")
        if (socket := self._living_socket()) is not None:
            return socket
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect_socket())
            self._connecting.add_done_callback(self._end_connecting)
        return await asyncio.shield(self._connecting)

    async def _connect_socket(self) -> _Socket:
        try:
            self._unverified = await _connect(
                self.address,
                lambda: _Socket(self._reply_timeout, STORE_CALLS.record),
                timeout=self._connect_timeout,
            )
        except asyncio.CancelledError:  # by `close`
            raise LinkClosed("the store is closed") from None
        return self._unverified

    def _end_connecting(self, connecting: asyncio.Task[_Socket]) -> None:
        self._connecting = None
        _ignore_exception(connecting)


async def subscribe(
    address: Address, channel: bytes, on_message: MessageHandler, verify: Verify | None = None
) -> None:
    """Call `on_message` with each message of a channel. Raises `LinkLost` when the link breaks."""
    socket = await _connect(
        address, lambda: _SubscriberSocket(on_message, SILENCE_SECONDS), timeout=_CONNECT_TIMEOUT
    )
    try:
        if verify is not None:
            await verify(socket.call_all)
        await socket.call((b"SUBSCRIBE", channel))
        await _wait_lost(socket)
        raise LinkLost(socket.ended.result())
    finally:
        socket.close()


class ShardLink:
    """Subscriptions to sharded channels of one server, which can be added and removed at any time.

    `wait_lost` ends if the server refuses or ends one subscription, for example because its slot moves. The caller
    then opens a new link.
    """

    def __init__(self, socket: _ShardSocket) -> None:
        self._socket = socket

    @classmethod
    async def open(cls, address: Address, on_message: ChannelHandler, verify: Verify | None) -> ShardLink:
        socket = await _connect(
            address, lambda: _ShardSocket(on_message, SILENCE_SECONDS), timeout=_CONNECT_TIMEOUT
        )
        try:
            if verify is not None:
                await verify(socket.call_all)
        except BaseException:
            socket.close()
            raise
        return cls(socket)

    def subscribe(self, channel: bytes) -> None:
        self._socket.send((b"SSUBSCRIBE", channel)).add_done_callback(self._check)

    def unsubscribe(self, channel: bytes) -> None:
        self._socket.unsubscribing[channel] += 1
        self._socket.send((b"SUNSUBSCRIBE", channel)).add_done_callback(self._check)

    def _check(self, reply: asyncio.Future[Any]) -> None:
        if not reply.cancelled() and reply.exception() is None and isinstance(reply.result(), ReplyError):
            self._socket.refuse(reply.result())

    async def wait_lost(self) -> None:
        """Wait until the link is lost. Raises the reason: `LinkLost` or `ReplyError`."""
        await _wait_lost(self._socket)
        raise self._socket.refusal or LinkLost(self._socket.ended.result())

    def close(self) -> None:
        self._socket.close()


async def _wait_lost(socket: _Socket) -> None:
    """Wait until a connection with subscriptions is lost. PING distinguishes quiet channels from a dead server."""
    while not socket.lost:
        replies = socket.reply_count
        await asyncio.wait([socket.ended], timeout=SILENCE_SECONDS)
        if not socket.lost and socket.reply_count == replies:
            try:
                await socket.send((b"PING",))
            except LinkLost:
                return


def _ignore_exception(reply: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved, so that asyncio does not log it."""
    if not reply.cancelled():
        reply.exception()


class _Socket(asyncio.Protocol):
    """One connection. Sends commands and assigns the replies in their order."""

    def __init__(self, reply_timeout: float | None, record: RecordReplies | None = None) -> None:
        self.lost = False
        self.reply_count = 0
        self._reply_timeout = reply_timeout
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        """Resolves when the connection is lost, with the reason."""
        self._transport: asyncio.Transport | None = None
        self._parser = hiredis.Reader(protocolError=LinkLost, replyError=ReplyError)
        self._unsent: list[bytes] = []
        self._pending: deque[asyncio.Future[Any]] = deque()
        self._writable: asyncio.Future[None] | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._record = record
        self._writes: deque[tuple[int, int, float]] = deque()
        """Recorded writes: number of all commands up to the last one, number of commands, and time."""
        self._sent_count = 0

    @property
    def is_congested(self) -> bool:
        return self._writable is not None

    async def wait_writable(self) -> None:
        if self._writable is not None:
            await asyncio.shield(self._writable)

    async def call(self, command: Command) -> Any:
        """Send one command and return its reply. Raises `ReplyError` for an error reply."""
        reply = await self.send(command)
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    async def call_all(self, commands: list[Command]) -> list[Any]:
        """Send commands together. Error replies are returned at their positions."""
        replies = [self.send(command) for command in commands]
        try:
            return [await reply for reply in replies]
        except BaseException:
            for reply in replies:
                # A broken link fails all replies. The first failure is raised, the others are marked as retrieved.
                if not reply.cancel():
                    _ignore_exception(reply)
            raise

    def send(self, command: Command) -> asyncio.Future[Any]:
        """Send one command at the end of this loop iteration. Returns its reply, possibly a `ReplyError`."""
        reply: asyncio.Future[Any] = self._loop.create_future()
        if self.lost:
            reply.set_exception(LinkLost(self.ended.result()))
            return reply
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(
            hiredis.pack_command(cast(Any, command))
        )  # hiredis types it as a tuple of one item
        self._pending.append(reply)
        if self._watchdog is None and self._reply_timeout is not None:
            self._start_watchdog(self._reply_timeout)
        return reply

    def close(self, error: type[LinkLost] = LinkLost) -> None:
        if self._transport is not None:
            self._transport.close()
        self._fail("the connection was closed", error)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport has the same methods
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_LIMIT)

    def data_received(self, data: bytes) -> None:
        self._parser.feed(data)
        try:
            while (reply := self._parser.gets()) is not False:
                self.reply_count += 1
                self._accept(reply)
        except (LinkLost, IndexError):
            self.close()  # not the Redis protocol, or a reply without a command
        if self._writes:
            self._record_replies()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection to the server broke{f': {exc}' if exc else ''}")

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    def _accept(self, reply: Any) -> None:
        """Give a reply to the caller of the oldest pending command."""
        pending = self._pending.popleft()
        if not pending.done():
            pending.set_result(reply)

    def _flush(self) -> None:
        if self._transport is not None and not self.lost:
            self._transport.write(b"".join(self._unsent))
            commands = len(self._unsent)
            self._sent_count += commands
            if self._record is not None:
                self._writes.append((self._sent_count, commands, time.perf_counter()))
        self._unsent.clear()

    def _record_replies(self) -> None:
        """Record the writes whose replies have all arrived.

        The commands of a write are recorded together and not by each caller, because a turn makes many calls.
        """
        writes, record, now = self._writes, self._record, time.perf_counter()
        while writes and writes[0][0] <= self.reply_count and record is not None:
            _, commands, written = writes.popleft()
            record(now - written, commands)

    def _fail(self, reason: str, error: type[LinkLost] = LinkLost) -> None:
        """Fail all pending commands."""
        if self.lost:
            return
        self.lost = True
        self.ended.set_result(reason)
        if self._watchdog is not None:
            self._watchdog.cancel()
        self.resume_writing()
        for reply in self._pending:
            if not reply.done():
                reply.set_exception(error(reason))
        self._pending.clear()

    def _start_watchdog(self, timeout: float) -> None:
        """Fail the link if commands are pending and nothing is received for `timeout` seconds."""
        replies = self.reply_count

        def check() -> None:
            self._watchdog = None
            if not self._pending or self.lost:
                return
            if self.reply_count == replies:
                if self._transport is not None:
                    self._transport.abort()
                self._fail(f"no reply for {timeout} s")
            else:
                self._start_watchdog(timeout)

        self._watchdog = self._loop.call_later(timeout, check)


class _SubscriberSocket(_Socket):
    """Connection with subscriptions. Passes on messages, and treats everything else as replies."""

    def __init__(self, on_message: MessageHandler, reply_timeout: float) -> None:
        super().__init__(reply_timeout)
        self._on_message = on_message

    def _accept(self, reply: Any) -> None:
        # Called at once, not in a later loop iteration: see `Connection.listen`.
        if isinstance(reply, list) and reply[0] == b"message":
            self._on_message(reply[2])
        else:
            super()._accept(reply)


class _ShardSocket(_Socket):
    """Connection with subscriptions to sharded channels."""

    def __init__(self, on_message: ChannelHandler, reply_timeout: float) -> None:
        super().__init__(reply_timeout)
        self.refusal: ReplyError | None = None
        self.unsubscribing: Counter[bytes] = Counter()
        """Channels with unanswered SUNSUBSCRIBE commands."""
        self._on_message = on_message

    def refuse(self, reason: ReplyError) -> None:
        self.refusal = self.refusal or reason
        self.close()

    def _accept(self, reply: Any) -> None:
        kind = reply[0] if isinstance(reply, list) else None
        if kind == b"smessage":
            self._on_message(reply[1], reply[2])
        elif kind == b"sunsubscribe" and not self._is_requested(reply[1]):
            # The slot of the channel moves to another node. The server says so without being asked.
            self.refuse(ReplyError("MOVED the server ended a subscription"))
        else:
            super()._accept(reply)
            if kind == b"ssubscribe":
                self._on_message(reply[1], None)

    def _is_requested(self, channel: bytes) -> bool:
        if not self.unsubscribing[channel]:
            return False
        self.unsubscribing[channel] -= 1
        return True


_S = TypeVar("_S", bound=_Socket)


async def _connect(address: Address, new_socket: Callable[[], _S], *, timeout: float) -> _S:
    """Connect and log in. Raises `LinkLost` without a reply, and `ReplyError` if the login is refused."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            if address.path:
                _, socket = await loop.create_unix_connection(new_socket, address.path)
            else:
                _, socket = await loop.create_connection(
                    new_socket, address.host, address.port, ssl=address.tls
                )
            await _log_in(socket, address)
    except OSError as error:  # TimeoutError and LinkLost are OSErrors
        raise LinkLost(f"cannot reach {address}: {error or type(error).__name__}") from error
    return socket


async def _log_in(socket: _Socket, address: Address) -> None:
    try:
        if address.password is not None:
            username = (address.username,) if address.username else ()
            await socket.call(("AUTH", *username, address.password))
        if address.database:
            await socket.call(("SELECT", address.database))
    except BaseException:
        socket.close()
        raise
