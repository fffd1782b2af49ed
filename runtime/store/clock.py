"""Estimate of the server's clock, which decides whether a breadcrumb has expired."""

from __future__ import annotations

import time

from breadcrumbs.runtime.backend.connection import Connection

_PROBES = 3


class ServerClock:
    """Estimates the server's clock from the local clock."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.offset = 0
        """Microseconds by which the server's clock is ahead of the local clock."""
        self._error = 0
        """Maximum error of the offset, in microseconds."""

    def now(self) -> int:
        """Return the estimated time of the server, in microseconds."""
        return time.time_ns() // 1000 + self.offset

    def now_at_least(self) -> int:
        """Return a time in microseconds that the server's clock has certainly reached."""
        return self.now() - self._error

    async def synchronize(self) -> None:
        """Measure the offset of the clocks. The fastest of a few round trips is the most exact one."""
        error = 1 << 60
        for _ in range(_PROBES):
            before = time.time_ns() // 1000
            seconds, microseconds = await self._connection.call(0, b"TIME")
            after = time.time_ns() // 1000
            if after - before < error:
                error = after - before
                self.offset = int(seconds) * 1_000_000 + int(microseconds) - (before + after) // 2
        self._error = error // 2 + 1
