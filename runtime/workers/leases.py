"""Leases: a worker's right to handle the events of a lane for a limited time.

Each lease of a lane gets a higher number than the lease before it (the fence number). Every commit contains the lease
of its worker. The store refuses the commit if the lease has expired or another worker has the lane. So a worker that
was frozen for longer than its lease cannot write anything when it continues.

A lane also stores the progress of each kind of worker. The progress is a low-water mark (every event up to it is done)
and the events above it that were finished out of order. The next holder of the lane starts there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.store import running_answers
from breadcrumbs.runtime.store.fence import EndedAnswers, Lease, LeaseLost
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.attempts import Attempts
from breadcrumbs.runtime.workers.concurrency import run_all

_LEASE, _ACKNOWLEDGE, _LIVING = Script("lease"), Script("acknowledge"), Script("living")
_ATTEMPTS, _CLAIM_NAME = Script("attempts"), Script("claim_name")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Contents of a heartbeat."""

    report: bytes = b""
    """Report of the worker (`WorkerReport`). Empty: none is stored."""
    answered: int = 0
    """Turns that were answered since the last heartbeat."""
    failed: int = 0
    """Turns that failed since the last heartbeat."""
    leaving: bool = False
    """The worker releases its lanes. Others take them."""
    name: str = ""
    """Name of the worker. Empty: it has none."""


NO_REPORT: Final = Heartbeat()


@dataclass(frozen=True, slots=True)
class NameHolder:
    """Worker that has a name."""

    worker: str
    alive_until: int
    """Time in microseconds. Each heartbeat moves it forward."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of one kind of worker in a lane."""

    acknowledged_up_to: int
    """Low-water mark in microseconds: every event up to this time is done."""
    done: frozenset[int]
    """Times of the events above the low-water mark that are done."""
    attempts: Mapping[int, Attempts]
    """Attempts at events that are not done, by time of the event."""
    newest_event: int
    """Time of the newest event in the lane."""


