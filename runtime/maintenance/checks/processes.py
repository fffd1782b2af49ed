"""Checks of all processes of an installation: whether their versions and clocks agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from breadcrumbs.runtime.maintenance.checks.finding import Finding
from breadcrumbs.runtime.maintenance.checks.server import judge_skew, skew_text
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_reports import ListedWorker, list_workers

PROCESS_CHECKS: Final = ("versions", "worker-clocks")

_LONGEST_DELAY: Final = 2_000_000
"""Microseconds that a heartbeat can take on a busy machine."""


@dataclass(frozen=True, slots=True)
class KnownProcess:
    """A process with its version."""

    name: str
    """Name for messages, such as `API`."""
    version: str


async def check_processes(store: Store, known: Sequence[KnownProcess]) -> list[Finding]:
    """Check that all living workers and the known processes have the same version, and clocks that agree."""
    workers = [worker for worker in await list_workers(store) if not worker.ended]
    processes = [KnownProcess(worker.name, worker.report.version) for worker in workers if worker.report]
    return [_judge_versions([*known, *processes]), *_judge_clocks(workers)]


def _judge_versions(processes: Sequence[KnownProcess]) -> Finding:
    by_version: dict[str, set[str]] = {}
    for process in processes:
        by_version.setdefault(process.version, set()).add(process.name)
    details = {"versions": {version: sorted(names) for version, names in sorted(by_version.items())}}
    if len(by_version) <= 1:
        return Finding("versions", "ok", f"all have {next(iter(by_version), 'no version')}", details=details)
    shown = "; ".join(
        f"{version}: {', '.join(sorted(names)[:3])}{' …' if len(names) > 3 else ''}"
        for version, names in sorted(by_version.items())
    )
    return Finding(
        "versions",
        "warning",
        f"processes have different versions ({shown})",
        "finish the upgrade: restart the processes with the older version",
        details,
    )


def _judge_clocks(workers: Sequence[ListedWorker]) -> list[Finding]:
    """Compare the clock of each worker with the server's clock, at its last heartbeat."""
    skews: dict[str, int] = {}
    for worker in workers:
        if worker.report is not None and worker.report.clock and worker.heartbeat_at is not None:
            skews[worker.name] = worker.report.clock - worker.heartbeat_at
    if not skews:
        return [Finding("worker-clocks", "skipped", "no worker reports its clock")]
    details = {"skew_seconds": {name: round(skew / 1e6, 3) for name, skew in sorted(skews.items())}}
    name, worst = max(skews.items(), key=lambda item: abs(item[1]))
    # A heartbeat that was delayed on its way makes a clock look late, and never early.
    status = judge_skew(worst, _LONGEST_DELAY if worst < 0 else 0)
    if status == "ok":
        return [
            Finding("worker-clocks", "ok", "the clocks of all workers agree with the server", details=details)
        ]
    return [
        Finding(
            "worker-clocks",
            status,
            f"the clock of {name} is {skew_text(worst)} the server",
            "synchronize the clocks with NTP; times in logs and traces are wrong otherwise",
            details,
        )
    ]
