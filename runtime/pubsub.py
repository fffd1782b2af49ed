"""Pub/Sub, for what may get lost: pieces of an answer while it is being made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import hiredis

from breadcrumbs.runtime.multiplexer import Address, LinkLost, ReplyError

SILENCE = 10.0
"""After so many seconds without a word the server is asked whether it is there; after as many more it is not."""


async def listen(address: Address, channel: bytes) -> AsyncGenerator[bytes, None]:
    """Everything published on a channel from now on; ends with `LinkLost`."""
    try:
        async with asyncio.timeout(SILENCE):
            if address.path:
                reader, writer = await asyncio.open_unix_connection(address.path)
            else:
                reader, writer = await asyncio.open_connection(address.host, address.port, ssl=address.tls)
    except OSError as error:  # TimeoutError is one
        raise LinkLost(f"cannot reach {address}: {error or type(error).__name__}") from error
    parser = hiredis.Reader(protocolError=LinkLost, replyError=ReplyError)
    try:
        if address.password is not None:
            name = (address.username,) if address.username else ()
            writer.write(_pack("AUTH", *name, address.password))
        writer.write(_pack(b"SUBSCRIBE", channel))
        asked = False
        while True:
            message = parser.gets()
            if message is False:
                try:
                    async with asyncio.timeout(SILENCE):
                        data = await reader.read(65536)
                except TimeoutError:
                    # A quiet channel and a server that vanished without a word look the same from here.
                    if asked:
                        raise LinkLost(f"the server said nothing for {2 * SILENCE:g} s") from None
                    writer.write(_pack(b"PING"))
                    asked = True
                    continue
                except OSError as error:
                    raise LinkLost(str(error)) from error
                if not data:
                    raise LinkLost("the connection to the server broke")
                parser.feed(data)
                asked = False
            elif isinstance(message, ReplyError):
                raise message
            elif isinstance(message, list) and message[0] == b"message":
                yield message[2]
    finally:
        writer.close()


def _pack(*command: bytes | str) -> bytes:
    packed: bytes = hiredis.pack_command(cast(Any, command))  # typed there as a tuple of one
    return packed
