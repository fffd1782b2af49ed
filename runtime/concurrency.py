"""`gather` of asyncio, for reads beside each other.

anyio is used elsewhere. Three awaits take 43 µs with `gather` and 135 µs in a task group of anyio (uvloop, 2 cores).
Every turn reads several things beside each other.
"""

from __future__ import annotations

from asyncio import gather

__all__ = ["gather"]
