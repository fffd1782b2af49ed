"""Durations in messages."""

from __future__ import annotations


def duration_text(microseconds: int) -> str:
    """Return a duration in its largest useful unit, such as `42 s` or `3 d`."""
    seconds = microseconds // 1_000_000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
