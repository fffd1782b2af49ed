"""Runs the tool calls of one reply at the same time, a limited number of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import anyio

T = TypeVar("T")

MAX_AT_ONCE: Final = 8
"""Maximum number of tool calls of a turn that run at the same time."""


async def run_all(calls: Sequence[Callable[[], Awaitable[T]]], *, one_by_one: bool = False) -> list[T]:
    """Return the results of all calls, in their order. If one raises an error, the others are cancelled.

    One call needs no task. With `one_by_one`, each call begins when the one before it has ended.
    """
    if one_by_one or len(calls) == 1:
        return [await call() for call in calls]
    results: dict[int, T] = {}
    errors: list[Exception] = []
    slots = anyio.CapacityLimiter(MAX_AT_ONCE)
    async with anyio.create_task_group() as tasks:

        async def run(number: int, call: Callable[[], Awaitable[T]]) -> None:
            async with slots:
                try:
                    results[number] = await call()
                except Exception as error:  # raised below, without the group
                    errors.append(error)
                    tasks.cancel_scope.cancel()

        for number, call in enumerate(calls):
            tasks.start_soon(run, number, call)
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(calls))]
