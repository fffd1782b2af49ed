"""One socket shared by many callers, against a real server and against one that misbehaves on purpose."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import hiredis
import pytest

from breadcrumbs.runtime.backend.address import Address, parse_address
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.backend.link import LinkClosed, LinkLost, Multiplexer, ReplyError, SendAll
from breadcrumbs.runtime.errors import StoreReplaced
from breadcrumbs.runtime.telemetry.store_calls import STORE_CALLS
from tests.support.servers import Server

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def linked(address: Address, **options: Any) -> AsyncIterator[Multiplexer]:
    link = Multiplexer(address, **options)
    try:
        yield link
    finally:
        await link.close()


class Scripted:
    """A server whose replies a test controls."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[Any]] = set()
        self.connections = 0

    @property
    def address(self) -> Address:
        assert self._server is not None
        return Address(port=self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._handler(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._serving.discard(task)

    async def __aenter__(self) -> Scripted:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.sleep(0)


async def commands(reader: asyncio.StreamReader) -> AsyncIterator[list[bytes]]:
    parser = hiredis.Reader()
    while data := await reader.read(1 << 16):
        parser.feed(data)
        while (command := parser.gets()) is not False:
            yield command


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async for command in commands(reader):
        writer.write(b"$%d\r\n%s\r\n" % (len(command[-1]), command[-1]))


async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes everything and answers nothing."""
    while await reader.read(1 << 16):
        pass


class TestWithARealServer:
    @pytest.fixture
    async def link(self, standalone_server: Server) -> AsyncIterator[Multiplexer]:
        async with linked(parse_address(standalone_server.url)) as link:
            yield link

    async def test_1000_callers_at_once_each_get_their_own_reply(self, link: Multiplexer) -> None:
        async def ask(number: int) -> bytes:
            reply: bytes = await link.call(("ECHO", f"{number}"))
            return reply

        replies = await asyncio.gather(*(ask(number) for number in range(1000)))
        assert replies == [b"%d" % number for number in range(1000)]

    async def test_callers_at_random_times_each_get_their_own_reply(self, link: Multiplexer) -> None:
        async def chat(caller: int) -> None:
            for turn in range(20):
                if turn % 3:
                    text = f"{caller}/{turn}"
                    assert await link.call((b"ECHO", text)) == text.encode()
                else:
                    batch: list[Any] = [(b"ECHO", f"{caller}/{turn}/{n}") for n in range(3)]
                    assert await link.call_all(batch) == [f"{caller}/{turn}/{n}".encode() for n in range(3)]

        await asyncio.gather(*(chat(caller) for caller in range(100)))

    async def test_errors_are_returned_in_their_positions(self, link: Multiplexer) -> None:
        first, error, last = await link.call_all([("ECHO", "a"), ("NO-SUCH-COMMAND",), ("ECHO", "b")])
        assert (first, last) == (b"a", b"b")
        assert isinstance(error, ReplyError) and error.code == "ERR"
        with pytest.raises(ReplyError, match="unknown command"):
            await link.call(("NO-SUCH-COMMAND",))
        assert await link.call(("ECHO", "c")) == b"c"
        assert await link.call_all([]) == []

    async def test_a_cancelled_caller_does_not_shift_the_replies(self, link: Multiplexer) -> None:
        await link.call(("PING",))
        slow = asyncio.create_task(link.call(("DEBUG", "SLEEP", "0.2")))
        waiting = [asyncio.create_task(link.call(("ECHO", f"{n}"))) for n in range(50)]
        together = asyncio.create_task(link.call_all([("ECHO", "x"), ("ECHO", "y")]))
        await asyncio.sleep(0.05)
        for task in (*waiting[::2], together):
            task.cancel()
        assert await link.call(("ECHO", "after")) == b"after"
        assert await slow == b"OK"
        for number, task in enumerate(waiting):
            if number % 2:
                assert await task == b"%d" % number
            else:
                assert task.cancelled()

    async def test_arguments_of_every_kind_arrive(self, link: Multiplexer) -> None:
        assert await link.call(("ECHO", "é🙂")) == "é🙂".encode()
        assert await link.call((b"ECHO", bytes(range(256)))) == bytes(range(256))
        assert await link.call(("ECHO", 1 << 60)) == b"%d" % (1 << 60)
        assert await link.call(("ECHO", 0.5)) == b"0.5"
        assert await link.call(("ECHO", "")) == b""

    async def test_an_argument_that_cannot_be_encoded_affects_only_its_caller(
        self, link: Multiplexer
    ) -> None:
        bad: Any = ("ECHO", object())
        good = asyncio.create_task(link.call(("ECHO", "good")))
        with pytest.raises(TypeError):
            await link.call(bad)
        assert await good == b"good"
        assert await link.call(("ECHO", "next")) == b"next"

    async def test_replies_of_every_size_arrive(self, link: Multiplexer) -> None:
        huge = bytes(range(256)) * (1 << 17)  # 32 MB
        try:
            assert await link.call(("SET", "huge", huge)) == b"OK"
            got, small, again = await asyncio.gather(
                link.call(("GET", "huge")), link.call(("ECHO", "s")), link.call(("GETRANGE", "huge", 0, 9))
            )
            assert got == huge and small == b"s" and again == huge[:10]
            await link.call(("DEL", "many"))
            await link.call(("RPUSH", "many", *range(50_000)))
            assert len(await link.call(("LRANGE", "many", 0, -1))) == 50_000
        finally:
            await link.call(("DEL", "huge", "many"))

    async def test_a_killed_connection_is_opened_again(self, link: Multiplexer) -> None:
        id = await link.call(("CLIENT", "ID"))
        with pytest.raises(LinkLost):
            await asyncio.gather(
                link.call(("CLIENT", "KILL", "ID", id, "SKIPME", "no")), link.call(("BLPOP", "nothing", 0))
            )
        assert await link.call(("PING",)) == b"PONG"
        assert await link.call(("CLIENT", "ID")) != id

    async def test_a_database_is_selected_also_after_a_reconnect(self, standalone_server: Server) -> None:
        async with linked(parse_address(standalone_server.url + "/3")) as link:
            for _ in range(2):
                assert b" db=3 " in await link.call(("CLIENT", "INFO"))
                await link.call(("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no"))
                with pytest.raises(LinkLost):
                    await link.call(("BLPOP", "nothing", 0))

    async def test_a_unix_socket_works_too(self, embedded_server: EmbeddedServer) -> None:
        async with linked(parse_address(embedded_server.url)) as link:
            assert await link.call(("PING",)) == b"PONG"


class TestLogin:
    async def test_a_password_is_sent_and_a_wrong_one_is_reported(self) -> None:
        with Server(password="right :@/%") as server:
            async with linked(parse_address(server.url)) as link:
                assert await link.call(("PING",)) == b"PONG"
            for password, complaint in (("wrong", "WRONGPASS"), (None, "NOAUTH")):
                async with linked(Address(port=server.port, password=password)) as link:
                    for _ in range(2):
                        with pytest.raises(ReplyError, match=complaint):
                            await link.call(("PING",))
                    batch = link.call_all([("PING",), ("PING",)])
                    if password is not None:
                        with pytest.raises(ReplyError, match=complaint):
                            await batch
                    else:
                        assert {reply.code for reply in await batch} == {complaint}
            async with linked(Address(port=server.port, username="nobody", password="x")) as link:
                results = await asyncio.gather(
                    *(link.call(("PING",)) for _ in range(50)), return_exceptions=True
                )
                assert {type(result) for result in results} == {ReplyError}


class TestWithAScriptedServer:
    async def test_commands_of_one_loop_iteration_are_sent_together(self) -> None:
        chunks: list[bytes] = []

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(1 << 16):
                chunks.append(data)
                writer.write(b"+OK\r\n" * data.count(b"PING"))

        async with Scripted(handler) as server, linked(server.address) as link:
            await link.call(("PING",))
            chunks.clear()
            await asyncio.gather(*(link.call(("PING",)) for _ in range(100)))
            assert len(chunks) == 1

    async def test_replies_in_small_pieces_are_assembled(self) -> None:
        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async for command in commands(reader):
                for byte in b"*2\r\n$%d\r\n%s\r\n:7\r\n" % (len(command[-1]), command[-1]):
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0)

        async with Scripted(handler) as server, linked(server.address) as link:
            replies = await asyncio.gather(*(link.call(("ECHO", f"{n}")) for n in range(5)))
            assert replies == [[b"%d" % n, 7] for n in range(5)]

    async def test_a_lost_link_fails_all_pending_calls_and_the_next_call_reconnects(self) -> None:
        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async for command in commands(reader):
                if command[-1] == b"hang up":
                    return
                if command[-1] != b"silence":
                    writer.write(b"+%s\r\n" % command[-1])

        async with Scripted(handler) as server, linked(server.address) as link:
            assert await link.call(("ECHO", "a")) == b"a"
            results = await asyncio.gather(
                link.call(("ECHO", "b")),
                *(link.call(("ECHO", "silence")) for _ in range(100)),
                link.call_all([("ECHO", "silence"), ("ECHO", "silence")]),
                link.call(("ECHO", "hang up")),
                return_exceptions=True,
            )
            assert results[0] == b"b"
            assert {type(result) for result in results[1:]} == {LinkLost}
            assert server.connections == 1
            assert await link.call(("ECHO", "c")) == b"c"
            assert server.connections == 2

    async def test_nothing_is_sent_twice(self) -> None:
        seen: list[bytes] = []

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async for command in commands(reader):
                seen.append(command[-1])
                return

        async with Scripted(handler) as server, linked(server.address) as link:
            with pytest.raises(LinkLost):
                await link.call(("INCR", "x"))
            await asyncio.sleep(0.05)
            assert seen == [b"x"]

    async def test_a_silent_server_times_out(self) -> None:
        async with Scripted(hold) as server, linked(server.address, reply_timeout=0.2) as link:
            began = time.monotonic()
            results = await asyncio.gather(*(link.call(("PING",)) for _ in range(20)), return_exceptions=True)
            assert {type(result) for result in results} == {LinkLost}
            assert "no reply for 0.2 s" in str(results[0])
            assert 0.15 < time.monotonic() - began < 2
            with pytest.raises(LinkLost):
                await link.call(("PING",))
            assert server.connections == 2

    async def test_a_slow_server_that_replies_does_not_time_out(self) -> None:
        async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async for _ in commands(reader):
                await asyncio.sleep(0.1)
                writer.write(b"+OK\r\n")

        async with Scripted(slowly) as server, linked(server.address, reply_timeout=0.3) as link:
            assert await asyncio.gather(*(link.call(("PING",)) for _ in range(8))) == [b"OK"] * 8
            await asyncio.sleep(0.5)
            assert await link.call(("PING",)) == b"OK"
            assert server.connections == 1

    async def test_without_a_timeout_a_reader_waits(self) -> None:
        async with Scripted(hold) as server, linked(server.address, reply_timeout=None) as link:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await link.call(("XREAD", "BLOCK", 0))

    @pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"+OK\r\n+OK\r\n", b"\x00\x01"])
    async def test_another_protocol_or_an_unexpected_reply_closes_the_link(self, garbage: bytes) -> None:
        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async for _ in commands(reader):
                writer.write(garbage)

        async with Scripted(handler) as server, linked(server.address) as link:
            try:
                assert await link.call(("PING",)) == b"OK"
            except LinkLost:
                pass
            await asyncio.sleep(0.05)
            assert not link.connected
            try:
                await link.call(("PING",))
            except LinkLost:
                pass
            assert server.connections == 2

    async def test_a_server_that_does_not_read_slows_down_callers(self) -> None:
        reading = asyncio.Event()

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reading.wait()
            async for command in commands(reader):
                writer.write(b":%d\r\n" % len(command[-1]))

        block = b"x" * (1 << 20)
        async with Scripted(handler) as server, linked(server.address) as link:
            sent = 0

            async def caller() -> None:
                nonlocal sent
                for _ in range(3):
                    sent += 1
                    assert await link.call(("ECHO", block)) == len(block)

            callers = [asyncio.create_task(caller())]
            for _ in range(63):
                await asyncio.sleep(0.002)
                callers.append(asyncio.create_task(caller()))
            await asyncio.sleep(0.05)
            socket = link._socket
            assert socket is not None and socket.is_congested
            waiting = socket._transport.get_write_buffer_size()  # type: ignore[union-attr]
            assert waiting < 16 << 20, "64 callers want to send 64 MB at once"
            reading.set()
            await asyncio.gather(*callers)
            assert sent == 64 * 3

    async def test_blocked_callers_fail_when_the_link_is_lost(self) -> None:
        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.3)
            writer.transport.abort()

        async with Scripted(handler) as server, linked(server.address) as link:
            callers = []
            for _ in range(40):
                callers.append(asyncio.create_task(link.call(("ECHO", b"x" * (1 << 20)))))
                await asyncio.sleep(0.001)
            results = await asyncio.gather(*callers, return_exceptions=True)
            assert {type(result) for result in results} == {LinkLost}


class TestOpening:
    async def test_a_refused_connection_is_reported_with_the_address(self) -> None:
        async with linked(Address(port=1)) as link:
            with pytest.raises(LinkLost, match=r"cannot reach 127\.0\.0\.1:1"):
                await link.call(("PING",))
        async with linked(Address(path="/no/such/socket")) as link:
            with pytest.raises(LinkLost, match="cannot reach /no/such/socket"):
                await link.call(("PING",))

    async def test_concurrent_callers_share_one_connection(self) -> None:
        async with Scripted(echo) as server, linked(server.address) as link:
            await asyncio.gather(*(link.call(("ECHO", f"{n}")) for n in range(500)))
            assert server.connections == 1

    async def test_callers_of_an_unresponsive_server_time_out_together(self) -> None:
        async with Scripted(hold) as server:
            address = Address(port=server.address.port, password="x")
            async with linked(address, connect_timeout=0.3) as link:
                began = time.monotonic()
                results = await asyncio.gather(
                    *(link.call(("PING",)) for _ in range(200)), return_exceptions=True
                )
                assert {type(result) for result in results} == {LinkLost}
                assert time.monotonic() - began < 2
                assert server.connections == 1

    async def test_a_cancelled_caller_does_not_affect_others(self) -> None:
        async def slow_to_greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async for command in commands(reader):
                await asyncio.sleep(0.2 if command[0] == b"AUTH" else 0)
                writer.write(b"+OK\r\n")

        async with (
            Scripted(slow_to_greet) as server,
            linked(Address(port=server.address.port, password="x")) as link,
        ):
            first, second = (asyncio.create_task(link.call(("PING",))) for _ in range(2))
            await asyncio.sleep(0.05)
            first.cancel()
            assert await second == b"OK"
            assert first.cancelled()
            assert server.connections == 1

    async def test_a_closed_link_fails_pending_calls_and_stays_closed(self) -> None:
        async with Scripted(hold) as server, linked(server.address) as link:
            pending = [asyncio.create_task(link.call(("PING",))) for _ in range(10)]
            await asyncio.sleep(0.05)
            await link.close()
            results = await asyncio.gather(*pending, return_exceptions=True)
            assert {type(result) for result in results} == {LinkClosed}
            with pytest.raises(LinkLost, match="closed"):
                await link.call(("PING",))
            assert server.connections == 1

    async def test_closing_during_connect_leaves_no_connection(self) -> None:
        gone = asyncio.Event()

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await hold(reader, writer)
            gone.set()

        async with Scripted(handler) as server:
            link = Multiplexer(Address(port=server.address.port, password="x"))
            pending = asyncio.create_task(link.call(("PING",)))
            await asyncio.sleep(0.05)
            await link.close()
            with pytest.raises(LinkLost, match="closed"):
                await pending
            async with asyncio.timeout(2):
                await gone.wait()


# Verification


class _Recorder:
    """Handler that records the commands of all connections, and answers GET with a value that the test sets."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.value = b"mine"

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for command in commands(reader):
            self.seen.append(command[0])
            if command[0] == b"QUIT":
                return
            reply = self.value if command[0] == b"GET" else b"done"
            writer.write(b"$%d\r\n%s\r\n" % (len(reply), reply))


async def _verify_mine(send_all: SendAll) -> None:
    (found,) = await send_all([(b"GET", b"identity")])
    if found != b"mine":
        raise StoreReplaced("another store")


async def test_no_command_is_sent_before_a_new_connection_is_verified() -> None:
    server = _Recorder()
    async with Scripted(server) as scripted, linked(scripted.address, verify=_verify_mine) as link:
        await link.call((b"SET", b"a", b"1"))
        with pytest.raises(LinkLost):
            await link.call((b"QUIT",))
        server.seen.clear()
        server.value = b"other"
        results = await asyncio.gather(
            *(link.call((b"SET", b"b", b"1")) for _ in range(20)),
            *(link.call_all([(b"SET", b"b", b"1"), (b"SET", b"b", b"2")]) for _ in range(20)),
            return_exceptions=True,
        )
        link.post((b"SET", b"c", b"1"))
        assert {type(result) for result in results} == {StoreReplaced}
        assert set(server.seen) == {b"GET"}
        server.value = b"mine"
        assert await link.call((b"SET", b"d", b"1")) == b"done"
        assert server.seen[-2:] == [b"GET", b"SET"]
        assert scripted.connections == 2  # a refused connection is kept


async def test_a_recheck_verifies_the_open_connection_before_the_next_command() -> None:
    server = _Recorder()
    async with Scripted(server) as scripted, linked(scripted.address, verify=_verify_mine) as link:
        await link.call((b"SET",))
        await link.call((b"SET",))
        link.recheck()
        await asyncio.gather(*(link.call((b"SET",)) for _ in range(3)))
        assert server.seen == [b"GET", b"SET", b"SET", b"GET", b"SET", b"SET", b"SET"]
        server.value = b"other"
        link.recheck()
        assert await link.probe([(b"TIME",)]) == [b"done"]
        with pytest.raises(StoreReplaced):
            await link.call((b"SET",))
        assert scripted.connections == 1


async def test_a_recheck_during_a_verification_starts_another_one() -> None:
    server, verified = _Recorder(), 0

    async def verify(send_all: SendAll) -> None:
        nonlocal verified
        verified += 1
        await _verify_mine(send_all)
        if verified == 1:
            link.recheck()
            server.value = b"other"

    async with Scripted(server) as scripted, linked(scripted.address, verify=verify) as link:
        with pytest.raises(StoreReplaced):
            await link.call((b"SET",))
        assert server.seen == [b"GET", b"GET"] and scripted.connections == 1


async def test_a_caller_that_waits_to_send_is_verified_again_after_a_recheck() -> None:
    server, reading = _Recorder(), asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reading.wait()
        await server(reader, writer)

    async def verify(send_all: SendAll) -> None:
        if reading.is_set():
            await _verify_mine(send_all)

    async with Scripted(handler) as scripted, linked(scripted.address, verify=verify) as link:
        sent = []
        for _ in range(40):
            sent.append(asyncio.create_task(link.call((b"ECHO", b"x" * (1 << 20)))))
            await asyncio.sleep(0.001)
        waiting = [asyncio.create_task(link.call((b"SET", b"a", b"1"))) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert link._socket is not None and link._socket.is_congested
        link.recheck()
        server.value = b"other"
        reading.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(result) for result in results} == {StoreReplaced}
        assert b"SET" not in server.seen
        await asyncio.gather(*sent, return_exceptions=True)


async def test_a_recheck_right_after_a_verification_is_not_skipped() -> None:
    server = _Recorder()
    async with Scripted(server) as scripted, linked(scripted.address, verify=_verify_mine) as link:
        calling = asyncio.create_task(link.call((b"SET",)))
        while link._socket is None:  # noqa: ASYNC110 - stops in the iteration that ends the verification
            await asyncio.sleep(0)
        server.value = b"other"
        link.recheck()
        with pytest.raises(StoreReplaced):
            await calling
        assert b"SET" not in server.seen


# Durations


async def test_the_commands_of_a_write_are_recorded_together_when_the_last_reply_has_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded: list[tuple[float, int]] = []
    monkeypatch.setattr(STORE_CALLS, "record", lambda seconds, commands: recorded.append((seconds, commands)))

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for _ in commands(reader):
            await asyncio.sleep(0.02)
            writer.write(b"+OK\r\n")

    async with Scripted(slow) as scripted, linked(scripted.address) as link:
        await asyncio.gather(*(link.call((b"SET", b"a", b"1")) for _ in range(3)))
        await link.call((b"GET", b"a"))
        assert [number for _, number in recorded] == [3, 1]
        assert recorded[0][0] >= 0.06 and recorded[1][0] >= 0.02
