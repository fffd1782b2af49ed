"""What holds for an owner is read once for all who ask, again after a moment, and at once after a change."""

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


async def test_it_is_read_once_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source()
    cache = OwnerCache(source.load)
    assert cache.get_stale(ALICE) is None
    assert [await cache.get(ALICE), await cache.get(ALICE), await cache.get(BOB)] == [1, 1, 2]
    assert cache.get_stale(ALICE) == 1
    monkeypatch.setattr("breadcrumbs.runtime.workers.owner_cache._TTL_SECONDS", -0.001)
    assert cache.get_stale(ALICE) == 1
    assert await cache.get(ALICE) == 3


async def test_who_asks_at_the_same_time_shares_a_reading_that_nobody_can_take_away() -> None:
    source = Source()
    cache = OwnerCache(source.load)
    source.open.clear()
    first, second = (asyncio.create_task(cache.get(ALICE)) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0.01)
    source.open.set()
    assert await second == 1 and source.loads == [ALICE]
    assert first.cancelled() and cache.get_stale(ALICE) == 1


async def test_what_was_being_read_when_it_changed_is_not_remembered() -> None:
    source = Source()
    cache = OwnerCache(source.load)
    source.open.clear()
    before = asyncio.create_task(cache.get(ALICE))
    await asyncio.sleep(0.01)
    cache.invalidate(ALICE)
    after = asyncio.create_task(cache.get(ALICE))
    await asyncio.sleep(0.01)
    source.open.set()
    assert [await before, await after] == [1, 2]
    assert await cache.get(ALICE) == 2 and len(source.loads) == 2


async def test_a_reading_that_failed_is_told_to_all_who_waited_and_tried_again_by_the_next() -> None:
    source = Source()
    cache = OwnerCache(source.load)
    source.problem = OSError("away")
    asked = await asyncio.gather(cache.get(ALICE), cache.get(ALICE), return_exceptions=True)
    assert [str(error) for error in asked] == ["away", "away"] and len(source.loads) == 1
    source.problem = None
    assert await cache.get(ALICE) == 2


async def test_it_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("breadcrumbs.runtime.workers.owner_cache._MAX_OWNERS", 10)
    cache = OwnerCache(Source().load)
    for number in range(100):
        await cache.get(UUID(int=number))
    assert len(cache._values) <= 11
