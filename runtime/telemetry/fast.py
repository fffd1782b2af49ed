"""Counters and histograms that are cheap enough for every turn and every call to the store.

Those of prometheus-client take a lock and check their labels at each change: about 0.5 µs for a counter and 1 µs for a
histogram, and a turn has thirty of them. These have no lock. They are changed only in the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from breadcrumbs.runtime.telemetry.histogram import Buckets

_T = TypeVar("_T")


class Tally:
    """One series of a counter. Code that runs in every turn adds to `value`, which saves the call of `inc`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Add an amount that is not negative."""
        self.value += amount


class _Family(Collector, Generic[_T]):
    """A metric with labels. `labels` returns a series, which its user keeps."""

    def __init__(
        self, name: str, help: str, labels: Sequence[str], registry: CollectorRegistry, make: Callable[[], _T]
    ) -> None:
        self._name = name
        self._help = help
        self._labelnames = tuple(labels)
        self._make = make
        self._series: dict[tuple[str, ...], _T] = {}
        registry.register(self)

    def labels(self, *values: str) -> _T:
        """Return the series with these label values."""
        if len(values) != len(self._labelnames):
            raise ValueError(f"{self._name} has the labels {', '.join(self._labelnames) or 'none'}")
        series = self._series.get(values)
        if series is None:
            series = self._series[values] = self._make()
        return series


class CounterFamily(_Family[Tally]):
    """A counter."""

    def __init__(self, name: str, help: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        super().__init__(name, help, labels, registry, Tally)
        if not labels:
            self.labels()  # a counter without labels is exposed from the beginning

    def describe(self) -> Iterator[Metric]:
        yield CounterMetricFamily(self._name, self._help, labels=self._labelnames)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric for prometheus-client."""
        family = CounterMetricFamily(self._name, self._help, labels=self._labelnames)
        for values, tally in list(self._series.items()):
            family.add_metric(values, tally.value)
        yield family


class HistogramFamily(_Family[Buckets]):
    """A histogram of seconds."""

    def __init__(
        self,
        name: str,
        help: str,
        labels: Sequence[str],
        registry: CollectorRegistry,
        bounds: Sequence[float],
    ) -> None:
        super().__init__(name, help, labels, registry, lambda: Buckets(bounds))
        if not labels:
            self.labels()

    def describe(self) -> Iterator[Metric]:
        yield HistogramMetricFamily(self._name, self._help, labels=self._labelnames)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric for prometheus-client."""
        family = HistogramMetricFamily(self._name, self._help, labels=self._labelnames)
        for values, buckets in list(self._series.items()):
            family.add_metric(values, buckets.cumulative(), sum_value=buckets.seconds)
        yield family
