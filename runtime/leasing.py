"""Leases: which worker may work in which lane.

A lease has a number that only grows (the fence). Every commit names the lease it was made under and is
refused once somebody else has the lane, so a worker that was frozen for longer than its lease cannot
write anything when it wakes up.

For each kind of worker a lane also knows what is done: a low-water mark (everything up to it), and the
few events above it that were finished out of order. Who takes a lane over starts there.
"""

from __future__ import annotations

from dataclasses import dataclass

from breadcrumbs.runtime.connection import Script
from breadcrumbs.runtime.lease import Lease, LeaseLost
from breadcrumbs.runtime.store import Store

_LEASE, _ACKNOWLEDGE = Script("lease"), Script("acknowledge")


@dataclass(frozen=True, slots=True)
class Progress:
    """What is done in a lane."""

    low: int
    done: frozenset[int]


class Leases:
    """The lanes of one kind of worker, as one worker sees them."""

    def __init__(self, store: Store, kind: str, worker: str, *, seconds: float) -> None:
        self._store = store
        self.kind = kind
        self.worker = worker
        self.seconds = seconds

    async def register(self) -> None:
        """From now on events are kept until this kind of worker is done with them."""
        await self._store.connection.call(0, b"SADD", self._store.keys.worker_kinds(), self.kind)

    async def heartbeat(self) -> int:
        """Say that this worker lives; how many of its kind do."""
        call, key = self._store.connection.call, self._store.keys.workers(self.kind)
        now = self._store.now()
        await call(0, b"ZADD", key, now + int(self.seconds * 2_000_000), self.worker)
        await call(0, b"ZREMRANGEBYSCORE", key, b"-inf", now)
        return int(await call(0, b"ZCARD", key))

    async def sign_off(self) -> None:
        await self._store.connection.call(0, b"ZREM", self._store.keys.workers(self.kind), self.worker)

    async def take(self, lane: int) -> Lease | None:
        value = await self._run(lane, b"")
        return None if value is None else Lease(lane, self.kind, value)

    async def keep(self, lease: Lease) -> bool:
        return await self._run(lease.lane, lease.value) is not None

    async def free_lanes(self) -> list[int]:
        keys = self._store.keys
        held = await self._store.connection.call_all(
            [(lane, (b"EXISTS", keys.lease(lane, self.kind))) for lane in range(self._store.lanes)]
        )
        return [lane for lane, taken in enumerate(held) if not taken]

    async def progress(self, lane: int) -> Progress:
        keys = self._store.keys
        low, done = await self._store.connection.call_all(
            [
                (lane, (b"GET", keys.low(lane, self.kind))),
                (lane, (b"ZRANGE", keys.done(lane, self.kind), 0, -1)),
            ]
        )
        return Progress(int(low or 0), frozenset(int(at) for at in done))

    async def count_attempt(self, lane: int, at: int) -> int:
        """How often this event has been begun, this time included."""
        key = self._store.keys.attempts(lane, self.kind)
        return int(await self._store.connection.call(lane, b"HINCRBY", key, at, 1))

    async def acknowledge(
        self, lease: Lease, at: int | None, low: int, *, dead_letter: bytes = b"", release: bool = False
    ) -> None:
        keys, lane, kind = self._store.keys, lease.lane, lease.kind
        done = await self._store.connection.run(
            lane,
            _ACKNOWLEDGE,
            [
                keys.lease(lane, kind),
                keys.done(lane, kind),
                keys.low(lane, kind),
                keys.attempts(lane, kind),
                keys.dead_letters(lane, kind),
            ],
            [lease.value, "" if at is None else at, low, dead_letter, int(release)],
        )
        if not int(done):
            raise LeaseLost(f"lane {lane} belongs to another worker")

    async def _run(self, lane: int, held: bytes) -> bytes | None:
        keys = self._store.keys
        value: bytes | None = await self._store.connection.run(
            lane,
            _LEASE,
            [keys.lease(lane, self.kind), keys.fence(lane, self.kind)],
            [self.worker, int(self.seconds * 1000), held],
        )
        return value
