"""Data format of a store. Format 2 leaves out index entries of tags (see tag_index.py), which format 1 needs.

This version reads and writes both formats. Processes of earlier versions do not open a store of format 2, and would not
find everything in it if they have opened it before. So a store keeps its format until `crumb doctor --fix` raises it. A
process that starts the embedded server raises it at once, because no other process uses the store yet.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.store.opening import FORMAT
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_reports import list_workers

_CONVERTED: Final = "converted"


async def read_format(store: Store) -> str:
    """Return the present format of a store. Another process can have raised it since this one opened the store."""
    stored = await store.connection.call(0, b"HGET", store.keys.meta, "format")
    return "" if stored is None else str(stored.decode())


async def adopt_format(store: Store) -> bool:
    """Write in the present format of the store from now on. Return whether it is the newest one."""
    if await read_format(store) != FORMAT:
        return False
    store.use_format(FORMAT)
    return True


async def old_workers(store: Store) -> list[str]:
    """Return the names of the living workers that cannot read the newest format."""
    return [
        worker.name
        for worker in await list_workers(store)
        if not worker.ended and (worker.report is None or worker.report.format < int(FORMAT))
    ]


async def raise_format(store: Store) -> None:
    """Raise the store to the newest format. No process of an earlier version may use it any more."""
    await store.connection.call(0, b"HDEL", store.keys.meta, _CONVERTED)
    await store.connection.call(0, b"HSET", store.keys.meta, "format", FORMAT)
    store.use_format(FORMAT)


async def raise_if_unused(store: Store) -> None:
    """Raise a store that no other process uses, unless workers of an earlier version wait for its server.

    An error is ignored: the server can be full or read-only, and the old format works as well.
    """
    with suppress(StoreError):
        if store.format != FORMAT and not await old_workers(store):
            await raise_format(store)


async def is_converted(store: Store) -> bool:
    """Return whether the data that earlier formats needed is removed. Always the case for a new store."""
    stored = await store.connection.call(0, b"HGET", store.keys.meta, _CONVERTED)
    return bool(stored == FORMAT.encode())


async def mark_converted(store: Store) -> None:
    await store.connection.call(0, b"HSET", store.keys.meta, _CONVERTED, FORMAT)
