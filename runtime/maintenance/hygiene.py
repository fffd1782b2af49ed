"""Housekeeping: deletes expired breadcrumbs and old events.

Several processes may run it at once: each removal is one script that checks again. Events that some kind of worker
has not finished are kept, also if they are older than the window.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import anyio
import structlog

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.expiry import purge_expired
from breadcrumbs.runtime.store.store import Store

_log = structlog.get_logger("breadcrumbs.hygiene")


@dataclass(frozen=True, slots=True)
class HygieneReport:
    purged: int
    trimmed: int
    duration_ms: float
    errors: int


class Hygiene:
    """Runs the housekeeping of a store, once or at an interval."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._sessions = Sessions(store)
        self._window = int(settings.event_window.total_seconds() * 1_000_000)
        self._interval = settings.hygiene_interval.total_seconds()

    async def run_forever(self) -> None:
        while True:
            await anyio.sleep(self._interval)
            report = await self.run_once()
            if report.purged or report.trimmed or report.errors:
                _log.info("hygiene", purged=report.purged, trimmed=report.trimmed, errors=report.errors)

    async def run_once(self) -> HygieneReport:
        began = time.perf_counter()
        purged = trimmed = errors = 0
        for lane in range(self._store.lanes):
            try:
                while removed := await purge_expired(self._store, lane):
                    purged += removed
                purged += await self._sessions.finish_deletions(lane)
                trimmed += await self._trim(lane, await self._required_kinds())
            except StoreError as error:
                errors += 1
                _log.warning("hygiene failed in a lane", lane=lane, error=str(error))
        duration = (time.perf_counter() - began) * 1000
        report = HygieneReport(purged, trimmed, round(duration, 3), errors)
        await self._store_stats(report)
        return report

    async def stats(self) -> dict[str, Any]:
        """Return the totals of all processes that ran it on this store."""
        flat = await self._store.connection.call(0, b"HGETALL", self._store.keys.hygiene())
        stored = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
        stats: dict[str, Any] = {
            "runs_completed": int(stored.get("runs", 0)),
            "total_breadcrumbs_purged": int(stored.get("purged", 0)),
            "total_events_trimmed": int(stored.get("trimmed", 0)),
            "last_run_duration_ms": float(stored.get("duration_ms", 0)),
            "last_run_errors": int(stored.get("errors", 0)),
            "hygiene_enabled": True,
            "interval_seconds": self._interval,
        }
        if "at" in stored:
            stats["last_updated"] = times.to_text(int(stored["at"]))
        return stats

    async def _trim(self, lane: int, kinds: list[str]) -> int:
        """Delete the events that are older than the window and that every kind of worker has finished."""
        call, keys = self._store.connection.call, self._store.keys
        done = await self._store.connection.call_all(
            [(lane, (b"GET", keys.low(lane, kind))) for kind in kinds]
        )
        below = min([self._store.now() - self._window, *(int(low or 0) + 1 for low in done)])
        last = await call(lane, b"XREVRANGE", keys.events(lane), b"(%d-0" % below, b"-", b"COUNT", 1)
        if not last:
            return 0
        # The mark first: a reader may be told of a gap too early, but never miss one.
        await call(lane, b"SET", keys.trimmed(lane), last[0][0].partition(b"-")[0])
        return int(await call(lane, b"XTRIM", keys.events(lane), b"MINID", b"%d-0" % below))

    async def _required_kinds(self) -> list[str]:
        """Return the kinds of workers that events are kept for.

        A kind with a slash is an agent in a process of its own. It counts only while a worker is alive: otherwise a
        script that ran once would keep every event for ever.
        """
        call, keys = self._store.connection.call, self._store.keys
        required = []
        for name in sorted(await call(0, b"SMEMBERS", keys.worker_kinds())):
            kind = name.decode()
            if "/" not in kind or await call(0, b"ZCOUNT", keys.workers(kind), self._store.now(), b"+inf"):
                required.append(kind)
        return required

    async def _store_stats(self, report: HygieneReport) -> None:
        key = self._store.keys.hygiene()
        try:
            await self._store.connection.call_all(
                [
                    (0, (b"HINCRBY", key, "runs", 1)),
                    (0, (b"HINCRBY", key, "purged", report.purged)),
                    (0, (b"HINCRBY", key, "trimmed", report.trimmed)),
                    (0, (b"HSET", key, "duration_ms", report.duration_ms, "errors", report.errors)),
                    (0, (b"HSET", key, "at", self._store.now())),
                ]
            )
        except StoreError as error:
            _log.warning("hygiene could not count its run", error=str(error))
