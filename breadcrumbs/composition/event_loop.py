"""Starts the event loop of a process."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import structlog
import uvloop

T = TypeVar("T")

_GC_THRESHOLDS: Final = (10_000, 20, 50)
"""Caches keep many small objects alive, and a turn creates some thousand. With the defaults of Python (700, 10, 10),
garbage collections take a sixth of the CPU time of a turn. Cycles are rare, so little memory waits for a collection."""


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on uvloop until it returns.

    Servers and workers have configured their logs before. Other commands print results to standard output, where
    structlog logs by default. They report their errors themselves, so only critical entries are logged.
    """
    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )
    gc.set_threshold(*_GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
