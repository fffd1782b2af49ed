"""`asyncio.gather`, for concurrent reads.

The rest of the code uses anyio. Every turn runs several reads at the same time, and `gather` is faster for that: three
awaits take 43 µs with `gather` and 135 µs in an anyio task group (uvloop, 2 cores).
"""

from __future__ import annotations

from asyncio import gather

__all__ = ["gather"]
