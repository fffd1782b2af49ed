"""Measurements of the targets. Each measures one or more targets in one run."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from bench import api, audit, turn
from bench._common import OTHER, OURS, Found, Report, as_json, embedded

ROOT = Path(__file__).resolve().parents[1]


class NotMeasured(Exception):
    """A target cannot be measured here. The message says why."""


@dataclass
class Measured:
    """Result of a measurement: a value for each target, and all rounds."""

    values: dict[str, float]
    """By key of the target."""
    numbers: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    """Says if a quick run measured something smaller than the target names."""


@dataclass(frozen=True)
class Run:
    """Options of a run."""

    quick: bool
    reference: Callable[[], Path]
    """Returns the checkout of the reference commit. The first call can take a minute."""


Measure: TypeAlias = Callable[[Run], Awaitable[Measured]]


async def paired_turns(run: Run) -> Measured:
    found = await turn.paired_turns(run.reference(), run.quick)
    return Measured({"turn_p50": _paired(found, "p50"), "turn_cpu": _paired(found, "CPU")}, as_json(found))


async def paired_throughput(run: Run) -> Measured:
    found = await turn.paired_throughput(run.reference(), run.quick)
    return Measured({"turns_per_second": _paired(found, "turns/s")}, as_json(found))


async def long_session(run: Run) -> Measured:
    found = await turn.by_session_length(run.quick)
    return Measured({"long_session": turn.ratio_of_sides(found, "p50").median}, as_json(found))


async def many_lanes(run: Run) -> Measured:
    found = await turn.by_lanes(run.quick)
    return Measured({"many_lanes": turn.ratio_of_sides(found, "p50").median}, as_json(found))


async def creates(run: Run) -> Measured:
    from bench import store

    report = _silent_report(run)
    await store.creates(_options(run), report)
    return _of_verdict(report, "create", "(a) creates against")


async def memory(run: Run) -> Measured:
    from bench import store

    report = _silent_report(run)
    await store.memory(_options(run), report)
    return _of_verdict(report, "memory", "(e) bytes over the JSON as posted")


async def http_creates(run: Run) -> Measured:
    from bench import http

    report = _silent_report(run)
    with embedded() as redis:
        served = http.all_served(http.Served(http.OURS, redis), http.Served(http.BARE, redis))
        async with served as servers:
            await http.creates(_options(run), report, servers)
    return _of_verdict(report, "http_create", "(b) HTTP creates against the bare app")


async def user_sessions(run: Run) -> Measured:
    found = await api.sessions_of_a_user(run.quick)
    ratio = found[api.OF_A_USER]["ms"].per(found[api.ALL]["ms"]).median
    return Measured({"user_sessions": ratio}, as_json(found))


async def audited(run: Run) -> Measured:
    found = await audit.audit_seconds(run.quick)
    note = f"computed from {found['breadcrumbs']:,.0f}" if run.quick else ""
    return Measured({"audit": found["seconds_per_million"]}, dict(found), note)


async def processes(run: Run) -> Measured:
    document = await _section(run, "http", "--processes", "2")
    return Measured({"workers": _value(document, "processes against one")}, document["sections"])


async def last_ten(run: Run) -> Measured:
    document = await _section(run, "peers", "--only", "a")
    return Measured({"last_ten": _value(document, "(a) store.recent against")}, document["sections"])


async def telemetry(run: Run) -> Measured:
    document = await _section(run, "telemetry", "--only", "ac")
    values = {
        "metrics_and_logs": _value(document, "metrics and logs against"),
        "telemetry_off": _value(document, "opentelemetry off against"),
    }
    return Measured(values, document["sections"])


MEASUREMENTS: dict[str, tuple[tuple[str, ...], tuple[int, int], Measure]] = {
    "turn": (("turn_p50", "turn_cpu"), (125, 25), paired_turns),
    "throughput": (("turns_per_second",), (95, 30), paired_throughput),
    "length": (("long_session",), (65, 20), long_session),
    "create": (("create",), (70, 12), creates),
    "http": (("http_create",), (70, 12), http_creates),
    "peers": (("last_ten",), (110, 25), last_ten),
    "lanes": (("many_lanes",), (100, 35), many_lanes),
    "memory": (("memory",), (15, 6), memory),
    "sessions": (("user_sessions",), (50, 30), user_sessions),
    "audit": (("audit",), (180, 20), audited),
    "workers": (("workers",), (70, 20), processes),
    "telemetry": (("metrics_and_logs", "telemetry_off"), (310, 60), telemetry),
}
"""By name: the targets, the expected seconds of a run and of a quick run, and the function."""


def _paired(found: Found, what: str) -> float:
    return found[OURS][what].per(found[OTHER][what]).median


def _options(run: Run) -> argparse.Namespace:
    return argparse.Namespace(quick=run.quick, full=False, json=True, only="", against=None)


def _silent_report(run: Run) -> Report:
    return Report("targets", _options(run))


def _of_verdict(report: Report, target: str, start: str) -> Measured:
    """Return the value of the result whose description begins with `start`."""
    for verdict in report.verdicts:
        if verdict.what.startswith(start):
            return Measured({target: verdict.value}, report.sections)
    raise NotMeasured(f"no result {start!r}")


async def _section(run: Run, name: str, *options: str) -> Any:
    """Run a section in another process. Return its JSON document."""
    argv = [sys.executable, "-m", f"bench.{name}", "--json", *options, *(["--quick"] if run.quick else [])]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    try:
        printed, _ = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    if process.returncode:
        raise NotMeasured(f"{' '.join(argv[1:])} ended with {process.returncode}")
    return json.loads(printed)


def _value(document: Any, part: str) -> float:
    """Return the value of the first result whose description contains `part`."""
    for verdict in document["verdicts"]:
        if part in verdict["what"].lower():
            return float(verdict["value"])
    raise NotMeasured(f"no result with {part!r}")
