"""Leases: a worker's right to handle the events of a lane for a limited time.

Each lease of a lane gets a higher number than the lease before it (the fence number). Every commit contains the lease
of its worker. The store refuses the commit if the lease has expired or another worker has the lane. So a worker that
was frozen for longer than its lease cannot write anything when it continues.

A lane also stores the progress of each kind of worker. The progress is a low-water mark (every event up to it is done)
and the events above it that were finished out of order. The next holder of the lane starts there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from breadcrumbs.runtime.backend.connection import Script, ScriptCall
from breadcrumbs.runtime.backend.link import Command
from breadcrumbs.runtime.store import running_answers
from breadcrumbs.runtime.store.fence import EndedAnswers, Lease, LeaseLost
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.attempts import Attempts
from breadcrumbs.runtime.workers.concurrency import run_all

_LEASE, _RENEW, _ACKNOWLEDGE = Script("lease"), Script("renew"), Script("acknowledge")
_LIVING, _ATTEMPTS, _CLAIM_NAME = Script("living"), Script("attempts"), Script("claim_name")


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

    def now(self) -> int:
        """Return the estimated time of the server, in microseconds. The times of events are of the same clock."""
        return self._store.now()

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
        keys, args = self._lease_call(lane)
        return self._decode_lease(lane, await self._store.connection.run(lane, _LEASE, keys, args))

    def by_server(self, lanes: Iterable[int]) -> list[list[int]]:
        """Return lanes in groups of one server each. An outage of one server does not concern the others."""
        groups: dict[object, list[int]] = {}
        for lane in lanes:
            groups.setdefault(self._store.connection.node_of(lane), []).append(lane)
        return list(groups.values())

    async def take_all(self, lanes: Sequence[int]) -> list[Lease]:
        """Take lanes in one round trip. Return the leases of those that no other worker holds."""
        calls = [(lane, ScriptCall(_LEASE, *self._lease_call(lane))) for lane in lanes]
        replies = await self._store.connection.call_all(calls)
        leases = (self._decode_lease(lane, reply) for lane, reply in zip(lanes, replies, strict=True))
        return [lease for lease in leases if lease is not None]

    def _lease_call(self, lane: int) -> tuple[list[bytes], list[bytes | str | int]]:
        keys, kind = self._store.keys, self.kind
        return (
            [keys.lease(lane, kind), keys.fence(lane, kind), keys.holder(lane, kind)],
            [self.worker, int(self.seconds * 1000)],
        )

    def _decode_lease(self, lane: int, reply: Any) -> Lease | None:
        if reply is None:
            return None
        value, previous = reply
        taken_from = previous.decode(errors="replace")
        return Lease(lane, self.kind, value, "" if taken_from == self.worker else taken_from)

    async def renew(self, lease: Lease) -> bool:
        """Extend a lease.

        Return False if the lease is lost: it has expired, or this worker was evicted.
        """
        return not await self.renew_all([lease])

    async def renew_all(self, leases: Sequence[Lease]) -> list[Lease]:
        """Extend leases in one round trip. Return those that are lost."""
        connection, keys = self._store.connection, self._store.keys
        held = {lease.lane: lease for lease in leases}
        groups = [[held[lane] for lane in group if lane in held] for group in connection.reader_groups()]
        groups = [group for group in groups if group]
        calls = [
            (
                group[0].lane,
                ScriptCall(
                    _RENEW,
                    [keys.lease(lease.lane, self.kind) for lease in group],
                    [int(self.seconds * 1000), *(lease.value for lease in group)],
                ),
            )
            for group in groups
        ]
        replies = await connection.call_all(calls)
        return [
            lease
            for group, renewed in zip(groups, replies, strict=True)
            for lease, one in zip(group, renewed, strict=True)
            if not one
        ]

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
        return (await self.progress_of([lane]))[0]

    async def progress_of(self, lanes: Sequence[int]) -> list[Progress]:
        """Return the stored progress of this kind of worker in lanes."""
        keys, kind, call_all = self._store.keys, self.kind, self._store.connection.call_all
        commands: list[tuple[int, Command]] = []
        for lane in lanes:
            commands += [
                (lane, (b"GET", keys.low(lane, kind))),
                (lane, (b"ZRANGE", keys.done(lane, kind), 0, -1)),
                (lane, (b"HGETALL", keys.attempts(lane, kind))),
                (lane, (b"GET", keys.clock(lane))),
            ]
        replies = await call_all(commands)
        found: list[Progress] = []
        leftovers: list[tuple[int, Command]] = []
        for number, lane in enumerate(lanes):
            stored, finished, flat, end = replies[4 * number : 4 * number + 4]
            up_to, done = int(stored or 0), frozenset(int(at) for at in finished)
            stored_attempts = {int(at): raw for at, raw in zip(flat[::2], flat[1::2], strict=True)}
            # Remove leftover attempts. An event whose handler wrote nothing is acknowledged only by the low-water
            # mark, and raising the mark does not remove attempts.
            if over := [at for at in stored_attempts if at <= up_to]:
                leftovers.append((lane, (b"HDEL", keys.attempts(lane, kind), *over)))
            attempts = {at: Attempts.decode(raw) for at, raw in stored_attempts.items() if at > up_to}
            found.append(Progress(up_to, done, attempts, int(end or 0)))
        await call_all(leftovers)
        return found

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

    async def evict(self, worker: str) -> int:
        """Free the lanes of a dead worker and return their number.

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
        return len(leases)

    async def _free(self, lease: Lease) -> None:
        try:
            await self.acknowledge(lease, None, 0, release=True, evicted=True)
        except LeaseLost:
            pass  # another worker freed the lane first

    async def acknowledge(
        self,
        lease: Lease,
        at: int | None,
        up_to: int,
        *,
        dead_letter: bytes = b"",
        release: bool = False,
        evicted: bool = False,
    ) -> None:
        """Store that all events up to `up_to` and the event `at` are done.

        `dead_letter` is stored for the event `at`. `release` also ends the lease. With `evicted`, the worker that
        takes the lane next sees from whom. Raise `LeaseLost` and change nothing if the lease is lost.
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
                keys.holder(lane, kind),
            ],
            [lease.value, "" if at is None else at, up_to, dead_letter, int(release) + int(evicted)],
        )
        if not int(done):
            raise LeaseLost(f"the lease of lane {lane} is lost")


async def start_at_newest_event(store: Store, kind: str) -> None:
    """Make a new kind of worker start after the newest event.

    An existing kind keeps its progress.
    """
    keys, call_all = store.keys, store.connection.call_all
    newest = await call_all([(lane, (b"GET", keys.clock(lane))) for lane in range(store.lanes)])
    await call_all(
        [(lane, (b"SET", keys.low(lane, kind), int(end or 0), b"NX")) for lane, end in enumerate(newest)]
    )
