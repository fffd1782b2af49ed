"""All checks of `crumb doctor` by their ids, and the choice of some of them.

The ids are part of the public interface: scripts and alerts use them. `docs/operations.md` has a section for each.
This module imports nothing heavy, because `crumb --help` loads it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from breadcrumbs.runtime.errors import InvalidInput

CHECKS: Final[Mapping[str, str]] = {
    "python": "version of Python",
    "settings": "settings are valid",
    "api": "the API answers",
    "ready": "the API can use its store",
    "embedded-server": "the program of the embedded server exists",
    "data-directory": "the data directory is writable",
    "disk": "free space for the data directory",
    "store": "the Redis server answers and has a store",
    "store-identity": "it is the same store as before",
    "server-version": "version of the Redis server",
    "replica": "the Redis server is not a replica",
    "persistence": "the Redis server saves its data",
    "eviction": "the Redis server evicts nothing",
    "memory": "memory of the Redis server",
    "clock": "clocks of this machine and of the Redis server",
    "workers": "a context builder and an agent runner run",
    "lag": "events do not wait for workers",
    "dead-letters": "no event failed every attempt",
    "versions": "all processes have the same version",
    "worker-clocks": "clocks of the workers and of the Redis server",
    "agents": "the rule for messages that several agents match",
    "models": "the servers of the models answer",
    "layout": "format of the store and number of lanes",
    "scripts": "the Redis server accepts the scripts",
    "events": "old events are removed",
    "expiry": "expired breadcrumbs are removed",
    "indexes": "indexes match the breadcrumbs (sample)",
    "sessions": "sessions match their breadcrumbs (sample)",
    "quotas": "counters of quotas are right",
}
"""Ids and descriptions, in the order of the report."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Choice of checks. By default all."""

    only: frozenset[str] = frozenset()
    """If not empty, only these checks are made."""
    skip: frozenset[str] = frozenset()

    def __contains__(self, id: str) -> bool:
        return id not in self.skip and (not self.only or id in self.only)

    def any_of(self, ids: Iterable[str]) -> bool:
        """Return whether at least one of the checks is chosen."""
        return any(id in self for id in ids)


def select_checks(only: Iterable[str] = (), skip: Iterable[str] = ()) -> Selection:
    """Return the choice of checks. An item can contain several ids, separated by commas.

    Raise `InvalidInput` for an unknown id, with the most similar one, and if no check remains.
    """
    chosen = Selection(_read_ids(only), _read_ids(skip))
    if not chosen.any_of(CHECKS):
        raise InvalidInput("no check remains: every chosen check is skipped")
    return chosen


def _read_ids(items: Iterable[str]) -> frozenset[str]:
    ids = [id for item in items for part in item.split(",") if (id := part.strip())]
    for id in ids:
        if id not in CHECKS:
            close = difflib.get_close_matches(id, CHECKS, n=1, cutoff=0.5)
            advice = f"did you mean {close[0]}?" if close else f"use one of {', '.join(CHECKS)}"
            raise InvalidInput(f"there is no check {id[:100]!r}: {advice}")
    return frozenset(ids)
