"""Exports of a whole store, or of one owner, with a manifest: full ones and increments.

Consistency while the store is written:

- The file contains every breadcrumb that was created before the export began (`began_at`) and not deleted since, and
  none that was created later. So an answer is never in the file without its message.
- Each breadcrumb is read at one moment between the beginning and the end of the export, with the older versions of
  that moment.
- The index describes the file, not the store. The next increment compares the store with it, so it contains each
  change that this export missed.

An increment compares headers (`store/headers.py`), and reads only the bodies of breadcrumbs that have changed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final
from uuid import UUID, uuid4

import anyio

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import MAX_LIMIT, Query
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.maintenance.archive_lines import WantedDocuments, archive_lines
from breadcrumbs.runtime.maintenance.backup_chain import ExportFile
from breadcrumbs.runtime.maintenance.export_import import ExportedLine, export_breadcrumbs
from breadcrumbs.runtime.maintenance.export_manifest import (
    ExportEnd,
    ExportHeader,
    ExportIndex,
    Fingerprint,
    PreviousExport,
    document_digest,
    document_name,
    store_identity,
)
from breadcrumbs.runtime.maintenance.record_lines import record_lines
from breadcrumbs.runtime.store.headers import (
    Header,
    lane_count,
    latest_write,
    read_headers,
    read_stored,
    scan_headers,
)
from breadcrumbs.runtime.store.scan import owners_with_records
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.version import VERSION

_BATCH_SIZE: Final = 64


@dataclass(frozen=True, slots=True)
class BackupRange:
    """The part of a store to export. Without `since` and `previous`, everything."""

    owner: UUID | None = None
    """None: all owners."""
    since: int | None = None
    """Time in microseconds: only what was written since, by its time of the last update."""
    previous: ExportFile | None = None
    """The export to continue: only what differs from it."""


async def backup_lines(store: Store, part: BackupRange) -> AsyncIterator[bytes]:
    """Yield the lines of an export with its manifest, without line breaks."""
    if part.previous is not None:
        _check_previous(store, part.previous, part.owner)
    backup = _Backup(store, part, await latest_write(store))
    async for line in backup.lines():
        yield line


def _check_previous(store: Store, previous: ExportFile, owner: UUID | None) -> None:
    if previous.header.store != store_identity(store):
        raise InvalidInput(
            f"{previous.name} is an export of another store: begin a new chain with an export without --since"
        )
    if previous.header.owner != owner:
        shown = "all owners" if previous.header.owner is None else f"owner {previous.header.owner}"
        raise InvalidInput(f"{previous.name} is an export of {shown}: use the same --owner to continue it")


@dataclass(slots=True)
class _OwnerChanges:
    """The breadcrumbs of an owner that an increment contains, and those that an earlier file contains."""

    changed: list[Header] = field(default_factory=list)
    unchanged: dict[bytes, Fingerprint] = field(default_factory=dict)


class _Backup:
    """Writes one export."""

    def __init__(self, store: Store, part: BackupRange, began: int) -> None:
        self._store = store
        self._part = part
        self._began = began
        self._previous = part.previous.index if part.previous is not None else ExportIndex()
        self._index = ExportIndex()
        self._digest = sha256()
        self._lines = 0
        self._breadcrumbs = 0
        self._documents = 0

    async def lines(self) -> AsyncIterator[bytes]:
        header = self._header()
        yield self._counted(header.encode())
        for owner in await self._owners():
            async for line in self._owner_lines(owner):
                yield self._counted(line)
        for line in self._index.lines():
            yield self._counted(line)
        yield ExportEnd(
            header.id,
            self._lines,
            self._breadcrumbs,
            self._documents,
            self._index.total,
            self._digest.hexdigest(),
        ).encode()

    def _header(self) -> ExportHeader:
        part, previous = self._part, self._part.previous
        return ExportHeader(
            uuid4(),
            "full" if part.since is None and previous is None else "incremental",
            self._began,
            VERSION,
            store_identity(self._store),
            lane_count(self._store),
            part.owner,
            part.since,
            None if previous is None else PreviousExport(previous.header.id, previous.end.sha256),
        )

    def _counted(self, line: bytes) -> bytes:
        self._lines += 1
        self._digest.update(line + b"\n")
        return line

    async def _owners(self) -> list[UUID]:
        if self._part.owner is not None:
            return [self._part.owner]
        return sorted({*await owners_with_records(self._store), *self._previous.breadcrumbs})

    async def _owner_lines(self, owner: UUID) -> AsyncIterator[bytes]:
        entries: dict[bytes, Fingerprint] = {}
        if self._part.since is None and self._part.previous is None:
            query = Query(created_until=self._began, sort="created_at", limit=MAX_LIMIT // 10)
            crumbs = self._store.walk(owner, query)
        else:
            found = await self._find_changes(owner)
            entries = found.unchanged
            crumbs = self._read_all(owner, found.changed)
        async for exported in export_breadcrumbs(self._store, crumbs):
            self._add_entry(entries, exported)
            yield exported.line
        if entries:
            self._index.breadcrumbs[owner] = entries
        async for line in self._document_lines(owner):
            yield line

    def _add_entry(self, entries: dict[bytes, Fingerprint], exported: ExportedLine) -> None:
        id = exported.newest.id.bytes
        entry = Fingerprint.of(Header.of(exported.newest, exported.older))
        if exported.is_first:
            self._breadcrumbs += 1
        else:
            entry = entry._replace(older=entries[id].older + exported.older)
        entries[id] = entry

    async def _document_lines(self, owner: UUID) -> AsyncIterator[bytes]:
        """Yield the other lines of an owner that the previous export does not contain."""
        known = self._previous.documents.get(owner, {})
        entries: dict[str, str] = {}
        async for line in self._all_documents(owner):
            _, name = document_name(line)
            entries[name] = document_digest(line)
            if known.get(name) != entries[name]:
                self._documents += 1
                yield line
        if entries:
            self._index.documents[owner] = entries

    async def _all_documents(self, owner: UUID) -> AsyncIterator[bytes]:
        async for line in archive_lines(self._store, owner, WantedDocuments(everything=True)):
            yield line
        async for line in record_lines(self._store, owner, until=self._began):
            yield line

    # Increments

    async def _find_changes(self, owner: UUID) -> _OwnerChanges:
        found, now = _OwnerChanges(), self._store.now()
        known = self._previous.breadcrumbs.get(owner, {})
        seen: set[bytes] = set()

        def add(headers: Iterable[Header]) -> None:
            for header in headers:
                if header.id in seen or header.created > self._began or header.is_gone(now):
                    continue
                seen.add(header.id)
                if self._is_changed(header, known):
                    found.changed.append(header)
                else:
                    found.unchanged[header.id] = self._kept_entry(header)

        async for headers in scan_headers(self._store, owner, until=self._began):
            add(headers)
        # The scan can miss a breadcrumb that moves to another index. It must not count as deleted.
        add(await read_headers(self._store, owner, [id for id in known if id not in seen]))
        found.changed.sort(key=lambda header: (header.created, header.id))
        return found

    def _is_changed(self, header: Header, known: dict[bytes, Fingerprint]) -> bool:
        if self._part.since is not None:
            # A read does not change the time of the last update.
            return header.updated >= self._part.since or header.reads != 0
        return not Fingerprint.of(header).matches(known.get(header.id))

    def _kept_entry(self, header: Header) -> Fingerprint:
        """Return the entry of an unchanged breadcrumb.

        Without the previous file it is unknown whether a context was reduced since then, so its size is not checked.
        """
        entry = Fingerprint.of(header)
        return entry if self._part.since is None else entry._replace(size=0)

    async def _read_all(self, owner: UUID, headers: list[Header]) -> AsyncIterator[Breadcrumb]:
        """Yield breadcrumbs by id. One that was deleted in the meantime is left out."""
        for start in range(0, len(headers), _BATCH_SIZE):
            batch = headers[start : start + _BATCH_SIZE]
            found: dict[bytes, Breadcrumb | None] = {}

            async def load(id: bytes, found: dict[bytes, Breadcrumb | None] = found) -> None:
                found[id] = await read_stored(self._store, owner, id)

            async with anyio.create_task_group() as tasks:
                for header in batch:
                    tasks.start_soon(load, header.id)
            for header in batch:
                if (crumb := found[header.id]) is not None:
                    yield crumb
