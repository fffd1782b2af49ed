"""Connection to a single Redis server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from breadcrumbs.runtime.backend.address import Address
from breadcrumbs.runtime.backend.connection import (
    BLOCKING_TIMEOUT,
    BlockingLink,
    Script,
    ScriptCall,
    raise_first_error,
    to_command,
    to_store_error,
)
from breadcrumbs.runtime.backend.identity import StoreIdentity
from breadcrumbs.runtime.backend.link import (
    Command,
    LinkLost,
    MessageHandler,
    Multiplexer,
    ReplyError,
    SendAll,
    Verify,
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
        try:
            replies = await self._link.call_all([to_command(command) for _, command in commands])
        except (LinkLost, ReplyError) as error:  # a `ReplyError` here comes from the login
            raise to_store_error(error) from error
        # A script call usually fails because the server does not have the script. `run` loads it. Only read-only
        # scripts are called here, so a second run is safe.
        for index, (lane, command) in enumerate(commands):
            if isinstance(replies[index], ReplyError) and isinstance(command, ScriptCall):
                replies[index] = await self.run(lane, command.script, command.keys, command.args)
        return raise_first_error(replies)

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

    async def blocking(self, lane: int) -> BlockingLink:
        return StandaloneBlockingLink(self.address, verify=self._verify)

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


class StandaloneBlockingLink:
    """A `BlockingLink` to one server."""

    def __init__(
        self, address: Address, *, reply_timeout: float = BLOCKING_TIMEOUT, verify: Verify | None = None
    ) -> None:
        self._link = Multiplexer(address, reply_timeout=reply_timeout, blocking=True, verify=verify)

    async def call(self, command: Command) -> Any:
        try:
            return await self._link.call(command)
        except (LinkLost, ReplyError) as error:
            raise to_store_error(error) from error

    async def close(self) -> None:
        await self._link.close()
