"""The checks of an open store.

`crumb doctor` and `GET /operations/checks` use the same functions, so that both give the same verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from breadcrumbs.runtime.maintenance.checks.agents import check_agents
from breadcrumbs.runtime.maintenance.checks.events import check_events
from breadcrumbs.runtime.maintenance.checks.expiry import check_expired
from breadcrumbs.runtime.maintenance.checks.finding import Finding
from breadcrumbs.runtime.maintenance.checks.hygiene_state import HygieneSchedule
from breadcrumbs.runtime.maintenance.checks.indexes import check_indexes
from breadcrumbs.runtime.maintenance.checks.layout import check_layout, check_scripts
from breadcrumbs.runtime.maintenance.checks.processes import PROCESS_CHECKS, KnownProcess, check_processes
from breadcrumbs.runtime.maintenance.checks.quotas import check_quotas
from breadcrumbs.runtime.maintenance.checks.run import Check
from breadcrumbs.runtime.maintenance.checks.server import SERVER_CHECKS, check_server
from breadcrumbs.runtime.maintenance.checks.sessions import check_sessions
from breadcrumbs.runtime.maintenance.checks.workers import WORKER_CHECKS, LagLimits, check_workers
from breadcrumbs.runtime.store.store import Store

_STOPPED: Final = "nothing is running: crumb up starts everything"


@dataclass(frozen=True, slots=True)
class StoreCheckOptions:
    """Facts about the installation that the checks of a store need."""

    window: int
    """The setting `event_window`, in microseconds."""
    schedule: HygieneSchedule = field(default_factory=HygieneSchedule)
    lag: LagLimits = field(default_factory=LagLimits)
    processes: tuple[KnownProcess, ...] = ()
    """Processes that are known besides the workers."""
    stopped: bool = False
    """The embedded server was started only for these checks, so no workers can be running."""
    wanted_lanes: int | None = None
    """The setting `lanes`."""
    fix: bool = False
    """Repair everything that does not need a decision."""


def system_checks(store: Store, options: StoreCheckOptions) -> list[Check]:
    """Return the checks that take a few round trips. They can run often."""
    return [
        Check((*SERVER_CHECKS, "clock"), partial(check_server, store)),
        Check(WORKER_CHECKS, partial(_check_workers, store, options)),
        _single("agents", partial(_check_agents, store, options)),
        Check(PROCESS_CHECKS, partial(_check_processes, store, options)),
        _single("layout", partial(check_layout, store, wanted_lanes=options.wanted_lanes, fix=options.fix)),
        Check(("events",), partial(check_events, store, options.schedule, window=options.window)),
        _single("expiry", partial(check_expired, store, options.schedule, fix=options.fix)),
    ]


def data_checks(store: Store, options: StoreCheckOptions) -> list[Check]:
    """Return the checks that load the scripts and read samples of the data, or with `fix` all of the data."""
    return [
        _single("scripts", partial(check_scripts, store)),
        _single("indexes", partial(check_indexes, store, fix=options.fix)),
        _single("sessions", partial(check_sessions, store, fix=options.fix)),
        Check(("quotas",), partial(check_quotas, store, fix=options.fix)),
    ]


def _single(id: str, check: Callable[[], Coroutine[Any, Any, Finding]]) -> Check:
    async def run() -> list[Finding]:
        return [await check()]

    return Check((id,), run)


async def _check_workers(store: Store, options: StoreCheckOptions) -> list[Finding]:
    findings = await check_workers(store, options.lag)
    if not options.stopped:
        return findings
    return [*_skipped("workers", "lag"), *(one for one in findings if one.id == "dead-letters")]


async def _check_agents(store: Store, options: StoreCheckOptions) -> Finding:
    return _skipped("agents")[0] if options.stopped else await check_agents(store)


async def _check_processes(store: Store, options: StoreCheckOptions) -> list[Finding]:
    if options.stopped:
        return _skipped(*PROCESS_CHECKS)
    return await check_processes(store, options.processes)


def _skipped(*ids: str) -> list[Finding]:
    return [Finding(id, "skipped", _STOPPED) for id in ids]
