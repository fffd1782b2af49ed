"""Metrics of one worker, with the children of its kind looked up once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

from breadcrumbs.runtime.telemetry import metrics
from breadcrumbs.runtime.telemetry.labels import BoundedLabels
from breadcrumbs.runtime.telemetry.turns import TurnCounters, TurnReport, TurnSubject

ATTEMPT_RESULTS: Final = ("finished", "retry", "failed", "store_unavailable", "lease_lost", "abandoned")
"""Values of the label `result` of `breadcrumbs_turn_attempts_total`."""


class LaneGauges(NamedTuple):
    """Lanes of a worker, with the events in them."""

    leases: int
    running: int
    queued: int


_SOURCES: Final[dict[str, list[Callable[[], LaneGauges]]]] = {}
"""The workers of this process by kind. Usually a kind has one."""


class WorkerMetrics:
    """Metrics of the workers of one kind in this process."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        sources = self._sources = _SOURCES.setdefault(kind, [])
        gauges = (metrics.LEASES_HELD, metrics.TURNS_RUNNING, metrics.WORKER_QUEUED_EVENTS)
        for index, gauge in enumerate(gauges):
            gauge.labels(kind).set_function(partial(_sum_gauges, sources, index))
        self.takeovers = metrics.LANE_TAKEOVERS.labels(kind)
        self.leases_lost = metrics.LEASES_LOST.labels(kind)
        self.dead_letters = metrics.DEAD_LETTERS_STORED.labels(kind)
        self.attempts = {result: metrics.TURN_ATTEMPTS.labels(kind, result) for result in ATTEMPT_RESULTS}
        self.finished = self.attempts["finished"]
        self._queue = metrics.TURN_QUEUE.labels(kind)
        self._turns = BoundedLabels(lambda agent, model: TurnCounters(kind, agent, model))

    @contextmanager
    def observing(self, gauges: Callable[[], LaneGauges]) -> Iterator[None]:
        """Read the gauges of a worker at each scrape, as long as the block runs. Turns need not count them."""
        self._sources.append(gauges)
        try:
            yield
        finally:
            self._sources.remove(gauges)

    def start_turn(self, subject: TurnSubject) -> TurnReport:
        """Count the time that an event has waited and return the report of its turn."""
        self._queue.record(subject.queue_seconds)
        return TurnReport(self.kind, self._turns, subject)


def _sum_gauges(sources: list[Callable[[], LaneGauges]], index: int) -> float:
    return sum(source()[index] for source in sources)
