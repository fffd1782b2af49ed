"""Declares the metrics of the process, once and with their help texts.

`REGISTRY` has the metrics that a process counts itself. Every process serves them: the API at `/metrics`, a worker at
its own port. `STORE_REGISTRY` has values that are read from the store and that are equal for all processes. Only the
API serves them. `runtime/http/middleware/metrics.py` has the metrics of HTTP requests.

Labels never contain ids of sessions, owners or breadcrumbs, and no text. Names that clients choose (agents, models,
tools) pass through `labels.BoundedLabels`.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from breadcrumbs.runtime.telemetry.fast import CounterFamily, HistogramFamily
from breadcrumbs.runtime.version import VERSION

REGISTRY: Final = CollectorRegistry(auto_describe=True)
"""Metrics that this process counts."""
STORE_REGISTRY: Final = CollectorRegistry(auto_describe=True)
"""Values of the store, equal for all processes."""

_TURN_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_STORE_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
_TURN_LABELS: Final = ("kind", "agent", "model")


def _counter(name: str, help: str, labels: Sequence[str] = ()) -> CounterFamily:
    return CounterFamily(name, help, labels, REGISTRY)


def _gauge(name: str, help: str, labels: Sequence[str] = (), registry: CollectorRegistry = REGISTRY) -> Gauge:
    return Gauge(name, help, labels, registry=registry)


def _histogram(
    name: str, help: str, labels: Sequence[str] = (), bounds: Sequence[float] = _TURN_BUCKETS
) -> HistogramFamily:
    return HistogramFamily(name, help, labels, REGISTRY, bounds)


# Turns. `agent` is the id of the agent, or of the consumer for turns of the context builder.

TURNS_STARTED: Final = _counter(
    "breadcrumbs_turns_started_total",
    "Turns started. An event that several agents answer has one turn per agent. Attempts after the first are not "
    "counted.",
    _TURN_LABELS,
)
TURNS_ANSWERED: Final = _counter(
    "breadcrumbs_turns_answered_total", "Turns that ended with a stored result.", _TURN_LABELS
)
TURNS_FAILED: Final = _counter(
    "breadcrumbs_turns_failed_total",
    "Turns that failed every attempt. Their events became dead letters.",
    _TURN_LABELS,
)
TURNS_CANCELLED: Final = _counter(
    "breadcrumbs_turns_cancelled_total",
    "Turns that a user, a newer message or the deletion of the session ended.",
    _TURN_LABELS,
)
TURNS_RETRIED: Final = _counter(
    "breadcrumbs_turns_retried_total", "Failed attempts that were followed by another attempt.", _TURN_LABELS
)
TURNS_OVER_BUDGET: Final = _counter(
    "breadcrumbs_turns_over_budget_total",
    "Attempts that did not start because a budget was used up or could not be checked.",
    ("scope",),
)
TURNS_ABANDONED: Final = _counter(
    "breadcrumbs_turns_abandoned_total",
    "Turns that ended here without a result because the lane was lost or released. Another worker handles the event.",
    _TURN_LABELS,
)
TURNS_RUNNING: Final = _gauge(
    "breadcrumbs_turns_running",
    "Events that are being handled now, including pauses before a retry.",
    ("kind",),
)
TURN_DURATION: Final = _histogram(
    "breadcrumbs_turn_duration_seconds",
    "Seconds from the start of a turn to its end, over all attempts. Answered and failed turns are counted.",
    _TURN_LABELS,
)
TURN_QUEUE: Final = _histogram(
    "breadcrumbs_turn_queue_seconds",
    "Seconds from the write of an event to the start of its turn.",
    ("kind",),
)
FIRST_TOKEN: Final = _histogram(
    "breadcrumbs_turn_first_token_seconds",
    "Seconds from the start of a model call to the first piece of its answer, for the first call of a turn that "
    "wrote text.",
    ("agent", "model"),
)
TURN_ATTEMPTS: Final = _counter(
    "breadcrumbs_turn_attempts_total",
    "Attempts at events by result: finished, retry, failed, store_unavailable, lease_lost or abandoned.",
    ("kind", "result"),
)
DEAD_LETTERS_STORED: Final = _counter(
    "breadcrumbs_dead_letters_stored_total", "Dead letters that this process stored.", ("kind",)
)

# Models and tools

MODEL_TOKENS: Final = _counter(
    "breadcrumbs_model_tokens_total",
    "Tokens as reported by models, by type: input, output, cached or reasoning. Cached tokens are part of input, "
    "reasoning tokens are part of output.",
    ("agent", "model", "type"),
)
MODEL_CALLS: Final = _counter(
    "breadcrumbs_model_calls_total", "Calls of models that were started.", ("agent", "model")
)
MODEL_CALL_FAILURES: Final = _counter(
    "breadcrumbs_model_call_failures_total", "Calls of models that failed.", ("agent", "model")
)
MODEL_FALLBACKS: Final = _counter(
    "breadcrumbs_model_fallbacks_total",
    "Calls of a model that failed and went on with the next model of a fallback list, by class of the error.",
    ("model", "error_class"),
)
MODEL_CIRCUIT_OPEN: Final = _gauge(
    "breadcrumbs_model_circuit_open",
    "1 if fallback lists skip the model, because its last calls failed. 0 if they call it again.",
    ("model",),
)
TOOL_CALLS: Final = _counter(
    "breadcrumbs_tool_calls_total", "Tool calls by result: success or error.", ("tool", "result")
)

# Workers

WORKER_QUEUED_EVENTS: Final = _gauge(
    "breadcrumbs_worker_queued_events",
    "Events that this worker has read and not started yet.",
    ("kind",),
)
LEASES_HELD: Final = _gauge("breadcrumbs_leases_held", "Lanes whose lease this worker holds.", ("kind",))
LANE_TAKEOVERS: Final = _counter(
    "breadcrumbs_lane_takeovers_total",
    "Lanes that this worker took from another worker that had not released them.",
    ("kind",),
)
LEASES_LOST: Final = _counter(
    "breadcrumbs_leases_lost_total",
    "Leases that expired or were taken by another worker while this worker held them.",
    ("kind",),
)

# Streams

STREAM_CLIENTS: Final = _gauge("breadcrumbs_stream_clients", "Open event streams of clients.")

WAITING_REQUESTS: Final = _gauge(
    "breadcrumbs_waiting_requests",
    "Requests that wait for the answer to their message, with or without a stream.",
)

# The store, as this process sees it

STORE_UP: Final = _gauge(
    "breadcrumbs_store_up", "1 if the store is available, 0 if it does not reply or was replaced."
)
STORE_OUTAGES: Final = _counter(
    "breadcrumbs_store_outages_total", "Times that the store became unavailable for this process."
)
STORE_CALL_DURATION: Final = _histogram(
    "breadcrumbs_store_call_duration_seconds",
    "Seconds from sending a command to the store to its reply. Commands that were sent together are counted with the "
    "time of the last reply. Reads that wait for events are not counted.",
    bounds=_STORE_BUCKETS,
)
STORE_CALL_ERRORS: Final = _counter(
    "breadcrumbs_store_call_errors_total",
    "Calls to the store that failed, by reason: unavailable, refused, full or error.",
    ("reason",),
)

# Caches

CACHE_HITS: Final = _counter("breadcrumbs_cache_hits_total", "Reads that a cache answered.", ("cache",))
CACHE_MISSES: Final = _counter(
    "breadcrumbs_cache_misses_total", "Reads that a cache could not answer.", ("cache",)
)

# The process

BUILD_INFO: Final = _gauge(
    "breadcrumbs_build_info", "Always 1. The labels name the versions.", ("version", "python")
)
BUILD_INFO.labels(VERSION, platform.python_version()).set(1)
ProcessCollector(registry=REGISTRY)

# Values of the store

WORKER_LAG_EVENTS: Final = _gauge(
    "breadcrumbs_worker_lag_events",
    "Events that workers of a kind have not handled yet, in all lanes. The count per lane is limited.",
    ("kind",),
    STORE_REGISTRY,
)
WORKER_LAG_SECONDS: Final = _gauge(
    "breadcrumbs_worker_lag_seconds",
    "Age of the oldest event that workers of a kind have not handled yet. 0 if there is none.",
    ("kind",),
    STORE_REGISTRY,
)
WORKERS: Final = _gauge("breadcrumbs_workers", "Workers of a kind that are alive.", ("kind",), STORE_REGISTRY)
LANES_WITHOUT_WORKER: Final = _gauge(
    "breadcrumbs_lanes_without_worker", "Lanes that no worker of a kind holds.", ("kind",), STORE_REGISTRY
)
DEAD_LETTERS: Final = _gauge(
    "breadcrumbs_dead_letters", "Dead letters that are stored now.", ("kind",), STORE_REGISTRY
)
EVENT_BACKLOG: Final = _gauge(
    "breadcrumbs_event_backlog",
    "Events in the logs of all lanes, handled or not. Hygiene removes handled events.",
    registry=STORE_REGISTRY,
)


class _WithoutCreated(Collector):
    """A registry without the `_created` samples of prometheus-client, which would double the number of series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def render() -> bytes:
    """Return the metrics of this process in the Prometheus text format."""
    return generate_latest(_WithoutCreated(REGISTRY))


def render_store_values() -> bytes:
    """Return the values of the store as they were last read, in the Prometheus text format."""
    return generate_latest(_WithoutCreated(STORE_REGISTRY))


def declared() -> list[Metric]:
    """Return every declared metric without its samples, in the order of this module."""
    return [*_described(REGISTRY), *_described(STORE_REGISTRY)]


def _described(registry: CollectorRegistry) -> Iterator[Metric]:
    for metric in registry.collect():
        metric.samples = []
        yield metric
