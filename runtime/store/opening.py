"""Opening a store: connect, and read or write its metadata.

The number of lanes decides where everything lies. The first process writes it into the store, before any breadcrumb is
read or written, together with the format and the secret that signs tokens and cursors. Later processes use those.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from breadcrumbs.runtime.backend.address import parse_address
from breadcrumbs.runtime.backend.cluster import ClusterConnection
from breadcrumbs.runtime.backend.connection import Connection
from breadcrumbs.runtime.backend.standalone import StandaloneConnection
from breadcrumbs.runtime.breadcrumb.ids import MAX_LANES
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.store.keys import Keys

DEFAULT_LANES: Final = 16
FORMAT: Final = "1"

Address: TypeAlias = str | Callable[[int], Connection]
"""Where a store is: a URL, or a function that makes a connection for a number of lanes."""


class Opened(NamedTuple):
    connection: Connection
    keys: Keys
    secret: bytes


async def open_connection(address: Address, namespace: str, lanes: int | None) -> Opened:
    """Connect to a store. `lanes` None: the number that the store has, or the default in a new one."""
    if lanes is not None and not 1 <= lanes <= MAX_LANES:
        raise StartupError(f"the number of lanes must be from 1 to {MAX_LANES}")
    wanted = lanes or DEFAULT_LANES
    connection = await _connect(address, namespace, wanted)
    try:
        keys = Keys(namespace, wanted)
        meta = await _load_meta(connection, keys)
        if meta[b"format"].decode() != FORMAT:
            raise StartupError(
                f"this store has format {meta[b'format'].decode()}, this version of Breadcrumbs writes {FORMAT}"
            )
        stored = int(meta[b"lanes"])
        if stored != wanted:
            if lanes is not None:
                raise StartupError(
                    f"this store has {stored} lanes, but {lanes} were asked for: leave the setting out, or "
                    "export, start with an empty store and import"
                )
            await connection.close()
            connection = await _connect(address, namespace, stored)
            keys = Keys(namespace, stored)
        return Opened(connection, keys, bytes.fromhex(meta[b"secret"].decode()))
    except BaseException:
        await connection.close()
        raise


async def store_exists(address: Address, namespace: str) -> bool:
    """Check whether a server holds a store. Opening it instead would create one."""
    connection = await _connect(address, namespace, 1)
    try:
        return bool(await connection.call(0, b"EXISTS", Keys(namespace, 1).meta))
    finally:
        await connection.close()


async def _load_meta(connection: Connection, keys: Keys) -> dict[bytes, bytes]:
    """Return the store's metadata. If several processes open a new store at once, the first one decides."""
    meta = await _read_meta(connection, keys)
    if len(meta) < 3:  # a server that is full cannot be written to, but its store can be opened
        for field, value in (
            ("lanes", keys.lanes),
            ("format", FORMAT),
            ("secret", secrets.token_hex(32)),
        ):
            await connection.call(0, b"HSETNX", keys.meta, field, value)
        meta = await _read_meta(connection, keys)
    return meta


async def _read_meta(connection: Connection, keys: Keys) -> dict[bytes, bytes]:
    pairs = await connection.call(0, b"HGETALL", keys.meta)
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


async def _connect(address: Address, namespace: str, lanes: int) -> Connection:
    if callable(address):
        return address(lanes)
    if "+cluster://" in address:
        keys = Keys(namespace, lanes)
        return await ClusterConnection.open(address, [keys.prefix(lane) for lane in range(lanes)])
    return StandaloneConnection(parse_address(address), lanes=lanes)
