"""Information about all servers behind a connection. Too slow for the path of a request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from breadcrumbs.runtime.backend.connection import Connection

_SCAN_COUNT: Final = 1_000


async def server_info(connection: Connection, lane: int) -> dict[str, str]:
    """Return the INFO of the server that serves a lane (see `Connection.node_lanes`)."""
    raw: bytes = await connection.call(lane, b"INFO")
    pairs = (line.partition(":") for line in raw.decode(errors="replace").splitlines() if ":" in line)
    return {name: value for name, _, value in pairs}


async def scan_keys(
    connection: Connection, pattern: bytes, *, max_keys: int | None = None
) -> AsyncIterator[bytes]:
    """Yield the keys on all servers that match a glob pattern.

    The keys are unordered. Each one is yielded at least once. Keys that are written during the scan can be missing.
    `max_keys` limits the number of keys scanned per server.
    """
    async for keys in scan_key_batches(connection, pattern, max_keys=max_keys):
        for key in keys:
            yield key


async def scan_key_batches(
    connection: Connection, pattern: bytes, *, count: int = _SCAN_COUNT, max_keys: int | None = None
) -> AsyncIterator[list[bytes]]:
    """Like `scan_keys`, but yield the keys in the batches of the server. `count`: keys that one command scans."""
    for lane in connection.node_lanes():
        cursor, scanned = b"0", 0
        while True:
            cursor, keys = await connection.call(lane, b"SCAN", cursor, b"MATCH", pattern, b"COUNT", count)
            yield keys
            scanned += count
            if cursor == b"0" or (max_keys is not None and scanned >= max_keys):
                break
