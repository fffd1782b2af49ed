"""A connection to fakeredis, for tests that need a store and no server. Every one has a server of its own.

fakeredis is not the real thing (see the store's contract, which runs on real ones too): nothing that depends
on persistence, memory limits, clusters or timing belongs on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from hashlib import sha1
from typing import Any

from fakeredis import FakeAsyncRedis, FakeServer
from redis.exceptions import ConnectionError, NoScriptError, ResponseError

from breadcrumbs.runtime.backend.connection import Script, ScriptCall, to_store_error
from breadcrumbs.runtime.backend.identity import StoreIdentity
from breadcrumbs.runtime.backend.link import ChannelHandler, Command, LinkLost, ReplyError


class FakeConnection:
    """A `Connection`; give it the server of another one to share its data."""

    def __init__(self, lanes: int, server: FakeServer | None = None) -> None:
        self.server = server or FakeServer()
        self._lanes = lanes
        self._client = _client(self.server)
        self._posted: set[asyncio.Future[Any]] = set()
        self._identity: StoreIdentity | None = None

    async def call(self, lane: int, *command: bytes | str | int | float) -> Any:
        try:
            return await self._client.execute_command(*command)
        except ConnectionError as error:
            raise to_store_error(LinkLost(str(error))) from error
        except ResponseError as error:
            raise to_store_error(_reply_error(error)) from error

    async def call_all(self, commands: Sequence[tuple[int, Command | ScriptCall]]) -> list[Any]:
        return [
            await self.run(lane, command.script, command.keys, command.args)
            if isinstance(command, ScriptCall)
            else await self.call(lane, *command)
            for lane, command in commands
        ]

    async def run(self, lane: int, script: Script, keys: list[bytes], args: list[bytes | str | int]) -> Any:
        source = _without_shebang(script.source)
        try:
            return await self._client.execute_command("EVALSHA", _sha(source), len(keys), *keys, *args)
        except NoScriptError:
            return await self.call(lane, b"EVAL", source, len(keys), *keys, *args)
        except ConnectionError as error:
            raise to_store_error(LinkLost(str(error))) from error
        except ResponseError as error:
            raise to_store_error(_reply_error(error)) from error

    def post(self, lane: int, *command: bytes | str | int | float) -> None:
        if command[0] == b"EVAL" and isinstance(command[1], bytes):
            command = (command[0], _without_shebang(command[1]), *command[2:])
        posted = asyncio.ensure_future(self._client.execute_command(*command))
        self._posted.add(posted)
        posted.add_done_callback(self._posted.discard)

    def reader_groups(self) -> list[list[int]]:
        return [list(range(self._lanes))]

    def node_lanes(self) -> list[int]:
        return [0]

    def node_of(self, lane: int) -> object:
        return 0

    async def open_channels(self, lane: int, on_message: ChannelHandler) -> FakeChannels:
        return FakeChannels(self.server, on_message)

    async def listen(self, channel: bytes, on_message: Callable[[bytes], None]) -> None:
        async with _client(self.server).pubsub() as channels:
            await channels.subscribe(channel)
            async for message in channels.listen():
                if message["type"] == "message":
                    on_message(message["data"])

    def protect(self, identity: StoreIdentity) -> None:
        self._identity = identity

    async def verify(self) -> None:
        if self._identity is not None:
            self._identity.check_meta(await self.call(0, *self._identity.read_meta))

    async def close(self) -> None:
        await asyncio.gather(*self._posted, return_exceptions=True)
        await self._client.aclose()


class FakeChannels:
    """Subscriptions to sharded channels, with a client of their own."""

    def __init__(self, server: FakeServer, on_message: ChannelHandler) -> None:
        self._channels = _client(server).pubsub()
        self._on_message = on_message
        self._changes: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    def subscribe(self, channel: bytes) -> None:
        self._changes.put_nowait(("ssubscribe", channel))

    def unsubscribe(self, channel: bytes) -> None:
        self._changes.put_nowait(("sunsubscribe", channel))

    async def wait_lost(self) -> None:
        async with self._channels as channels:
            while True:
                while not self._changes.empty() or not channels.subscribed:
                    change, channel = await self._changes.get()
                    await getattr(channels, change)(channel)
                message = await channels.get_message(timeout=0.01)
                if message is not None and message["type"] in ("ssubscribe", "smessage"):
                    body = None if message["type"] == "ssubscribe" else message["data"]
                    self._on_message(message["channel"], body)

    def close(self) -> None:
        pass


def _client(server: FakeServer) -> Any:
    client = FakeAsyncRedis(server=server, protocol=2, max_connections=100_000)
    # redis-py turns replies into dicts, sets and pairs; the store reads them as they come over the wire.
    client.response_callbacks.clear()
    return client


def _without_shebang(source: bytes) -> bytes:
    """fakeredis takes `#!lua` for a syntax error."""
    first, _, rest = source.partition(b"\n")
    return rest if first.startswith(b"#!") else source


def _sha(source: bytes) -> str:
    return sha1(source, usedforsecurity=False).hexdigest()


def _reply_error(error: ResponseError) -> ReplyError:
    # redis-py removes the code of known errors from the text.
    code = getattr(error, "status_code", None)
    return ReplyError(f"{code} {error}" if code else str(error))
