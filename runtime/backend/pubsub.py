"""Pub/Sub, for what may get lost: pieces of an answer while it is being made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import hiredis

from breadcrumbs.runtime.backend.link import Address, LinkLost, ReplyError

SILENCE = 10.0
"""After so many seconds without a word the server is asked whether it is there; after as many more it is not."""

Heard = Callable[[bytes], None]


async def listen(address: Address, channel: bytes, heard: Heard) -> None:
    """Call `heard` with everything published on a channel from now on. Ends with `LinkLost`.

    At once, not in the next turn of the loop: the event of an answer follows right behind its last piece, on
    another link.
    """
    listener = _Listener(heard)
    try:
        await _connect(address, listener)
        if address.password is not None:
            name = (address.username,) if address.username else ()
            listener.say("AUTH", *name, address.password)
        listener.say(b"SUBSCRIBE", channel)
        asked = False
        while True:
            words = listener.words
            try:
                async with asyncio.timeout(SILENCE):
                    await asyncio.shield(listener.ended)
            except TimeoutError:
                # A quiet channel and a server that vanished without a word look the same from here.
                if listener.words != words:
                    asked = False
                elif asked:
                    raise LinkLost(f"the server said nothing for {2 * SILENCE:g} s") from None
                else:
                    listener.say(b"PING")
                    asked = True
    finally:
        listener.close()


async def _connect(address: Address, listener: _Listener) -> None:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(SILENCE):
            if address.path:
                await loop.create_unix_connection(lambda: listener, address.path)
            else:
                await loop.create_connection(lambda: listener, address.host, address.port, ssl=address.tls)
    except OSError as error:  # TimeoutError is one
        raise LinkLost(f"cannot reach {address}: {error or type(error).__name__}") from error


class _Listener(asyncio.Protocol):
    def __init__(self, heard: Heard) -> None:
        self.words = 0
        """How often the server has said anything."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with why there is nothing more to hear."""
        self._heard = heard
        self._parser = hiredis.Reader(protocolError=LinkLost, replyError=ReplyError)
        self._transport: asyncio.Transport | None = None

    def say(self, *command: bytes | str) -> None:
        if self._transport is not None:
            self._transport.write(hiredis.pack_command(cast(Any, command)))  # typed there as a tuple of one

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if not self.ended.cancel() and not self.ended.cancelled():
            self.ended.exception()  # nobody is waiting for it any more

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        self.words += 1
        self._parser.feed(data)
        try:
            while (message := self._parser.gets()) is not False:
                if isinstance(message, ReplyError):
                    self._end(message)
                elif isinstance(message, list) and message[0] == b"message":
                    self._heard(message[2])
        except LinkLost as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(LinkLost(f"the connection to the server broke{f': {exc}' if exc else ''}"))

    def _end(self, why: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(why)
