"""Identity of a worker: its unique id, the name that the operator gave it, and the facts that it reports."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.store.worker_reports import WorkerReport
from breadcrumbs.runtime.version import VERSION

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
"""Names are used in URLs and tables, so they are short and have no special characters."""


class NameInUse(StartupError):
    """A running worker of the same kind has the name."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Facts about a worker that do not change while it runs.

    The id is different for each start, even if the name stays the same. Leases, commits and the detection of dead
    workers use only the id. All workers of a process can share one value: an id is unique within a kind.
    """

    id: str
    name: str
    host: str
    agents: tuple[str, ...] = ()
    """Agents that it runs, without those that are defined by breadcrumbs: they belong to tenants."""
    models: tuple[str, ...] = ()
    """Models of these agents and of the settings, without the URLs of their servers."""
    skipped_models: Callable[[], tuple[str, ...]] = tuple
    """Returns the models that fallback lists skip now, because their last calls failed."""

    @classmethod
    def create(cls, name: str | None = None) -> WorkerInfo:
        """Return the identity of a new worker of this process. Without a name, the id is its name."""
        host, start = socket.gethostname(), secrets.token_hex(4)
        id = f"{_cleaned(host)}-{os.getpid()}-{start}" if name is None else f"{name}-{start}"
        return cls(id, name or id, host)

    def running(self, agents: tuple[str, ...], models: tuple[str, ...]) -> WorkerInfo:
        """Return the identity with the agents and models of a worker."""
        return replace(self, agents=agents, models=models)

    def first_report(self, *, started_at: int, lease_seconds: float) -> WorkerReport:
        """Return the report of a worker that has just started."""
        report = WorkerReport(self.name, self.host, os.getpid(), VERSION, started_at, lease_seconds)
        return report.with_names(self.agents, self.models)


def _cleaned(host: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", host)[:40].lstrip("._-") or "host"
