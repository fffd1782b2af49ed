"""Cache of the versions that this process wrote last, so that it need not read them back from the server.

In one process the context builder's result is the agent runner's input, and every write is an event for the
streams. The server is always asked whether a version still exists. Only its content comes from here, and that never
changes: id, version number and times together name one version.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Final
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb

HEADER_BYTES: Final = 128
"""The header of a body fits into these: five numbers (see record.py)."""

_MAX_ENTRIES: Final = 512
_MAX_JSON_BYTES: Final = 65_536  # a few very large breadcrumbs would fill the memory


class WriteCache:
    """Caches the newest version of each breadcrumb that was written here, least recently written first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[UUID, UUID], tuple[Breadcrumb, bool]] = OrderedDict()

    def put(self, crumb: Breadcrumb, *, permanent: bool) -> None:
        """`permanent`: the version never expires; only a deletion or an update ends it."""
        key = (crumb.owner_id, crumb.id)
        self._entries.pop(key, None)
        if len(crumb.json) > _MAX_JSON_BYTES:
            return
        self._entries[key] = (crumb, permanent)
        if len(self._entries) > _MAX_ENTRIES:
            self._entries.popitem(last=False)

    def has(self, owner: UUID, id: UUID, version: int | None = None) -> bool:
        entry = self._entries.get((owner, id))
        return entry is not None and version in (None, entry[0].version)

    def get_by_header(self, owner: UUID, id: UUID, header: bytes) -> Breadcrumb | None:
        """Return the version with this header (the beginning of its body), or None if another version is cached."""
        version, created, updated, expires, max_reads = map(int, header.partition(b"\n")[0].split(b" "))
        crumb, _ = self._entries.get((owner, id), (None, False))
        if crumb is None or (version, created, updated) != (crumb.version, crumb.created, crumb.updated):
            return None
        if (expires, max_reads) == (crumb.expires, crumb.max_reads):
            return crumb
        return replace(crumb, expires=expires, max_reads=max_reads).with_document(crumb.document)

    def get_permanent(self, owner: UUID, id: UUID, version: int, updated: int) -> Breadcrumb | None:
        """Return a permanent version by its number and time. Only the server knows whether another one expired."""
        crumb, permanent = self._entries.get((owner, id), (None, False))
        if crumb is None or not permanent or (version, updated) != (crumb.version, crumb.updated):
            return None
        return crumb
