"""Workers that a test runs step by step, one round trip at a time.

The handlers, the logic of the worker and the server are real. Time is not: nothing sleeps, no lease expires, and
requests to the server wait until the test sends them. A test can stop a worker between any two round trips and let
another one overtake it. It can kill a worker before its request is sent, or after the server has executed it and
before the worker gets the reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from breadcrumbs.runtime.backend.connection import Connection, LaneChannels, Script, ScriptCall
from breadcrumbs.runtime.backend.identity import StoreIdentity
from breadcrumbs.runtime.backend.link import ChannelHandler, Command
from breadcrumbs.runtime.errors import StoreUnavailable
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.lane import Lane, SessionKey
from breadcrumbs.runtime.workers.retries import TurnLimits
from breadcrumbs.runtime.workers.turn import Handler
from breadcrumbs.runtime.workers.worker import Worker
from breadcrumbs.runtime.workers.worker_info import WorkerInfo
from tests.support.events import log_of, reader_of

_WAITS_FOR_OTHERS = 20

_acting: ContextVar[Actor | None] = ContextVar("acting", default=None)


@dataclass(slots=True)
class _Request:
    send: Callable[[], Awaitable[Any]]
    reply: asyncio.Future[Any]


class SteppedConnection:
    """Connection that sends requests of the test at once and holds those of an actor."""

    def __init__(self, inner: Connection) -> None:
        self._inner = inner

    async def call(self, lane: int, *command: bytes | str | int | float) -> Any:
        return await self._ask(lambda: self._inner.call(lane, *command))

    async def call_all(self, commands: Sequence[tuple[int, Command | ScriptCall]]) -> list[Any]:
        if not commands:
            return []
        replies: list[Any] = await self._ask(lambda: self._inner.call_all(commands))
        return replies

    async def run(self, lane: int, script: Script, keys: list[bytes], args: list[bytes | str | int]) -> Any:
        return await self._ask(lambda: self._inner.run(lane, script, keys, args))

    async def _ask(self, send: Callable[[], Awaitable[Any]]) -> Any:
        actor = _acting.get()
        if actor is None:
            return await send()
        request = _Request(send, asyncio.get_running_loop().create_future())
        actor.asked.append(request)
        return await request.reply

    def post(self, lane: int, *command: bytes | str | int | float) -> None:
        self._inner.post(lane, *command)

    def reader_groups(self) -> list[list[int]]:
        return self._inner.reader_groups()

    def node_lanes(self) -> list[int]:
        return self._inner.node_lanes()

    def node_of(self, lane: int) -> object:
        return self._inner.node_of(lane)

    async def open_channels(self, lane: int, on_message: ChannelHandler) -> LaneChannels:
        return await self._inner.open_channels(lane, on_message)

    async def listen(self, channel: bytes, on_message: Callable[[bytes], None]) -> None:
        await self._inner.listen(channel, on_message)

    def protect(self, identity: StoreIdentity) -> None:
        self._inner.protect(identity)

    async def verify(self) -> None:
        await self._inner.verify()

    async def close(self) -> None:
        await self._inner.close()


class Actor:
    """Task that stops at every request to the server until the test continues it."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self.asked: list[_Request] = []
        self.round_trips = 0
        self._task = asyncio.get_running_loop().create_task(self._run(work))

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        _acting.set(self)
        await work()

    @property
    def over(self) -> bool:
        return self._task.done()

    async def settle(self, patience: int = 3) -> None:
        """Run the task until it waits for replies to all its concurrent requests, or for other tasks."""
        calm = 0
        while not self._task.done() and calm < (patience if self.asked else _WAITS_FOR_OTHERS):
            before = len(self.asked)
            await asyncio.sleep(0)
            calm = calm + 1 if len(self.asked) == before else 0
        if self._task.done() and not self._task.cancelled():
            self._task.result()

    async def step(self, *, lose_replies: bool = False, patience: int = 3) -> None:
        """Send all held requests and deliver the replies, or a connection error with `lose_replies`."""
        requests = await self._send()
        for request, outcome in requests:
            if request.reply.done():
                continue
            if lose_replies:
                request.reply.set_exception(StoreUnavailable("the link broke"))
            elif isinstance(outcome, BaseException):
                request.reply.set_exception(outcome)
            else:
                request.reply.set_result(outcome)
        self.round_trips += 1
        await self.settle(patience)

    async def kill(self, *, after_sending: bool = False) -> None:
        """Cancel the task, like SIGKILL. With `after_sending`, its requests reach the server first."""
        if after_sending:
            await self._send()
        self._task.cancel()
        await asyncio.wait([self._task])

    async def finish(self, patience: int = 3) -> int:
        """Run the task to its end and return its number of round trips."""
        await self.settle(patience)
        while not self.over:
            await self.step(patience=patience)
        return self.round_trips

    async def _send(self) -> list[tuple[_Request, Any]]:
        requests, self.asked = self.asked, []
        outcomes = await asyncio.gather(*(request.send() for request in requests), return_exceptions=True)
        return list(zip(requests, outcomes, strict=True))


