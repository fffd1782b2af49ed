"""Records of workers in lane 0: their kinds, and the workers that are alive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from breadcrumbs.runtime.store.store import Store

_MAX_WORKERS: Final = 1_000  # of each kind


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker, with the time until which it counts as alive."""

    kind: str
    name: str
    until: int
    """Time in microseconds. The next heartbeat is due long before."""


async def read_worker_kinds(store: Store) -> list[str]:
    """Return the kinds of workers that ever ran on the store, sorted."""
    kinds = await store.connection.call(0, b"SMEMBERS", store.keys.worker_kinds())
    return sorted(kind.decode() for kind in kinds)


async def read_workers(store: Store, kinds: Sequence[str]) -> list[WorkerRecord]:
    """Return the workers of some kinds, sorted by name within each kind.

    Dead workers can be included: see `WorkerRecord.until`.
    """
    replies = await store.connection.call_all(
        [(0, (b"ZRANGE", store.keys.workers(kind), 0, _MAX_WORKERS - 1, b"WITHSCORES")) for kind in kinds]
    )
    return [
        WorkerRecord(kind, name.decode(errors="replace"), int(float(until)))
        for kind, flat in zip(kinds, replies, strict=True)
        for name, until in sorted(zip(flat[::2], flat[1::2], strict=True))
    ]


async def has_living_worker(store: Store, kind: str) -> bool:
    """Return whether a worker of a kind is alive."""
    key = store.keys.workers(kind)
    return bool(await store.connection.call(0, b"ZCOUNT", key, store.now(), b"+inf"))
