"""The session cache of a worker: its results are equal to those of a fresh read, in any order of events.

A schedule is a string of bytes. Each byte is one step: this process or another one writes, edits, deletes or imports a
breadcrumb, pauses a session or chooses an agent, deletes a session, a breadcrumb expires, the worker reads events or
commits, a reply is lost, a read takes long, or the lease moves to another worker and back. Whenever the worker has
seen all events, the cached results are compared with fresh ones. Each mutant skips one rule of the cache and must be
detected.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
import uvloop

from breadcrumbs.runtime.backend.address import parse_address
from breadcrumbs.runtime.backend.standalone import StandaloneConnection
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.errors import BreadcrumbsError
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.schema_names import STATE_CHANGE
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.batched_reads import (
    ChoicesRead,
    CountRead,
    NewestRead,
    PauseRead,
    RecentRead,
    SessionRead,
    build_reads,
)
from breadcrumbs.runtime.store.fence import Lease
from breadcrumbs.runtime.store.keys import Keys
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers import session_cache
from breadcrumbs.runtime.workers.session_cache import SessionCache, _Head, _Session
from tests.support.conversations import ALICE, CONTEXT, MESSAGE, RESPONSE
from tests.support.events import log_of
from tests.support.servers import Server
from tests.turns.stepping import Actor, SteppedConnection

SCHEDULES = 400
SESSIONS = ("1", "2")
SCHEMAS = (MESSAGE, MESSAGE, RESPONSE, "note.v1")
LATER = 1 << 60
"""A time after all others."""


class SlowRead:
    """A read that the server has executed. Its reply arrives later."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._actor = Actor(work)
        self._replies: list[tuple[Any, Any]] = []

    async def send(self) -> None:
        await self._actor.settle()
        self._replies = await self._actor._send()

    async def finish(self) -> None:
        for request, reply in self._replies:
            request.reply.set_result(reply)
        await self._actor.finish()


@dataclass
class World:
    """Two processes on one lane: the worker's, and another one that writes."""

    mine: Store
    other: Store
    rng: random.Random
    cache: SessionCache = field(default_factory=SessionCache)
    lease: Lease = field(default_factory=lambda: Lease(0, "contexts", b"1"))
    leases: Iterator[int] = field(default_factory=lambda: count(2))
    position: int = 0
    last: dict[str, Event] = field(default_factory=dict)
    """Last event of each session that was applied."""
    crumbs: dict[str, list[Breadcrumb]] = field(default_factory=dict)
    slow: list[SlowRead] = field(default_factory=list)
    """Reads whose replies have not arrived."""
    compared: int = 0
    now: int = 0
    """Time of both processes, by which breadcrumbs expire."""

    def store(self) -> Store:
        return self.rng.choice((self.mine, self.other))

    async def post(self, session: str, store: Store | None = None, **fields: Any) -> Breadcrumb:
        document = {
            "schema_name": self.rng.choice(SCHEMAS),
            "title": "t",
            "tags": [f"session:{session}"],
            "context": {"message": str(self.rng.random())},
            **fields,
        }
        written = await (store or self.store()).create(ALICE, BreadcrumbCreate.parse(document))
        crumb = await self.mine.get(ALICE, written.id, count_read=False)
        self.crumbs.setdefault(session, []).append(crumb)
        return crumb

    def pick(self, session: str) -> Breadcrumb | None:
        crumbs = self.crumbs.get(session)
        return self.rng.choice(crumbs) if crumbs else None

    async def read_events(self, most: int = 1_000) -> None:
        events = await log_of(self.mine).between({0: self.position}, {0: LATER}, count=most)
        for event in events:
            self.position = event.at
            self.cache.apply(self.lease, event)
            if event.session_id is not None:
                self.last[event.session_id] = event

    def reads(self, session: str) -> list[SessionRead]:
        crumbs = self.crumbs.get(session, [])
        times = [crumb.created + 1 for crumb in self.rng.sample(crumbs, min(2, len(crumbs)))]
        return [
            RecentRead(ALICE, session, MESSAGE, 3),
            RecentRead(ALICE, session, RESPONSE, 2),
            *([RecentRead(ALICE, session, MESSAGE, 5)] if self.rng.random() < 0.3 else []),
            *(CountRead(ALICE, session, MESSAGE, time) for time in (*times, LATER)),
            PauseRead(ALICE, session),
            ChoicesRead(ALICE, session),
            NewestRead(ALICE, context_id(session)),
        ]

    async def read(self, session: str, reads: list[SessionRead]) -> list[Any]:
        event = self.last.get(session)
        if event is None:
            return await fresh(self.mine, reads)
        return (await self.cache.read_batch(self.mine, self.lease, event, reads)).values

    async def compare(self) -> None:
        """Compare the cache with the store. All events are applied, except those of the worker's own commits."""
        for session in SESSIONS:
            reads = self.reads(session)
            cached = await self.read(session, reads)
            expected = await fresh(self.other, reads)
            for read, one, two in zip(reads, cached, expected, strict=True):
                assert shown(one) == shown(two), read
            self.compared += 1


