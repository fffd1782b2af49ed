"""One reader for all the event-stream clients of a process.

The hub follows each lane once, loads each body once, renders each event once, and hands the same bytes to
every client that wants it. It reads only while somebody listens. A client that does not take its events
fills its own queue and is dropped; it costs the others nothing.

A client that comes back with a position is first brought up to date straight from the streams, at its
own speed, and then joins.

Clients with conditions on the body are served apart from all others: their events wait in a queue per token, and a task
per token evaluates them at the pace of conditions.py. Everybody else gets an event at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, TypeAlias
from uuid import UUID

import orjson
import structlog

from breadcrumbs.runtime.backend.link import LinkLost, ReplyError
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.events.event import Event, Position
from breadcrumbs.runtime.events.positions import PositionCodec
from breadcrumbs.runtime.events.reader import Follower
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.write_cache import HEADER_BYTES
from breadcrumbs.runtime.streams.conditions import Evaluation, Pacer
from breadcrumbs.runtime.streams.slots import Slots

MOST_WAITING_BYTES = 1 << 20

_SLICE = 64
"""How many bodies are loaded at a time."""
_LOADED_BYTES = 1 << 20
"""How many bytes of bodies are loaded at a time; one body may be larger."""
_UNMEASURED_BYTES = 4 << 20
"""So few bodies that they cannot exceed this are loaded without asking for their sizes first."""
_CATCH_UPS, _CATCH_UPS_PER_OWNER, _CATCH_UPS_PER_TOKEN = 16, 8, 4
"""How many catch-ups hold loaded breadcrumbs at the same time. The others wait."""
_BYTES_AT_ONCE = MOST_WAITING_BYTES // 4
"""How much is handed out before the clients get to take it."""

_MAX_PENDING_EVENTS = 1_000
_MAX_PENDING_BYTES = 4 << 20
"""Events that may wait for the conditions of one token. Above this its streams with conditions are cut. They can
resume with their positions."""

_UNDECIDED = (
    "the conditions of this stream would cost too much on this breadcrumb: read it yourself, or use fewer conditions, "
    "paths without '..', a schema or tags"
)

_log = structlog.get_logger("breadcrumbs.hub")


class Filter(Protocol):
    """What a client may see and wants to see."""

    owner_id: UUID

    @property
    def token(self) -> Hashable:
        """Equal for clients with equal rights: they share a queue for the evaluation of conditions."""
        ...

    @property
    def conditional(self) -> bool:
        """Whether it has conditions on the body, which may take long to evaluate."""
        ...

    @property
    def ended(self) -> bool:
        """Whether no event will come any more: the stream ends once its queue is empty."""
        ...

    def wants(self, event: Event) -> bool:
        """Decides by the event alone; may say yes where only the body can tell."""
        ...

    def accepts(self, event: Event, evaluation: Evaluation | None) -> bool | None:
        """The final decision, with the body; no evaluation: the body is gone.

        None: this would cost more than the stream may spend on one event.
        """
        ...

    def shows_context(self, crumb: Breadcrumb) -> bool: ...

    def as_seen(self, crumb: Breadcrumb) -> Breadcrumb:
        """What it may read of a breadcrumb whose context it is shown; itself where that is all of it."""
        ...


class Subscription:
    """One client's queue of rendered events."""

    __slots__ = (
        "_dropped",
        "_floor",
        "_frames",
        "_ready",
        "_waiting_bytes",
        "filter",
        "on_drop",
        "overflowed",
        "pending",
    )

    def __init__(self, filter: Filter) -> None:
        self.filter = filter
        self.overflowed = False
        """Its client did not read, or its conditions take too long."""
        self.pending = 0
        """Events that wait for the evaluation of its conditions."""
        self._frames: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._ready = asyncio.Event()
        self._dropped = False
        self.on_drop: Callable[[], None] | None = None
        self._floor: Position | None = None

    @property
    def dropped(self) -> bool:
        return self._dropped

    @property
    def is_empty(self) -> bool:
        """Whether everything that was offered has been taken."""
        return not self._frames and not self.pending

    async def take(self, patience: float) -> bytes:
        """Everything that is waiting, in one piece; nothing when none came in `patience` seconds."""
        if not self._ready.is_set():
            # A timer of our own: a cancel scope around each wait is half the cost of an event to a client.
            timer = asyncio.get_running_loop().call_later(patience, self._ready.set)
            try:
                await self._ready.wait()
            finally:
                timer.cancel()
        self._ready.clear()
        frames = b"".join(self._frames)
        self._frames.clear()
        self._waiting_bytes = 0
        return frames

    def give_up(self) -> None:
        """Its client does not read."""
        self.overflowed = True
        self.drop()

    def drop(self) -> None:
        """End it: the hub closes, or its client does not keep up."""
        self._frames.clear()
        self._dropped = True
        self._ready.set()
        if self.on_drop is not None:
            self.on_drop()

    def offer(self, frame: bytes) -> bool:
        # A frame alone may be as large as it is: nobody could be blamed for not having read the one before.
        if self._frames and self._waiting_bytes + len(frame) > MOST_WAITING_BYTES:
            self.give_up()
            return False
        self._frames.append(frame)
        self._waiting_bytes += len(frame)
        self._ready.set()
        return True


