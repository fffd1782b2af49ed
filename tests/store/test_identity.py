"""A store whose servers lose their data: one server, and single nodes of a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import anyio.to_thread
import pytest
from redis.crc import key_slot

from breadcrumbs.runtime.breadcrumb.ids import lane_for
from breadcrumbs.runtime.errors import StoreError, StoreReplaced, StoreUnavailable
from breadcrumbs.runtime.store.options import StoreOptions
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import ALICE, crumb
from tests.support.servers import Cluster, Server


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster of its own: the tests damage it. Nodes are not replaced, even if they are down for a minute."""
    with Cluster(options={"cluster-node-timeout": "60000"}) as cluster:
        yield cluster


@asynccontextmanager
async def opened(url: str, **options: object) -> AsyncIterator[Store]:
    store = await Store.open(url, options=StoreOptions(**options))  # type: ignore[arg-type]
    try:
        yield store
    finally:
        await store.close()


def keys_on(server: Server) -> int:
    return int(server.command("DBSIZE"))


async def test_concurrent_writes_after_a_restart_without_data_are_all_refused() -> None:
    with Server() as server:
        async with opened(server.url) as store:
            await store.create(ALICE, crumb("before"))
            for _ in range(5):
                server.kill()
                await anyio.to_thread.run_sync(server.start)
                results = await asyncio.gather(
                    *(store.create(ALICE, crumb(str(number))) for number in range(50)), return_exceptions=True
                )
                assert {type(result) for result in results} == {StoreReplaced}
                store.connection.post(0, b"SET", b"posted", b"1")
                await asyncio.sleep(0.05)
                assert keys_on(server) == 0


async def test_readers_and_listeners_also_check_the_identity() -> None:
    with Server() as server:
        async with opened(server.url) as store:
            channels = await store.connection.open_channels(0, lambda channel, message: None)
            server.kill()
            with pytest.raises(StoreUnavailable):
                await channels.wait_lost()
            await anyio.to_thread.run_sync(server.start)
            with pytest.raises(StoreReplaced):
                await store.connection.open_channels(0, lambda channel, message: None)
            with pytest.raises(StoreReplaced):
                await store.connection.listen(b"channel", lambda message: None)
            assert keys_on(server) == 0


async def test_a_connection_continues_when_the_identity_is_back() -> None:
    with Server() as server:
        async with opened(server.url) as store:
            saved = server.command("HGETALL", "bc:meta")
            server.flush()
            with pytest.raises(StoreReplaced):
                await store.ping()
            with pytest.raises(StoreReplaced):
                await store.create(ALICE, crumb("refused"))
            server.command("HSET", "bc:meta", *(part for pair in saved.items() for part in pair))
            await store.create(ALICE, crumb("accepted"))
            await store.ping()


async def test_an_existing_store_without_identity_opens_on_a_full_server() -> None:
    with Server(maxmemory="50mb") as server:
        async with opened(server.url) as store:
            await store.create(ALICE, crumb("kept"))
            server.command("HDEL", "bc:meta", "id")
        server.command("CONFIG", "SET", "maxmemory", "1")
        async with opened(server.url) as store:
            assert store.identity is None
            await store.ping()
        server.command("CONFIG", "SET", "maxmemory", "0")
        async with opened(server.url) as store:
            assert store.identity


async def test_a_cluster_is_not_used_after_one_node_lost_its_data(cluster: Cluster) -> None:
    cluster.flush()
    async with opened(cluster.url) as store:
        victim, others = cluster.nodes[0], cluster.nodes[1:3]
        for number in range(30):
            await store.create(ALICE, crumb(str(number), session=f"s{number}"))
        victim.command("FLUSHALL")
        with pytest.raises(StoreReplaced, match=r"lane \d+ of the store \w+ is gone"):
            await store.ping()
        before = [keys_on(node) for node in (victim, *others)]
        assert before[0] == 0
        # No node gets writes, not even those that still have their data.
        for number in range(30):
            with pytest.raises(StoreReplaced):
                await store.create(ALICE, crumb("refused", session=f"s{number}"))
        assert [keys_on(node) for node in (victim, *others)] == before
        with pytest.raises(StoreReplaced):
            await Store.open(cluster.url)
        # The markers are back, as after a restore: the connection continues by itself.
        for lane in range(store.lanes):
            await _restore_marker(cluster, store, lane)
        await _until_written(store)
        await store.ping()


async def test_a_node_that_restarted_empty_gets_no_writes(cluster: Cluster) -> None:
    cluster.flush()
    async with opened(cluster.url) as store:
        victim, replica = cluster.nodes[0], cluster.nodes[3]
        session = _session_on(store, cluster, victim)
        await store.create(ALICE, crumb("before", session=session))
        victim.kill()
        await anyio.to_thread.run_sync(victim.start)
        await anyio.to_thread.run_sync(cluster.wait_until_ok)
        replaced = 0
        for number in range(200):
            try:
                await store.create(ALICE, crumb(f"refused {number}", session=session))
                raise AssertionError("a node without data was written to")
            except StoreReplaced:
                replaced += 1
                if replaced == 20:
                    break
            except StoreError:
                await asyncio.sleep(0.05)
        assert replaced == 20 and keys_on(victim) == keys_on(replica) == 0
    # The operator accepts the loss.
    async with opened(cluster.url, accept_losses=True) as accepted:
        assert accepted.identity == store.identity
        await accepted.create(ALICE, crumb("after", session=session))


async def test_a_cluster_store_of_an_earlier_version_gets_its_markers(cluster: Cluster) -> None:
    cluster.flush()
    async with opened(cluster.url) as store:
        await store.create(ALICE, crumb("kept"))
        await store.connection.call(0, b"HDEL", store.keys.meta, b"id", b"marked")
        for lane in range(store.lanes):
            await store.connection.call(lane, b"DEL", store.keys.identity(lane))
    async with opened(cluster.url) as store:
        assert store.identity
        await store.ping()
        for lane in range(store.lanes):
            marker = await store.connection.call(lane, b"GET", store.keys.identity(lane))
            assert marker.decode() == store.identity


def _node_of(cluster: Cluster, key: bytes) -> Server:
    slot = key_slot(key)
    return next(node for number, node in enumerate(cluster.nodes[:3]) if slot < 16384 * (number + 1) // 3)


def _session_on(store: Store, cluster: Cluster, node: Server) -> str:
    return next(
        name
        for name in (f"s{number}" for number in range(10_000))
        if _node_of(cluster, store.keys.prefix(lane_for(ALICE, "session", name, store.lanes))) is node
    )


async def _restore_marker(cluster: Cluster, store: Store, lane: int) -> None:
    key = store.keys.identity(lane)
    _node_of(cluster, key).command("SET", key.decode(), store.identity or "")


async def _until_written(store: Store) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            await store.create(ALICE, crumb("accepted"))
            return
        except StoreReplaced:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
