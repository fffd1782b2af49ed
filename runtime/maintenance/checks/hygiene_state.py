"""Whether hygiene should have run by now. It decides if data that is still there is a problem.

After a long downtime, expired breadcrumbs and old events are still in the store until hygiene has run once. That is not
a problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from breadcrumbs.runtime.store.housekeeping import RunTotals, read_totals
from breadcrumbs.runtime.store.store import Store

_SLACK_SECONDS: Final = 60.0
"""A run can take some time, and a busy machine delays it."""


@dataclass(frozen=True, slots=True)
class HygieneSchedule:
    """How often hygiene runs, and since when a process is there that runs it."""

    interval_seconds: float = 30.0
    served_seconds: float | None = None
    """Uptime of the API. None: no API runs, or its uptime is unknown."""

    @property
    def patience_seconds(self) -> float:
        """Seconds within which hygiene certainly runs once."""
        return 2 * self.interval_seconds + _SLACK_SECONDS


@dataclass(frozen=True, slots=True)
class HygieneState:
    """The last run of hygiene."""

    totals: RunTotals
    overdue: bool
    """A process should have run it and has not."""
    active: bool
    """The last run was a short time ago."""

    @property
    def began(self) -> int | None:
        """Time at which the last run began, in microseconds. None: it never ran."""
        if self.totals.last_run is None:
            return None
        return self.totals.last_run - int(self.totals.last_duration_ms * 1000)


async def read_hygiene(store: Store, schedule: HygieneSchedule) -> HygieneState:
    """Return the state of hygiene on a store."""
    totals = await read_totals(store)
    patience = int(schedule.patience_seconds * 1_000_000)
    active = totals.last_run is not None and store.now() - totals.last_run <= patience
    served = schedule.served_seconds
    overdue = not active and served is not None and served > schedule.patience_seconds
    return HygieneState(totals, overdue, active)
