"""The store with a server that is killed, stopped for a while, or full."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

import anyio.to_thread
import pytest
from redis import Redis

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import NotFound, StoreFull, StoreUnavailable
from breadcrumbs.runtime.store.expiry import purge_expired
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import ALICE, MESSAGE, change, crumb, everything
from tests.store.contract.importing import foreign
from tests.store.keyspace import events, keyspace, without

_T = TypeVar("_T")

ROUNDS = 3
SESSIONS = 6


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    # With `everysec` a server can reply before it writes to the file, while an earlier fsync is slow. A kill then loses
    # acknowledged writes: seen once on a loaded machine.
    with EmbeddedServer(tmp_path / "data", appendfsync="always") as server:
        yield server


@asynccontextmanager
async def opened(server: EmbeddedServer, **options: Any) -> AsyncIterator[Store]:
    store = await Store.open(server.url, **options)
    try:
        yield store
    finally:
        await store.close()


def kill(server: EmbeddedServer) -> None:
    assert server.process is not None
    server.process.kill()
    server.process.wait()


async def retry_until_success(action: Callable[[], Awaitable[_T]]) -> _T:
    """Retry after StoreUnavailable, like a client. Any other error is raised."""
    while True:
        try:
            return await action()
        except StoreUnavailable:
            await asyncio.sleep(0.02)


async def delete_once(store: Store, id: UUID) -> None:
    """Delete and retry. After a lost reply, NotFound means that the earlier delete was applied."""
    reply_was_lost = False
    while True:
        try:
            return await store.delete(ALICE, id)
        except StoreUnavailable:
            reply_was_lost = True
            await asyncio.sleep(0.02)
        except NotFound:
            assert reply_was_lost
            return None


async def wait_for_writes(acknowledged: dict[str, UUID], enough: int) -> None:
    while len(acknowledged) < enough:  # noqa: ASYNC110 - the writers set no event
        await asyncio.sleep(0.01)


async def test_every_acknowledged_write_exists_exactly_once_after_repeated_kills(
    server: EmbeddedServer,
) -> None:
    running = True
    numbers = count()
    acknowledged: dict[str, UUID] = {}
    plain: list[UUID] = []
    unknown: set[str] = set()
    versions: dict[UUID, list[int]] = defaultdict(list)
    deleted: list[UUID] = []

    async def retrying_writer(store: Store) -> None:
        while running:
            number = next(numbers)
            key = str(number)
            new = crumb(key, session=f"s{number % SESSIONS}", tags=("keyed",))
            written = await retry_until_success(partial(store.create, ALICE, new, idempotency_key=key))
            acknowledged[key] = written.id

    async def plain_writer(store: Store) -> None:
        while running:
            number = next(numbers)
            name = f"plain {number}"
            new = crumb(name, session=f"s{number % SESSIONS}", tags=("plain",))
            try:
                plain.append((await store.create(ALICE, new)).id)
            except StoreUnavailable:
                unknown.add(name)
                await asyncio.sleep(0.02)

    async def updater(store: Store, id: UUID) -> None:
        while running:
            number = next(numbers)
            try:
                written = await store.update(ALICE, id, change(context={"n": number}, tags=[f"n{number}"]))
            except StoreUnavailable:
                await asyncio.sleep(0.02)
            else:
                versions[id].append(written.version)

    async def deleter(store: Store) -> None:
        while running:
            id = (await retry_until_success(lambda: store.create(ALICE, crumb("deleted", session="s0")))).id
            await delete_once(store, id)
            deleted.append(id)

    async with opened(server) as store:
        counters = [(await store.create(ALICE, crumb("counter", session=f"s{n}"))).id for n in range(4)]
        for _ in range(ROUNDS):
            running = True
            async with asyncio.TaskGroup() as group:
                for _ in range(10):
                    group.create_task(retrying_writer(store))
                for _ in range(5):
                    group.create_task(plain_writer(store))
                for id in counters:
                    group.create_task(updater(store, id))
                group.create_task(deleter(store))
                await asyncio.sleep(0.4)
                before = len(acknowledged)
                assert before
                await anyio.to_thread.run_sync(kill, server)
                await asyncio.sleep(0.1)
                await anyio.to_thread.run_sync(server.start)
                await wait_for_writes(acknowledged, before + 50)
                running = False

        found = await everything(store, ALICE, Query(limit=1000))
        assert len(found) == len({item.id for item in found})

        keyed = {item.title: item.id for item in found if "keyed" in item.tags}
        assert Counter(item.title for item in found if "keyed" in item.tags).most_common(1)[0][1] == 1
        assert keyed == acknowledged, "every key has exactly one breadcrumb"

        titles = Counter(item.title for item in found if "plain" in item.tags)
        assert {item.id for item in found if "plain" in item.tags} >= set(plain)
        assert set(titles.values()) == {1}
        assert len(titles) <= len(plain) + len(unknown)

        for id in counters:
            history = await store.history(ALICE, id)
            assert [version.version for version in history] == list(range(len(history), 0, -1))
            assert set(versions[id]) <= {version.version for version in history}
            assert len(versions[id]) == len(set(versions[id])), "a version was returned twice"
            by_version = {version.version: version.context["n"] for version in history[:-1]}
            assert len(set(by_version.values())) == len(by_version), "an update was applied twice"

        assert not {item.id for item in found} & set(deleted)
        happened = Counter((event.kind, event.id, event.version) for event in await events(store))
        assert set(happened.values()) == {1}
        assert {id for kind, id, _ in happened if kind == "c"} >= set(plain) | set(acknowledged.values())

    # The indexes agree with the stored breadcrumbs.
    async with opened(server) as store:
        for session in range(SESSIONS):
            listed = {item.id for item in await everything(store, ALICE, Query(session_id=f"s{session}"))}
            assert listed == {item.id for item in found if item.session_id == f"s{session}"}
        assert {item.id for item in await everything(store, ALICE, Query(all_tags=("keyed",)))} == set(
            keyed.values()
        )


async def test_a_stopped_server_is_reported_at_once_and_the_store_reconnects(
    server: EmbeddedServer,
) -> None:
    async with opened(server) as store:
        written = await store.create(ALICE, crumb("before", session="s"))
        other = foreign(session="s")
        await anyio.to_thread.run_sync(kill, server)
        attempts: list[Callable[[], Awaitable[object]]] = [
            lambda: store.get(ALICE, written.id),
            lambda: store.create(ALICE, crumb("lost")),
            lambda: store.create(ALICE, crumb("lost"), idempotency_key="k"),
            lambda: store.update(ALICE, written.id, change(title="lost")),
            lambda: store.delete(ALICE, written.id),
            lambda: store.restore(other, []),
            lambda: store.list(ALICE, Query()),
            lambda: store.list(ALICE, Query(session_id="s", schema_name=MESSAGE)),
            lambda: store.recent(ALICE, "s", MESSAGE),
            lambda: store.history(ALICE, written.id),
            lambda: purge_expired(store, 0),
            lambda: store.ping(),
        ]
        for attempt in attempts:
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await attempt()
            assert time.monotonic() - began < 1

        began = time.monotonic()
        results = await asyncio.gather(
            *(attempts[n % len(attempts)]() for n in range(600)), return_exceptions=True
        )
        assert {type(result) for result in results} == {StoreUnavailable}
        assert time.monotonic() - began < 5

        with pytest.raises(StoreUnavailable):
            await Store.open(server.url)

        await anyio.to_thread.run_sync(server.start)
        assert (await store.get(ALICE, written.id)).title == "before"
        assert len(await everything(store, ALICE, Query())) == 1
        await store.create(ALICE, crumb("after", session="s"))
        assert [item.title for item in await store.recent(ALICE, "s", MESSAGE)] == ["after", "before"]


async def test_a_full_server_refuses_writes_and_allows_reads_and_deletes(server: EmbeddedServer) -> None:
    with Redis.from_url(server.url) as client:
        info: Any = client.info("memory")
        client.config_set("maxmemory", info["used_memory"] + 2_000_000)
        async with opened(server) as store:
            filling = {"filling": "x" * 5_000}
            first = await store.create(ALICE, crumb("first", session="s", tags=("t",)))
            await store.update(ALICE, first.id, change(title="first 2"))
            counted = await store.create(ALICE, crumb("counted", session="s", ttl_config={"max_reads": 2}))
            expiring = await store.create(
                ALICE, crumb("expiring", session="s", ttl_config={"duration": 0.01})
            )
            others: list[UUID] = []
            with pytest.raises(StoreFull):
                while len(others) < 2_000:
                    written = await store.create(ALICE, crumb("other", session="s", context=filling))
                    others.append(written.id)
            assert len(others) > 20
            client.config_set(
                "maxmemory", "1mb"
            )  # far below the used memory, so that a freed buffer makes no difference

            before = await keyspace(store)
            for attempt in (
                store.create(ALICE, crumb("no", session="s")),
                store.create(
                    ALICE, crumb("no", session="n", ttl_config={"duration": 60}), idempotency_key="k"
                ),
                store.create(ALICE, crumb("no")),
                store.update(ALICE, first.id, change(title="no", tags=["n"], schema_name="n.v1")),
                store.update(ALICE, first.id, change(context=filling), expected_version=2),
                store.restore(foreign("no", session="s"), [foreign("no", session="s", version=1)]),
                store.restore(foreign("no", id=uuid4(), session="elsewhere"), []),
            ):
                with pytest.raises(StoreFull):
                    await attempt
            assert await keyspace(store) == before, "a refused write has changed the store"

            async with opened(server) as another:  # a process restart while the server is full
                assert (await another.get(ALICE, first.id)).title == "first 2"
            assert len(await store.history(ALICE, first.id)) == 2
            assert len(await store.recent(ALICE, "s", MESSAGE, 5)) == 5
            assert len(await everything(store, ALICE, Query(session_id="s", limit=100))) == len(others) + 2
            assert (await store.get(ALICE, counted.id)).max_reads == 2
            assert (await store.get(ALICE, counted.id)).max_reads == 1

            for id in (first.id, *others):
                await store.delete(ALICE, id)
            assert sum([await purge_expired(store, lane) for lane in range(store.lanes)]) == 2
            assert set(without(await keyspace(store), "ec")) == {store.keys.meta}
            assert expiring.id in {event.id for event in await events(store) if event.kind == "d"}
            client.config_set("maxmemory", info["used_memory"] + 2_000_000)
            await store.create(ALICE, crumb("room again", session="s", context=filling))
