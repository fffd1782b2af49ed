"""Leases: which worker may work in which lane.

A lease has a number that only grows (the fence). Every commit names the lease under which it was made. The commit is
refused once another worker has the lane, so a worker that was frozen for longer than its lease cannot write anything
when it wakes up.

For each kind of worker a lane also stores its progress: a low-water mark (every event up to it is done), and the few
events above it that were finished out of order. The next holder of the lane starts there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.store.fence import Lease, LeaseLost
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.attempts import Attempts
from breadcrumbs.runtime.workers.concurrency import run_all

_LEASE, _ACKNOWLEDGE, _LIVING = Script("lease"), Script("acknowledge"), Script("living")
_ATTEMPTS = Script("attempts")


@dataclass(frozen=True, slots=True)
class Progress:
    """Which events of a lane are done, and which were attempted."""

    acknowledged_up_to: int
    """The low-water mark."""
    done: frozenset[int]
    """Events above the low-water mark that are done."""
    attempts: Mapping[int, Attempts]
    """Events that are not done, and the attempts at each."""
    newest_event: int


class Leases:
    """The leases of one kind of worker, from the view of one worker."""

    def __init__(self, store: Store, kind: str, worker: str, *, seconds: float) -> None:
        self._store = store
        self.kind = kind
        self.worker = worker
        self.seconds = seconds

    async def register(self) -> None:
        """Make the store keep events until this kind of worker has handled them."""
        await self._store.connection.call(0, b"SADD", self._store.keys.worker_kinds(), self.kind)

    async def heartbeat(self) -> list[str]:
        """Report this worker as alive for the length of a lease. Returns the living workers, sorted by name."""
        return await self._living(int(self.seconds * 1_000_000))

    async def list_workers(self) -> list[str]:
        """Return the living workers of this kind, sorted by name."""
        return await self._living(0)

    async def _living(self, alive_for_microseconds: int) -> list[str]:
        key = self._store.keys.workers(self.kind)
        names = await self._store.connection.run(0, _LIVING, [key], [self.worker, alive_for_microseconds])
        return sorted(name.decode() for name in names)

    async def sign_off(self) -> None:
        """Remove this worker from the living ones."""
        await self._store.connection.call(0, b"ZREM", self._store.keys.workers(self.kind), self.worker)

    async def take(self, lane: int) -> Lease | None:
        """Take a lane. Returns None if another worker holds it."""
        value = await self._run(lane, b"")
        return None if value is None else Lease(lane, self.kind, value)

    async def renew(self, lease: Lease) -> bool:
        """Extend a lease. Returns False if it has ended."""
        return await self._run(lease.lane, lease.value) is not None

    def lane_share(self, workers: list[str]) -> int:
        """Return how many lanes this worker takes: the same number for each, one more for the first few."""
        share, left_over = divmod(self._store.lanes, max(1, len(workers)))
        return share + (self.worker in workers[:left_over])

    async def free_lanes(self) -> list[int]:
        keys = self._store.keys
        held = await self._store.connection.call_all(
            [(lane, (b"EXISTS", keys.lease(lane, self.kind))) for lane in range(self._store.lanes)]
        )
        return [lane for lane, taken in enumerate(held) if not taken]

    async def progress(self, lane: int) -> Progress:
        """Read the progress of a lane."""
        keys, call_all = self._store.keys, self._store.connection.call_all
        stored, finished, flat, end = await call_all(
            [
                (lane, (b"GET", keys.low(lane, self.kind))),
                (lane, (b"ZRANGE", keys.done(lane, self.kind), 0, -1)),
                (lane, (b"HGETALL", keys.attempts(lane, self.kind))),
                (lane, (b"GET", keys.clock(lane))),
            ]
        )
        up_to, done = int(stored or 0), frozenset(int(at) for at in finished)
        stored_attempts = {int(at): raw for at, raw in zip(flat[::2], flat[1::2], strict=True)}
        # An event whose handler had nothing to write is only acknowledged by the low-water mark.
        if over := [at for at in stored_attempts if at <= up_to]:
            await call_all([(lane, (b"HDEL", keys.attempts(lane, self.kind), *over))])
        attempts = {at: Attempts.decode(raw) for at, raw in stored_attempts.items() if at > up_to}
        return Progress(up_to, done, attempts, int(end or 0))

    async def store_attempts(self, lease: Lease, attempts: Mapping[int, Attempts]) -> None:
        """Replace the attempts at events. Raises `LeaseLost`, and changes nothing, once the lease has ended."""
        keys, lane, kind = self._store.keys, lease.lane, lease.kind
        pairs = [part for at, one in attempts.items() for part in (at, one.encode())]
        done = await self._store.connection.run(
            lane, _ATTEMPTS, [keys.lease(lane, kind), keys.attempts(lane, kind)], [lease.value, *pairs]
        )
        if not int(done):
            raise LeaseLost(f"lane {lane} belongs to another worker")

    async def evict(self, worker: str) -> None:
        """Free the lanes of a dead worker. If it is still alive, it cannot commit any more and takes lanes anew."""
        keys, call = self._store.keys, self._store.connection.call
        held = await self._store.connection.call_all(
            [(lane, (b"GET", keys.lease(lane, self.kind))) for lane in range(self._store.lanes)]
        )
        leases = [
            Lease(lane, self.kind, value)
            for lane, value in enumerate(held)
            if value is not None and value.split(b" ", 2)[-1] == worker.encode()
        ]
        await run_all(self._free, leases)
        await call(0, b"ZREM", keys.workers(self.kind), worker)

    async def _free(self, lease: Lease) -> None:
        try:
            await self.acknowledge(lease, None, 0, release=True)
        except LeaseLost:
            pass  # another worker was faster

    async def acknowledge(
        self, lease: Lease, at: int | None, up_to: int, *, dead_letter: bytes = b"", release: bool = False
    ) -> None:
        """Store progress: the event `at` (if any) is done, and so is every event up to `up_to`.

        Raises `LeaseLost`, and changes nothing, once the lease has ended.
        """
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
            [lease.value, "" if at is None else at, up_to, dead_letter, int(release)],
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


async def start_at_newest_event(store: Store, kind: str) -> None:
    """Make a new kind of worker start after the newest event. A kind that has made progress keeps it."""
    keys, call_all = store.keys, store.connection.call_all
    newest = await call_all([(lane, (b"GET", keys.clock(lane))) for lane in range(store.lanes)])
    await call_all(
        [(lane, (b"SET", keys.low(lane, kind), int(end or 0), b"NX")) for lane, end in enumerate(newest)]
    )
