"""The declared metrics follow the conventions of Prometheus and are documented."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.core import Metric

from breadcrumbs.runtime.http.middleware.metrics import Metrics
from breadcrumbs.runtime.telemetry import metrics
from tests.support.logs import parse_samples

REFERENCE = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text("utf-8")


def exposed_name(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def all_metrics() -> list[Metric]:
    return [
        *Metrics().collect(),
        *(metric for metric in metrics.declared() if not metric.name.startswith("process_")),
    ]


def test_names_and_labels_follow_the_conventions() -> None:
    for metric in all_metrics():
        assert re.fullmatch(r"breadcrumbs_[a-z]+(_[a-z]+)*", exposed_name(metric)), metric.name
        assert metric.documentation.endswith(".") or metric.name.startswith("breadcrumbs_http"), metric.name
        if metric.type == "histogram":
            assert metric.name.endswith("_seconds"), metric.name
        assert not re.search(r"_(ms|milliseconds|count|sum)$", metric.name), metric.name


def test_the_reference_has_every_metric_and_no_other() -> None:
    documented = set(re.findall(r"^\| `(breadcrumbs_\w+)` \|", REFERENCE, re.MULTILINE))
    assert documented == {exposed_name(metric) for metric in all_metrics()}


def test_no_label_can_contain_an_id_or_a_text() -> None:
    allowed = {"kind", "agent", "model", "tool", "type", "result", "reason", "cache", "version", "python"}
    allowed |= {
        "scope",
        "error_class",
    }  # of budgets: session, user or owner; of failed models: few fixed names
    for collector in vars(metrics).values():
        assert set(getattr(collector, "_labelnames", ())) <= allowed


def test_a_scrape_has_each_sample_once_and_no_created_times() -> None:
    text = (Metrics().render() + metrics.render() + metrics.render_store_values()).decode()
    assert "_created" not in text
    samples = parse_samples(text)
    assert ("breadcrumbs_store_up", ()) in samples
    assert any(name == "breadcrumbs_build_info" for name, _ in samples)
