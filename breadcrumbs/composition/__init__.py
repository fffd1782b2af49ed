"""Composition of processes from storage, HTTP server and workers.

The command line and the library both use this package. `__all__` lists the modules that other packages may import.
"""

__all__ = [
    "api_processes",
    "audit_processes",
    "consumers",
    "event_loop",
    "http_server",
    "logs",
    "model_checks",
    "own_agents",
    "processes",
    "replays",
    "storage",
    "system_checks",
    "temporary_servers",
]
