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

from breadcrumbs.client.aio import AsyncClient, AsyncSession
from breadcrumbs.client.sync import Client, Session

__all__ = ["AsyncClient", "AsyncSession", "Client", "Session"]
