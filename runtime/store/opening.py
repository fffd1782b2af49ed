"""Opening of a store: connect, and read or write its metadata.

The number of lanes determines the keys of all data. The first process writes it into the store before it reads or
writes any breadcrumb, together with the format and the secret that signs tokens and cursors. Later processes use the
stored values.
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
"""A URL, or a function that creates a connection for a number of lanes."""


class Opened(NamedTuple):
    """Connection, keys and secret of an opened store."""

    connection: Connection
    keys: Keys
    secret: bytes


async def open_connection(address: Address, namespace: str, lanes: int | None) -> Opened:
    """Connect to a store. `lanes` None: use the stored number, or the default for a new store."""
    if lanes is not None and not 1 <= lanes <= MAX_LANES:
        raise StartupError(f"the number of lanes must be from 1 to {MAX_LANES}")
    wanted = lanes or DEFAULT_LANES
    connection = await _connect(address, namespace, wanted)
    try:
        keys = Keys(namespace, wanted)
        meta = await _load_meta(connection, keys)
        if meta[b"format"].decode() != FORMAT:
            raise StartupError(
                f"this store has format {meta[b'format'].decode()}, but this version of Breadcrumbs supports only "
                f"format {FORMAT}: use a version that supports the store"
            )
        stored = int(meta[b"lanes"])
        if stored != wanted:
            if lanes is not None:
                raise StartupError(
                    f"this store has {stored} lanes, but the setting is {lanes}: remove the setting, or "
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
    """Return whether a server contains a store, without creating one."""
    connection = await _connect(address, namespace, 1)
    try:
        return bool(await connection.call(0, b"EXISTS", Keys(namespace, 1).meta))
    finally:
        await connection.close()


async def _load_meta(connection: Connection, keys: Keys) -> dict[bytes, bytes]:
    """Return the store's metadata. If several processes open a new store at once, the first one decides."""
    meta = await _read_meta(connection, keys)
    if len(meta) < 3:  # only a new store is written to: an existing one can be opened on a full server
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
