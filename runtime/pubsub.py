"""Pub/Sub, for what may get lost: pieces of an answer while it is being made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import hiredis

from breadcrumbs.runtime.multiplexer import Address, LinkLost, ReplyError


async def listen(address: Address, channel: bytes) -> AsyncIterator[bytes]:
    """Everything published on a channel from now on; ends with `LinkLost`."""
    try:
        if address.path:
            reader, writer = await asyncio.open_unix_connection(address.path)
        else:
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=address.tls)
    except OSError as error:
        raise LinkLost(f"cannot reach {address}: {error}") from error
    parser = hiredis.Reader(protocolError=LinkLost, replyError=ReplyError)
    try:
        if address.password is not None:
            name = (address.username,) if address.username else ()
            writer.write(_pack("AUTH", *name, address.password))
        writer.write(_pack(b"SUBSCRIBE", channel))
        while True:
            message = parser.gets()
            if message is False:
                try:
                    data = await reader.read(65536)
                except OSError as error:
                    raise LinkLost(str(error)) from error
                if not data:
                    raise LinkLost("the connection to the server broke")
                parser.feed(data)
            elif isinstance(message, ReplyError):
                raise message
            elif isinstance(message, list) and message[0] == b"message":
                yield message[2]
    finally:
        writer.close()


def _pack(*command: bytes | str) -> bytes:
    packed: bytes = hiredis.pack_command(cast(Any, command))  # typed there as a tuple of one
    return packed
