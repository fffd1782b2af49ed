"""The cache per owner: concurrent misses share one read, values expire, and changes invalidate them."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from breadcrumbs.runtime.workers.owner_cache import OwnerCache

ALICE, BOB = UUID(int=1), UUID(int=2)


class Source:
    """Gives out a new number with each reading, when the test lets it."""

    def __init__(self) -> None:
        self.loads: list[UUID] = []
        self.open = asyncio.Event()
        self.open.set()
        self.problem: Exception | None = None

    async def load(self, owner: UUID) -> int:
        self.loads.append(owner)
        number = len(self.loads)
        await self.open.wait()
        if self.problem is not None:
            raise self.problem
        return number


async def test_a_value_is_read_once_within_its_ttl(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source()
    cache = OwnerCache(source.load, name="test")
    assert cache.get_stale(ALICE) is None
    assert [await cache.get(ALICE), await cache.get(ALICE), await cache.get(BOB)] == [1, 1, 2]
    assert cache.get_stale(ALICE) == 1
    monkeypatch.setattr("breadcrumbs.runtime.workers.owner_cache._TTL_SECONDS", -0.001)
    assert cache.get_stale(ALICE) == 1
    assert await cache.get(ALICE) == 3


async def test_concurrent_misses_share_one_read_that_cancellation_does_not_stop() -> None:
    source = Source()
    cache = OwnerCache(source.load, name="test")
    source.open.clear()
    first, second = (asyncio.create_task(cache.get(ALICE)) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0.01)
    source.open.set()
    assert await second == 1 and source.loads == [ALICE]
    assert first.cancelled() and cache.get_stale(ALICE) == 1


async def test_a_read_that_was_in_flight_during_a_change_is_not_cached() -> None:
    source = Source()
    cache = OwnerCache(source.load, name="test")
    source.open.clear()
    before = asyncio.create_task(cache.get(ALICE))
    await asyncio.sleep(0.01)
    cache.invalidate(ALICE)
    after = asyncio.create_task(cache.get(ALICE))
    await asyncio.sleep(0.01)
    source.open.set()
    assert [await before, await after] == [1, 2]
    assert await cache.get(ALICE) == 2 and len(source.loads) == 2


async def test_a_failed_read_is_raised_to_all_waiters_and_repeated_by_the_next() -> None:
    source = Source()
    cache = OwnerCache(source.load, name="test")
    source.problem = OSError("away")
    asked = await asyncio.gather(cache.get(ALICE), cache.get(ALICE), return_exceptions=True)
    assert [str(error) for error in asked] == ["away", "away"] and len(source.loads) == 1
    source.problem = None
    assert await cache.get(ALICE) == 2


async def test_the_cache_has_a_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("breadcrumbs.runtime.workers.owner_cache._MAX_OWNERS", 10)
    cache = OwnerCache(Source().load, name="test")
    for number in range(100):
        await cache.get(UUID(int=number))
    assert len(cache._values) <= 11