class EventHub:
    """Reads the event streams for all clients of this process."""

    def __init__(self, store: Store, *, rcrt_events: bool = True) -> None:
        self.store = store
        self.log = store.tail.log
        self._rcrt_events = rcrt_events
        self._clients: dict[UUID, set[Subscription]] = {}
        self._position: Position = [0] * store.lanes
        self._readers: list[asyncio.Task[None]] = []
        self._starting = asyncio.Lock()
        self._closed = False
        self._positions = PositionCodec(store.secret, store.lanes)
        self._pacer = Pacer()
        self._slots = Slots(total=_CATCH_UPS, per_owner=_CATCH_UPS_PER_OWNER, per_token=_CATCH_UPS_PER_TOKEN)
        self._queues: dict[Hashable, _Queue] = {}
        self.dropped_clients = 0

    @property
    def clients(self) -> int:
        return sum(len(clients) for clients in self._clients.values())

    async def start(self) -> None:
        """Nothing to do yet: reading begins with the first client."""

    async def close(self) -> None:
        """End every stream and stop reading."""
        self.end_streams()
        await self._stop_reading()
        evaluations = [queue.task for queue in self._queues.values() if queue.task is not None]
        for task in evaluations:
            task.cancel()
        await asyncio.gather(*evaluations, return_exceptions=True)
        self._queues.clear()

    def end_streams(self) -> None:
        """End every stream at once; for signal handlers."""
        self._closed = True
        for clients in self._clients.values():
            for client in clients:
                client.drop()

    def encode_position(self, owner: UUID, position: Position) -> str:
        return self._positions.encode(owner, position)

    def decode_position(self, owner: UUID, text: str) -> Position | None:
        """See `PositionCodec.decode`."""
        return self._positions.decode(owner, text)

    async def subscribe(self, subscription: Subscription) -> Position:
        """Join for what happens from now on; where that is."""
        await self._start_reading()
        self._join(subscription)
        return list(self._position)

    async def catch_up(self, subscription: Subscription, position: Position) -> AsyncGenerator[bytes, None]:
        """Give what happened since a position, then join; nothing is left out in between.

        Close it (`aclosing`) where it is not read to its end: it may hold a slot.
        """
        position = list(position)
        while not self._closed:
            # Each time round: meanwhile the last client may have left, and reading ended with it.
            await self._start_reading()
            until = list(self._position)
            async with aclosing(self._replay(subscription.filter, position, until)) as frames:
                async for frame in frames:
                    yield frame
            # No await between this look and joining: what comes after it goes into the queue.
            if self._readers and all(seen >= now for seen, now in zip(position, self._position, strict=True)):
                subscription._floor = None if position == self._position else position
                break
        self._join(subscription)

    def served(self, subscription: Subscription) -> Position | None:
        """Up to where a client that has taken all that was waiting has been served. None: evaluation is behind."""
        if subscription.pending:
            return None
        floor = subscription._floor
        if floor is None:
            return list(self._position)
        return [max(pair) for pair in zip(floor, self._position, strict=True)]

    def leave(self, subscription: Subscription) -> None:
        clients = self._clients.get(subscription.filter.owner_id)
        if clients is not None:
            clients.discard(subscription)
            if not clients:
                del self._clients[subscription.filter.owner_id]
        if not self._clients:
            for reader in self._readers:
                reader.cancel()
            self._readers.clear()

    def _has(self, subscription: Subscription) -> bool:
        return subscription in self._clients.get(subscription.filter.owner_id, ())

    def _join(self, subscription: Subscription) -> None:
        if self._closed:
            subscription.drop()
            return
        self._clients.setdefault(subscription.filter.owner_id, set()).add(subscription)

    async def _start_reading(self) -> None:
        async with self._starting:
            if self._readers or self._closed:
                return
            self._position = await self.log.end()
            self._readers = [asyncio.create_task(self._read()), asyncio.create_task(self._listen())]

    async def _stop_reading(self) -> None:
        readers, self._readers = self._readers, []
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

    async def _read(self) -> None:
        follower: Follower[None] = Follower(self.store.tail, self._take)
        wait = 0.1
        try:
            while True:
                for lane, at in enumerate(self._position):
                    follower.follow(lane, at, None)
                try:
                    while True:
                        await self._deliver([event for event, _ in await follower.next()])
                        wait = 0.1
                except StoreError as error:
                    # The position stays where it is, so nothing is missed, however long it takes.
                    _log.warning("event hub lost its server, trying again", error=str(error), wait=wait)
                except Exception:
                    # Whatever it is: a reader that ends would leave every client with nothing but pings.
                    _log.exception("event hub failed, trying again", wait=wait)
                await asyncio.sleep(wait)
                wait = min(2.0, wait * 2)
        finally:
            follower.leave_all()

    async def _listen(self) -> None:
        """Pass on pieces of answers while they are made. They may get lost; the breadcrumb will come."""
        while True:
            try:
                await self.store.connection.listen(self.store.keys.deltas(), self._heard)
            except (LinkLost, ReplyError):
                pass
            except Exception:
                _log.exception("listening for pieces of answers failed, trying again")
            await asyncio.sleep(1)

    def _heard(self, raw: bytes) -> None:
        try:
            self._pass_on(raw)
        except Exception as error:
            _log.warning("a piece of an answer cannot be read", error=repr(error))

    def _pass_on(self, raw: bytes) -> None:
        delta = orjson.loads(raw)
        owner = UUID(delta["owner_id"])
        clients = self._clients.get(owner)
        if not clients:
            return
        id = UUID(delta["breadcrumb_id"])
        event = Event("created", owner, id, 0, delta["type"], delta.pop("tags"), None, 0, 0)
        frame = b"event: %s\ndata: %s\n\n" % (delta["type"].encode(), orjson.dumps(delta))
        for client in list(clients):
            if self._wants(client, event) and not client.offer(frame):
                self.dropped_clients += 1
                self.leave(client)

    def _take(self, event: Event) -> bool:
        """Hand out an event at once, unless its body has to be asked for."""
        wanted, crumb = self._wanted(event), None
        if wanted and has_body(event):
            crumb = self.store.write_cache.get_permanent(event.owner_id, event.id, event.version, event.at)
            if crumb is None:
                return False
        self._position[event.lane] = event.at
        if wanted:
            self._hand_out(event, crumb)
        return True

    async def _deliver(self, events: list[Event]) -> None:
        """Hand out events a few at a time: a client that reads must get to do so before it is judged."""
        loaded: dict[int, Breadcrumb | None] = {}
        number = 0
        while number < len(events):
            end = max(loaded) + 1 if loaded else min(number + _SLICE, len(events))
            while missing := [
                wanted
                for wanted in range(number, end)
                if wanted not in loaded and has_body(events[wanted]) and self._wanted(events[wanted])
            ]:
                # A client may join while bodies are loaded, and want what nobody wanted before.
                bodies = await self._bodies([events[wanted] for wanted in missing])
                loaded.update(zip(missing, bodies, strict=False))
                if len(bodies) < len(missing):
                    end = missing[len(bodies)]
            handed_out = 0
            while number < end and handed_out < _BYTES_AT_ONCE:
                event = events[number]
                self._position[event.lane] = event.at
                handed_out += self._hand_out(event, loaded.pop(number, None))
                number += 1
            if number < len(events):
                await asyncio.sleep(0)

    async def _bodies(self, events: list[Event]) -> list[Breadcrumb | None]:
        """Load the bodies of the first events, at least one (see `load_versions`).

        A body that this process has just written is not read from the store.
        """
        cached = self.store.write_cache.get_permanent
        found = [cached(event.owner_id, event.id, event.version, event.at) for event in events]
        if unknown := [number for number, crumb in enumerate(found) if crumb is None]:
            loaded = await load_versions(self.store, [events[number] for number in unknown])
            for number, crumb in zip(unknown, loaded, strict=False):
                found[number] = crumb
            if len(loaded) < len(unknown):
                del found[unknown[len(loaded)] :]
        return found

    def _wanted(self, event: Event) -> bool:
        return is_shown(event) and any(
            self._wants(client, event) for client in list(self._clients.get(event.owner_id, ()))
        )

    def _wants(self, client: Subscription, event: Event) -> bool:
        try:
            return client.filter.wants(event)
        except Exception:
            self._expel(client)
            return False

    def _accepts(self, client: Subscription, event: Event, evaluation: Evaluation | None) -> bool | None:
        try:
            return client.filter.accepts(event, evaluation)
        except Exception:
            self._expel(client)
            return False

    def _expel(self, client: Subscription) -> None:
        """Its filter failed: that ends its own stream and nobody else's."""
        _log.exception("the filter of a client failed, its stream ends")
        self.dropped_clients += 1
        client.drop()
        self.leave(client)

    def _hand_out(self, event: Event, crumb: Breadcrumb | None) -> int:
        """Give an event to all who want it; how many bytes each of them got at most."""
        clients = self._clients.get(event.owner_id)
        if not clients or not is_shown(event):
            return 0
        rendered = Rendering(event, crumb, self._rcrt_events)
        evaluation = None if crumb is None else Evaluation(crumb)
        ids = _Ids(self._positions, event.owner_id)
        waiting: dict[Hashable, list[_Recipient]] = {}
        now: Position | None = None
        longest = 0
        for client in list(clients):
            if not self._wants(client, event):
                continue
            conditional = client.filter.conditional
            if not conditional and not self._accepts(client, event, evaluation):
                continue
            position = self._position_for(client, event)
            if position is None:
                continue
            if conditional:
                # Our own position will have moved on by then: all clients share a copy.
                if position is self._position:
                    position = now = now or list(position)
                waiting.setdefault(client.filter.token, []).append((client, position))
            else:
                longest = max(longest, self._give(client, rendered, ids.of(position)))
        for token, recipients in waiting.items():
            self._evaluate_later(token, _Pending(rendered, evaluation, recipients))
        return longest

    def _position_for(self, client: Subscription, event: Event) -> Position | None:
        """The position of a client after an event; None: it has seen the event already."""
        floor = client._floor
        if floor is None:
            return self._position
        # This client has seen more than we had: do not repeat it, nor let its position fall back.
        if event.at <= floor[event.lane]:
            return None
        position = [max(pair) for pair in zip(floor, self._position, strict=True)]
        if position == self._position:
            client._floor = None
            return self._position
        return position

    def _give(self, client: Subscription, rendered: Rendering, id: str, *, undecided: bool = False) -> int:
        """Put an event into a client's queue; how many bytes."""
        try:
            frame = rendered.undecided(id) if undecided else self._frame(rendered, client.filter, id)
        except Exception:
            self._expel(client)
            return 0
        if not client.offer(frame):
            self.dropped_clients += 1
            self.leave(client)
        return len(frame)

    def _evaluate_later(self, token: Hashable, pending: _Pending) -> None:
        queue = self._queues.get(token)
        if queue is None:
            queue = self._queues[token] = _Queue()
            queue.task = asyncio.create_task(self._evaluate(token, queue))
        for client, _ in pending.recipients:
            client.pending += 1
        queue.append(pending)
        if len(queue.events) > _MAX_PENDING_EVENTS or queue.bytes > _MAX_PENDING_BYTES:
            # The event in front may be under way: it stays, and its clients are told nothing more.
            behind = {client for one in queue.events for client, _ in one.recipients if self._has(client)}
            for client in behind:
                client.give_up()
                self.leave(client)
            self.dropped_clients += len(behind)
            queue.drop_all_but_first()

    async def _evaluate(self, token: Hashable, queue: _Queue) -> None:
        """Evaluate the conditions of one token's streams, event by event, until nothing is left."""
        try:
            while queue.events:
                await self._decide(token, queue.events[0])
                queue.drop_first()
        finally:
            if self._queues.get(token) is queue:
                del self._queues[token]

    async def _decide(self, token: Hashable, pending: _Pending) -> None:
        event, ids = pending.rendered.event, _Ids(self._positions, pending.rendered.event.owner_id)
        for client, position in pending.recipients:
            decision: bool | None = False
            if self._has(client):
                decision = await self._pacer.run(
                    token,
                    lambda client=client: self._accepts(client, event, pending.evaluation),  # type: ignore[misc]
                )
            client.pending -= 1
            if decision is False or not self._has(client):
                continue
            self._give(client, pending.rendered, ids.of(position), undecided=decision is None)

    def _frame(self, rendered: Rendering, filter: Filter, id: str) -> bytes:
        crumb = rendered.crumb
        if crumb is None or not filter.shows_context(crumb):
            return rendered.frame(id, with_context=False)
        seen = filter.as_seen(crumb)
        if seen is not crumb:
            rendered = Rendering(rendered.event, seen, self._rcrt_events)
        return rendered.frame(id, with_context=True)

    async def _replay(
        self, filter: Filter, position: Position, until: Position
    ) -> AsyncGenerator[bytes, None]:
        """Rendered events up to `until`; moves `position` along."""
        while events := await self.log.between(
            dict(enumerate(position)), dict(enumerate(until)), count=_SLICE
        ):
            ends = {event.lane: event.at for event in events}
            wanted = deque(
                event
                for event in events
                if event.owner_id == filter.owner_id and is_shown(event) and filter.wants(event)
            )
            del events
            while wanted:
                # The slot is given back after each slice: a client that reads slowly must not keep it.
                async with (
                    self._slots.held(filter.owner_id, filter.token),
                    aclosing(self._replay_slice(filter, position, wanted)) as frames,
                ):
                    async for frame in frames:
                        yield frame
            for lane, at in ends.items():
                position[lane] = at
        for lane, at in enumerate(until):
            position[lane] = max(position[lane], at)

    async def _replay_slice(
        self, filter: Filter, position: Position, wanted: deque[Event]
    ) -> AsyncGenerator[bytes, None]:
        """Takes the first of some events and renders them. While a frame is sent, its breadcrumb is not kept."""
        some = list(islice(wanted, _SLICE))
        loaded = deque(await load_versions(self.store, [event for event in some if has_body(event)]))
        for event in some:
            if has_body(event) and not loaded:
                return
            crumb = loaded.popleft() if has_body(event) else None
            wanted.popleft()
            position[event.lane] = event.at
            frame = await self._replayed_frame(filter, event, crumb, position)
            del crumb
            if frame is not None:
                yield frame

    async def _replayed_frame(
        self, filter: Filter, event: Event, crumb: Breadcrumb | None, position: Position
    ) -> bytes | None:
        decision = await self._replayed(filter, event, crumb)
        if decision is False:
            return None
        rendered, id = Rendering(event, crumb, self._rcrt_events), self._encoded(filter, position)
        return self._frame(rendered, filter, id) if decision else rendered.undecided(id)

    async def _replayed(self, filter: Filter, event: Event, crumb: Breadcrumb | None) -> bool | None:
        evaluation = None if crumb is None else Evaluation(crumb)
        if not filter.conditional:
            return filter.accepts(event, evaluation)
        return await self._pacer.run(filter.token, lambda: filter.accepts(event, evaluation))

    def _encoded(self, filter: Filter, position: Position) -> str:
        return self._positions.encode(filter.owner_id, position)


