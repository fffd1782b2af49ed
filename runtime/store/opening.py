"""Opening of a store: connect, and read or write its metadata.

The number of lanes determines the keys of all data. The first process writes it into the store before it reads or
writes any breadcrumb, together with the format, the secret that signs tokens and cursors, and the identity of the
store. Later processes use the stored values, and check the identity on each new connection.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from breadcrumbs.runtime.backend.address import parse_address
from breadcrumbs.runtime.backend.cluster import ClusterConnection
from breadcrumbs.runtime.backend.connection import Connection, Script
from breadcrumbs.runtime.backend.identity import IDENTITY_FIELD, StoreIdentity, describe_loss
from breadcrumbs.runtime.backend.standalone import StandaloneConnection
from breadcrumbs.runtime.breadcrumb.ids import MAX_LANES
from breadcrumbs.runtime.errors import StartupError, StoreError, StoreFull, StoreReplaced
from breadcrumbs.runtime.store.keys import Keys
from breadcrumbs.runtime.store.options import StoreOptions

DEFAULT_LANES: Final = 64
FORMAT: Final = "2"
"""Format of new stores."""
FORMATS: Final = ("1", FORMAT)
"""Formats that this version reads and writes: see formats.py."""

_FIRST_FIELDS: Final = frozenset((b"lanes", b"format", b"secret"))
"""Fields that a store of any version has."""
_FIELDS: Final = _FIRST_FIELDS | {IDENTITY_FIELD}
_IDENTIFY: Final = Script("identify")

Address: TypeAlias = str | Callable[[int], Connection]
"""A URL, or a function that creates a connection for a number of lanes."""


class Opened(NamedTuple):
    """Connection, keys, secret and identity of an opened store."""

    connection: Connection
    keys: Keys
    secret: bytes
    format: str
    identity: str | None
    """None: the store is of an earlier version, and the server refuses to write now."""


async def open_connection(
    address: Address, namespace: str, lanes: int | None, options: StoreOptions
) -> Opened:
    """Connect to a store. `lanes` None: use the stored number, or the default for a new store.

    Raise `StoreReplaced` and write nothing if the store does not have the expected identity.
    """
    if lanes is not None and not 1 <= lanes <= MAX_LANES:
        raise StartupError(f"the number of lanes must be from 1 to {MAX_LANES}")
    wanted = lanes or DEFAULT_LANES
    connection = await _connect(address, namespace, wanted)
    try:
        keys = Keys(namespace, wanted)
        meta = await _load_meta(connection, keys, options.expected_identity)
        format = meta[b"format"].decode()
        if format not in FORMATS:
            raise StartupError(
                f"this store has format {format}, but this version of Breadcrumbs supports only "
                f"the formats {' and '.join(FORMATS)}: use a version that supports the store"
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
        identity = await _protect(connection, keys, meta, accept_losses=options.accept_losses)
        return Opened(connection, keys, bytes.fromhex(meta[b"secret"].decode()), format, identity)
    except BaseException:
        await connection.close()
        raise


async def read_identity(address: Address, namespace: str) -> str | None:
    """Return the identity of the store on a server. "": the store has none yet. None: there is no store."""
    connection = await _connect(address, namespace, 1)
    try:
        meta = await _read_meta(connection, Keys(namespace, 1))
        return meta.get(IDENTITY_FIELD, b"").decode() if meta else None
    finally:
        await connection.close()


async def _load_meta(connection: Connection, keys: Keys, expected: str | None) -> dict[bytes, bytes]:
    """Return the store's metadata. If several processes open a new store at once, the first one decides."""
    meta = await _read_meta(connection, keys)
    if expected is not None:
        found = meta.get(IDENTITY_FIELD)
        if found != expected.encode():
            raise StoreReplaced(describe_loss(expected, None if found is None else found.decode()))
    if meta.keys() >= _FIELDS:
        return meta
    first: tuple[str | int, ...] = ("lanes", keys.lanes, "format", FORMAT, "secret", secrets.token_hex(32))
    if not meta:
        first += ("converted", FORMAT)
    try:
        reply = await connection.run(
            0, _IDENTIFY, [keys.meta], [*first, IDENTITY_FIELD, secrets.token_hex(8)]
        )
    except StoreError:
        if meta.keys() >= _FIRST_FIELDS:
            return meta  # an existing store can be opened on a server that is full or read-only
        raise
    return _decode_meta(reply)


async def _protect(
    connection: Connection, keys: Keys, meta: dict[bytes, bytes], *, accept_losses: bool
) -> str | None:
    """Protect the identity of the store on a connection, and return it."""
    if IDENTITY_FIELD not in meta:
        return None
    identity = meta[IDENTITY_FIELD].decode()
    if isinstance(connection, ClusterConnection) and (b"marked" not in meta or accept_losses):
        try:
            await _mark_lanes(connection, keys, identity, overwrite=accept_losses)
        except StoreFull:
            return None
    markers = [keys.identity(lane) for lane in range(keys.lanes)]
    connection.protect(StoreIdentity(identity, keys.meta, markers))
    # The link can have been opened again since the metadata was read.
    await connection.verify()
    return identity


async def _mark_lanes(connection: Connection, keys: Keys, identity: str, *, overwrite: bool) -> None:
    """Write the identity into each lane. The metadata records it last, so an interrupted process is no loss."""
    condition = () if overwrite else (b"NX",)
    await connection.call_all(
        [(lane, (b"SET", keys.identity(lane), identity, *condition)) for lane in range(keys.lanes)]
    )
    await connection.call(0, b"HSET", keys.meta, "marked", 1)


async def _read_meta(connection: Connection, keys: Keys) -> dict[bytes, bytes]:
    return _decode_meta(await connection.call(0, b"HGETALL", keys.meta))


def _decode_meta(pairs: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


async def _connect(address: Address, namespace: str, lanes: int) -> Connection:
    if callable(address):
        return address(lanes)
    if "+cluster://" in address:
        keys = Keys(namespace, lanes)
        return await ClusterConnection.open(address, [keys.prefix(lane) for lane in range(lanes)])
    return StandaloneConnection(parse_address(address), lanes=lanes)
