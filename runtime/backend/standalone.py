"""Connection to a single Redis server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from breadcrumbs.runtime.backend.address import Address
from breadcrumbs.runtime.backend.connection import (
    LaneChannels,
    Script,
    ScriptCall,
    raise_first_error,
    to_command,
    to_store_error,
)
from breadcrumbs.runtime.backend.identity import StoreIdentity
from breadcrumbs.runtime.backend.link import (
    ChannelHandler,
    Command,
    LinkLost,
    MessageHandler,
    Multiplexer,
    ReplyError,
    SendAll,
    ShardLink,
    subscribe,
)
from breadcrumbs.runtime.errors import StoreReplaced


class StandaloneConnection:
    """A `Connection` to one server, with one shared socket."""

    def __init__(self, address: Address, *, lanes: int) -> None:
        self.address = address
        self._lanes = lanes
        self._identity: StoreIdentity | None = None
        self._link = Multiplexer(address, verify=self._verify)

    async def call(self, lane: int, *command: bytes | str | int | float) -> Any:
        try:
            return await self._link.call(command)
        except (LinkLost, ReplyError) as error:
            raise to_store_error(error) from error

    async def call_all(self, commands: Sequence[tuple[int, Command | ScriptCall]]) -> list[Any]:
        replies = await self._send_all([to_command(command) for _, command in commands])
        # A script call usually fails because the server does not have the script. `run` loads it, and then the other
        # calls of the script are sent together. Only scripts that may run twice are called here.
        loaded: set[Script] = set()
        again: list[int] = []
        for index, (lane, command) in enumerate(commands):
            if isinstance(replies[index], ReplyError) and isinstance(command, ScriptCall):
                if command.script in loaded:
                    again.append(index)
                else:
                    replies[index] = await self.run(lane, command.script, command.keys, command.args)
                    loaded.add(command.script)
        for index, reply in zip(
            again, await self._send_all([to_command(commands[index][1]) for index in again]), strict=True
        ):
            replies[index] = reply
        return raise_first_error(replies)

    async def _send_all(self, commands: list[Command]) -> list[Any]:
        try:
            return await self._link.call_all(commands)
        except (LinkLost, ReplyError) as error:  # a `ReplyError` here comes from the login
            raise to_store_error(error) from error

    async def run(self, lane: int, script: Script, keys: list[bytes], args: list[bytes | str | int]) -> Any:
        try:
            # The same command as `ScriptCall.command`, without the object: every write passes here.
            return await self._link.call((b"EVALSHA", script.sha, len(keys), *keys, *args))
        except (LinkLost, ReplyError) as error:
            if isinstance(error, LinkLost) or error.code != "NOSCRIPT":
                raise to_store_error(error) from error
        # First use, a restarted server or a promoted replica. EVAL also loads the script for the next EVALSHA.
        return await self.call(lane, b"EVAL", script.source, len(keys), *keys, *args)

    def post(self, lane: int, *command: bytes | str | int | float) -> None:
        self._link.post(command)

    def reader_groups(self) -> list[list[int]]:
        return [list(range(self._lanes))]

    def node_lanes(self) -> list[int]:
        return [0]

    def node_of(self, lane: int) -> object:
        return self.address

    async def open_channels(self, lane: int, on_message: ChannelHandler) -> LaneChannels:
        try:
            return StandaloneChannels(await ShardLink.open(self.address, on_message, self._verify))
        except (LinkLost, ReplyError) as error:
            raise to_store_error(error) from error

    async def listen(self, channel: bytes, on_message: MessageHandler) -> None:
        try:
            await subscribe(self.address, channel, on_message, self._verify)
        except (LinkLost, ReplyError) as error:
            raise to_store_error(error) from error

    def protect(self, identity: StoreIdentity) -> None:
        self._identity = identity

    async def verify(self) -> None:
        if self._identity is None:
            return
        try:
            self._identity.check_meta(await self.call(0, *self._identity.read_meta))
        except StoreReplaced:
            self._link.recheck()
            raise

    async def close(self) -> None:
        await self._link.close()

    async def _verify(self, send_all: SendAll) -> None:
        if self._identity is not None:
            (found,) = await send_all([self._identity.read_meta])
            self._identity.check_meta(found)


class StandaloneChannels:
    """Channels of a single server."""

    def __init__(self, link: ShardLink) -> None:
        self.subscribe = link.subscribe
        self.unsubscribe = link.unsubscribe
        self.close = link.close
        self._link = link

    async def wait_lost(self) -> None:
        try:
            await self._link.wait_lost()
        except (LinkLost, ReplyError) as error:
            raise to_store_error(error) from error