_Recipient: TypeAlias = tuple[Subscription, Position]
"""A client, and its position after an event."""


@dataclass(slots=True)
class _Pending:
    """An event that waits for the evaluation of conditions."""

    rendered: Rendering
    evaluation: Evaluation | None
    recipients: list[_Recipient]

    @property
    def bytes(self) -> int:
        crumb = self.rendered.crumb
        return 0 if crumb is None else len(crumb.json)


@dataclass(slots=True)
class _Queue:
    """Events that wait for the evaluation of one token's conditions, in their order."""

    events: deque[_Pending] = field(default_factory=deque)
    bytes: int = 0
    task: asyncio.Task[None] | None = None

    def append(self, pending: _Pending) -> None:
        self.events.append(pending)
        self.bytes += pending.bytes

    def drop_first(self) -> None:
        self.bytes -= self.events.popleft().bytes

    def drop_all_but_first(self) -> None:
        while len(self.events) > 1:
            self.bytes -= self.events.pop().bytes


class _Ids:
    """Encodes the positions of one event, each once, however many clients have it."""

    __slots__ = ("_codec", "_known", "_last", "_owner")

    def __init__(self, codec: PositionCodec, owner: UUID) -> None:
        self._codec = codec
        self._owner = owner
        self._last: Position | None = None
        self._known = ""

    def of(self, position: Position) -> str:
        if position is not self._last:
            self._last, self._known = position, self._codec.encode(self._owner, position)
        return self._known


