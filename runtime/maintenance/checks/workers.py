"""Checks of the workers: whether they run, how far they are behind, and which events they gave up."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from breadcrumbs.runtime.maintenance.checks.durations import duration_text
from breadcrumbs.runtime.maintenance.checks.finding import Finding, Status
from breadcrumbs.runtime.store.lane_counts import NO_OWNER, LaneCounts, count_lanes, oldest_wait
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_records import read_worker_kinds
from breadcrumbs.runtime.store.worker_reports import ListedWorker, list_workers

_ROLES: Final = {
    "contexts": ("context builder", "crumb build-contexts"),
    "agents": ("agent runner", "crumb run-agents"),
}
"""Name of each needed kind of worker, and the command that starts one."""

WORKER_CHECKS: Final = ("workers", "lag", "dead-letters")


@dataclass(frozen=True, slots=True)
class LagLimits:
    """Lag of a kind of worker from which there is a warning and an error."""

    warning_seconds: float = 60
    error_seconds: float = 600
    warning_events: int = 500
    error_events: int = 5_000

    def judge(self, seconds: float, events: int) -> Status:
        """Return the status for the age of the oldest waiting event, and the number of waiting events."""
        if seconds >= self.error_seconds or events >= self.error_events:
            return "error"
        if seconds >= self.warning_seconds or events >= self.warning_events:
            return "warning"
        return "ok"


async def check_workers(store: Store, limits: LagLimits | None = None) -> list[Finding]:
    """Check that the needed kinds of workers run and keep up, and that no event failed every attempt."""
    kinds = await read_worker_kinds(store)
    workers = await list_workers(store, kinds)
    lanes = await count_lanes(store, NO_OWNER, kinds, 0)
    alive = {worker.kind for worker in workers if not worker.ended}
    return [
        *(_judge_family(family, kinds, workers) for family in _ROLES),
        *_judge_lag(kinds, alive, lanes, store.now(), limits or LagLimits()),
        _count_letters(kinds, lanes),
    ]


def _judge_family(family: str, kinds: Collection[str], workers: Sequence[ListedWorker]) -> Finding:
    """Check that a worker of a family of kinds runs. A draining worker takes no more events."""
    name, start = _ROLES[family]
    names: dict[str, list[str]] = {"running": [], "draining": [], "lost": []}
    for worker in workers:
        if family_of(worker.kind) == family and worker.state in names:
            names[worker.state].append(worker.name)
    if names["running"]:
        return Finding("workers", "ok", f"{len(names['running'])} running", details=names, subject=family)
    start_one = f"start one: {start}, or crumb up"
    if not any(family_of(kind) == family for kind in kinds):
        return Finding(
            "workers",
            "warning",
            f"no {name} is running, and none ever ran on this store: messages get no answers",
            f"{start_one}. If nothing is to answer messages, skip the check: --skip workers",
            names,
            family,
        )
    reasons = [
        f"{', '.join(names[state][:3])} {reason}"
        for state, reason in (("lost", "stopped sending heartbeats"), ("draining", "is being drained"))
        if names[state]
    ]
    why = f" ({'; '.join(reasons)})" if reasons else ""
    return Finding(
        "workers",
        "error",
        f"no {name} is running{why}: messages wait, and none are lost",
        f"{start_one}; the log of the old one has the reason",
        names,
        family,
    )


def _judge_lag(
    kinds: Sequence[str], alive: Collection[str], lanes: Sequence[LaneCounts], now: int, limits: LagLimits
) -> list[Finding]:
    findings = []
    for place, kind in enumerate(kinds):
        if "/" in kind and kind not in alive:
            continue  # an agent of a user's program that has ended: the store keeps no events for it
        counts = [lane.kinds[place] for lane in lanes]
        oldest = oldest_wait(counts, now)
        waiting = sum(count.waiting for count in counts)
        at_least = "at least " if any(count.more_waiting for count in counts) else ""
        status = limits.judge(oldest / 1e6, waiting)
        shown = f"{at_least}{waiting:,} events wait, the oldest for {duration_text(oldest)}"
        details = {"events": waiting, "seconds": round(oldest / 1e6, 3), "more": bool(at_least)}
        if status == "ok":
            findings.append(
                Finding("lag", "ok", shown if waiting else "no events wait", details=details, subject=kind)
            )
        else:
            findings.append(Finding("lag", status, shown, _lag_advice(kind, kind in alive), details, kind))
    return findings


def _lag_advice(kind: str, running: bool) -> str:
    family = family_of(kind)
    start = _ROLES[family][1] if family in _ROLES else "your program"
    if not running:
        return f"start a worker of this kind: {start}"
    slow = "check that the models answer (crumb doctor --only models)" if family == "agents" else ""
    return "; ".join(filter(None, [f"start more workers: {start}", slow, "read the log of the workers"]))


def _count_letters(kinds: Sequence[str], lanes: Sequence[LaneCounts]) -> Finding:
    counts = {kind: sum(lane.kinds[place].dead_letters for lane in lanes) for place, kind in enumerate(kinds)}
    found = {kind: count for kind, count in counts.items() if count}
    details = {"events": sum(found.values()), "kinds": found}
    if not found:
        return Finding("dead-letters", "ok", "none", details=details)
    shown = ", ".join(f"{count:,} of {kind}" for kind, count in found.items())
    return Finding(
        "dead-letters",
        "warning",
        f"{details['events']:,} events failed every attempt ({shown})",
        "read the reasons with crumb dead-letters list; then crumb dead-letters retry --all, or delete",
        details,
    )


def family_of(kind: str) -> str:
    """Return the kind without the name of an agent: `agents` for `agents/poet`."""
    return kind.partition("/")[0]
