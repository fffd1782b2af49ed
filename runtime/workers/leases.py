"""Leases: which worker may work in which lane.

A lease has a number that only grows (the fence). Every commit names the lease it was made under and is
refused once somebody else has the lane, so a worker that was frozen for longer than its lease cannot
write anything when it wakes up.

For each kind of worker a lane also knows what is done: a low-water mark (everything up to it), and the
few events above it that were finished out of order. Who takes a lane over starts there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.store.fence import Lease, LeaseLost
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.attempts import Attempts

_LEASE, _ACKNOWLEDGE, _LIVING = Script("lease"), Script("acknowledge"), Script("living")
_ATTEMPTS = Script("attempts")


@dataclass(frozen=True, slots=True)
class Progress:
    """What is done in a lane, and what was begun."""

    low: int
    done: frozenset[int]
    attempts: Mapping[int, Attempts]
    """Events that are not done, and the attempts at each."""
    end: int
    """The newest event."""


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

    async def living(self, *, beat: bool) -> list[str]:
        """The living workers of this kind, in an order that is the same for all. `beat`: we are one of them."""
        names = await self._store.connection.run(
            0,
            _LIVING,
            [self._store.keys.workers(self.kind)],
            [self.worker, int(self.seconds * 1_000_000) if beat else 0],
        )
        return sorted(name.decode() for name in names)

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
        keys, call_all = self._store.keys, self._store.connection.call_all
        stored, finished, flat, end = await call_all(
            [
                (lane, (b"GET", keys.low(lane, self.kind))),
                (lane, (b"ZRANGE", keys.done(lane, self.kind), 0, -1)),
                (lane, (b"HGETALL", keys.attempts(lane, self.kind))),
                (lane, (b"GET", keys.clock(lane))),
            ]
        )
        low, done = int(stored or 0), frozenset(int(at) for at in finished)
        stored_attempts = {int(at): raw for at, raw in zip(flat[::2], flat[1::2], strict=True)}
        # An event whose handler had nothing to write is only acknowledged by the low-water mark.
        if over := [at for at in stored_attempts if at <= low]:
            await call_all([(lane, (b"HDEL", keys.attempts(lane, self.kind), *over))])
        attempts = {at: Attempts.decode(raw) for at, raw in stored_attempts.items() if at > low}
        return Progress(low, done, attempts, int(end or 0))

    async def store_attempts(self, lease: Lease, attempts: Mapping[int, Attempts]) -> None:
        """Replace the attempts at events. Raises `LeaseLost`, and changes nothing, once the lease is over."""
        keys, lane, kind = self._store.keys, lease.lane, lease.kind
        pairs = [part for at, one in attempts.items() for part in (at, one.encode())]
        done = await self._store.connection.run(
            lane, _ATTEMPTS, [keys.lease(lane, kind), keys.attempts(lane, kind)], [lease.value, *pairs]
        )
        if not int(done):
            raise LeaseLost(f"lane {lane} belongs to another worker")

    async def evict(self, worker: str) -> None:
        """Free the lanes of a dead worker. If it lives after all, it cannot commit any more and takes lanes anew."""
        keys, call = self._store.keys, self._store.connection.call
        held = await self._store.connection.call_all(
            [(lane, (b"GET", keys.lease(lane, self.kind))) for lane in range(self._store.lanes)]
        )
        leases = [
            Lease(lane, self.kind, value)
            for lane, value in enumerate(held)
            if value is not None and value.split(b" ", 2)[-1] == worker.encode()
        ]
        released = await asyncio.gather(
            *(self.acknowledge(lease, None, 0, release=True) for lease in leases), return_exceptions=True
        )
        for problem in released:
            if problem is not None and not isinstance(problem, LeaseLost):  # lost: a peer was faster
                raise problem
        await call(0, b"ZREM", keys.workers(self.kind), worker)

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
