"""Records that workers publish about the config they use: one per worker, in lane 0.

A process without context builders reads them to show which config is in force. A record expires soon after its worker
has stopped to renew it.
"""

from __future__ import annotations

from typing import Final

from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_records import read_workers

MAX_RECORD_BYTES: Final = 256 << 10
"""Maximum size of a record."""
RECORD_SECONDS: Final = 30
"""Time after which a record expires if it is not renewed."""

_MAX_READ: Final = 32
_LANE: Final = 0


async def publish_config(store: Store, worker: str, record: bytes) -> None:
    """Store the record of a worker, or renew it. The caller keeps it within `MAX_RECORD_BYTES`."""
    key = store.keys.published_config(worker)
    await store.connection.call(_LANE, b"SET", key, record, b"EX", RECORD_SECONDS)


async def withdraw_config(store: Store, worker: str) -> None:
    """Remove the record of a worker that stops."""
    await store.connection.call(_LANE, b"DEL", store.keys.published_config(worker))


async def read_published_configs(store: Store, kind: str) -> list[bytes]:
    """Return the records of the living workers of a kind, sorted by the name of the worker. At most 32 are read."""
    now = store.now()
    alive = [worker.name for worker in await read_workers(store, [kind]) if worker.until > now][:_MAX_READ]
    if not alive:
        return []
    keys = [store.keys.published_config(name) for name in alive]
    records = await store.connection.call(_LANE, b"MGET", *keys)
    return [record for record in records if record is not None]
