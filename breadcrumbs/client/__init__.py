"""The client of a Breadcrumbs server, over HTTP: `Client`, and `AsyncClient` with the same methods."""

from __future__ import annotations

from breadcrumbs.client.aio import AsyncClient, AsyncSession
from breadcrumbs.client.sync import Client, Session

__all__ = ["AsyncClient", "AsyncSession", "Client", "Session"]