@dataclass(slots=True)
class Rendering:
    """An event as its readers get it, rendered at most once per form."""

    event: Event
    crumb: Breadcrumb | None
    rcrt_events: bool
    _bare: bytes | None = None
    _full: bytes | None = None
    _frames: dict[tuple[str, bool], bytes] = field(default_factory=dict)

    def frame(self, id: str, *, with_context: bool) -> bytes:
        """The same bytes for the same id: thousands of queues hold one copy."""
        frame = self._frames.get((id, with_context))
        if frame is None:
            frame = self._frames[id, with_context] = self._render(id, with_context=with_context)
        return frame

    def _render(self, id: str, *, with_context: bool) -> bytes:
        if with_context:
            data = self._full = self._full or orjson.dumps(self.payload(with_context=True))
        else:
            data = self._bare = self._bare or orjson.dumps(self.payload(with_context=False))
        return b"id: %s\ndata: %s\n\n" % (id.encode(), data)

    def undecided(self, id: str) -> bytes:
        """Tells a client that its conditions could not be decided for this event."""
        payload = {**self.payload(with_context=False), "type": "breadcrumb.undecided", "detail": _UNDECIDED}
        payload.pop("title", None)
        return b"id: %s\nevent: undecided\ndata: %s\n\n" % (id.encode(), orjson.dumps(payload))

    def payload(self, *, with_context: bool) -> dict[str, object]:
        event, crumb = self.event, self.crumb
        if event.operation == "session_deleted":
            return {
                "type": "session.deleted",
                "session_id": event.session_id,
                "owner_id": str(event.owner_id),
                "tags": event.tags,
                "updated_at": times.to_text(event.at),
            }
        # RCRT's clients wait for "breadcrumb.updated" also where something is new; `operation` says which.
        kind = "updated" if self.rcrt_events and event.operation == "created" else event.operation
        payload: dict[str, object] = {
            "type": f"breadcrumb.{kind}",
            "operation": event.operation,
            "breadcrumb_id": str(event.id),
            "owner_id": str(event.owner_id),
            "version": event.version,
            "tags": event.tags,
            "updated_at": times.to_text(crumb.updated if crumb else event.at),
        }
        if event.schema_name is not None:
            payload["schema_name"] = event.schema_name
        if event.session_id is not None:
            payload["session_id"] = event.session_id
        if crumb is not None:
            payload["title"] = crumb.title
            if with_context:
                payload["context"] = crumb.context
        return payload


