"""Runs functions in daemon threads. The threads of anyio would keep the process alive if a function hangs."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

import anyio
from anyio.lowlevel import RunVar

T = TypeVar("T")

_MAX_THREADS: Final = 64


class DaemonThreads:
    """A bounded number of daemon threads. A function that was abandoned counts until it ends."""

    def __init__(self, name: str, *, limit: int = _MAX_THREADS) -> None:
        self._name = name
        self._limit = limit
        self._slots: RunVar[anyio.Semaphore] = RunVar(f"threads of {name}")

    async def run(self, function: Callable[[], T]) -> T:
        """Return the result of a function, or raise its error. If this is cancelled, the function goes on alone."""
        slots = self._slots.get(None)
        if slots is None:
            slots = anyio.Semaphore(self._limit)
            self._slots.set(slots)
        await slots.acquire()
        loop, ended = asyncio.get_running_loop(), anyio.Event()
        results: list[T] = []
        failures: list[BaseException] = []

        def finish() -> None:
            slots.release()
            ended.set()

        def work() -> None:
            try:
                results.append(function())
            except BaseException as error:
                failures.append(error)
            finally:
                with suppress(RuntimeError):  # the event loop is closed
                    loop.call_soon_threadsafe(finish)

        thread = threading.Thread(
            target=contextvars.copy_context().run, args=(work,), name=self._name, daemon=True
        )
        try:
            thread.start()
        except BaseException:
            slots.release()
            raise
        await ended.wait()
        if failures:
            raise failures[0]
        return results[0]
