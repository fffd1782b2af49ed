"""Hygiene of a store: removes expired breadcrumbs, deleted sessions and old events.

Several processes can run it at the same time. The scripts that remove breadcrumbs and sessions check their conditions
again.
Events that a kind of worker has not finished are kept, even if they are older than the window.
"""

from __future__ import annotations

import time
from typing import Any, Final

import anyio
import structlog

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.conversion import TagConversion
from breadcrumbs.runtime.store.expiry import purge_expired
from breadcrumbs.runtime.store.formats import adopt_format
from breadcrumbs.runtime.store.housekeeping import (
    RunCounts,
    count_run,
    housekeeping_lanes,
    read_totals,
    trim_events,
)
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_reports import remove_old_reports
from breadcrumbs.runtime.telemetry.store_calls import log_store_error

_CONVERSION_SECONDS: Final = 1.0
"""Time that each run spends on the conversion of older data."""

_log = structlog.get_logger("breadcrumbs.hygiene")


class Hygiene:
    """Runs the hygiene of a store, once or at an interval."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._sessions = Sessions(store)
        self._conversion = TagConversion(store)
        self._window = int(settings.event_window.total_seconds() * 1_000_000)
        self._interval = settings.hygiene_interval.total_seconds()

    async def run_forever(self) -> None:
        """Run hygiene at the configured interval."""
        while True:
            await anyio.sleep(self._interval)
            report = await self.run_once()
            if report.purged or report.trimmed:  # errors have a line of their own, and none during an outage
                _log.info("hygiene done", purged=report.purged, trimmed=report.trimmed, errors=report.errors)

    async def run_once(self) -> RunCounts:
        """Run hygiene in all lanes. An error in one lane does not stop the others."""
        began = time.perf_counter()
        purged = trimmed = errors = 0
        for lane in housekeeping_lanes(self._store):
            try:
                while removed := await purge_expired(self._store, lane):
                    purged += removed
                await self._sessions.finish_deletions(lane)
                trimmed += await trim_events(self._store, lane, self._window)
            except StoreError as error:
                errors += 1
                log_store_error(_log, "hygiene failed in a lane", error, lane=lane)
        errors += await self._remove_old_reports()
        errors += await self._convert()
        duration = (time.perf_counter() - began) * 1000
        report = RunCounts(purged, trimmed, round(duration, 3), errors)
        await self._count_run(report)
        return report

    async def stats(self) -> dict[str, Any]:
        """Return the totals of all processes that run hygiene on this store."""
        totals = await read_totals(self._store)
        stats: dict[str, Any] = {
            "runs_completed": totals.runs,
            "total_breadcrumbs_purged": totals.purged,
            "total_events_trimmed": totals.trimmed,
            "last_run_duration_ms": totals.last_duration_ms,
            "last_run_errors": totals.last_errors,
            "hygiene_enabled": True,
            "interval_seconds": self._interval,
        }
        if totals.last_run is not None:
            stats["last_updated"] = times.to_text(totals.last_run)
        return stats

    async def _remove_old_reports(self) -> int:
        """Remove the reports of workers that ended long ago. Return 1 if that failed."""
        try:
            await remove_old_reports(self._store)
        except StoreError as error:
            log_store_error(_log, "removing old worker reports failed", error)
            return 1
        return 0

    async def _convert(self) -> int:
        """Continue the conversion to the newest data format. Return 1 if that failed."""
        try:
            if await adopt_format(self._store):
                await self._conversion.run(_CONVERSION_SECONDS)
        except StoreError as error:
            log_store_error(_log, "converting the store failed", error)
            return 1
        return 0

    async def _count_run(self, counts: RunCounts) -> None:
        try:
            await count_run(self._store, counts)
        except StoreError as error:
            log_store_error(_log, "counting the hygiene run failed", error)