class SteppedWorker(Worker):
    """Worker that runs only when the test calls it."""

    def __init__(self, store: Store, handler: Handler, name: str) -> None:
        super().__init__(
            store,
            reader_of(store),
            handler,
            lease_seconds=300.0,
            limits=TurnLimits(attempts=20, backoff=lambda attempt: 0.0),
            info=WorkerInfo(name, name, "host"),
        )
        self.ready: list[tuple[Lane, SessionKey]] = []
        """Sessions with events to handle."""
        self.actors: list[Actor] = []

    def _start(self, function: Callable[..., Any], *args: Any) -> None:
        if function == self._turns.run_session:
            self.ready.append((args[0], args[1]))
            return
        self.actors.append(Actor(lambda: function(*args)))

    async def take_free_lanes(self, most: int) -> None:
        missing = max(0, most - len(self._lanes.by_number))
        await self._lanes.take((await self.leases.free_lanes())[:missing])

    async def read(self) -> int:
        """Read all events of its lanes and return their number."""
        lanes = {number: lane for number, lane in self._lanes.by_number.items() if not lane.closing}
        position = {number: lane.position for number, lane in lanes.items()}
        end = dict.fromkeys(lanes, 1 << 60)
        events = await log_of(self.store).between(position, end, count=1_000)
        for event in events:
            await self._accept(event, lanes[event.lane])
        return len(events)

    def begin(self, which: int) -> Actor:
        """Begin the turns of one of the ready sessions."""
        lane, session = self.ready.pop(which)
        actor = Actor(lambda: self._turns.run_session(lane, session))
        self.actors.append(actor)
        return actor

    async def handle_all(self) -> None:
        """Handle all ready sessions completely."""
        while self.ready:
            await self.begin(0).finish()

    def give_back(self, which: int) -> None:
        lanes = [lane for lane in self._lanes.by_number.values() if not lane.closing]
        if lanes:
            lane = lanes[which % len(lanes)]
            self._start_release(lane)

    async def lose_leases(self, *, unused_only: bool = False) -> None:
        """Delete the leases of this worker, as after a long freeze. The worker does not notice it."""
        for number in range(self.store.lanes):
            if unused_only and number in self._lanes.by_number:
                continue
            key = self.store.keys.lease(number, self.handler.kind)
            held = await self.store.connection.call(number, b"GET", key)
            if held is not None and held.endswith(b" " + self.name.encode()):
                await self.store.connection.call(number, b"DEL", key)

    async def crash(self, *, after_sending: bool) -> None:
        for actor in self.actors:
            await actor.kill(after_sending=after_sending)
        self.actors.clear()
        self.ready.clear()
        await self.lose_leases()
        self._lanes.by_number.clear()


@dataclass
class Crew:
    """Workers of both kinds on one store."""

    workers: list[SteppedWorker] = field(default_factory=list)

    async def finish(self) -> None:
        """Finish all running tasks. Then one worker of each kind handles the remaining events."""
        # Some tasks wait for others: the release of a lane waits for the turns that run in it.
        while under_way := [actor for worker in self.workers for actor in worker.actors if not actor.over]:
            for actor in under_way:
                await actor.step()
        last = {worker.handler.kind: worker for worker in self.workers}
        for worker in self.workers:
            if worker is not last[worker.handler.kind]:
                await worker.crash(after_sending=False)
        for worker in last.values():
            await worker.lose_leases(unused_only=True)  # leases of dropped lanes, which would expire
            for lane in list(worker._lanes.by_number.values()):
                if not await worker.leases.renew(lane.lease):
                    worker._lanes.drop(lane)
            await worker.take_free_lanes(worker.store.lanes)
        idle = 0
        while idle < len(last):
            for worker in last.values():
                idle = 0 if await worker.read() or worker.ready else idle + 1
                await worker.handle_all()
