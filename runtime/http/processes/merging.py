"""Metrics of several processes as one: counters and histograms are added, gauges by the rules below."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

Family: TypeAlias = dict[str, Any]
"""A metric as a JSON document: `name`, `help`, `type` and `samples`."""

_MERGES: Final[dict[str, Callable[[float, float], float]]] = {
    "breadcrumbs_store_up": min,
    "breadcrumbs_build_info": max,
    "process_start_time_seconds": min,
}
"""Gauges that are not added: 1 and 0 for all processes together, and the start of the oldest process."""


def encode_families(registries: Iterable[CollectorRegistry]) -> list[Family]:
    """Return the metrics of this process as JSON documents."""
    return [
        {
            "name": metric.name,
            "help": metric.documentation,
            "type": metric.type,
            "samples": [
                [sample.name, sample.labels, sample.value]
                for sample in metric.samples
                if not sample.name.endswith("_created")
            ],
        }
        for registry in registries
        for metric in registry.collect()
    ]


def merge_families(processes: Iterable[Sequence[Family]]) -> list[Family]:
    """Return the metrics of all processes together."""
    merged: dict[str, Family] = {}
    samples: dict[str, dict[tuple[Any, ...], list[Any]]] = {}
    for families in processes:
        for family in families:
            name = family["name"]
            merged.setdefault(name, {**family, "samples": []})
            known = samples.setdefault(name, {})
            merge = _MERGES.get(name, float.__add__)
            for sample_name, labels, value in family["samples"]:
                key = (sample_name, *labels.items())
                sample = known.setdefault(key, [sample_name, labels, None])
                sample[2] = value if sample[2] is None else merge(float(sample[2]), float(value))
    return [{**family, "samples": list(samples[name].values())} for name, family in merged.items()]


def without_gauges(families: Iterable[Family]) -> list[Family]:
    """Return the metrics that stay valid after the end of their process."""
    return [family for family in families if family["type"] in ("counter", "histogram")]


def render_families(families: Sequence[Family]) -> bytes:
    """Return metrics in the Prometheus text format."""
    return generate_latest(_Merged(families))


class _Merged(Collector):
    """Passes merged metrics to prometheus-client."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            metric = Metric(family["name"], family["help"], family["type"])
            for name, labels, value in family["samples"]:
                metric.add_sample(name, labels, value)
            yield metric
