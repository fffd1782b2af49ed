"""Sleep and cancellation shield for the async client, and what the sync client uses instead."""

from __future__ import annotations

from contextlib import nullcontext
from time import sleep

import anyio
from anyio import sleep as async_sleep

__all__ = ["async_shield", "async_sleep", "shield", "sleep"]

shield = nullcontext


def async_shield() -> anyio.CancelScope:
    """Return a scope in which cleanup finishes although its task was cancelled."""
    return anyio.CancelScope(shield=True)
