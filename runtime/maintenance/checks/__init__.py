"""Checks of `crumb doctor` and `GET /operations/checks`.

Each check returns findings with a status, a message and advice. `check_catalogue.py` lists them by their ids. Most
checks read an open store.

With `fix`, a check repairs everything that does not need a decision: wrong index entries, wrong session data, expired
breadcrumbs, and counters. Repairs are scripts that change nothing if the breadcrumb was written in the meantime. So
they are safe while the store is in use.
"""

from __future__ import annotations

from breadcrumbs.runtime.maintenance.check_catalogue import CHECKS, Selection, select_checks
from breadcrumbs.runtime.maintenance.checks.events import check_events
from breadcrumbs.runtime.maintenance.checks.expiry import check_expired
from breadcrumbs.runtime.maintenance.checks.finding import Finding, Status, Verdict, verdict_of
from breadcrumbs.runtime.maintenance.checks.hygiene_state import HygieneSchedule
from breadcrumbs.runtime.maintenance.checks.identity import check_identity
from breadcrumbs.runtime.maintenance.checks.indexes import check_indexes
from breadcrumbs.runtime.maintenance.checks.layout import check_layout, check_scripts
from breadcrumbs.runtime.maintenance.checks.machine import (
    check_binary,
    check_data_directory,
    check_disk,
    check_python,
)
from breadcrumbs.runtime.maintenance.checks.offered_models import check_offered_models
from breadcrumbs.runtime.maintenance.checks.processes import KnownProcess, check_processes
from breadcrumbs.runtime.maintenance.checks.quotas import check_quotas
from breadcrumbs.runtime.maintenance.checks.run import Check, run_checks
from breadcrumbs.runtime.maintenance.checks.server import check_server, judge_server, log_server_problems
from breadcrumbs.runtime.maintenance.checks.sessions import check_sessions
from breadcrumbs.runtime.maintenance.checks.store_checks import (
    StoreCheckOptions,
    data_checks,
    system_checks,
)
from breadcrumbs.runtime.maintenance.checks.unreachable import explain_unreachable
from breadcrumbs.runtime.maintenance.checks.workers import LagLimits, check_workers

__all__ = [
    "CHECKS",
    "Check",
    "Finding",
    "HygieneSchedule",
    "KnownProcess",
    "LagLimits",
    "Selection",
    "Status",
    "StoreCheckOptions",
    "Verdict",
    "check_binary",
    "check_data_directory",
    "check_disk",
    "check_events",
    "check_expired",
    "check_identity",
    "check_indexes",
    "check_layout",
    "check_offered_models",
    "check_processes",
    "check_python",
    "check_quotas",
    "check_scripts",
    "check_server",
    "check_sessions",
    "check_workers",
    "data_checks",
    "explain_unreachable",
    "judge_server",
    "log_server_problems",
    "run_checks",
    "select_checks",
    "system_checks",
    "verdict_of",
]
