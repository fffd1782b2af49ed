"""Checks of `crumb doctor`.

Each check returns findings with a status, a message and advice. Most checks read an open store.

With `fix`, a check repairs everything that does not need a decision: wrong index entries, wrong session data, expired
breadcrumbs, and counters. Repairs are scripts that change nothing if the breadcrumb was written in the meantime. So
they are safe while the store is in use.
"""

from __future__ import annotations

from breadcrumbs.runtime.maintenance.checks.events import check_events
from breadcrumbs.runtime.maintenance.checks.expiry import check_expired
from breadcrumbs.runtime.maintenance.checks.finding import Finding
from breadcrumbs.runtime.maintenance.checks.identity import check_identity
from breadcrumbs.runtime.maintenance.checks.indexes import check_indexes
from breadcrumbs.runtime.maintenance.checks.layout import check_layout, check_scripts
from breadcrumbs.runtime.maintenance.checks.machine import check_binary, check_data_directory, check_python
from breadcrumbs.runtime.maintenance.checks.quotas import check_quotas
from breadcrumbs.runtime.maintenance.checks.server import check_server, judge_server, log_server_problems
from breadcrumbs.runtime.maintenance.checks.sessions import check_sessions

__all__ = [
    "Finding",
    "check_binary",
    "check_data_directory",
    "check_events",
    "check_expired",
    "check_identity",
    "check_indexes",
    "check_layout",
    "check_python",
    "check_quotas",
    "check_scripts",
    "check_server",
    "check_sessions",
    "judge_server",
    "log_server_problems",
]
