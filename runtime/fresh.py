"""What this process has written a moment ago, so that it need not carry it back from the server to read it.

In one process the context builder's result is the agent runner's input, and every write is an event for the
streams. Whether a version is still there is always asked of the server; only what it says is known already,
and that never changes: a version is named by its id, its number and its times, which no other one has.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from breadcrumbs.runtime.breadcrumb import Breadcrumb, Content
from breadcrumbs.runtime.ttl import NEVER

HEADER_BYTES: Final = 128
"""A body's header fits into these: five numbers (see record.py)."""

_MOST: Final = 512
_LONGEST: Final = 65_536


@dataclass(frozen=True, slots=True)
class _Version:
    version: int
    created: int
    updated: int
    created_by: UUID | None
    updated_by: UUID | None
    content: Content


class Fresh:
    """The last few versions that were written here, of each breadcrumb the newest."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[UUID, UUID], _Version] = OrderedDict()

    def note(
        self,
        owner: UUID,
        id: UUID,
        content: Content,
        *,
        version: int,
        created: int,
        updated: int,
        created_by: UUID | None = None,
        updated_by: UUID | None = None,
    ) -> None:
        self._known.pop((owner, id), None)
        if len(content.json) > _LONGEST:
            return
        self._known[owner, id] = _Version(version, created, updated, created_by, updated_by, content)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)

    def knows(self, owner: UUID, id: UUID, version: int | None = None) -> bool:
        known = self._known.get((owner, id))
        return known is not None and version in (None, known.version)

    def read(self, owner: UUID, id: UUID, header: bytes) -> Breadcrumb | None:
        """The breadcrumb with this header (or more of its body); None: it is another version than the one known."""
        known = self._known.get((owner, id))
        version, created, updated, expires, max_reads = map(int, header.partition(b"\n")[0].split(b" "))
        if known is None or (version, created, updated) != (known.version, known.created, known.updated):
            return None
        return _as_breadcrumb(owner, id, known, expires, max_reads)

    def written_at(self, owner: UUID, id: UUID, version: int, at: int) -> Breadcrumb | None:
        """What was written at a time, if it is for ever: of the rest only the server knows whether it still holds."""
        known = self._known.get((owner, id))
        if known is None or (known.version, known.updated) != (version, at) or known.content.expiry != NEVER:
            return None
        return _as_breadcrumb(owner, id, known, 0, 0)


def _as_breadcrumb(owner: UUID, id: UUID, known: _Version, expires: int, max_reads: int) -> Breadcrumb:
    crumb = Breadcrumb(
        id,
        owner,
        known.version,
        known.created,
        known.updated,
        expires,
        max_reads,
        known.created_by,
        known.updated_by,
        known.content.json,
    )
    crumb.__dict__["document"] = known.content.document  # what its JSON says
    return crumb
