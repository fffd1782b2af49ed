"""The HTTP API: server, middleware, operations and routes.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "answering",
    "api",
    "app",
    "processes",
    "routes",
    "server",
    "worker_port",
]