def is_shown(event: Event) -> bool:
    """Whether it is for clients at all."""
    return event.operation not in ("retried", "unknown")


def has_body(event: Event) -> bool:
    return event.operation not in ("deleted", "session_deleted")


async def load_versions(store: Store, events: list[Event]) -> list[Breadcrumb | None]:
    """Load the version that each event names, also where it has been overwritten; None: deleted or expired.

    The result is shorter than the request where the next one would exceed `_LOADED_BYTES`. It has at least one.
    """
    number, overwritten = await _measured(store, events)
    events = events[:number]
    current = await store.connection.call_all(
        [
            (event.lane, (b"GETRANGE", key, 0, HEADER_BYTES) if old else (b"GET", key))
            for event, old in zip(events, overwritten, strict=False)
            for key in (store.keys.body(event.lane, event.owner_id, event.id.bytes),)
        ]
    )
    found: list[Breadcrumb | None] = []
    now = store.now()
    for event, body, old in zip(events, current, overwritten, strict=False):
        crumb = _decoded(event, body, header_only=old) if body else None
        found.append(None if crumb is None or record.is_gone(crumb, now) else crumb)
    earlier = [
        number
        for number, crumb in enumerate(found)
        if crumb is not None and crumb.version != events[number].version
    ]
    bodies = await store.connection.call_all(
        [(events[number].lane, (b"HGET", *_history_of(store, events[number]))) for number in earlier]
    )
    for number, body in zip(earlier, bodies, strict=True):
        found[number] = None if body is None else _decoded(events[number], body)
    return found


