"""What this process has written a moment ago, so that it need not carry it back from the server to read it.

In one process the context builder's result is the agent runner's input, and every write is an event for the
streams. Whether a version is still there is always asked of the server; only what it says is known already,
and that never changes: a version is named by its id, its number and its times, which no other one has.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Final
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb

HEADER_BYTES: Final = 128
"""A body's header fits into these: five numbers (see record.py)."""

_MOST: Final = 512
_LONGEST: Final = 65_536


class Fresh:
    """The last few versions that were written here, of each breadcrumb the newest."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[UUID, UUID], tuple[Breadcrumb, bool]] = OrderedDict()

    def note(self, crumb: Breadcrumb, *, lasts: bool) -> None:
        """`lasts`: nothing but a deletion ends it."""
        key = (crumb.owner_id, crumb.id)
        self._known.pop(key, None)
        if not self.has_room_for(crumb.json):
            return
        self._known[key] = (crumb, lasts)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)

    @staticmethod
    def has_room_for(json: bytes) -> bool:
        """Not for what is very large: a few such would fill the memory."""
        return len(json) <= _LONGEST

    def knows(self, owner: UUID, id: UUID, version: int | None = None) -> bool:
        known = self._known.get((owner, id))
        return known is not None and version in (None, known[0].version)

    def read(self, owner: UUID, id: UUID, header: bytes) -> Breadcrumb | None:
        """The breadcrumb with this header (or more of its body); None: it is another version than the one known."""
        version, created, updated, expires, max_reads = map(int, header.partition(b"\n")[0].split(b" "))
        crumb, _ = self._known.get((owner, id), (None, False))
        if crumb is None or (version, created, updated) != (crumb.version, crumb.created, crumb.updated):
            return None
        if (expires, max_reads) == (crumb.expires, crumb.max_reads):
            return crumb
        return replace(crumb, expires=expires, max_reads=max_reads).saying(crumb.document)

    def written_at(self, owner: UUID, id: UUID, version: int, at: int) -> Breadcrumb | None:
        """What was written at a time, if it lasts: of the rest only the server knows whether it still holds."""
        crumb, lasts = self._known.get((owner, id), (None, False))
        if crumb is None or not lasts or (version, at) != (crumb.version, crumb.updated):
            return None
        return crumb
