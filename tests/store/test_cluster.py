"""Tests that need a cluster: lanes that move, nodes that die."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any, TypeVar
from uuid import UUID

import anyio
import anyio.to_thread
import pytest
from redis import Redis
from redis.crc import key_slot

from breadcrumbs.runtime.breadcrumb.ids import lane_for
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import StoreUnavailable
from breadcrumbs.runtime.events.reader import Follower
from breadcrumbs.runtime.schema_names import STATE_CHANGE
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import ALICE, ANSWER, BOB, MESSAGE, change, crumb, everything
from tests.store.keyspace import events, keyspace, lane_of
from tests.support.conversations import eventually
from tests.support.events import log_of, reader_of
from tests.support.servers import PRIMARIES, SLOTS, Cluster, Server

_T = TypeVar("_T")


@asynccontextmanager
async def opened(cluster: Cluster, **options: Any) -> AsyncIterator[Store]:
    store = await Store.open(cluster.url, **options)
    try:
        yield store
    finally:
        await store.close()


def first_owner(slot: int) -> int:
    """Return the primary that serves a slot in a new cluster."""
    return next(n for n in range(PRIMARIES) if slot < SLOTS * (n + 1) // PRIMARIES)


def session_on(store: Store, primary: int) -> str:
    """A session of Alice whose lane is served by that primary of a fresh cluster."""
    for number in count():
        lane = lane_for(ALICE, "session", f"s{number}", store.lanes)
        if first_owner(key_slot(store.keys.prefix(lane))) == primary:
            return f"s{number}"
    raise AssertionError


async def until_it_works(action: Callable[[], Awaitable[_T]], *, within: float = 15.0) -> _T:
    """Retry after `StoreUnavailable`, as a caller does. Other errors are raised."""
    deadline = time.monotonic() + within
    while True:
        try:
            return await action()
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


async def test_all_keys_of_a_lane_are_in_one_slot(cluster_server: Cluster) -> None:
    cluster_server.flush()
    async with opened(cluster_server) as store:
        for number in range(30):
            owner = (ALICE, BOB)[number % 2]
            new = crumb(session=f"{{{number}}}", tags=("{a}", "}{"), ttl_config={"duration": 60})
            written = await store.create(owner, new, idempotency_key="k{}")
            await store.update(owner, written.id, change(schema_name=ANSWER))
        slots = Counter(
            (lane_of(key), key_slot(key)) for key in await keyspace(store) if key != store.keys.meta
        )
        assert len(slots) > 5
        assert set(slots) == {(lane, key_slot(store.keys.prefix(lane))) for lane, _ in slots}


@pytest.mark.parametrize("other_node", [True, False])
async def test_a_store_opens_with_its_meta_key_on_any_node(cluster_server: Cluster, other_node: bool) -> None:
    cluster_server.flush()

    def apart(namespace: str) -> bool:
        return first_owner(key_slot(f"{namespace}:meta".encode())) != first_owner(key_slot(b"L00"))

    namespace = next(name for number in count() if apart(name := f"n{number}") is other_node)
    async with (
        opened(cluster_server, namespace=namespace) as first,
        opened(cluster_server, namespace=namespace) as second,
    ):
        assert first.secret == second.secret


class Mover:
    """Moves one slot from node to node, key by key, as redis-cli does."""

    def __init__(self, cluster: Cluster, slot: int) -> None:
        self._cluster = cluster
        self._slot = slot

    def owner(self) -> Server:
        for first, end, primary, *_ in self._cluster.nodes[0].command("CLUSTER SLOTS"):
            if first <= self._slot <= end:
                return next(node for node in self._cluster.nodes if node.port == primary[1])
        raise AssertionError

    def begin(self, target: Server) -> None:
        source = self.owner()
        target.command("CLUSTER SETSLOT", self._slot, "IMPORTING", source.command("CLUSTER MYID"))
        source.command("CLUSTER SETSLOT", self._slot, "MIGRATING", target.command("CLUSTER MYID"))

    def move_keys(self, source: Server, target: Server, *, most: int = 1_000_000, pause: float = 0.0) -> int:
        moved = 0
        with Redis(host=source.host, port=source.port) as client:
            client.response_callbacks.clear()  # redis-py would make text of the keys, which are binary
            execute: Any = client.execute_command
            while moved < most and (
                keys := execute("CLUSTER GETKEYSINSLOT", self._slot, min(2, most - moved))
            ):
                self.move(source, target, *keys)
                moved += len(keys)
                time.sleep(pause)
        return moved

    def move(self, source: Server, target: Server, *keys: bytes) -> None:
        with source.client() as client:
            execute: Any = client.execute_command
            assert execute("MIGRATE", target.host, target.port, "", 0, 5000, "KEYS", *keys) == "OK"

    def finish(self, target: Server) -> None:
        name = target.command("CLUSTER MYID")
        for node in (target, *(node for node in self._cluster.primaries() if node is not target)):
            node.command("CLUSTER SETSLOT", self._slot, "NODE", name)


async def test_a_lane_moves_to_another_node_under_load_and_nothing_is_lost(cluster_server: Cluster) -> None:
    cluster_server.flush()
    async with opened(cluster_server) as store:
        session = "the moving one"
        lane = lane_for(ALICE, "session", session, store.lanes)
        mover = Mover(cluster_server, key_slot(store.keys.prefix(lane)))
        changed = await store.create(ALICE, crumb("changed", schema=ANSWER, session=session))
        for number in range(20):
            await store.create(ALICE, crumb(f"before {number}", session=session, tags=("t", f"t{number}")))
        created: list[UUID] = []
        deleted: list[UUID] = []
        updates = 0
        moving = True

        async def create() -> None:
            while moving:
                new = crumb("during", session=session, tags=("during",))
                created.append((await until_it_works(partial(store.create, ALICE, new))).id)
                await asyncio.sleep(0.005)

        async def update() -> None:
            nonlocal updates
            while moving:
                patch = change(title=f"update {updates}", tags=[f"update {updates}"])
                written = await until_it_works(partial(store.update, ALICE, changed.id, patch))
                updates += 1
                assert written.version == updates + 1, "each update happens once"
                await asyncio.sleep(0.005)

        async def delete() -> None:
            while moving:
                new = crumb("short life", schema="short.v1", session=session, ttl_config={"max_reads": 3})
                id = (await until_it_works(partial(store.create, ALICE, new))).id
                await until_it_works(partial(store.update, ALICE, id, change(schema_name="shorter.v1")))
                await until_it_works(partial(store.get, ALICE, id))
                await until_it_works(partial(store.delete, ALICE, id))
                deleted.append(id)

        async def read() -> None:
            while moving:
                known = len(created)
                recent = await until_it_works(lambda: store.recent(ALICE, session, MESSAGE, 1000))
                assert len(recent) >= 20 + known
                found = await until_it_works(lambda: everything(store, ALICE, Query(all_tags=("t",))))
                assert len(found) == 20
                await until_it_works(lambda: store.history(ALICE, changed.id))
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as group:
            for task in (create, create, update, delete, read, read):
                group.create_task(task())
            await asyncio.sleep(0.1)
            source = await anyio.to_thread.run_sync(mover.owner)
            target = next(node for node in cluster_server.primaries() if node.port != source.port)
            await anyio.to_thread.run_sync(mover.begin, target)
            assert await anyio.to_thread.run_sync(lambda: mover.move_keys(source, target, pause=0.01)) > 20
            await anyio.to_thread.run_sync(mover.finish, target)
            await asyncio.sleep(0.3)
            moving = False

        assert (await anyio.to_thread.run_sync(mover.owner)).port == target.port
        listed = await everything(store, ALICE, Query(session_id=session))
        assert Counter(item.title for item in listed if item.title == "during") == {"during": len(created)}
        assert {item.id for item in listed if item.title == "during"} == set(created)
        assert [version.version for version in await store.history(ALICE, changed.id)] == list(
            range(updates + 1, 0, -1)
        )
        written = Counter((event.kind, event.id, event.version) for event in await events(store))
        assert set(written.values()) == {1}, "one event per write"
        assert sum(kind == "d" for kind, _, _ in written) == len(deleted)
        assert len(created) > 5 and updates > 5 and len(deleted) > 1


async def test_events_of_256_lanes_arrive_once_while_a_lane_moves(cluster_server: Cluster) -> None:
    """One link per node announces the events of all its lanes, also after a lane has moved."""

    def subscribers() -> list[int]:
        """Return the number of links with subscriptions, by node."""
        return [
            sum(int(client["ssub"]) > 0 for client in node.command("CLIENT LIST"))
            for node in cluster_server.primaries()
        ]

    cluster_server.flush()
    async with opened(cluster_server, lanes=256) as store:
        session = session_on(store, 0)
        lane = lane_for(ALICE, "session", session, store.lanes)
        mover = Mover(cluster_server, key_slot(store.keys.prefix(lane)))
        follower: Follower[None] = Follower(reader_of(store))
        for number in range(store.lanes):
            follower.follow(number, 0, None)
        heard: dict[int, list[int]] = {}

        async def hear() -> None:
            while True:
                for event, _ in await follower.next():
                    heard.setdefault(event.lane, []).append(event.at)

        async def announced_by(node: Server) -> bool:
            channel = store.keys.events(lane).decode()
            ((_, count),) = await anyio.to_thread.run_sync(node.command, "PUBSUB SHARDNUMSUB", channel)
            return bool(count)

        async def all_heard() -> bool:
            return heard == written

        written: dict[int, list[int]] = {}
        moving = True

        async def write() -> None:
            for number in count():
                if not moving:
                    return
                # Every second breadcrumb is in the lane that moves.
                new = crumb("during", session=session if number % 2 else f"other {number}")
                made = await until_it_works(partial(store.create, ALICE, new))
                written.setdefault(made.id.int >> 64 & 0xFFF, []).append(made.created)
                await asyncio.sleep(0.002)

        async with asyncio.TaskGroup() as group:
            hearing = group.create_task(hear())
            writing = group.create_task(write())
            await asyncio.sleep(0.5)
            assert await anyio.to_thread.run_sync(subscribers) == [1] * PRIMARIES
            source = await anyio.to_thread.run_sync(mover.owner)
            for target in (cluster_server.primaries()[1], source):
                at = await anyio.to_thread.run_sync(mover.owner)
                await anyio.to_thread.run_sync(mover.begin, target)
                await anyio.to_thread.run_sync(mover.move_keys, at, target)
                await anyio.to_thread.run_sync(mover.finish, target)
                await eventually(partial(announced_by, target), "the new node announces the lane to nobody")
                await asyncio.sleep(0.1)
            moving = False
            await writing
            await eventually(all_heard, "events are missing", 5)
            hearing.cancel()
        assert len(written[lane]) > 50
        follower.leave_all()
        await reader_of(store).close()


async def test_a_lane_with_an_unfinished_migration_is_unavailable_and_writes_nothing(
    cluster_server: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("breadcrumbs.runtime.backend.cluster._RETRY_SECONDS", 0.2)
    cluster_server.flush()
    async with opened(cluster_server) as store:
        session = "stuck"
        lane = lane_for(ALICE, "session", session, store.lanes)
        mover = Mover(cluster_server, key_slot(store.keys.prefix(lane)))
        # One of a schema of its own with a history and a time limit: whatever a script may touch exists.
        lone = await store.create(
            ALICE, crumb("1", schema="lone.v1", session=session, ttl_config={"duration": 600})
        )
        await store.update(ALICE, lone.id, change(title="2", tags=["lone"]))
        state = crumb("state", schema=STATE_CHANGE, session=session, context={"state_delta": {"k": 1}})
        await store.create(ALICE, state)
        for number in range(5):
            await store.create(ALICE, crumb(str(number), session=session, ttl_config={"duration": 600}))
        before = await keyspace(store)
        source = mover.owner()
        target = next(node for node in cluster_server.primaries() if node.port != source.port)
        mover.begin(target)
        try:
            # Nothing has left yet: what touches existing keys only is done here, and done whole.
            await store.delete(ALICE, lone.id)
            after = await keyspace(store)
            assert not [key for key in after if lone.id.bytes in key]
            assert b"lone.v1" not in after[store.keys.schemas(lane, ALICE)][1]
            assert ALICE.bytes + lone.id.bytes not in after[store.keys.expiries(lane)][1]
            assert len(before) > len(after)

            # Move the index before the bodies that it lists.
            mover.move(source, target, store.keys.by_session(lane, ALICE, session, MESSAGE))
            assert len(await store.recent(ALICE, session, MESSAGE)) == 5
            assert len(await everything(store, ALICE, Query(session_id=session))) == 6
            mover.move_keys(source, target, most=4)
            with pytest.raises(StoreUnavailable):
                await store.create(ALICE, crumb("refused", session=session))
        finally:
            mover.move_keys(source, target)
            mover.finish(target)
        assert len(await everything(store, ALICE, Query(session_id=session))) == 6
        assert len(await store.recent(ALICE, session, MESSAGE)) == 5
        await store.create(ALICE, crumb("accepted", session=session))
        assert [event.kind for event in await events(store)] == ["c", "u", *"cccccc", "d", "c"]


async def test_the_store_recovers_after_a_primary_is_killed() -> None:
    """The one that is killed is also the one whose address the store was given."""
    with Cluster() as cluster:
        async with opened(cluster) as store:
            session = session_on(store, 0)
            lane = lane_for(ALICE, "session", session, store.lanes)
            before = [
                (await store.create(ALICE, crumb("before", session=place))).id
                for number in range(50)
                for place in (session, f"elsewhere {number}")
            ]
            changed = await store.create(ALICE, crumb("changed", schema=ANSWER, session=session))
            await asyncio.sleep(0.5)  # wait for the replica: a failover can lose the last writes

            keys: list[str] = []
            running = True

            async def write(writer: int) -> None:
                for number in count():
                    if not running:
                        return
                    new, key = crumb("during", session=session, context={"n": number}), f"{writer}/{number}"
                    await until_it_works(partial(store.create, ALICE, new, idempotency_key=key))
                    keys.append(key)
                    await asyncio.sleep(0.01)

            async def read() -> None:
                while running:
                    await until_it_works(lambda: store.list(ALICE, Query(limit=5)))
                    await asyncio.sleep(0.01)

            async def follow() -> None:
                """Note the events of the lane, as a worker does."""
                follower: Follower[None] = Follower(reader_of(store))
                follower.follow(lane, (await log_of(store).end())[lane], None)
                while running:
                    with anyio.move_on_after(0.5):
                        seen.extend([event.at for event, _ in await follower.next()])
                follower.leave_all()

            seen: list[int] = []
            async with asyncio.TaskGroup() as group:
                for task in (write(0), write(1), read(), read(), follow()):
                    group.create_task(task)
                await asyncio.sleep(0.3)
                killed = time.monotonic()
                cluster.nodes[0].kill()
                written, read_events = len(keys), len(seen)
                while len(keys) < written + 20 or len(seen) < read_events + 20:
                    assert time.monotonic() - killed < 15, "nobody took over"
                    await asyncio.sleep(0.02)
                running = False

            assert (await store.update(ALICE, changed.id, change(title="after"))).version == 2
            found = await everything(store, ALICE, Query())
            assert {item.id for item in found} >= set(before)
            # The last acknowledged writes can be lost with the node, but none is stored twice.
            retried = {}
            for key in keys:
                new = crumb("during", session=session, context={"n": int(key.partition("/")[2])})
                retried[key] = (await store.create(ALICE, new, idempotency_key=key)).id
            during = [
                item.id
                for item in await everything(store, ALICE, Query(session_id=session))
                if item.title == "during"
            ]
            assert len(during) == len(set(during))
            assert set(retried.values()) == set(during)
