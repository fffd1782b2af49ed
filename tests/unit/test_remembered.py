"""What holds for an owner is read once for all who ask, again after a moment, and at once after a change."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from breadcrumbs.runtime.workers.owner_cache import Remembered

ALICE, BOB = UUID(int=1), UUID(int=2)


class Shelf:
    """Gives out a new number with each reading, when the test lets it."""

    def __init__(self) -> None:
        self.readings: list[UUID] = []
        self.open = asyncio.Event()
        self.open.set()
        self.problem: Exception | None = None

    async def read(self, owner: UUID) -> int:
        self.readings.append(owner)
        number = len(self.readings)
        await self.open.wait()
        if self.problem is not None:
            raise self.problem
        return number


async def test_it_is_read_once_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
    book = Remembered(shelf.read)
    assert book.last(ALICE) is None
    assert [await book.get(ALICE), await book.get(ALICE), await book.get(BOB)] == [1, 1, 2]
    assert book.last(ALICE) == 1
    monkeypatch.setattr("breadcrumbs.runtime.workers.owner_cache._FRESH_SECONDS", -0.001)
    assert book.last(ALICE) == 1
    assert await book.get(ALICE) == 3


async def test_who_asks_at_the_same_time_shares_a_reading_that_nobody_can_take_away() -> None:
    shelf = Shelf()
    book = Remembered(shelf.read)
    shelf.open.clear()
    first, second = (asyncio.create_task(book.get(ALICE)) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0.01)
    shelf.open.set()
    assert await second == 1 and shelf.readings == [ALICE]
    assert first.cancelled() and book.last(ALICE) == 1


async def test_what_was_being_read_when_it_changed_is_not_remembered() -> None:
    shelf = Shelf()
    book = Remembered(shelf.read)
    shelf.open.clear()
    before = asyncio.create_task(book.get(ALICE))
    await asyncio.sleep(0.01)
    book.forget(ALICE)
    after = asyncio.create_task(book.get(ALICE))
    await asyncio.sleep(0.01)
    shelf.open.set()
    assert [await before, await after] == [1, 2]
    assert await book.get(ALICE) == 2 and len(shelf.readings) == 2


async def test_a_reading_that_failed_is_told_to_all_who_waited_and_tried_again_by_the_next() -> None:
    shelf = Shelf()
    book = Remembered(shelf.read)
    shelf.problem = OSError("away")
    asked = await asyncio.gather(book.get(ALICE), book.get(ALICE), return_exceptions=True)
    assert [str(error) for error in asked] == ["away", "away"] and len(shelf.readings) == 1
    shelf.problem = None
    assert await book.get(ALICE) == 2


async def test_it_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("breadcrumbs.runtime.workers.owner_cache._MOST", 10)
    book = Remembered(Shelf().read)
    for number in range(100):
        await book.get(UUID(int=number))
    assert len(book._known) <= 11
