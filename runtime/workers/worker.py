"""A worker: takes lanes, reads their events, and runs a handler on those it wants.

Inside a lane the events of one session are handled in order, one at a time; different sessions run side
by side. A worker that dies loses its lanes when their leases run out, and whoever takes them starts at
the first event that was not acknowledged. So a handler may run more than once on an event, but only one
run can commit: the commit is one script that checks the lease, writes the result and acknowledges.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

import anyio
import anyio.abc
import orjson
import structlog

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.text import writable
from breadcrumbs.runtime.errors import (
    BreadcrumbsError,
    SessionGone,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.events.reader import Follower
from breadcrumbs.runtime.store.fence import Fence, Lease, LeaseLost
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.attempts import NO_ATTEMPTS, Attempts
from breadcrumbs.runtime.workers.leases import Leases
from breadcrumbs.runtime.workers.liveness import Liveness

_log = structlog.get_logger("breadcrumbs.worker")

SessionKey: TypeAlias = tuple[UUID, str | UUID]
"""The owner belongs to it: two tenants may well use the same name. An event of no session stands alone."""

AWAY: Final = (StoreUnavailable, StoreFull)
"""The store cannot do it now: nothing is wrong with what it was asked."""

INTERNAL: Final = "turn:internal"
"""Tag of what a turn wrote for itself on its way: nobody else reacts to it."""

_LOOK_SECONDS: Final = 0.25
"""Seconds between two looks for lanes that no worker holds, and for workers that died."""
_RENEWALS_PER_LEASE: Final = 6
"""A loaded machine may delay several renewals in a row before a lease is lost."""
_RERUNS_AT_FIRST: Final = 16
_LONGEST_PAUSE: Final = 120.0
"""Seconds. Whoever asks to be left alone for longer is asked again all the same."""


class TurnFailed(BreadcrumbsError):
    """A handler gives up on an event. `retry`: the same may work later."""

    def __init__(self, reason: str, *, retry: bool = False, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry
        self.retry_after = retry_after
        """Seconds to wait at least."""


class TurnCancelled(BreadcrumbsError):
    """Somebody asked for this turn to stop."""


def reason_of(error: Exception) -> str:
    """Why something failed, in words that can be stored."""
    text = writable(str(error))
    return (text if len(text) <= 4_000 else text[:3_999] + "…") or type(error).__name__


def session_key(event: Event) -> SessionKey:
    """What is handled in order, one at a time."""
    return event.owner_id, event.session_id or event.id


def is_worth_another_try(error: Exception) -> bool:
    """Whatever is not known to be final, is."""
    if isinstance(error, TurnFailed):
        return error.retry
    return not isinstance(error, TurnCancelled)


def _asked_pause(error: Exception) -> float:
    """How many seconds whoever failed asks to be left alone, within reason."""
    asked = error.retry_after if isinstance(error, TurnFailed) else None
    return min(asked or 0.0, _LONGEST_PAUSE)


class _Permits(Protocol):
    async def acquire(self) -> object: ...

    def release(self) -> None: ...


class _Reruns:
    """Limits how many events that an earlier worker may have begun run at once.

    After a takeover there may be hundreds of them. Started all at once on a busy machine, none would be done before
    the next worker dies. So a few start, and one more for each that ended. Suspects run one at a time; between two
    of them a window of others runs, so that neither waits for all of the other kind.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._window = min(_RERUNS_AT_FIRST, most)
        self._running = 0
        self._before_suspect = self._window
        """How many others start before the next suspect."""
        self._alone = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._suspects: deque[asyncio.Future[None]] = deque()
        self.together: _Permits = _RerunPermits(self, alone=False)
        self.alone: _Permits = _RerunPermits(self, alone=True)

    async def acquire(self, *, alone: bool) -> None:
        queue = self._suspects if alone else self._waiting
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(started)
        self._start_next()
        try:
            await started
        except asyncio.CancelledError:
            if not started.cancelled():
                self.release(alone=alone)
            elif started in queue:
                queue.remove(started)
                self._start_next()
            raise

    def release(self, *, alone: bool) -> None:
        self._running -= 1
        if alone:
            self._alone = False
        self._window = min(self._most, self._window + 1)
        self._start_next()

    def _start_next(self) -> None:
        while self._waiting and self._may_start_another():
            if self._start(self._waiting):
                self._running += 1
                self._before_suspect -= 1
        while self._suspects and not self._running and (not self._waiting or self._before_suspect <= 0):
            if self._start(self._suspects):
                self._running, self._alone = 1, True
                self._before_suspect = self._window

    def _may_start_another(self) -> bool:
        suspect_is_next = self._suspects and self._before_suspect <= 0
        return not self._alone and not suspect_is_next and self._running < self._window

    @staticmethod
    def _start(queue: deque[asyncio.Future[None]]) -> bool:
        """Start the first of a queue. Returns False if it was cancelled while it waited."""
        first = queue.popleft()
        if first.cancelled():
            return False
        first.set_result(None)
        return True


