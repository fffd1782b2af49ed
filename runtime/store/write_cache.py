"""Cache of the versions that this process wrote last. It avoids reading them back.

In one process the result of the context builder is the input of the agent runner, and every write is an event for the
streams. The server still decides whether a version exists. Only its content is cached, and that never changes: id,
version number and times together identify one version.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Final
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.telemetry import metrics

HEADER_BYTES: Final = 128
"""Bytes to read for the header of a body: five numbers (see record.py)."""

_MAX_ENTRIES: Final = 512
_MAX_JSON_BYTES: Final = 65_536  # larger breadcrumbs are not cached: a few of them would fill the memory


_HITS: Final = metrics.CACHE_HITS.labels("writes")
_MISSES: Final = metrics.CACHE_MISSES.labels("writes")


class WriteCache:
    """Caches the newest version of each breadcrumb that this process wrote. Evicts the least recently written one."""

    def __init__(self) -> None:
        # The keys are integers, which are hashed and compared much faster than UUIDs.
        self._entries: OrderedDict[tuple[int, int], tuple[Breadcrumb, bool]] = OrderedDict()

    def put(self, crumb: Breadcrumb, *, permanent: bool) -> None:
        """Cache a version. `permanent`: it never expires; only a deletion or an update ends it."""
        key = (crumb.owner_id.int, crumb.id.int)
        self._entries.pop(key, None)
        if len(crumb.json) > _MAX_JSON_BYTES:
            return
        self._entries[key] = (crumb, permanent)
        if len(self._entries) > _MAX_ENTRIES:
            self._entries.popitem(last=False)

    def has(self, owner: UUID, id: UUID, version: int | None = None) -> bool:
        """Return whether a breadcrumb is cached, in this version if one is given."""
        entry = self._entries.get((owner.int, id.int))
        if entry is not None and version in (None, entry[0].version):
            return True
        _MISSES.value += 1
        return False

    def get_by_header(self, owner: UUID, id: UUID, header: bytes) -> Breadcrumb | None:
        """Return the cached version if its header matches, else None. `header`: the beginning of the stored body."""
        version, created, updated, expires, max_reads = map(int, header.partition(b"\n")[0].split(b" "))
        crumb, _ = self._entries.get((owner.int, id.int), (None, False))
        if crumb is None or (version, created, updated) != (crumb.version, crumb.created, crumb.updated):
            _MISSES.value += 1
            return None
        _HITS.value += 1
        if (expires, max_reads) == (crumb.expires, crumb.max_reads):
            return crumb
        return replace(crumb, expires=expires, max_reads=max_reads).with_document(crumb.document)

    def get_permanent(self, owner: UUID, id: UUID, version: int, updated: int) -> Breadcrumb | None:
        """Return a permanent version by its number and time. Others can have expired on the server."""
        crumb, permanent = self._entries.get((owner.int, id.int), (None, False))
        if crumb is None or not permanent or (version, updated) != (crumb.version, crumb.updated):
            _MISSES.value += 1
            return None
        _HITS.value += 1
        return crumb
