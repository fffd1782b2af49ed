"""The processes that serve one port together, as each of them sees the others.

The parent creates the group before it forks. A process tells the others its counts for limits, and publishes a snapshot
of its metrics. To read current snapshots, a process wakes the others through their pipes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Hashable
from typing import Any, Final, Protocol

import anyio
import orjson
import structlog

from breadcrumbs.runtime.http.processes.merging import merge_families, without_gauges
from breadcrumbs.runtime.http.processes.shared_memory import SharedCounts, Snapshot

PUBLISH_SECONDS: Final = 1.0
"""A killed process loses the metrics that it counted since its last publication."""
_WAIT_SECONDS: Final = 0.5
"""Time for the other processes to publish. After it, their previous snapshots are used."""
_POLL_SECONDS: Final = 0.002

_log = structlog.get_logger("breadcrumbs.http")


class OtherCounts(Protocol):
    """Counts of the other processes, for limits that all processes share."""

    def of_others(self, key: Hashable) -> int:
        """Return the sum of the counts of the other processes."""

    def add(self, key: Hashable, amount: int) -> None:
        """Tell the others a change of a count of this process."""


class _NoOthers:
    """Counts of a process that serves its port alone."""

    def of_others(self, key: Hashable) -> int:
        return 0

    def add(self, key: Hashable, amount: int) -> None:
        pass


class ProcessGroup:
    """The group as the parent sees it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.parent = os.getpid()
        self.started_at = time.time_ns() // 1000
        self.counts = SharedCounts(size)
        self.snapshots = [Snapshot() for _ in range(size)]
        self.ended = Snapshot()
        """Counters of processes that have ended, and the number of restarts. Only the parent publishes it."""
        self.wakers = [os.pipe() for _ in range(size)]
        for ends in self.wakers:
            for end in ends:
                os.set_blocking(end, False)

    def join(self, number: int) -> Member:
        """Return the group as the process with this number sees it."""
        return Member(self, number)

    def retire(self, number: int) -> None:
        """Keep the counters of a process that has ended, and forget its counts for limits."""
        self.counts.clear(number)
        before = read_document(self.ended)
        last = read_document(self.snapshots[number])
        restarts: list[int] = before.get("restarts", [0] * self.size)
        restarts[number] += 1
        families = merge_families([before.get("families", []), without_gauges(last.get("families", []))])
        self.ended.publish(orjson.dumps({"families": families, "restarts": restarts}))
        # The process that replaces it begins at zero.
        self.snapshots[number].publish(b"{}")


class Member:
    """The group as one of its processes sees it."""

    def __init__(self, group: ProcessGroup, number: int) -> None:
        self.group = group
        self.number = number
        self.started_at = time.time_ns() // 1000
        self._own = group.snapshots[number]

    def of_others(self, key: Hashable) -> int:
        return self.group.counts.of_others(self.number, key)

    def add(self, key: Hashable, amount: int) -> None:
        self.group.counts.add(self.number, key, amount)

    def publish(self, snapshot: dict[str, Any]) -> None:
        """Publish a snapshot of this process."""
        try:
            self._own.publish(orjson.dumps(snapshot))
        except ValueError as error:
            _log.error("the metrics of this process are not published", error=str(error))

    async def publish_forever(self, take: Callable[[], dict[str, Any]]) -> None:
        """Publish the snapshot that `take` returns, once a second and when another process asks for it."""
        waker = self.group.wakers[self.number][0]

        def answer() -> None:
            try:
                os.read(waker, 4096)
            except BlockingIOError:
                return
            self.publish(take())

        loop = asyncio.get_running_loop()
        loop.add_reader(waker, answer)
        try:
            while True:
                self.publish(take())
                await anyio.sleep(PUBLISH_SECONDS)
        finally:
            loop.remove_reader(waker)

    async def read_others(self) -> list[dict[str, Any]]:
        """Return the current snapshots of the other processes that run."""
        others = [number for number in range(self.group.size) if number != self.number]
        known = {number: self.group.snapshots[number].number for number in others}
        for number in others:
            try:
                os.write(self.group.wakers[number][1], b".")
            except BlockingIOError:
                pass  # many requests are waiting there already
        with anyio.move_on_after(_WAIT_SECONDS):
            while any(self.group.snapshots[number].number == known[number] for number in others):  # noqa: ASYNC110
                await anyio.sleep(_POLL_SECONDS)
        found = [read_document(self.group.snapshots[number]) for number in others]
        return [document for document in found if document]

    def read_ended(self) -> dict[str, Any]:
        """Return the counters of processes that have ended, and the number of restarts per process."""
        return read_document(self.group.ended)


def read_document(snapshot: Snapshot) -> dict[str, Any]:
    """Return the document of a snapshot. Empty if there is none."""
    document: dict[str, Any] = orjson.loads(snapshot.read() or b"{}")
    return document


_ALONE: Final = _NoOthers()
_current: Member | None = None


def enter(member: Member) -> None:
    """Make this process a member of a group. Call it once, before the server is built."""
    global _current
    _current = member


def current() -> Member | None:
    """Return the membership of this process. None: it serves its port alone."""
    return _current


def other_counts() -> OtherCounts:
    """Return the counts of the other processes of the port."""
    return _ALONE if _current is None else _current


def share_of(limit: int) -> int:
    """Return the part of a limit that one process may use: an equal part, at least 1."""
    return limit if _current is None else max(1, limit // _current.group.size)
