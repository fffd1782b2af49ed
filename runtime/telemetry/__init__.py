"""Telemetry: the metrics of the process, the facts that metrics and log lines are made from, and traces.

`metrics.py` declares every metric of Breadcrumbs except those of HTTP requests, which belong to one application.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "fast",
    "histogram",
    "labels",
    "metrics",
    "redaction",
    "spans",
    "store_calls",
    "trace_context",
    "tracing",
    "turns",
    "workers",
]
