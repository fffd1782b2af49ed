"""Label values are bounded, whatever names clients choose."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, generate_latest

from breadcrumbs.runtime.telemetry.labels import MAX_LABEL_SETS, OTHER, BoundedLabels
from tests.support.logs import parse_samples


def test_further_label_sets_share_one_series() -> None:
    registry = CollectorRegistry()
    counter = Counter("calls", "Calls.", ["agent", "model"], registry=registry)
    labels = BoundedLabels(lambda agent, model: counter.labels(agent, model))
    for number in range(10_000):
        labels.get(f"agent-{number}", "m").inc()
    labels.get("agent-3", "m").inc()  # a known one is still counted apart
    samples = {
        labels: found
        for (name, labels), found in parse_samples(generate_latest(registry).decode()).items()
        if name == "calls_total"
    }
    assert len(samples) == MAX_LABEL_SETS + 1
    assert samples[("agent", OTHER), ("model", OTHER)] == 10_000 - MAX_LABEL_SETS
    assert samples[("agent", "agent-3"), ("model", "m")] == 2


def test_a_name_is_cut_and_can_always_be_rendered() -> None:
    registry = CollectorRegistry()
    counter = Counter("calls", "Calls.", ["tool"], registry=registry)
    labels = BoundedLabels(lambda tool: counter.labels(tool))
    labels.get("x" * 5_000).inc()
    labels.get("half a pair \ud83d\n").inc()
    text = generate_latest(registry).decode()
    assert "x" * 100 in text and "x" * 101 not in text
    assert len(parse_samples(text)) >= 2
