"""Wires processes: storage, the HTTP server, workers. The CLI and the library both use it.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "event_loop",
    "http_server",
    "own_agents",
    "processes",
    "storage",
]
