"""Run several store operations at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

from breadcrumbs.runtime.errors import StoreError

T = TypeVar("T")


async def run_all(function: Callable[[T], Awaitable[object]], arguments: Iterable[T]) -> None:
    """Call the function with each argument, all at once. Raises the first `StoreError` after all have ended.

    A plain task group would cancel the other calls at the first error: one lease that cannot be renewed would
    then cost the others.
    """
    errors: list[StoreError] = []

    async def call(argument: T) -> None:
        try:
            await function(argument)
        except StoreError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        for argument in arguments:
            tasks.start_soon(call, argument)
    if errors:
        raise errors[0]
