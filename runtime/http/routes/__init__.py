"""Operations and their handlers, one module per kind of resource.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "answering_agents",
    "auth",
    "breadcrumbs",
    "checks",
    "dead_letters",
    "event_stream",
    "events",
    "feedback",
    "messages",
    "models",
    "operations",
    "records",
    "session_views",
    "sessions",
    "system",
    "usage",
    "worker_list",
    "workers",
]
