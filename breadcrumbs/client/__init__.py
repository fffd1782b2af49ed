"""HTTP client of a Breadcrumbs server: `Client`, and `AsyncClient` with the same methods.

errors, options, values    the public types: exceptions, keyword options, return values
requests, replies          requests and replies as values, without I/O
feedback                   ratings of answers: values, filters, requests
outcomes, entries          answers to messages; entries of histories
http, concurrency          httpx, sleep and cancellation shield for both clients
aio                        the async client, the only hand-written one
sync                       the sync client, generated from aio
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from breadcrumbs.client.aio import AsyncClient, AsyncSession
    from breadcrumbs.client.sync import Client, Session

_MODULES = {"AsyncClient": "aio", "AsyncSession": "aio", "Client": "sync", "Session": "sync"}


def __getattr__(name: str) -> Any:
    # Each client is imported on first use. A program rarely needs both, and a command line must start fast.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


__all__ = ["AsyncClient", "AsyncSession", "Client", "Session"]