async def _measured(store: Store, events: list[Event]) -> tuple[int, list[bool]]:
    """How many of the first events can be loaded together, and which of them name a version in the history."""
    if len(events) <= 1 or len(events) * store.max_content_bytes <= _UNMEASURED_BYTES:
        return len(events), [False] * len(events)
    sizes = await store.connection.call_all(
        [
            (event.lane, command)
            for event in events
            for command in (
                (b"STRLEN", store.keys.body(event.lane, event.owner_id, event.id.bytes)),
                (b"HSTRLEN", *_history_of(store, event)),
            )
        ]
    )
    overwritten = [bool(size) for size in sizes[1::2]]
    total = number = 0
    for current, earlier in zip(sizes[::2], sizes[1::2], strict=True):
        total += earlier or current
        if number and total > _LOADED_BYTES:
            break
        number += 1
    return number, overwritten


def _history_of(store: Store, event: Event) -> tuple[bytes, int]:
    return store.keys.history(event.lane, event.owner_id, event.id.bytes), event.version


def _decoded(event: Event, body: bytes, *, header_only: bool = False) -> Breadcrumb | None:
    """A body that is damaged is as good as gone, and no reason to keep the others back."""
    try:
        crumb = record.decode(event.owner_id, event.id, body)
        if header_only:
            return crumb
        crumb.document["context"]  # raises where the body is damaged
        return crumb.unparsed()
    except (LookupError, ValueError, TypeError) as error:
        _log.warning("a breadcrumb cannot be read", id=str(event.id), lane=event.lane, error=repr(error))
        return None
