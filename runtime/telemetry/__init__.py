"""Telemetry: the metrics of the process, and the facts that metrics and log lines are made from.

`metrics.py` declares every metric of Breadcrumbs except those of HTTP requests, which belong to one application.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "fast",
    "histogram",
    "labels",
    "metrics",
    "redaction",
    "store_calls",
    "turns",
    "workers",
]
