"""Reports of turns: each agent of an event is counted and logged once, in every way that a turn can end."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import structlog
from structlog.testing import capture_logs

from breadcrumbs.runtime.telemetry import metrics
from breadcrumbs.runtime.telemetry.turns import Tokens, TurnReport, TurnSubject
from breadcrumbs.runtime.telemetry.workers import LaneGauges, WorkerMetrics
from breadcrumbs.runtime.workers.errors import TurnFailed, TurnStopped
from tests.support.logs import parse_samples, value


class Desk:
    """A worker of a kind of its own, so that its metrics begin at zero."""

    def __init__(self) -> None:
        self.kind = f"kind-{uuid4()}"
        self.worker = WorkerMetrics(self.kind)

    def report(self) -> TurnReport:
        return self.worker.start_turn(TurnSubject(uuid4(), "s1", uuid4(), 0.25))

    def counts(self, agent: str = "ann") -> dict[str, float]:
        samples = parse_samples(metrics.render().decode())
        names = ("started", "answered", "failed", "cancelled", "retried", "abandoned")
        found = {
            name: value(samples, f"breadcrumbs_turns_{name}_total", kind=self.kind, agent=agent)
            for name in names
        }
        return {name: count for name, count in found.items() if count}


def events(lines: list[Any]) -> list[tuple[str, str]]:
    return [(line["event"], line.get("agent", "")) for line in lines]


def test_two_agents_of_an_event_are_two_turns() -> None:
    desk = Desk()
    with capture_logs() as lines:
        report = desk.report()
        report.begin("ann", "big").answered = True
        report.begin("ben", "small").answered = True
        report.finished()
    assert events(lines) == [("turn answered", "ann"), ("turn answered", "ben")]
    assert desk.counts("ann") == desk.counts("ben") == {"started": 1, "answered": 1}


def test_a_line_begins_with_what_an_operator_looks_for() -> None:
    with capture_logs() as lines:
        report = Desk().report()
        facts = report.begin("ann", "big", uuid4())
        facts.input_tokens, facts.output_tokens, facts.answered = 5, 2, True
        report.finished()
    first = ["session", "agent", "model", "duration_ms", "input_tokens", "output_tokens"]
    assert list(lines[0])[: len(first)] == first
    assert {"kind", "owner", "message_id", "attempt", "queue_ms"} <= lines[0].keys()


def test_only_the_agent_that_failed_is_retried() -> None:
    desk = Desk()
    with capture_logs() as lines:
        report = desk.report()
        report.begin("ann", "big").answered = True
        report.begin("ben", "small")
        report.retrying(TurnFailed("busy", retry=True), 0.5)
        report.attempt = 2
        report.begin("ben", "small").answered = True
        report.finished()
    assert events(lines) == [
        ("turn answered", "ann"),
        ("turn failed, retrying", "ben"),
        ("turn answered", "ben"),
    ]
    assert desk.counts("ann") == {"started": 1, "answered": 1}
    assert desk.counts("ben") == {"started": 1, "retried": 1, "answered": 1}
    assert lines[1]["reason"] == "busy" and lines[2]["attempt"] == 2


def test_a_failure_before_the_agent_is_known_is_a_failed_turn() -> None:
    desk = Desk()
    with capture_logs() as lines:
        desk.report().failed(TurnFailed("no context config"), cancelled=False)
    assert [(line["event"], line["log_level"], line["session"]) for line in lines] == [
        ("turn failed", "warning", "s1")
    ]
    assert desk.counts("") == {"started": 1, "failed": 1}


def test_a_cancelled_turn_is_no_failure() -> None:
    desk = Desk()
    with capture_logs() as lines:
        report = desk.report()
        report.begin("ann", "big")
        report.failed(TurnStopped(), cancelled=True)
    assert events(lines) == [("turn cancelled", "ann")] and lines[0]["log_level"] == "info"
    assert desk.counts() == {"started": 1, "cancelled": 1}


def test_a_lost_lane_abandons_the_turn() -> None:
    desk = Desk()
    with capture_logs() as lines:
        report = desk.report()
        report.begin("ann", "big")
        report.abandoned()
    assert events(lines) == [("turn abandoned", "ann")]
    assert desk.counts() == {"started": 1, "abandoned": 1}


def test_the_line_has_the_tokens_of_all_calls() -> None:
    desk = Desk()
    with capture_logs() as lines:
        report = desk.report()
        facts = report.begin("ann", "big", "message-1")
        for first, tokens in ((0.2, Tokens(10, 5, 4)), (0.1, Tokens(20, 6, 8, 3)), (None, None)):
            facts.call_started()
            facts.call_ended(first, tokens)
        facts.tool_called("calculator", ok=True)
        facts.answered = True
        report.finished()
    (line,) = lines
    assert (line["input_tokens"], line["output_tokens"]) == (30, 11)
    assert (line["cached_tokens"], line["reasoning_tokens"]) == (12, 3)
    assert (line["model_calls"], line["tool_calls"], line["first_token_ms"]) == (3, 1, 200.0)
    assert (line["queue_ms"], line["message_id"], line["model"]) == (250.0, "message-1", "big")


def test_a_context_is_logged_only_for_debugging() -> None:
    with capture_logs() as lines:
        report = Desk().report()
        report.begin("consumer").answered = True
        report.finished()
    assert [line["log_level"] for line in lines] == ["debug"]


def test_a_provider_cannot_break_the_counters() -> None:
    report = Desk().report()
    facts = report.begin("ann", "big")
    facts.call_started()
    facts.call_ended(0.0, Tokens(-5, -1, -3, -2))
    assert facts.input_tokens == facts.cached_tokens == 0


def test_gauges_are_those_of_the_workers_that_run() -> None:
    desk = Desk()

    def held() -> float:
        return value(parse_samples(metrics.render().decode()), "breadcrumbs_leases_held", kind=desk.kind)

    with desk.worker.observing(lambda: LaneGauges(16, 3, 2)):
        samples = parse_samples(metrics.render().decode())
        assert held() == 16
        assert value(samples, "breadcrumbs_turns_running", kind=desk.kind) == 3
        assert value(samples, "breadcrumbs_worker_queued_events", kind=desk.kind) == 2
    assert held() == 0


def test_a_program_with_other_loggers_can_host_agents() -> None:
    structlog.configure(
        wrapper_class=structlog.stdlib.BoundLogger, logger_factory=structlog.stdlib.LoggerFactory()
    )
    try:
        desk = Desk()
        report = desk.report()
        report.begin("consumer").answered = True
        report.begin("ann", "big").answered = True
        report.finished()
        assert desk.counts("consumer") == desk.counts("ann") == {"started": 1, "answered": 1}
    finally:
        structlog.reset_defaults()
