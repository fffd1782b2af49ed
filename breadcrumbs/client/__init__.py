"""The client of a Breadcrumbs server, over HTTP: `Client`, and `AsyncClient` with the same methods.

errors, options, values    what callers see
requests, replies          what is sent and received, as values
outcomes, entries          answers to messages; entries of histories
http, concurrency          httpx and sleeping, for both clients
aio                        the client, written once, async
sync                       generated from aio
"""

from __future__ import annotations

from breadcrumbs.client.aio import AsyncClient, AsyncSession
from breadcrumbs.client.sync import Client, Session

__all__ = ["AsyncClient", "AsyncSession", "Client", "Session"]
