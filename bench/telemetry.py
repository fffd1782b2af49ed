"""Measures the cost of metrics, logs and OpenTelemetry in a turn.

(a) turns with metrics and logs (level info), against the same system without them: CPU time of Python
(b) the calls that metrics and logs add to a turn, alone in a loop
(c) turns with OpenTelemetry installed and off, against the same system without it
(d) the checks that OpenTelemetry adds to a turn while it is off, alone in a loop

(a) and (c) show the real cost, with the noise of the machine. (b) and (d) are exact, but too low: in a turn, code and
data are often not in the caches of the processor. `python -m bench.turn --against CHECKOUT` compares
versions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

from bench._common import Report, Side, Verdict, as_json, children_of, interleaved, options, run
from bench.targets import TARGETS
from bench.turn import System, chats, talk
from breadcrumbs.composition.log_lines import LINES
from breadcrumbs.composition.logs import configure_logs
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.telemetry import metrics, tracing
from breadcrumbs.runtime.telemetry.store_calls import STORE_CALLS
from breadcrumbs.runtime.telemetry.turns import Tokens, TurnSubject
from breadcrumbs.runtime.telemetry.workers import WorkerMetrics

MAX_METRICS_AND_LOGS = TARGETS["metrics_and_logs"].aim
MAX_OPENTELEMETRY_OFF = TARGETS["telemetry_off"].aim

_STORE_WRITES = 5  # per turn
_CACHE_COUNTS = 12
_TRACING_CHECKS = 8
_CARRIED_READS = 4  # one per write, and one per log line
_CARRIED_WRITES = 2  # one per event


@contextmanager
def system(level: str, without: str | None = None) -> Iterator[System]:
    """Run `crumb up` with its log in a file, and optionally without a part of its telemetry."""
    module = ["breadcrumbs"] if without is None else ["bench._reduced_up", without]
    with tempfile.TemporaryDirectory(prefix="crumb-bench-") as data, open(f"{data}/log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *module, "up", "--port", "0", "--data", f"{data}/store"],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "CRUMB_LOG_LEVEL": level, "CRUMB_LOG_FORMAT": "json"},
        )
        try:
            assert process.stdout is not None
            url = str(json.loads(process.stdout.readline())["url"])
            yield System(url, [process.pid, *children_of(process.pid)])
        finally:
            process.terminate()
            process.wait(20)


async def compare(report: Report, quick: bool, key: str, title: str, systems: dict[str, Any]) -> float:
    """Run turns on two systems in alternating rounds. Return the median ratio of the CPU times of Python."""
    # Very short rounds: the load of the machine changes within a fraction of a second.
    turns, rounds = 4, (100 if quick else 1_501)
    sides: dict[str, Side] = {}
    with ExitStack() as stack:
        running = {name: stack.enter_context(start) for name, start in systems.items()}
        first_system, second_system = running.values()
        async with chats(first_system.url, 1) as first_chats, chats(second_system.url, 1) as second_chats:
            await asyncio.sleep(1.5)  # until the workers have their leases
            for (name, started), chat in zip(running.items(), first_chats + second_chats, strict=True):
                sides[name] = partial(talk, started, chat, turns)
            found = await interleaved(rounds, sides, seconds=150)
    first, second = found.values()
    report.section(key, title, as_json(found))
    report.table(
        ["", *first],
        [[name, *(rounds.text("{:.3f}") for rounds in values.values())] for name, values in found.items()],
    )
    ratio = first["CPU of Python"].per(second["CPU of Python"])
    report.say(f"    ratios of CPU of Python: {ratio.text('{:.3f}')} ({ratio.spread('{:.2f}')})")
    return ratio.median


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


async def bench(chosen: argparse.Namespace) -> None:
    began = time.monotonic()
    report = Report("telemetry", chosen)
    wanted = chosen.only or "abcd"
    if "a" in wanted:
        ratio = await compare(
            report,
            chosen.quick,
            "a",
            "turns with metrics and logs, and without (ms)",
            {"with": system("info"), "without": system("error", "metrics")},
        )
        report.verdict(
            Verdict("CPU with metrics and logs against without", ratio, MAX_METRICS_AND_LOGS, form="{:.3f}")
        )
    if "b" in wanted:
        with json_logs():
            cost = micro_seconds(metrics_and_logs())
        report.section("b", "calls of metrics and logs in a turn, alone", {"µs": cost})
        report.verdict(Verdict("µs of metrics and logs in a turn", cost, None, form="{:.1f}"))
    if "c" in wanted:
        ratio = await compare(
            report,
            chosen.quick,
            "c",
            "turns with OpenTelemetry installed and off, and without it (ms)",
            {"installed": system("error"), "not installed": system("error", "opentelemetry")},
        )
        report.verdict(
            Verdict("CPU with OpenTelemetry off against without", ratio, MAX_OPENTELEMETRY_OFF, form="{:.3f}")
        )
    if "d" in wanted:
        cost = micro_seconds(checks_while_off)
        report.section("d", "checks of OpenTelemetry in a turn while it is off, alone", {"µs": cost})
        report.verdict(Verdict("µs of OpenTelemetry in a turn while it is off", cost, None, form="{:.1f}"))
    report.finish(began)


if __name__ == "__main__":
    chosen = options(__doc__ or "").parse_args()
    run(lambda: bench(chosen))
