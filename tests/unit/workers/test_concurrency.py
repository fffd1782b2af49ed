from __future__ import annotations

import asyncio
import gc

import pytest

from breadcrumbs.runtime.workers.concurrency import result_now


async def test_a_coroutine_that_does_not_wait_returns_its_result_at_once() -> None:
    async def inner() -> int:
        return 3

    async def outer() -> int:
        return 1 + await inner()

    assert result_now(outer()) == 4


async def test_a_coroutine_that_waits_is_ended_and_its_future_is_left_alone() -> None:
    shared: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    ended = False

    async def waits() -> int:
        nonlocal ended
        try:
            return await asyncio.shield(shared)
        finally:
            ended = True

    assert result_now(waits()) is None
    assert ended and not shared.cancelled()
    # A failure of the shared future is not reported as "never retrieved": warnings are errors here.
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    shared.set_exception(RuntimeError("it fails"))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        await shared
    gc.collect()
    assert not problems


async def test_a_coroutine_that_only_yields_is_ended() -> None:
    assert result_now(asyncio.sleep(0, "done")) is None


async def test_an_exception_is_raised() -> None:
    async def fails() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        result_now(fails())
