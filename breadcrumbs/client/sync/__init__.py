# Generated from breadcrumbs/client/aio/__init__.py by `python -m tests.support.sync_client`. Do not edit.
"""The sync client. Generated: see the package `aio`."""

from __future__ import annotations

from breadcrumbs.client.sync.client import Client
from breadcrumbs.client.sync.session import Session

__all__ = ["Client", "Session"]
