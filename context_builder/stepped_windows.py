"""Cuts sources to stepped windows, so that the beginning of a prompt stays equal for many turns.

A sliding window drops its oldest item with each new one. The beginning of the prompt then changes in every turn, and
the prompt cache of a provider cannot be used. A stepped window grows up to its `limit` and is then cut to `keep`.

The start of the window is a pure function of the number of breadcrumbs that the session has up to the trigger. Nothing
is stored, and a past turn gets the same window again. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from breadcrumbs.runtime.retrieval.sources import SourceItem

Counts = Mapping[int, int]
"""Number of breadcrumbs of a source in the session that are not newer than the trigger, by index of the source."""

NO_COUNTS: Final[Counts] = {}


class SteppedWindow(NamedTuple):
    """Sources that share one stepped window."""

    numbers: frozenset[int]
    """Indexes of the sources."""
    limit: int
    keep: int

    def size(self, count: int) -> int:
        """Return how many of the newest items the window has, of `count` items in all.

        The start moves in steps of `limit - keep` items. The size is more than `keep` and at most `limit`.
        """
        if count <= self.limit:
            return count
        step = self.limit - self.keep
        return count + (self.limit - count) // step * step


class Trimmed(NamedTuple):
    """Items within their stepped windows."""

    found: Sequence[SourceItem]
    dropped: frozenset[str] = frozenset()
    """Ids of items before the start of their window."""
    cut: frozenset[int] = frozenset()
    """Sources with dropped items."""


def trim(
    windows: Iterable[SteppedWindow],
    now: int,
    found: Sequence[SourceItem],
    started: Sequence[SourceItem],
    counts: Counts,
) -> Trimmed:
    """Drop the items that are older than the windows of their sources.

    `now` is the time of the trigger. `started` are the items that do not wait for their turn. Without the count of a
    source, its items are counted.
    """
    kept, dropped = found, list[SourceItem]()
    for window in windows:
        numbers = window.numbers
        times = sorted([crumb.created for _, _, crumb, number in started if number in numbers], reverse=True)
        count = sum([counts.get(number, 0) for number in numbers])
        if times and times[0] > now:  # late answers to earlier messages
            count += sum([time > now for time in times])
        size = window.size(max(count, len(times)))
        if size < len(times):
            first = times[size - 1]
            dropped += [entry for entry in kept if entry[2].created < first and entry[3] in numbers]
            kept = [entry for entry in kept if entry[2].created >= first or entry[3] not in numbers]
    if not dropped:
        return Trimmed(found)
    cut = frozenset([number for _, _, _, number in dropped if number is not None])
    return Trimmed(kept, frozenset([crumb.id_text for _, _, crumb, _ in dropped]), cut)