class _RerunPermits:
    """One of the two ways to run again, as `_Place` takes and leaves it."""

    def __init__(self, reruns: _Reruns, *, alone: bool) -> None:
        self._reruns = reruns
        self._alone = alone

    async def acquire(self) -> None:
        await self._reruns.acquire(alone=self._alone)

    def release(self) -> None:
        self._reruns.release(alone=self._alone)


class _Place:
    """One of a worker's places. Who merely waits leaves it to others."""

    def __init__(self, places: _Permits) -> None:
        self._places = places
        self._taken = False

    async def __aenter__(self) -> _Place:
        await self.take()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._taken:
            self.leave()

    async def take(self) -> None:
        await self._places.acquire()
        self._taken = True

    def leave(self) -> None:
        self._taken = False
        self._places.release()


@dataclass(slots=True)
class Turn:
    """One event being handled."""

    event: Event
    attempt: int
    lane: _Lane
    place: _Place
    cancelled: str | None = None
    """Why it was asked to stop."""
    session_gone: bool = False
    """Its session was deleted: there is nobody left to tell anything."""
    dead_letter: bytes = b""
    """What the acknowledgement puts aside, where the turn failed for good."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    next_attempt: anyio.Event = field(default_factory=anyio.Event)
    """Set while it waits for its next attempt: that need not wait any longer."""

    @property
    def is_first(self) -> bool:
        """Whether nobody can have begun with this event before, neither we nor a worker before us."""
        return self.attempt == 1 and self.event.at > self.lane.known_until

    def fence(self, *, acknowledge: bool) -> Fence:
        """What a commit must carry: the lease, and with the last commit of a turn the acknowledgement."""
        if acknowledge:
            low = self.lane.low_without(self.event.at)
            return Fence(self.lane.lease, self.event.at, low, self.dead_letter, since=self.event.at)
        return Fence(self.lane.lease, since=self.event.at)

    async def acknowledge(self) -> None:
        """Finish without a result."""
        low = self.lane.low_without(self.event.at)
        await self.lane.leases.acknowledge(self.lane.lease, self.event.at, low, dead_letter=self.dead_letter)

    def waiting(self) -> list[Event]:
        """What waits in the same session, the next first."""
        return list(self.lane.sessions.get(session_key(self.event), ()))

    def cancel(self, reason: str) -> None:
        """Ask it to stop. What it has committed by then stays."""
        self.cancelled = reason
        self.scope.cancel()


class Handler(Protocol):
    """What a kind of worker does with events."""

    kind: str

    async def wants(self, event: Event) -> bool: ...

    async def handle(self, turn: Turn) -> None:
        """Handle an event. What it leads to is committed together with the acknowledgement.

        Where nothing comes of it, simply return: the low-water mark passes over it. A commit must be shielded
        from cancellation: whoever is cancelled in it would not know whether it happened.
        """
        ...

    async def give_up(self, turn: Turn, error: Exception) -> None:
        """Leave a trace of a turn that failed for good, and acknowledge it with that."""
        ...

    def arrived(self, event: Event, running: Turn | None, waiting: Sequence[Event]) -> bool:
        """An event was read: a chance to interrupt what is running in its session.

        Whether it need not wait for what is before it in its session, because there is nothing to do but to say no.
        """
        ...


@dataclass(slots=True)
class _Lane:
    lease: Lease
    leases: Leases
    position: int
    held_until: float
    """The time (`time.monotonic`) up to which no other worker can have taken the lane, unless this one was evicted."""
    done: frozenset[int] = frozenset()
    attempts: dict[int, Attempts] = field(default_factory=dict)
    """Attempts at events that are stored on the server: those of earlier workers, and our own after the first."""
    known_until: int = 0
    """Events up to here may have been begun by a worker before us."""
    unfinished: dict[int, None] = field(default_factory=dict)
    sessions: dict[SessionKey, deque[Event]] = field(default_factory=dict)
    running: dict[SessionKey, Turn] = field(default_factory=dict)
    stored_low: int = 0
    closing: bool = False
    idle: anyio.Event = field(default_factory=anyio.Event)

    def low_without(self, at: int) -> int:
        """The low-water mark once this event is done."""
        first = next((other for other in self.unfinished if other != at), None)
        # The position too: a lane that is being given back has forgotten what waits after it.
        return self.position if first is None else min(self.position, first - 1)


class Worker:
    """Runs one handler on as many lanes as are this worker's share."""

    def __init__(
        self,
        store: Store,
        handler: Handler,
        *,
        lease_seconds: float = 6.0,
        concurrency: int = 256,
        attempts: int = 4,
        backoff: Callable[[int], float] = lambda attempt: min(30.0, 0.5 * 2 ** (attempt - 1)),
        name: str | None = None,
    ) -> None:
        self.store = store
        self.handler = handler
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.leases = Leases(store, handler.kind, self.name, seconds=lease_seconds)
        self._lanes: dict[int, _Lane] = {}
        # A note of the lane itself: one that is lost and taken again is another one, and begins elsewhere.
        self._following: Follower[_Lane] = Follower(store.tail)
        # asyncio's: anyio's limiter lets everybody else go first, also where there is room.
        self._limit = asyncio.Semaphore(concurrency)
        self._reruns = _Reruns(concurrency)
        self._liveness = Liveness(store, handler.kind, self.name, grace=lease_seconds)
        self._attempts = attempts
        self._backoff = backoff
        self._stopping = False
        self._stop_asked = anyio.Event()
        self.at_work = anyio.Event()
        """Set once it takes part: it has its share of the lanes, or gets it as others give theirs back."""
        self._tasks: anyio.abc.TaskGroup | None = None
        self._beaten = -float("inf")

    @property
    def lanes(self) -> list[int]:
        return sorted(self._lanes)

    def stop(self) -> None:
        """Drain: finish what runs, give the lanes back, end."""
        self._stopping = True
        self._stop_asked.set()

    async def run(self) -> None:
        """Work until asked to stop."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._liveness.stay_visible)
                tasks.start_soon(self._renew_leases)
                tasks.start_soon(self._keep_lanes)
                tasks.start_soon(self._read)
                await self._stop_asked.wait()
                await self._drain()
                tasks.cancel_scope.cancel()
        finally:
            self._following.leave_all()

    # Lanes

    async def _renew_leases(self) -> None:
        """Renew the leases on time. A task of its own: on a loaded machine, taking lanes may take seconds."""
        while not self._stopping:
            try:
                await self._keep()
            except StoreError as error:
                _log.warning("leases were not renewed", kind=self.handler.kind, error=str(error))
            with anyio.move_on_after(self.leases.seconds / _RENEWALS_PER_LEASE):
                await self._stop_asked.wait()

    async def _keep_lanes(self) -> None:
        registered = False
        while not self._stopping:
            try:
                if not registered:
                    await self.leases.register()
                    registered = True
                await self._balance()
                self.at_work.set()
            except StoreError as error:
                _log.warning("worker cannot reach its store", kind=self.handler.kind, error=str(error))
            with anyio.move_on_after(min(_LOOK_SECONDS, self.leases.seconds / _RENEWALS_PER_LEASE)):
                await self._stop_asked.wait()

    async def _balance(self) -> None:
        beat = time.monotonic() - self._beaten >= self.leases.seconds / _RENEWALS_PER_LEASE
        if beat:
            self._beaten = time.monotonic()
        for peer in await self._liveness.dead_peers():
            _log.info("worker died, its lanes are free", kind=self.handler.kind, worker=peer)
            await self.leases.evict(peer)
            await self._liveness.forget(peer)
        share = self._share(await self.leases.living(beat=beat))
        if len(self._lanes) < share and not self._stopping:
            free = await self.leases.free_lanes()
            random.shuffle(free)  # so that workers starting together do not all want the same one
            await asyncio.gather(*(self._take(number) for number in free[: share - len(self._lanes)]))
        staying = [lane for lane in self._lanes.values() if not lane.closing]
        staying.sort(key=lambda lane: len(lane.running))  # what is idle can go at once
        for lane in staying[: max(0, len(staying) - share)]:
            lane.closing = True
            self._start(self._release, lane)

    async def _keep(self) -> None:
        # All at once: one by one, on a slow line, the first would be lost by the time that the last is kept.
        await asyncio.gather(*(self._keep_one(lane) for lane in list(self._lanes.values())))

    async def _keep_one(self, lane: _Lane) -> None:
        if await self._renew(lane) and (low := lane.low_without(-1)) > lane.stored_low:
            await self._try_acknowledge(lane, low)

    async def _renew(self, lane: _Lane) -> bool:
        """Extend a lease. Returns False, and drops the lane, if it is over."""
        asked_at = time.monotonic()
        if not await self.leases.keep(lane.lease):
            self._lose(lane)
            return False
        lane.held_until = asked_at + self.leases.seconds
        return True

    def _share(self, living: list[str]) -> int:
        """How many lanes are ours: the same number for everybody, one more for the first few."""
        share, left_over = divmod(self.store.lanes, max(1, len(living)))
        return share + (self.name in living[:left_over])

    async def _take(self, number: int) -> None:
        asked_at = time.monotonic()
        lease = await self.leases.take(number)
        if lease is None:
            return
        progress = await self.leases.progress(number)
        lane = _Lane(
            lease,
            self.leases,
            progress.low,
            asked_at + self.leases.seconds,
            progress.done,
            dict(progress.attempts),
            known_until=progress.end,
            stored_low=progress.low,
        )
        try:
            await self._count_losses(lane)
        except LeaseLost:
            return
        if self._stopping:
            await self._try_acknowledge(lane, progress.low, release=True)
            return
        self._lanes[number] = lane
        self._following.follow(number, lane.position, lane)
        _log.debug("lane taken", kind=self.handler.kind, lane=number, low=progress.low)

    async def _count_losses(self, lane: _Lane) -> None:
        """Blame the events whose handlers were running when the worker before us lost the lane."""
        marked = {at: one for at, one in lane.attempts.items() if one.mark is not None}
        if not marked:
            return
        stalled = await self._liveness.may_live({one.mark.worker for one in marked.values() if one.mark})
        blamed = {
            at: one.lost(stalled=one.mark is not None and one.mark.worker in stalled)
            for at, one in marked.items()
        }
        await self.leases.store_attempts(lane.lease, blamed)
        lane.attempts.update(blamed)

    def _lose(self, lane: _Lane) -> None:
        """Drop a lane that belongs to another worker now, and stop everything in it."""
        if self._lanes.get(lane.lease.lane) is not lane:
            return  # given back already
        del self._lanes[lane.lease.lane]
        self._following.leave(lane.lease.lane)
        lane.closing = True
        lane.sessions.clear()
        lane.unfinished.clear()
        for turn in list(lane.running.values()):
            turn.scope.cancel()
        _log.warning("lane lost", kind=self.handler.kind, lane=lane.lease.lane)

    async def _release(self, lane: _Lane) -> None:
        """Finish what runs in a lane and give it back; what takes too long is handed over unfinished."""
        # What is waiting was not begun: forget it here, whoever takes the lane reads it again.
        lane.sessions = {session: deque() for session in lane.running}
        running = {turn.event.at for turn in lane.running.values()}
        first_waiting = next((at for at in lane.unfinished if at not in running), None)
        if first_waiting is not None:
            lane.position = min(lane.position, first_waiting - 1)
            lane.unfinished = dict.fromkeys(at for at in lane.unfinished if at in running)
        if lane.running:
            with anyio.move_on_after(self.leases.seconds):
                await lane.idle.wait()
        for turn in list(lane.running.values()):
            turn.scope.cancel()
        if self._lanes.get(lane.lease.lane) is lane:
            del self._lanes[lane.lease.lane]
            self._following.leave(lane.lease.lane)
            await self._remove_marks(lane)
            await self._try_acknowledge(lane, lane.low_without(-1), release=True)

    async def _remove_marks(self, lane: _Lane) -> None:
        """A lane is given back in order: nothing that still runs in it is to blame for anything."""
        marked = {at: one.ended() for at, one in lane.attempts.items() if one.mark is not None}
        if marked:
            await self._try_store_attempts(lane, marked)

    async def _try_acknowledge(self, lane: _Lane, low: int, *, release: bool = False) -> None:
        try:
            await self.leases.acknowledge(lane.lease, None, low, release=release)
            lane.stored_low = low
        except LeaseLost:
            self._lose(lane)
        except StoreError as error:
            # Whoever has the lane next sees a few events again, and a lease ends by itself.
            _log.warning("progress was not saved", kind=self.handler.kind, error=str(error))

    async def _drain(self) -> None:
        for lane in list(self._lanes.values()):
            if not lane.closing:
                lane.closing = True
                self._start(self._release, lane)
        # Each lane takes at most the time of a lease; a store that is away is not waited for.
        with anyio.move_on_after(self.leases.seconds + 1):
            while self._lanes:
                try:
                    for number, lane in list(self._lanes.items()):
                        if number in self._lanes:
                            await self._renew(lane)
                except StoreError:
                    pass
                await anyio.sleep(min(0.05, self.leases.seconds / 10))
            try:
                await self.leases.sign_off()
                await self._liveness.forget(self.name)
            except StoreError:
                pass

    # Events

    async def _read(self) -> None:
        """Take the events of our lanes as they come."""
        wait = 0.05
        while True:
            try:
                for event, lane in await self._following.next():
                    await self._accept(event, lane)
                wait = 0.05
            except StoreError as error:
                _log.warning("worker lost its server, trying again", kind=self.handler.kind, error=str(error))
                await anyio.sleep(wait)
                wait = min(1.0, wait * 2)
                for number, lane in self._lanes.items():
                    self._following.follow(number, lane.position, lane)

    async def _accept(self, event: Event, lane: _Lane) -> None:
        if lane.closing or event.at <= lane.position:
            return
        done = (
            event.at in lane.done
            or event.operation == "unknown"
            or INTERNAL in event.tags
            or event.only_for not in (None, self.handler.kind)
        )
        wanted = not done and event.operation != "session_deleted" and await self._wants(event)
        if lane.closing:
            return
        # From here on without a pause: the low-water mark must never pass an event that is not noted yet.
        lane.position = event.at
        session = session_key(event)
        if done:
            return
        if event.operation == "session_deleted":
            self._drop(lane, session)
            return
        waiting = lane.sessions.get(session)
        at_once = self.handler.arrived(event, lane.running.get(session), waiting or ())
        if not wanted:
            return
        lane.unfinished[event.at] = None
        if at_once:
            session = event.owner_id, event.id  # as if it belonged to none
            waiting = lane.sessions.get(session)
        if waiting is None:
            lane.sessions[session] = deque([event])
            self._start(self._work, lane, session)
        else:
            waiting.append(event)

    def _drop(self, lane: _Lane, session: SessionKey) -> None:
        """A session was deleted: what waits in it is forgotten, and what runs stops and writes nothing."""
        waiting = lane.sessions.get(session, ())
        for event in waiting:
            lane.unfinished.pop(event.at, None)
        if waiting:
            lane.sessions[session].clear()
        if (turn := lane.running.get(session)) is not None:
            turn.session_gone = True
            turn.scope.cancel()

    async def _wants(self, event: Event) -> bool:
        try:
            return await self.handler.wants(event)
        except StoreError:
            raise
        except Exception as error:
            # Handled, it fails in its own session, visibly, instead of ending the reading of all of them.
            _log.warning("cannot tell whether an event is wanted", kind=self.handler.kind, error=repr(error))
            return True

    def _start(self, function: Callable[..., Any], *args: Any) -> None:
        if self._tasks is not None:
            self._tasks.start_soon(function, *args)

    async def _work(self, lane: _Lane, session: SessionKey) -> None:
        """Handle what waits in a session, one after the other."""
        while waiting := lane.sessions.get(session):
            event = waiting.popleft()
            alone = lane.attempts.get(event.at, NO_ATTEMPTS).runs_alone
            async with _Place(self._permits(lane, event, alone=alone)) as place:
                await self._turn(lane, session, event, place, alone=alone)
        lane.sessions.pop(session, None)
        if lane.closing and not lane.running:
            lane.idle.set()

    def _permits(self, lane: _Lane, event: Event, *, alone: bool) -> _Permits:
        if event.at > lane.known_until:
            return self._limit
        return self._reruns.alone if alone else self._reruns.together

    async def _turn(
        self, lane: _Lane, session: SessionKey, event: Event, place: _Place, *, alone: bool
    ) -> None:
        while await self._begin(lane, event, alone=alone):
            attempts = lane.attempts.get(event.at, NO_ATTEMPTS)
            given_up = attempts.exhausted(self._attempts)
            number = attempts.counted + (attempts.stalls if given_up else 1)
            turn = Turn(event, number, lane, place)
            lane.running[session] = turn
            try:
                again = await self._try(turn)
            finally:
                del lane.running[session]
            if not again:
                break
        if event.at in lane.attempts and event.at not in lane.unfinished:
            # Done: it is no suspect any more. A commit has removed this already, an empty result has not.
            await self._try_store_attempts(lane, {event.at: NO_ATTEMPTS})

    async def _begin(self, lane: _Lane, event: Event, *, alone: bool) -> bool:
        """Whether a handler may start now. Marks the event as running if an earlier attempt is known or possible.

        An event that came while the lane was ours is not marked at its first attempt: that saves a round trip, and
        the next worker treats it as if it had not been begun.
        """
        number = lane.lease.lane
        while event.at in lane.unfinished and self._lanes.get(number) is lane:
            try:
                if time.monotonic() >= lane.held_until and not await self._renew(lane):
                    return False  # this process was frozen, and another worker has the lane
                attempts = lane.attempts.get(event.at, NO_ATTEMPTS)
                is_new = attempts is NO_ATTEMPTS and event.at > lane.known_until
                if is_new or attempts.exhausted(self._attempts):
                    return True
                begun = lane.attempts[event.at] = attempts.begun(self.name, alone=alone)
                await self.leases.store_attempts(lane.lease, {event.at: begun})
                return event.at in lane.unfinished
            except LeaseLost:
                self._lose(lane)
                return False
            except StoreError:
                await anyio.sleep(0.2)
        return False

    async def _try_store_attempts(self, lane: _Lane, attempts: Mapping[int, Attempts]) -> None:
        for at, one in attempts.items():
            if one == NO_ATTEMPTS:
                lane.attempts.pop(at, None)
            else:
                lane.attempts[at] = one
        try:
            await self.leases.store_attempts(lane.lease, attempts)
        except LeaseLost:
            self._lose(lane)
        except StoreError as error:
            _log.warning("attempts were not stored", kind=self.handler.kind, error=str(error))

    async def _try(self, turn: Turn) -> bool:
        """Run the handler once. Returns whether another attempt follows."""
        lane, attempt = turn.lane, turn.attempt
        try:
            if lane.attempts.get(turn.event.at, NO_ATTEMPTS).exhausted(self._attempts):
                raise TurnFailed(f"given up after {attempt} attempts that did not come to an end")
            with turn.scope:
                await self.handler.handle(turn)
            if turn.scope.cancelled_caught and not turn.session_gone:
                if turn.cancelled is None:
                    return False  # the lane is lost or handed over: it is somebody else's now
                raise TurnCancelled(turn.cancelled)
        except LeaseLost:
            self._lose(lane)
            return False
        except SessionGone:
            pass  # over, and nobody is left to hear of it; the low-water mark passes over it
        except AWAY as error:
            # Not the event's fault: wait for the server, however long it takes.
            _log.warning("turn waits for the store", kind=self.handler.kind, error=str(error))
            await anyio.sleep(0.2 + random.random() * 0.2)  # noqa: S311 - spreads load, protects nothing
            return not lane.closing
        except Exception as error:
            if turn.session_gone:
                lane.unfinished.pop(turn.event.at, None)
                return False
            if turn.cancelled is None and is_worth_another_try(error) and attempt < self._attempts:
                _log.info(
                    "turn failed, trying again", kind=self.handler.kind, attempt=attempt, error=str(error)
                )
                turn.scope = anyio.CancelScope()
                turn.place.leave()
                failed = lane.attempts.get(turn.event.at, NO_ATTEMPTS).failed()
                await self._try_store_attempts(lane, {turn.event.at: failed})
                with turn.scope:
                    with anyio.move_on_after(max(self._backoff(attempt), _asked_pause(error))):
                        await turn.next_attempt.wait()
                    await turn.place.take()
                if turn.session_gone:
                    lane.unfinished.pop(turn.event.at, None)
                    return False
                if turn.cancelled is None:
                    return not turn.scope.cancelled_caught
            if not await self._bury(turn, TurnCancelled(turn.cancelled) if turn.cancelled else error):
                return False
        lane.unfinished.pop(turn.event.at, None)
        return False

    async def _bury(self, turn: Turn, error: Exception) -> bool:
        """A turn that failed for good: say so in the session, and put it aside. False: the lane is lost."""
        event = turn.event
        if not isinstance(error, TurnCancelled):
            _log.warning("turn failed", kind=self.handler.kind, breadcrumb=str(event.id), error=repr(error))
            turn.dead_letter = orjson.dumps(
                {
                    "at": times.to_text(event.at),
                    "event": event.at,
                    "kind": self.handler.kind,
                    "owner_id": str(event.owner_id),
                    "breadcrumb_id": str(event.id),
                    "version": event.version,
                    "session_id": event.session_id,
                    "attempts": turn.attempt,
                    "error": reason_of(error),
                }
            )
        while True:
            try:
                try:
                    await self.handler.give_up(turn, error)
                except (LeaseLost, *AWAY):
                    raise
                except SessionGone:
                    turn.dead_letter = b""
                except Exception as problem:  # the dead letter is there all the same
                    _log.error("no error could be left in the session", problem=repr(problem))
                await turn.acknowledge()
                return True
            except LeaseLost:
                self._lose(turn.lane)
                return False
            except StoreError:
                await anyio.sleep(0.3)
                if turn.lane.closing:
                    return False
