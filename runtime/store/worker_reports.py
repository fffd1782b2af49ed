"""Reports of workers in lane 0: written with each heartbeat, read by the operations page and `crumb workers`.

A worker that ended stays listed for a limited time: a stopped worker for `STOPPED_SECONDS`, a lost one for
`LOST_SECONDS`, and at most `MAX_ENDED` of each kind.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import orjson

from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.store.opening import FORMAT
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_records import read_worker_kinds, read_workers

STOPPED_SECONDS: Final = 600
LOST_SECONDS: Final = 24 * 3_600
MAX_ENDED: Final = 50
MAX_NAMES: Final = 20
"""Maximum number of agents, and of models, in a report."""
_MAX_NAME_LENGTH: Final = 100
_EVICTED_MICROSECONDS: Final = 300_000
"""Time without a heartbeat after which a worker that is not in the list of living workers counts as evicted. A worker
that has just started is not in a list that was read before."""

WorkerState = Literal["running", "draining", "stopped", "lost"]


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """Facts that a worker reports about itself."""

    name: str
    """Name that the operator chose, or the id of the worker."""
    host: str
    pid: int
    version: str
    started_at: int
    """Time in microseconds, by the server's clock."""
    lease_seconds: float
    """The worker counts as lost this long after its last heartbeat."""
    agents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    more_agents: int = 0
    """Number of agents that are not listed."""
    more_models: int = 0
    lanes: int = 0
    """Number of lanes that it holds."""
    turns: int = 0
    """Number of turns that it runs now."""
    waiting: int = 0
    """Number of events that it has read and not started."""
    state: Literal["running", "draining", "stopped"] = "running"
    format: int = int(FORMAT)
    """Newest data format that the worker reads. Older versions do not report it, and read format 1."""
    skipped_models: tuple[str, ...] = ()
    """Models that fallback lists skip now, because their last calls failed. At most `MAX_NAMES`."""
    clock: int = 0
    """Time of the worker's own clock when it sent the report, in microseconds. 0: older versions do not report it."""

    def encode(self) -> bytes:
        """Return the stored form, of limited size, with the current time of this machine."""
        return orjson.dumps(asdict(replace(self, clock=time.time_ns() // 1000)))

    @classmethod
    def decode(cls, raw: bytes) -> WorkerReport:
        """Return a stored report. Unknown fields of newer versions are ignored."""
        document: dict[str, Any] = orjson.loads(raw)
        known = {name: document[name] for name in cls.__dataclass_fields__ if name in document}
        return cls(
            **known
            | {
                "agents": tuple(document.get("agents", ())),
                "models": tuple(document.get("models", ())),
                "skipped_models": tuple(document.get("skipped_models", ())),
                "format": document.get("format", 1),
            }
        )

    def with_names(self, agents: Sequence[str], models: Sequence[str]) -> WorkerReport:
        """Return the report with the names of agents and models, of which at most `MAX_NAMES` are listed."""
        return replace(
            self,
            agents=tuple(name[:_MAX_NAME_LENGTH] for name in agents[:MAX_NAMES]),
            models=tuple(name[:_MAX_NAME_LENGTH] for name in models[:MAX_NAMES]),
            more_agents=max(0, len(agents) - MAX_NAMES),
            more_models=max(0, len(models) - MAX_NAMES),
        )


@dataclass(frozen=True, slots=True)
class ListedWorker:
    """A worker and its state, as another process sees it. Times are in microseconds."""

    kind: str
    id: str
    """Unique id, with which the worker holds its lanes."""
    state: WorkerState
    heartbeat_at: int | None
    """Time of the last heartbeat. For a lost worker, this is the time when it was lost."""
    alive_until: int
    """The worker counts as lost after this time, unless it sends a heartbeat."""
    report: WorkerReport | None
    """None: the worker runs an older version, which reports only its id."""
    drain_requested_at: int | None = None

    @property
    def name(self) -> str:
        """Name that the operator chose. Without one, the id."""
        return self.id if self.report is None else self.report.name

    @property
    def ended(self) -> bool:
        return self.state in ("stopped", "lost")


async def list_workers(store: Store, kinds: Sequence[str] | None = None) -> list[ListedWorker]:
    """Return the workers of some kinds, or of all kinds, sorted by kind, state and name.

    Ended workers are included for a limited time.
    """
    found = await _all_workers(store, await read_worker_kinds(store) if kinds is None else kinds)
    return [worker for worker in found if not _is_old(worker, store.now())]


async def request_drain(store: Store, worker: ListedWorker) -> None:
    """Ask a worker to finish its turns, release its lanes and end. Repeating this changes nothing."""
    await store.connection.call(0, b"HSETNX", store.keys.drain_requests(worker.kind), worker.id, store.now())


async def remove_old_reports(store: Store, kinds: Sequence[str] | None = None) -> None:
    """Remove the reports, names and drain requests of workers that ended long ago, or are too many.

    A worker that is alive after all restores its report with its next heartbeat.
    """
    kinds = await read_worker_kinds(store) if kinds is None else kinds
    keys, call_all = store.keys, store.connection.call_all
    found = await _all_workers(store, kinds)
    now = store.now()
    names = await call_all([(0, (b"HGETALL", keys.worker_names(kind))) for kind in kinds])
    for kind, flat in zip(kinds, names, strict=True):
        mine = [worker for worker in found if worker.kind == kind]
        ended = sorted((worker for worker in mine if worker.ended), key=_last_seen, reverse=True)
        removed = {worker.id for n, worker in enumerate(ended) if n >= MAX_ENDED or _is_old(worker, now)}
        kept = {worker.id for worker in mine} - removed
        unused = [name for name, id in zip(flat[::2], flat[1::2], strict=True) if id.decode() not in kept]
        if removed:
            await call_all(
                [
                    (0, (b"HDEL", keys.worker_reports(kind), *removed)),
                    (0, (b"HDEL", keys.drain_requests(kind), *removed)),
                ]
            )
        if unused:
            await call_all([(0, (b"HDEL", keys.worker_names(kind), *unused))])


async def _all_workers(store: Store, kinds: Sequence[str]) -> list[ListedWorker]:
    keys = store.keys
    # One round trip. The list of living workers is read first: a worker that stops in between is then not taken for one
    # that was evicted.
    alive, replies = await gather(
        read_workers(store, kinds),
        store.connection.call_all(
            [
                (0, command)
                for kind in kinds
                for command in (
                    (b"HGETALL", keys.worker_reports(kind)),
                    (b"HGETALL", keys.drain_requests(kind)),
                    (b"SMEMBERS", keys.visible_workers(kind)),
                )
            ]
        ),
    )
    living = {(one.kind, one.name): one.until for one in alive}
    visible = [(kind, id.decode()) for kind, ids in zip(kinds, replies[2::3], strict=True) for id in ids]
    unlinked = await _disconnected(store, visible)
    found: list[ListedWorker] = []
    for kind, flat, requests in zip(kinds, replies[::3], replies[1::3], strict=True):
        reports = {id.decode(): raw for id, raw in zip(flat[::2], flat[1::2], strict=True)}
        drains = {id.decode(): int(at) for id, at in zip(requests[::2], requests[1::2], strict=True)}
        ids = {*reports, *(id for of, id in living if of == kind)}
        for id in sorted(ids):
            until = living.get((kind, id))
            stored = reports.get(id)
            worker = None if stored is None else _from_report(kind, id, stored)
            if worker is None:
                worker = ListedWorker(kind, id, "running", None, until or 0, None)
            view = _View(store.now(), until, (kind, id) in unlinked, drains.get(id))
            found.append(_with_state(worker, view))
    order = ("running", "draining", "lost", "stopped")
    return sorted(found, key=lambda one: (one.kind, order.index(one.state), one.name, one.id))


@dataclass(frozen=True, slots=True)
class _View:
    """Facts about a worker that do not come from its report."""

    now: int
    until: int | None
    """Time until which it is in the list of living workers. None: it is not in the list."""
    disconnected: bool
    drain_requested_at: int | None


def _from_report(kind: str, id: str, stored: bytes) -> ListedWorker | None:
    """Return a worker by its report. None: the report is damaged, or of a version that reports other fields."""
    at, _, raw = stored.partition(b" ")
    try:
        report = WorkerReport.decode(raw)
    except (AttributeError, TypeError, ValueError):
        return None
    until = int(at) + int(report.lease_seconds * 1_000_000)
    return ListedWorker(kind, id, report.state, int(at), until, report)


def _with_state(worker: ListedWorker, view: _View) -> ListedWorker:
    state: WorkerState = worker.state
    if state != "stopped" and _is_lost(worker, view):
        state = "lost"
    elif state == "running" and view.drain_requested_at is not None:
        state = "draining"
    return replace(worker, state=state, drain_requested_at=view.drain_requested_at)


def _is_lost(worker: ListedWorker, view: _View) -> bool:
    """Return whether a worker that has not signed off is dead.

    Its heartbeats have ended, another worker has evicted it, or it is disconnected and its last heartbeats are missing.
    A disconnected worker can be alive: it opens its subscription again with increasing pauses.
    """
    if worker.alive_until <= view.now or worker.heartbeat_at is None or worker.report is None:
        return worker.alive_until <= view.now
    silent = view.now - worker.heartbeat_at
    if worker.report.state == "running" and view.until is None:
        return silent > _EVICTED_MICROSECONDS
    return view.disconnected and silent > worker.report.lease_seconds * 1_000_000 / 3


async def _disconnected(store: Store, visible: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the workers whose subscription was open and no longer is, each with its kind.

    Empty if the server does not permit the command.
    """
    channels = {store.keys.liveness(*worker): worker for worker in visible}
    if not channels:
        return set()
    try:
        flat = await store.connection.call(0, b"PUBSUB", b"NUMSUB", *channels)
    except StoreError:
        return set()
    return {channels[channel] for channel, count in zip(flat[::2], flat[1::2], strict=True) if not int(count)}


def _last_seen(worker: ListedWorker) -> int:
    return worker.heartbeat_at or worker.alive_until


def _is_old(worker: ListedWorker, now: int) -> bool:
    kept = {"stopped": STOPPED_SECONDS, "lost": LOST_SECONDS}.get(worker.state)
    return kept is not None and now - _last_seen(worker) > kept * 1_000_000
