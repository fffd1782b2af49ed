"""The alert rules and the dashboard in `deploy/monitoring` use metrics and labels that the product has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from breadcrumbs.runtime.http.middleware.metrics import Metrics
from breadcrumbs.runtime.telemetry.metrics import REGISTRY, STORE_REGISTRY
from tests.support.promql import UnknownName, result_labels

ROOT = Path(__file__).resolve().parents[3]
MONITORING = ROOT / "deploy" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads(
    (MONITORING / "grafana" / "dashboards" / "breadcrumbs.json").read_text("utf-8")
)

OTHER_PROGRAMS = {
    "up": frozenset[str](),
    "ALERTS": frozenset({"alertname", "alertstate", "kind"}),
    **dict.fromkeys(
        (
            "redis_aof_enabled",
            "redis_aof_last_bgrewrite_status",
            "redis_aof_last_write_status",
            "redis_commands_processed_total",
            "redis_evicted_keys_total",
            "redis_memory_max_bytes",
            "redis_memory_used_bytes",
            "redis_up",
        ),
        frozenset[str](),
    ),
}
"""Metrics of Prometheus itself and of redis_exporter, with their labels."""

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}


def product_metrics() -> dict[str, frozenset[str]]:
    """Return the name of every sample that the product can serve, with its labels."""
    found: dict[str, frozenset[str]] = {}
    for registry in (REGISTRY, STORE_REGISTRY):
        for collector in list(registry._collector_to_names):
            labels = frozenset(getattr(collector, "_labelnames", ()))
            for metric in collector.collect():
                for suffix in SUFFIXES[metric.type]:
                    found[metric.name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    http = Metrics()
    http.record_reply("GET", "/health", 200, 0.1)
    for metric in http.collect():
        for sample in metric.samples:
            found[sample.name] = found.get(sample.name, frozenset()) | sample.labels.keys()
    return found


METRICS = product_metrics() | OTHER_PROGRAMS


def rules() -> Iterator[dict[str, Any]]:
    for name in ("alerts.yml", "redis-alerts.yml"):
        for group in yaml.safe_load((MONITORING / name).read_text("utf-8"))["groups"]:
            yield from group["rules"]


def plain(expression: str) -> str:
    """Replace the variables of Grafana in an expression by values."""
    return re.sub(r"\$\w+", "x", expression.replace("$__rate_interval", "5m"))


PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES = list(rules())
ALERTS = {rule["alert"]: rule for rule in RULES}


# --- Alert rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_uses_metrics_and_labels_that_exist(alert: str) -> None:
    rule = ALERTS[alert]
    labels = result_labels(rule["expr"], METRICS)
    shown = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    assert shown <= labels, f"{shown - labels} are not labels of the result"


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_what_happened_and_links_to_what_to_do(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"].keys() == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/operations.md#{alert.lower()}"
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    section = re.search(rf"^### {alert}\n\n(.+?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    assert section and len(section[1]) > 80, f"docs/operations.md does not say what to do about {alert}"


def test_every_section_about_an_alert_belongs_to_an_alert() -> None:
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    assert sorted(re.findall(r"^### (Breadcrumbs\w+)$", text, re.MULTILINE)) == sorted(ALERTS)
    assert len(RULES) == len(ALERTS), "two alerts have the same name"


def test_the_failures_that_an_operator_must_see_have_alerts() -> None:
    used = " ".join(rule["expr"] for rule in RULES)
    for metric in (
        "breadcrumbs_workers",
        "breadcrumbs_worker_lag_seconds",
        "breadcrumbs_dead_letters",
        "breadcrumbs_turns_failed_total",
        "breadcrumbs_store_up",
        "breadcrumbs_turn_duration_seconds_bucket",
        "breadcrumbs_http_requests_total",
        "redis_aof_enabled",
        "redis_memory_used_bytes",
    ):
        assert re.search(rf"\b{metric}\b", used), metric


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("breadcrumbs_worker == 0", "metric breadcrumbs_worker"),
        ('breadcrumbs_workers{sort="agents"} == 0', "label sort"),
        ("sum by (kind) (breadcrumbs_store_up)", "label kind"),
        ("max without (agent) (breadcrumbs_workers)", "label agent"),
        ("histogram_quantile(0.9, sum by (kind) (rate(breadcrumbs_turn_queue_seconds_bucket[5m])))", "le"),
        ("sum(breadcrumbs_workers) / breadcrumbs_dead_letters", "different labels"),
    ],
)
def test_an_expression_with_a_wrong_name_is_found(expression: str, reason: str) -> None:
    with pytest.raises(UnknownName, match=reason):
        result_labels(expression, METRICS)


def test_an_expression_with_a_syntax_error_is_found() -> None:
    with pytest.raises(ValueError):
        result_labels("rate(breadcrumbs_workers[5m", METRICS)


# --- Dashboard -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel["title"]))
def test_a_panel_uses_metrics_and_labels_that_exist(panel: dict[str, Any]) -> None:
    assert panel["description"]
    for target in panel["targets"]:
        labels = result_labels(plain(target["expr"]), METRICS)
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert shown <= labels, target


def test_the_variables_of_the_dashboard_use_metrics_and_labels_that_exist() -> None:
    declared = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
            assert found and found[2] in result_labels(found[1], METRICS), variable["definition"]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__rate_interval", "__all"}
    assert used <= declared


def test_the_annotations_of_the_dashboard_show_the_alerts() -> None:
    (annotation,) = DASHBOARD["annotations"]["list"]
    labels = result_labels(annotation["expr"], METRICS)
    assert set(re.findall(r"\{\{(\w+)\}\}", annotation["titleFormat"] + annotation["textFormat"])) <= labels


def test_panels_have_their_own_ids_and_do_not_overlap() -> None:
    everything = DASHBOARD["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in everything)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23


def test_every_metric_of_the_product_is_on_the_dashboard() -> None:
    used = json.dumps(DASHBOARD)
    missing = {
        re.sub(r"_(total|bucket|count|sum)$", "", name)
        for name in product_metrics()
        if name.startswith("breadcrumbs_")
    }
    assert {name for name in missing if name not in used} == set()


# --- Prometheus ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "alerts.yml", "redis-alerts.yml"),
        ("check", "config", "prometheus.yml"),
        ("test", "rules", "alerts.test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts_the_files_of_prometheus(arguments: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    ended = subprocess.run(
        [promtool, *arguments], cwd=MONITORING, capture_output=True, text=True, check=False, timeout=110
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
