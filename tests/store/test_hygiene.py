"""Hygiene: data that it removes, and data that it must keep."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import anyio
import pytest

from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.maintenance.hygiene import Hygiene
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.housekeeping import trim_events
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.leases import Leases
from tests.support.events import log_of

OWNER = UUID(int=1)


@pytest.fixture
async def store(embedded_server: Any) -> AsyncIterator[Store]:
    store = await Store.open(embedded_server.url, lanes=1, namespace=secrets.token_hex(6))
    yield store
    await store.connection.call(0, b"FLUSHALL")  # others look at every key of this server
    await store.close()


async def _post(store: Store, count: int) -> None:
    for _ in range(count):
        await store.create(OWNER, BreadcrumbCreate(title="x"))


async def _sweep(store: Store) -> int:
    await anyio.sleep(0.02)
    return (await Hygiene(store, Settings(event_window="0.01s")).run_once()).trimmed


async def _events(store: Store) -> int:
    return int(await store.connection.call(0, b"XLEN", store.keys.events(0)))


async def test_events_older_than_the_window_are_removed_and_readers_detect_it(store: Store) -> None:
    await _post(store, 3)
    last = (await log_of(store).end())[0]
    assert await _sweep(store) == 3
    assert await _events(store) == 0
    assert await log_of(store).beginning() == [last]


async def test_a_process_with_a_longer_window_does_not_move_the_trim_position_back(store: Store) -> None:
    await _post(store, 3)
    await anyio.sleep(0.3)
    await _post(store, 3)
    last = (await log_of(store).end())[0]
    await anyio.sleep(0.02)
    # asyncio.gather keeps the order of the commands on the connection: the shorter window is first.
    removed = await asyncio.gather(trim_events(store, 0, 10_000), trim_events(store, 0, 200_000))
    assert removed == [6, 0]
    assert await log_of(store).beginning() == [last]


async def test_a_window_longer_than_the_unix_epoch_removes_nothing(store: Store) -> None:
    await _post(store, 1)
    run = await Hygiene(store, Settings(event_window="36000d")).run_once()
    assert (run.trimmed, run.errors) == (0, 0)


async def test_unacknowledged_events_are_kept_beyond_the_window(store: Store) -> None:
    leases = Leases(store, "contexts", "me", seconds=5)
    await leases.register()
    await _post(store, 5)
    assert await _sweep(store) == 0
    entries = await store.connection.call(0, b"XRANGE", store.keys.events(0), b"-", b"+")
    third = int(entries[2][0].partition(b"-")[0])
    lease = await leases.take(0)
    assert lease is not None
    await leases.acknowledge(lease, None, third)
    assert await _sweep(store) == 3
    assert await _events(store) == 2


async def test_a_guest_keeps_events_only_while_it_is_alive(store: Store) -> None:
    guest = Leases(store, "agents/mine", "me", seconds=5)
    await guest.register()
    await store.connection.call(0, b"ZADD", store.keys.workers("agents/mine"), store.now() + 60_000_000, "me")
    await _post(store, 2)
    assert await _sweep(store) == 0
    await guest.sign_off()
    assert await _sweep(store) == 2


async def test_expired_breadcrumbs_are_purged_and_counted(store: Store) -> None:
    new = BreadcrumbCreate.parse({"title": "short", "ttl_config": {"duration": 0.01}})
    written = await store.create(OWNER, new)
    await anyio.sleep(0.05)
    hygiene = Hygiene(store, Settings())
    assert (await hygiene.run_once()).purged == 1
    stats = await hygiene.stats()
    assert (stats["runs_completed"], stats["total_breadcrumbs_purged"]) == (1, 1)
    assert await store.connection.call(0, b"EXISTS", store.keys.body(0, OWNER, written.id.bytes)) == 0
