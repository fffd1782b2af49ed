"""Measures how much of a prompt repeats the beginning of the previous prompt.

Providers charge less for the beginning of a prompt that they have seen before (prompt caching). This module does no
I/O.
"""

from __future__ import annotations

from collections.abc import Sequence


def shared_prefix(previous: Sequence[bytes], current: Sequence[bytes]) -> int:
    """Return the number of bytes at the beginning of `current` that are equal to those of `previous`.

    Both are prompts in pieces, such as messages. Only the bytes count, not where a piece ends.
    """
    shared = 0
    for before, now in zip(previous, current, strict=False):
        if before != now:
            return shared + _shared_bytes(previous, current, shared)
        shared += len(now)
    return shared


def _shared_bytes(previous: Sequence[bytes], current: Sequence[bytes], start: int) -> int:
    """Return the number of equal bytes from an offset, by binary search."""
    before, now = b"".join(previous)[start:], b"".join(current)[start:]
    equal, limit = 0, min(len(before), len(now))
    while equal < limit:
        middle = (equal + limit + 1) // 2
        if before[equal:middle] == now[equal:middle]:
            equal = middle
        else:
            limit = middle - 1
    return equal