def shown(value: Any) -> Any:
    """Return the fields of breadcrumbs that turns use. The header of a cached one can differ in the rest."""
    if isinstance(value, list):
        return [shown(crumb) for crumb in value]
    return (value.id, value.version, value.created, value.json) if isinstance(value, Breadcrumb) else value


def context_id(session: str) -> Any:
    return derived_id(0, "context", session)


async def fresh(store: Store, reads: list[SessionRead]) -> list[Any]:
    return list(await store.read_batch(*build_reads(store, reads)))


async def put_context(world: World, session: str, store: Store) -> Breadcrumb:
    """Write the next version of a breadcrumb, as the context builder does."""
    id = context_id(session)
    fields = {"schema_name": CONTEXT, "tags": [f"session:{session}"], "context": {"n": world.rng.random()}}
    written = await store.create(ALICE, BreadcrumbCreate.parse(fields), id=id)
    if written.found:
        await store.update(
            ALICE, id, BreadcrumbUpdate(context={"n": world.rng.random(), "session_id": session})
        )
    return await store.get(ALICE, id)


async def happen(world: World, kind: int, session: str) -> None:
    rng, crumb = world.rng, world.pick(session)
    match kind:
        case 0 | 1 | 2 | 3:
            await world.post(session)
        case 4:
            await world.read_events(most=rng.randint(1, 3))
        case 5 | 6:
            await world.read_events()
            await world.compare()
        case 7 if crumb is not None:
            change: dict[str, Any] = {"context": {"message": "edited", "session_id": session}}
            if rng.random() < 0.4:
                change["schema_name"] = rng.choice(SCHEMAS)
            await world.store().update(ALICE, crumb.id, BreadcrumbUpdate.parse(change))
        case 8 if crumb is not None:
            world.crumbs[session].remove(crumb)
            await world.store().delete(ALICE, crumb.id)
        case 9:
            about = rng.choice(({"active": False}, {"active": True}, {"agent": "a"}, {"model": "m"}))
            await world.post(session, schema_name=STATE_CHANGE, context=about)
        case 10:
            await commit(world, session)
        case 11:
            # Another worker holds the lane for some time. This one does not see its events.
            for _ in range(rng.randint(0, 2)):
                await world.post(session)
            events = await log_of(world.mine).between({0: world.position}, {0: LATER}, count=1_000)
            world.position = max([world.position, *(event.at for event in events)])
            world.lease = replace(world.lease, value=b"%d" % next(world.leases))
            world.last.clear()
            await world.post(session)
        case 12 if rng.random() < 0.5 and crumb is not None:
            age = rng.choice((rng.randint(1, 5_000), 1_000_000_000))
            old = replace(crumb, id=uuid4(), created=crumb.created - age)
            await world.other.restore(old, [])
            world.crumbs[session].append(old)
        case 12 if crumb is not None:
            await Sessions(world.other).delete(ALICE, session)
            world.crumbs[session] = []
        case 13:
            limited = {"ttl_type": "usage", "ttl_config": {"max_reads": 1}}
            brief = {"ttl_type": "duration", "ttl_config": {"duration_seconds": 1_000}}
            fields: Any = rng.choice((limited, brief))
            found = await world.post(session, schema_name=MESSAGE, **fields)
            await world.read_events()
            await world.compare()
            if fields is limited:
                await world.other.get(ALICE, found.id)
            else:
                world.now += 2_000_000_000
            world.crumbs[session].remove(found)
            await world.compare()
        case 14:
            reads = world.reads(session)

            async def read_slowly() -> None:
                await world.read(session, reads)

            world.slow.append(SlowRead(read_slowly))
            await world.slow[-1].send()
        case 15:
            await put_context(world, session, world.store())
    while world.slow and (kind % 2 or len(world.slow) > 2):
        await world.slow.pop(0).finish()


async def commit(world: World, session: str) -> None:
    """Commit a breadcrumb as a turn does. The next turn can begin before its event arrives."""
    await world.read_events()
    event = world.last.get(session)
    if event is None:
        return
    await world.read(session, world.reads(session))
    world.cache.begin_commit(event)
    if world.rng.random() < 0.5:
        crumb = await put_context(world, session, world.mine)
    else:
        crumb = await world.post(session, world.mine, schema_name=RESPONSE)
    if world.rng.random() < 0.7:  # else the reply is lost
        world.cache.end_commit(world.mine, event, crumb)
    await world.compare()


