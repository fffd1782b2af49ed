"""Sleep and cancellation shield of the async client, and their counterparts in the sync client."""

from __future__ import annotations

from contextlib import nullcontext
from time import sleep

import anyio
from anyio import sleep as async_sleep

__all__ = ["async_shield", "async_sleep", "shield", "sleep"]

shield = nullcontext


def async_shield() -> anyio.CancelScope:
    """Return a scope that lets cleanup finish in a cancelled task."""
    return anyio.CancelScope(shield=True)
