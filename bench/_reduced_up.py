"""Runs `crumb` without a part of its telemetry, as the baseline of `bench.telemetry`.

The first argument names the part: `metrics` (metrics and turn reports), or `opentelemetry` (as if not installed).
"""

from __future__ import annotations

import sys
from typing import Any, cast


def _ignore(*_: object, **__: object) -> None:
    pass


class _NoFacts:
    """Takes the facts about an answer and drops them."""

    call_started = call_failed = call_ended = tool_called = staticmethod(_ignore)
    answered = False
    hidden: Any = ()


class _NoReport:
    """Takes the ends of attempts and drops them."""

    _facts = _NoFacts()
    finished = retrying = failed = abandoned = staticmethod(_ignore)
    attempt = 1

    def begin(self, *_: object, **__: object) -> _NoFacts:
        return self._facts

    facts = begin


def _remove_metrics() -> None:
    from breadcrumbs.runtime.telemetry.histogram import Buckets
    from breadcrumbs.runtime.telemetry.workers import WorkerMetrics

    report = _NoReport()
    cast(Any, Buckets).record = _ignore
    cast(Any, WorkerMetrics).start_turn = lambda *_: report
    from breadcrumbs.runtime.telemetry.store_calls import STORE_CALLS

    cast(Any, STORE_CALLS).record = None  # links then do not take the time
    from breadcrumbs.runtime.workers.turn_runner import TurnRunner

    cast(Any, TurnRunner)._start_report = lambda *_: report


def _remove_opentelemetry() -> None:
    cast(Any, sys.modules)["opentelemetry"] = None  # an import then fails


def main() -> None:
    part = sys.argv.pop(1)
    {"metrics": _remove_metrics, "opentelemetry": _remove_opentelemetry}[part]()
    from breadcrumbs.cli import main as crumb

    crumb()


if __name__ == "__main__":
    main()
