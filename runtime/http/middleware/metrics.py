"""Metrics and access log of requests. Neither contains the query, because it can contain a token."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from starlette.types import ASGIApp, Receive, Scope, Send

from breadcrumbs.runtime.telemetry.histogram import Buckets

_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_CLIENT_GONE_STATUS: Final = 499
"""Status of a request whose client disconnected before the reply. nginx uses the same number."""

_WAITED: Final = "breadcrumbs.waited"
"""Key of the ASGI scope: a list with the seconds that the request has waited for an answer.

A router can copy the scope, so the value is shared through the list.
"""

_log = structlog.get_logger("breadcrumbs.http")


class Metrics:
    """Metrics of one application. Other modules can add their own to `registry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.in_flight = 0
        self._series: dict[tuple[str, str, int], Buckets] = {}
        self.registry.register(self)

    def record_reply(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a reply and the seconds until it started, without the time that it waited for an answer."""
        key = (method, route, status)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Buckets(_BUCKETS)
        series.record(seconds)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for prometheus-client. Its own counters would add 10 µs to each request."""
        yield GaugeMetricFamily("breadcrumbs_http_in_flight", "Requests in flight", self.in_flight)
        yield GaugeMetricFamily(
            "breadcrumbs_http_processes",
            "API processes of this port. The other values are those of all of them.",
            1,
        )
        requests = CounterMetricFamily(
            "breadcrumbs_http_requests", "Completed requests", labels=["method", "route", "status"]
        )
        durations = HistogramMetricFamily(
            "breadcrumbs_http_request_seconds",
            "Seconds from the head of a request to the start of its response. The time that a request waits for an "
            "answer (`?wait=`) is not included, nor is the time that a stream is open.",
            labels=["method", "route", "status"],
        )
        for (method, route, status), series in list(self._series.items()):
            labels = [method, route, str(status)]
            totals = series.cumulative()
            requests.add_metric(labels, totals[-1][1])
            durations.add_metric(labels, totals, sum_value=series.seconds)
        yield requests
        yield durations

    def by_route(self) -> dict[tuple[str, str], RouteTimes]:
        """Return the response times by method and route. All statuses are added up."""
        found: dict[tuple[str, str], RouteTimes] = {}
        for (method, route, status), series in list(self._series.items()):
            times = found.setdefault((method, route), RouteTimes())
            times.refused += sum(series.counts) if 400 <= status < 500 else 0
            times.failed += sum(series.counts) if status >= 500 else 0
            for index, count in enumerate(series.counts):
                times.counts[index] += count
        return found

    def render(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)


class RouteTimes:
    """Histogram of the seconds until responses of a route start. The last bucket has no upper bound."""

    __slots__ = ("counts", "failed", "refused")

    BOUNDS: Final = _BUCKETS
    """Upper bounds of the buckets, in seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS) + 1)
        self.refused = 0
        """Replies with a status 4xx."""
        self.failed = 0
        """Replies with a status 5xx."""

    @classmethod
    def of_samples(cls, samples: Iterable[Sequence[Any]]) -> dict[tuple[str, str], RouteTimes]:
        """Return the times by method and route, from the samples of `breadcrumbs_http_request_seconds`."""
        found: dict[tuple[str, str], RouteTimes] = {}
        bounds = {str(bound): index for index, bound in enumerate(_BUCKETS)} | {"+Inf": len(_BUCKETS)}
        for name, labels, value in samples:
            if not name.endswith("_bucket"):
                continue
            times = found.setdefault((labels["method"], labels["route"]), cls())
            index, status = bounds[labels["le"]], int(labels["status"])
            times.counts[index] += int(value)
            if index + 1 < len(times.counts):
                times.counts[index + 1] -= int(value)  # samples are cumulative, counts are not
            else:
                times.refused += int(value) if 400 <= status < 500 else 0
                times.failed += int(value) if status >= 500 else 0
        return found

    def quantile(self, part: float) -> float:
        """Return an estimate of a quantile in seconds, interpolated within its bucket.

        `part` is from 0 to 1. A quantile in the last bucket is reported as the lower bound of that bucket.
        """
        wanted, before, lower = part * sum(self.counts), 0, 0.0
        for count, upper in zip(self.counts, self.BOUNDS, strict=False):
            if count and before + count >= wanted:
                return lower + (upper - lower) * (wanted - before) / count
            before, lower = before + count, upper
        return lower


def add_waited(scope: Scope, seconds: float) -> None:
    """Note that a request has waited for an answer. The time is not part of its duration in the metrics."""
    scope[_WAITED][0] += seconds


class RequestObserver:
    """Middleware that counts, times and logs requests."""

    def __init__(self, app: ASGIApp, metrics: Metrics, *, access_log: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status, started = _CLIENT_GONE_STATUS, 0.0
        waited = scope[_WAITED] = [0.0]

        # A plain function that returns the awaitable of `send` is cheaper than another coroutine.
        def send_and_record(message: Any) -> Awaitable[None]:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], time.perf_counter()
            return send(message)

        metrics = self._metrics
        metrics.in_flight += 1
        try:
            await self._app(scope, receive, send_and_record)
        finally:
            metrics.in_flight -= 1
            method = scope["method"] if scope["method"] in _METHODS else "other"
            # Use the template of the route, not the path: each id would create a new series.
            route = getattr(scope.get("endpoint"), "path", "unknown")
            seconds = max(0.0, (started or time.perf_counter()) - began - waited[0])
            metrics.record_reply(method, route, status, seconds)
            if self._access_log:
                _log.debug(
                    "request",
                    method=method,
                    # Percent-encoded, so that a client cannot insert line breaks into the log.
                    path=scope["raw_path"].decode("latin-1"),
                    status=status,
                    milliseconds=round(seconds * 1000, 2),
                    waited_ms=round(waited[0] * 1000),
                )
