"""The targets of the benchmarks, each defined once.

`python -m bench` measures them and prints this table. Most are ratios of two sides that ran in alternating rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench._common import Verdict

REFERENCE = "1bd9899"
"""Commit that paired measurements compare with."""


@dataclass(frozen=True)
class Target:
    """A value that a benchmark measures, and its bound."""

    key: str
    title: str
    reference: str
    """The value of the reference commit."""
    aim: float
    at_least: bool = False
    """Whether the bound is a minimum. Otherwise it is a maximum."""
    form: str = "{:.2f}"
    remark: str = ""

    def is_met(self, value: float) -> bool:
        return value >= self.aim if self.at_least else value <= self.aim

    def bound(self) -> str:
        text = f"{'at least' if self.at_least else 'at most'} {self.form.format(self.aim)}"
        return f"{text} ({self.remark})" if self.remark else text

    def verdict(self, value: float) -> Verdict:
        return Verdict(self.title, value, self.aim, at_least=self.at_least, form=self.form)


_TARGETS = (
    Target(
        "turn_p50",
        f"p50 of a turn in one process, against {REFERENCE}",
        "1.0 (about 5 ms)",
        0.75,
        remark="stretch 0.60",
    ),
    Target("turn_cpu", f"CPU per turn, against {REFERENCE}", "1.0 (4.4 ms)", 0.7),
    Target(
        "turns_per_second",
        f"turns per second with 100 sessions, against {REFERENCE}",
        "1.0 (about 340)",
        1.4,
        at_least=True,
    ),
    Target("long_session", "turn with 10,000 messages in the session, against an empty one", "1.3", 1.1),
    Target(
        "create",
        f"create, 50 callers, against plain redis-py with the script of {REFERENCE}",
        "1.22",
        2.0,
        at_least=True,
    ),
    Target("http_create", "HTTP create, against a bare ASGI app with one SET", "0.63", 0.7, at_least=True),
    Target("last_ten", "last ten of a session, against openai-agents' RedisSession(limit=10)", "2.1", 1.0),
    Target("many_lanes", "turn with 256 lanes, against 16", "1.5", 1.05),
    Target("memory", "bytes per message above its JSON as posted, five tags", "813 B", 600, form="{:,.0f} B"),
    Target("user_sessions", "GET /sessions?user_id= with 10,000 sessions, against all", "150–430 ms", 2.0),
    Target("audit", "crumb audit isolation with 1,000,000 breadcrumbs", "97 s", 30, form="{:.1f} s"),
    Target(
        "workers",
        "creates of crumb serve --workers 2 on one port, against one process",
        "1.24 on two ports",
        1.0,
        at_least=True,
    ),
    Target(
        "metrics_and_logs", "CPU per turn with metrics and logs, against without", "–", 1.02, form="{:.3f}"
    ),
    Target(
        "telemetry_off",
        "CPU per turn with OpenTelemetry installed but off, against without",
        "–",
        1.01,
        form="{:.3f}",
    ),
)

TARGETS = {target.key: target for target in _TARGETS}
"""All targets by key, in the order of the table."""
