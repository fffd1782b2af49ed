"""Measures the cost of metrics, logs and OpenTelemetry in a turn.

(a) turns with metrics and logs (level info), against the same system without them: CPU time of Python
(b) the calls that metrics and logs add to a turn, alone in a loop
(c) turns with OpenTelemetry installed and off, against the same system without it
(d) the checks that OpenTelemetry adds to a turn while it is off, alone in a loop
(e) turns of two equal systems: the error of (a) and (c)

(a), (c) and (e) run many pairs of processes. A process is faster or slower than an equal one by some percent for as
long as it lives, because its objects have other addresses. Rounds cannot remove this error, but pairs can. Each pair
has another seed of hashes, and its sides start in another order. The result is the median of the pairs, with its
standard error. (b) and (d) are exact, but too low: in a turn, code and data are often not in the caches of the
processor. `python -m bench.turn --against CHECKOUT` compares versions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TypeAlias
from uuid import uuid4

from bench._common import Report, Rounds, Side, Verdict, children_of, interleaved, options, run
from bench.targets import TARGETS
from bench.turn import LEASE_WAIT_SECONDS, System, chats, talk
from breadcrumbs.composition.log_lines import LINES
from breadcrumbs.composition.logs import configure_logs
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.telemetry import metrics, tracing
from breadcrumbs.runtime.telemetry.store_calls import STORE_CALLS
from breadcrumbs.runtime.telemetry.turns import Tokens, TurnSubject
from breadcrumbs.runtime.telemetry.workers import WorkerMetrics

MAX_METRICS_AND_LOGS = TARGETS["metrics_and_logs"].aim
MAX_OPENTELEMETRY_OFF = TARGETS["telemetry_off"].aim

PAIRS, QUICK_PAIRS = 16, 3
"""Pairs of processes in a comparison. With the time to start them, all comparisons take less than eight minutes."""
PAIR_SECONDS = 5.0
"""Seconds of the rounds of a pair. More pairs reduce the error, more rounds do not."""
TURNS = 4
"""Turns per round. Rounds are short, because the load of the machine changes within a fraction of a second."""
MAX_ROUNDS = 10_000
CPU = "CPU of Python"

StartSystem: TypeAlias = Callable[[int], AbstractContextManager[System]]
"""Starts a system with a seed of hashes."""

_STORE_WRITES = 5  # per turn
_CACHE_COUNTS = 12
_TRACING_CHECKS = 8
_CARRIED_READS = 4  # one per write, and one per log line
_CARRIED_WRITES = 2  # one per event


@contextmanager
def system(level: str, without: str | None, seed: int) -> Iterator[System]:
    """Run `crumb up` with its log in a file, and optionally without a part of its telemetry."""
    module = ["breadcrumbs"] if without is None else ["bench._reduced_up", without]
    with tempfile.TemporaryDirectory(prefix="crumb-bench-") as data, open(f"{data}/log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *module, "up", "--port", "0", "--data", f"{data}/store"],
            stdout=subprocess.PIPE,
            stderr=log,
            env={
                **os.environ,
                "CRUMB_LOG_LEVEL": level,
                "CRUMB_LOG_FORMAT": "json",
                "PYTHONHASHSEED": str(seed),
            },
        )
        try:
            assert process.stdout is not None
            url = str(json.loads(process.stdout.readline())["url"])
            yield System(url, [process.pid, *children_of(process.pid)])
        finally:
            process.terminate()
            process.wait(20)


async def compare(
    report: Report, quick: bool, key: str, title: str, systems: dict[str, StartSystem]
) -> Rounds:
    """Run turns on pairs of systems. Return the ratio of the CPU times of Python for each pair."""
    first, second = systems
    found: dict[str, Rounds] = {first: Rounds(), second: Rounds()}
    ratios = Rounds()
    for seed in range(QUICK_PAIRS if quick else PAIRS):
        times = await _pair(systems, seed)
        for name in systems:
            found[name].values.append(times[name].median)
        ratios.values.append(times[first].per(times[second]).median)
    sides = {name: rounds.as_json() for name, rounds in found.items()}
    report.section(key, title, {"sides": sides, "ratios": ratios.as_json()})
    rows = {**{f"{name} (ms)": rounds for name, rounds in found.items()}, "ratio": ratios}
    report.table(
        ["", "median", "low – high"],
        [[name, rounds.text("{:.3f}"), rounds.spread("{:.3f}")] for name, rounds in rows.items()],
    )
    pairs = len(ratios.values)
    report.say(
        f"    ratio of {pairs} pairs: {ratios.median:.3f}, standard error {_standard_error(ratios):.3f}"
    )
    return ratios


def _standard_error(rounds: Rounds) -> float:
    """Return the standard error of the median, for values with a normal distribution."""
    return 1.25 * statistics.stdev(rounds.values) / math.sqrt(len(rounds.values))


async def _pair(systems: dict[str, StartSystem], seed: int) -> dict[str, Rounds]:
    """Run turns on two new systems in alternating rounds. Return the CPU times of Python by system."""
    names = list(systems) if seed % 2 else list(systems)[::-1]
    sides: dict[str, Side] = {}
    with ExitStack() as stack:
        running = {name: stack.enter_context(systems[name](seed)) for name in names}
        first_system, second_system = running.values()
        async with chats(first_system.url, 1) as first_chats, chats(second_system.url, 1) as second_chats:
            await asyncio.sleep(LEASE_WAIT_SECONDS)
            for (name, started), chat in zip(running.items(), first_chats + second_chats, strict=True):
                sides[name] = partial(talk, started, chat, TURNS)
            found = await interleaved(MAX_ROUNDS, sides, seconds=PAIR_SECONDS)
    return {name: values[CPU] for name, values in found.items()}


def micro_seconds(call: Callable[[], None], *, times: int = 2_000, rounds: int = 20) -> float:
    """Return the CPU time of a call in µs: the lowest of some rounds."""
    lowest = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(times):
            call()
        lowest = min(lowest, (time.process_time() - began) / times)
    return lowest * 1e6


def metrics_and_logs() -> Callable[[], None]:
    """Return a function that counts and logs one turn, as builder and runner do."""
    contexts, agents = WorkerMetrics("contexts"), WorkerMetrics("agents")
    owner, id, message = uuid4(), uuid4(), str(uuid4())
    hits = metrics.CACHE_HITS.labels("bench")

    def turn() -> None:
        for worker, agent, model in ((contexts, "default", ""), (agents, "assistant", "offline")):
            report = worker.start_turn(TurnSubject(owner, "session", id, 0.001))
            facts = report.begin(agent, model, message)
            if model:
                facts.call_started()
                facts.call_ended(0.001, Tokens(100, 50))
            facts.answered = True
            worker.finished.value += 1
            report.finished()
        for _ in range(_STORE_WRITES):
            written = time.perf_counter()
            STORE_CALLS.record(time.perf_counter() - written, 2)
        for _ in range(_CACHE_COUNTS):
            hits.value += 1

    return turn


def checks_while_off() -> None:
    """Do the work of OpenTelemetry in a turn while it is off."""
    for _ in range(_TRACING_CHECKS):
        if tracing.active is not None:
            raise AssertionError("tracing is on")
    for _ in range(_CARRIED_READS):
        tracing.carried.get()
    for _ in range(_CARRIED_WRITES):
        tracing.carried.set(None)


@contextmanager
def json_logs() -> Iterator[None]:
    """Configure logs as a server does, into a file that is deleted."""
    stderr = sys.stderr
    with tempfile.TemporaryFile("w") as log:
        sys.stderr = log
        configure_logs(Settings(log_level="info", log_format="json"))
        try:
            yield
        finally:
            LINES.flush()
            sys.stderr = stderr


async def _cost_of_metrics(report: Report, quick: bool) -> None:
    ratios = await compare(
        report,
        quick,
        "a",
        "CPU of Python per turn with metrics and logs, and without",
        {"with": partial(system, "info", None), "without": partial(system, "error", "metrics")},
    )
    report.verdict(
        Verdict(
            "CPU with metrics and logs against without", ratios.median, MAX_METRICS_AND_LOGS, form="{:.3f}"
        )
    )


async def _cost_of_opentelemetry(report: Report, quick: bool) -> None:
    ratios = await compare(
        report,
        quick,
        "c",
        "CPU of Python per turn with OpenTelemetry installed and off, and without it",
        {
            "installed": partial(system, "error", None),
            "not installed": partial(system, "error", "opentelemetry"),
        },
    )
    report.verdict(
        Verdict(
            "CPU with OpenTelemetry off against without", ratios.median, MAX_OPENTELEMETRY_OFF, form="{:.3f}"
        )
    )


async def _error(report: Report, quick: bool) -> None:
    ratios = await compare(
        report,
        quick,
        "e",
        "CPU of Python per turn of two equal systems",
        {"one": partial(system, "error", None), "other": partial(system, "error", None)},
    )
    report.verdict(Verdict("CPU of two equal systems", ratios.median, None, form="{:.3f}"))


async def bench(chosen: argparse.Namespace) -> None:
    began = time.monotonic()
    report = Report("telemetry", chosen)
    wanted = chosen.only or "abcde"
    if "a" in wanted:
        await _cost_of_metrics(report, chosen.quick)
    if "b" in wanted:
        with json_logs():
            cost = micro_seconds(metrics_and_logs())
        report.section("b", "calls of metrics and logs in a turn, alone", {"µs": cost})
        report.verdict(Verdict("µs of metrics and logs in a turn", cost, None, form="{:.1f}"))
    if "c" in wanted:
        await _cost_of_opentelemetry(report, chosen.quick)
    if "d" in wanted:
        cost = micro_seconds(checks_while_off)
        report.section("d", "checks of OpenTelemetry in a turn while it is off, alone", {"µs": cost})
        report.verdict(Verdict("µs of OpenTelemetry in a turn while it is off", cost, None, form="{:.1f}"))
    if "e" in wanted:
        await _error(report, chosen.quick)
    report.finish(began)


if __name__ == "__main__":
    chosen = options(__doc__ or "").parse_args()
    run(lambda: bench(chosen))