class Leases:
    """Takes and renews leases for one worker, and stores its progress."""

    def __init__(self, store: Store, kind: str, worker: str, *, seconds: float) -> None:
        self._store = store
        self.kind = kind
        self.worker = worker
        """Unique id of the worker."""
        self.seconds = seconds
        """Duration of a lease. Each renewal starts it again."""
        self.drain_requested = False
        """Whether an operator asked this worker to finish its turns and end, as of the last heartbeat or list."""

    async def register(self) -> None:
        """Register this kind of worker.

        The store keeps events until all registered kinds have handled them.
        """
        await self._store.connection.call(0, b"SADD", self._store.keys.worker_kinds(), self.kind)

    async def claim_name(self, name: str) -> NameHolder | None:
        """Take a name for this worker. Return the living worker that has it, or None if this worker has it now."""
        keys = self._store.keys
        holder, until = await self._store.connection.run(
            0, _CLAIM_NAME, [keys.worker_names(self.kind), keys.workers(self.kind)], [name, self.worker]
        )
        return NameHolder(holder.decode(), int(until)) if until else None

    async def heartbeat(self, beat: Heartbeat = NO_REPORT) -> list[str]:
        """Report this worker as alive for the duration of a lease.

        Return the living workers, sorted by name.
        """
        return await self._living("leave" if beat.leaving else "beat", beat)

    async def list_workers(self) -> list[str]:
        """Return the living workers of this kind, sorted by name."""
        return await self._living("list", NO_REPORT)

    async def sign_off(self, beat: Heartbeat = NO_REPORT) -> None:
        """Remove this worker from the list of living workers."""
        await self._living("stop", beat)

    async def _living(self, action: str, beat: Heartbeat) -> list[str]:
        keys, kind = self._store.keys, self.kind
        drain, *names = await self._store.connection.run(
            0,
            _LIVING,
            [
                keys.workers(kind),
                keys.worker_reports(kind),
                keys.drain_requests(kind),
                keys.turn_counters(kind),
                keys.worker_names(kind),
            ],
            [
                self.worker,
                action,
                int(self.seconds * 1_000_000),
                beat.report,
                beat.answered,
                beat.failed,
                beat.name,
            ],
        )
        self.drain_requested = bool(drain)
        return sorted(name.decode() for name in names)

    async def take(self, lane: int) -> Lease | None:
        """Take a lane. Return None if another worker holds it."""
        value = await self._run(lane, b"")
        return None if value is None else Lease(lane, self.kind, value)

    async def renew(self, lease: Lease) -> bool:
        """Extend a lease.

        Return False if the lease is lost: it has expired, or this worker was evicted.
        """
        return await self._run(lease.lane, lease.value) is not None

    def discard_answers(self, lease: Lease, ended: EndedAnswers | None) -> None:
        """Remove running answers of a turn that ended without a commit, for example because its message was deleted."""
        if ended is not None:
            running_answers.discard(self._store, lease, ended)

    def lane_share(self, workers: list[str]) -> int:
        """Return how many lanes this worker should hold.

        All workers get the same number. The first few get one more if the lanes do not divide evenly.
        """
        share, left_over = divmod(self._store.lanes, max(1, len(workers)))
        return share + (self.worker in workers[:left_over])

    async def free_lanes(self) -> list[int]:
        """Return the lanes that no worker of this kind holds."""
        keys = self._store.keys
        held = await self._store.connection.call_all(
            [(lane, (b"EXISTS", keys.lease(lane, self.kind))) for lane in range(self._store.lanes)]
        )
        return [lane for lane, taken in enumerate(held) if not taken]

    async def progress(self, lane: int) -> Progress:
        """Return the stored progress of this kind of worker in a lane."""
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
        # Remove leftover attempts. An event whose handler wrote nothing is acknowledged only by the low-water mark,
        # and raising the mark does not remove attempts.
        if over := [at for at in stored_attempts if at <= up_to]:
            await call_all([(lane, (b"HDEL", keys.attempts(lane, self.kind), *over))])
        attempts = {at: Attempts.decode(raw) for at, raw in stored_attempts.items() if at > up_to}
        return Progress(up_to, done, attempts, int(end or 0))

    async def store_attempts(self, lease: Lease, attempts: Mapping[int, Attempts]) -> None:
        """Replace the stored attempts at events. The keys are the times of the events.

        Raise `LeaseLost` and change nothing if the lease is lost.
        """
        keys, lane, kind = self._store.keys, lease.lane, lease.kind
        pairs = [part for at, one in attempts.items() for part in (at, one.encode())]
        done = await self._store.connection.run(
            lane, _ATTEMPTS, [keys.lease(lane, kind), keys.attempts(lane, kind)], [lease.value, *pairs]
        )
        if not int(done):
            raise LeaseLost(f"the lease of lane {lane} is lost")

    async def evict(self, worker: str) -> None:
        """Free the lanes of a dead worker.

        If the worker is alive after all, its commits are refused until it has taken lanes again.
        """
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
            pass  # another worker freed the lane first

    async def acknowledge(
        self, lease: Lease, at: int | None, up_to: int, *, dead_letter: bytes = b"", release: bool = False
    ) -> None:
        """Store that all events up to `up_to` and the event `at` are done.

        `dead_letter` is stored for the event `at`. `release` also ends the lease. Raise `LeaseLost` and change nothing
        if the lease is lost.
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
            raise LeaseLost(f"the lease of lane {lane} is lost")

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
    """Make a new kind of worker start after the newest event.

    An existing kind keeps its progress.
    """
    keys, call_all = store.keys, store.connection.call_all
    newest = await call_all([(lane, (b"GET", keys.clock(lane))) for lane in range(store.lanes)])
    await call_all(
        [(lane, (b"SET", keys.low(lane, kind), int(end or 0), b"NX")) for lane, end in enumerate(newest)]
    )