async def play(connection: StandaloneConnection, number: int) -> int:
    rng = random.Random(number)
    keys = Keys(f"c{number}-{uuid4().hex[:6]}", 1)
    mine = Store(SteppedConnection(connection), keys, secret=b"not used" * 4)
    other = Store(connection, keys, secret=b"not used" * 4)
    world = World(mine, other, rng)
    await other.clock.synchronize()
    world.now = other.clock.now()
    for store in (mine, other):
        store.clock.now = lambda: world.now  # type: ignore[method-assign]
    for _ in range(rng.randint(10, 40)):
        try:
            await happen(world, rng.randrange(16), rng.choice(SESSIONS))
        except BreadcrumbsError as error:
            # The breadcrumb has expired, or the session is gone.
            world.crumbs = {session: [] for session in SESSIONS}
            assert "not found" in str(error) or "expired" in str(error), error
    for read in world.slow:
        await read.finish()
    await world.read_events()
    await world.compare()
    return world.compared


def run(server: Server, numbers: range) -> int:
    async def main() -> int:
        connection = StandaloneConnection(parse_address(server.url), lanes=1)
        compared = 0
        try:
            for number in numbers:
                try:
                    compared += await play(connection, number)
                except AssertionError as error:
                    raise AssertionError(f"in schedule {number}: {error}") from error
        finally:
            await connection.call(0, b"FLUSHALL")
            await connection.close()
        return compared

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(4))
def test_cached_results_are_equal_to_fresh_ones_in_any_order_of_events(server: Server, part: int) -> None:
    share = SCHEDULES // 4
    compared = run(server, range(part * share, (part + 1) * share))
    print(f"\n{compared} comparisons")
    assert compared > 4 * share


# Mutants


def _unchanged(*arguments: Any, **named: Any) -> bool:
    return True


def _ignore_events_during_reads(patch: pytest.MonkeyPatch) -> None:
    keep = _Session.keep
    patch.setattr(_Session, "keep", lambda self, read, value, events: keep(self, read, value, ()))


def _ignore(operation: str, patch: pytest.MonkeyPatch) -> None:
    apply = _Session.apply
    patch.setattr(_Session, "apply", lambda self, event: event.operation == operation or apply(self, event))


def _ignore_imports(patch: pytest.MonkeyPatch) -> None:
    apply = _Session.apply
    patch.setattr(_Session, "apply", lambda self, event: event.imported or apply(self, event))


def _keep_facts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session_cache, "ABOUT_SCHEMAS", frozenset())


def _forget_commits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Session, "add", _unchanged)


def _ignore_lost_replies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionCache, "begin_commit", _unchanged)


def _ignore_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "__eq__", lambda self, other: True)


def _ignore_expiry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Head, "note_expiry", _unchanged)


def _forget_older(patch: pytest.MonkeyPatch) -> None:
    insert = _Head.insert

    def insert_only(self: _Head, crumb: Breadcrumb) -> None:
        older = self.older
        insert(self, crumb)
        self.older = older

    patch.setattr(_Head, "insert", insert_only)


def _ignore_schema_changes(patch: pytest.MonkeyPatch) -> None:
    apply = _Session._apply_update

    def apply_to_known(self: _Session, event: Event) -> bool:
        known = [head for head in self.heads.values() if head.version_of(event.id) is not None]
        return apply(self, event) if known or event.id in self.newest else True

    patch.setattr(_Session, "_apply_update", apply_to_known)


def _ignore_read_limits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Session, "_keep_head", _keep_any_head)
    patch.setattr(Breadcrumb, "max_reads", 0, raising=False)


def _keep_any_head(self: _Session, read: RecentRead, crumbs: list[Breadcrumb], events: Any) -> None:
    self.heads[read.schema_name] = _Head(list(crumbs), read.limit, 0 if len(crumbs) < read.limit else None)
    for event in events:
        self.apply(event)


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "new breadcrumbs": partial(_ignore, "created"),
    "new versions": partial(_ignore, "updated"),
    "deletions": partial(_ignore, "deleted"),
    "imports": _ignore_imports,
    "facts": _keep_facts,
    "commits": _forget_commits,
    "lost replies": _ignore_lost_replies,
    "leases": _ignore_leases,
    "events during reads": _ignore_events_during_reads,
    "expiry": _ignore_expiry,
    "counts": _forget_older,
    "schema changes": _ignore_schema_changes,
    "read limits": _ignore_read_limits,
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("rule", MUTANTS)
def test_a_cache_without_one_of_its_rules_is_detected(
    server: Server, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[rule](monkeypatch)
    with pytest.raises(AssertionError, match="in schedule"):
        run(server, range(SCHEDULES))
