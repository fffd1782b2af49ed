"""The async client. The package `sync` is generated from this one."""

from __future__ import annotations

from breadcrumbs.client.aio.client import AsyncClient
from breadcrumbs.client.aio.session import AsyncSession

__all__ = ["AsyncClient", "AsyncSession"]
