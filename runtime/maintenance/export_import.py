"""Export and import of breadcrumbs as JSON lines.

Each line is one breadcrumb with its history:

    {"breadcrumb": {"id", "owner_id", "version", "created_at", "updated_at", "created_by"?, "updated_by"?,
                    "expires_at"?, "reads_left"?, …content}, "history": [{…an older version}, …]}

A large history continues in more lines, each with some of the versions:

    {"history_of": {"id", "owner_id", "version", "created_at"}, "history": [{…an older version}, …]}

Documents of the archive (`archive_lines.py`) have lines of their own:

    {"archived": {"owner_id", "kind", "digest", "log": [{"at", "name"?, "source"?}, …], "document"}}

So have agents, saved selectors and the names of tenants (`record_lines.py`):

    {"record": {"owner_id", "kind", "value"}}

An export of a whole store also has a manifest (`export_manifest.py`), so that a damaged file is detected.

Ids, versions, times and history are preserved. An import validates each breadcrumb like a client's request, so a file
that was edited by hand cannot store anything that the API rejects.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID

import anyio
import orjson

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, build_content, parse_time
from breadcrumbs.runtime.breadcrumb.ids import parse_id
from breadcrumbs.runtime.breadcrumb.json_input import MAX_DEPTH, nesting_depth, parse_json
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.ttl import NEVER, Expiry
from breadcrumbs.runtime.errors import AlreadyExists, InvalidInput, NotFound
from breadcrumbs.runtime.maintenance.archive_lines import ARCHIVED, ArchiveLine, decode_archived
from breadcrumbs.runtime.maintenance.export_manifest import MANIFEST_LINES
from breadcrumbs.runtime.maintenance.record_lines import (
    RECORD_LINES,
    RecordLine,
    SessionLine,
    decode_record,
    restore_line,
)
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.archive import Archive
from breadcrumbs.runtime.store.breadcrumb_scan import get_stored
from breadcrumbs.runtime.store.history import VersionPage
from breadcrumbs.runtime.store.lookup import WALK_BYTES
from breadcrumbs.runtime.store.store import Store

_STORE_FIELDS = (
    "id", "owner_id", "version", "created_at", "updated_at", "created_by", "updated_by", "expires_at",
    "reads_left", "ttl_source",
)  # fmt: skip
"""Fields that the store sets. Clients cannot set them."""

_REFERENCE_FIELDS = ("id", "owner_id", "version", "created_at")
"""Fields of `history_of`, which refer to the breadcrumb of an earlier line."""

# Any value except NEVER. It only records that a default applied. The time itself is in `expires_at`.
_ANY_DEFAULT = Expiry(after=1)

_BATCH_SIZE = 64
_LINE_BYTES = WALK_BYTES
"""Approximate limit of the older versions in a line, in bytes. Imports and exports keep a few lines in memory."""
_SHORT_HISTORY = _LINE_BYTES // _BATCH_SIZE
"""Bytes of the first page of a history. The first pages of a batch are read concurrently."""


# Single lines


def encode(crumb: Breadcrumb, history: Iterable[Breadcrumb] = ()) -> bytes:
    """Encode a breadcrumb with its older versions as a line, without the line break."""
    line: dict[str, Any] = {"breadcrumb": _document(crumb)}
    if older := [_document(version) for version in history]:
        line["history"] = older
    return orjson.dumps(line)


@dataclass(frozen=True, slots=True)
class MoreHistory:
    """Line with more older versions of a breadcrumb in an earlier line."""

    newest: Breadcrumb
    """Newest version. Only its id, owner, version and time of creation are valid."""
    versions: list[Breadcrumb]


def encode_more(newest: Breadcrumb, versions: Iterable[Breadcrumb]) -> bytes:
    """Encode a line that continues the history of a breadcrumb."""
    of = {name: _document(newest)[name] for name in _REFERENCE_FIELDS}
    return orjson.dumps({"history_of": of, "history": [_document(version) for version in versions]})


def decode(raw: bytes, *, owner: UUID | None = None) -> tuple[Breadcrumb, list[Breadcrumb]]:
    """Decode a line with a breadcrumb and its older versions.

    `owner` replaces the owner in the line.
    """
    found = decode_line(raw, owner=owner)
    if isinstance(found, MoreHistory):
        raise InvalidInput(
            "this line continues the history of a breadcrumb: decode the breadcrumb's line first",
            where="line",
        )
    return found


def decode_line(
    raw: bytes, *, owner: UUID | None = None
) -> tuple[Breadcrumb, list[Breadcrumb]] | MoreHistory:
    """Decode a line: a breadcrumb with its history, or more history."""
    # A breadcrumb is nested one or two levels deeper in a line than in a request.
    line = parse_json(raw, levels=MAX_DEPTH + 2)
    if isinstance(line, dict) and isinstance(line.get("history_of"), dict):
        return _more_history(line, owner)
    if not isinstance(line, dict) or not isinstance(line.get("breadcrumb"), dict):
        raise InvalidInput('a line must be an object {"breadcrumb": {…}, "history": […]}', where="line")
    _check_fields(line, {"breadcrumb", "history"})
    crumb = _breadcrumb(line["breadcrumb"], owner, "breadcrumb")
    history = _versions(line, owner)
    _check_history(crumb, history)
    return crumb, history


def _more_history(line: dict[str, Any], owner: UUID | None) -> MoreHistory:
    _check_fields(line, {"history_of", "history"})
    of, where = line["history_of"], "history_of"
    _check_fields(of, set(_REFERENCE_FIELDS))
    versions = _versions(line, owner)
    if not versions:
        raise InvalidInput("history must contain at least one version", where="history")
    newest = replace(
        versions[0],
        id=_uuid(of, "id", where),
        owner_id=owner or _uuid(of, "owner_id", where),
        version=_integer(of, "version", where, lowest=1),
        created=_time(of, "created_at", where),
    )
    _check_history(newest, versions)
    return MoreHistory(newest, versions)


def _check_fields(line: dict[str, Any], allowed: set[str]) -> None:
    if unknown := line.keys() - allowed:
        raise InvalidInput(f"unknown field {sorted(unknown)[0]!r}: remove it", where=sorted(unknown)[0])


def _versions(line: dict[str, Any], owner: UUID | None) -> list[Breadcrumb]:
    versions = line.get("history", [])
    if not isinstance(versions, list) or not all(isinstance(version, dict) for version in versions):
        raise InvalidInput("history must be a list of older versions", where="history")
    return [_breadcrumb(version, owner, f"history.{n}") for n, version in enumerate(versions)]


def _document(crumb: Breadcrumb) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": str(crumb.id),
        "owner_id": str(crumb.owner_id),
        "version": crumb.version,
        "created_at": crumb.created_at,
        "updated_at": crumb.updated_at,
    }
    if crumb.created_by is not None:
        document["created_by"] = str(crumb.created_by)
    if crumb.updated_by is not None:
        document["updated_by"] = str(crumb.updated_by)
    if crumb.expires:
        document["expires_at"] = times.to_text(crumb.expires)
    if crumb.max_reads:
        document["reads_left"] = crumb.max_reads
    return document | crumb.document


def _breadcrumb(document: dict[str, Any], owner: UUID | None, where: str) -> Breadcrumb:
    if nesting_depth(document) > MAX_DEPTH:
        raise InvalidInput(f"the JSON nests deeper than {MAX_DEPTH} levels: flatten it", where=where)
    given = {name: document[name] for name in _STORE_FIELDS if name in document}
    source = given.get("ttl_source")
    if source not in (None, "explicit", "schema-default"):
        raise InvalidInput("ttl_source must be 'explicit' or 'schema-default'", where=f"{where}.ttl_source")
    content = build_content(
        BreadcrumbCreate.parse({name: value for name, value in document.items() if name not in given}),
        default_ttl=_ANY_DEFAULT if source == "schema-default" else NEVER,
    )
    created, updated = _time(given, "created_at", where), _time(given, "updated_at", where)
    if updated < created:
        raise InvalidInput("updated_at must not be before created_at", where=f"{where}.updated_at")
    return Breadcrumb(
        _uuid(given, "id", where),
        owner or _uuid(given, "owner_id", where),
        _integer(given, "version", where, lowest=1),
        created,
        updated,
        _time(given, "expires_at", where) if "expires_at" in given else 0,
        _integer(given, "reads_left", where) if "reads_left" in given else 0,
        _uuid(given, "created_by", where) if "created_by" in given else None,
        _uuid(given, "updated_by", where) if "updated_by" in given else None,
        content.json,
    )


def _check_history(crumb: Breadcrumb, history: list[Breadcrumb]) -> None:
    versions = [version.version for version in history]
    if len(set(versions)) != len(versions) or any(version >= crumb.version for version in versions):
        raise InvalidInput(
            "versions in history must be unique and lower than the breadcrumb's own version", where="history"
        )
    for number, version in enumerate(history):
        if (version.id, version.owner_id) != (crumb.id, crumb.owner_id):
            raise InvalidInput("this version belongs to another breadcrumb", where=f"history.{number}.id")
        if version.session_id != crumb.session_id:
            raise InvalidInput("all versions must be in the same session", where=f"history.{number}.tags")


def _uuid(given: dict[str, Any], name: str, where: str) -> UUID:
    return parse_id(_text(given, name, where), what=f"{where}.{name}")


def _time(given: dict[str, Any], name: str, where: str) -> int:
    return parse_time(_text(given, name, where), where=f"{where}.{name}")


def _text(given: dict[str, Any], name: str, where: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise InvalidInput(f"{name} is required and must be a string", where=f"{where}.{name}")
    return value


def _integer(given: dict[str, Any], name: str, where: str, *, lowest: int = -(1 << 31)) -> int:
    value = given.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value < 1 << 31:
        raise InvalidInput(f"{name} must be an integer of at least {lowest}", where=f"{where}.{name}")
    return value


# Exports and imports


async def export_lines(
    store: Store, owner: UUID, query: Query, *, history: bool = True
) -> AsyncIterator[bytes]:
    """Yield one or more lines for each breadcrumb that matches a query."""
    async for exported in export_breadcrumbs(store, store.walk(owner, query), history=history):
        yield exported.line


class ExportedLine(NamedTuple):
    """A line of an export, and the breadcrumb in it."""

    line: bytes
    newest: Breadcrumb
    older: int
    """Number of older versions in this line."""
    is_first: bool = True
    """False: it continues the history of the line before."""


async def export_breadcrumbs(
    store: Store, crumbs: AsyncIterable[Breadcrumb], *, history: bool = True
) -> AsyncIterator[ExportedLine]:
    """Yield one or more lines for each breadcrumb. One that was deleted in the meantime is left out.

    The newest version and the older ones in its lines fit together, even if it is updated at the same time.
    """
    batch: list[Breadcrumb] = []
    size = 0
    async for crumb in crumbs:
        batch.append(crumb)
        size += len(crumb.json)
        if len(batch) == _BATCH_SIZE or size >= _LINE_BYTES:
            async for line in _encode_all(store, batch, history=history):
                yield line
            batch, size = [], 0
    async for line in _encode_all(store, batch, history=history):
        yield line


async def _encode_all(
    store: Store, crumbs: list[Breadcrumb], *, history: bool
) -> AsyncIterator[ExportedLine]:
    changed = [crumb for crumb in crumbs if crumb.version > 1] if history else []
    pages = await _first_pages(store, changed)
    for crumb in crumbs:
        if crumb.id not in pages:
            yield ExportedLine(encode(crumb), crumb, 0)
        elif (page := pages.pop(crumb.id)) is not None:
            async for line in _encode_history(store, page):
                yield line


async def _first_pages(store: Store, crumbs: list[Breadcrumb]) -> dict[UUID, VersionPage | None]:
    """Return the newest versions by breadcrumb. None: it was deleted in the meantime."""
    pages: dict[UUID, VersionPage | None] = {}

    async def load(crumb: Breadcrumb) -> None:
        try:
            pages[crumb.id] = await store.history_page(crumb.owner_id, crumb.id, max_bytes=_SHORT_HISTORY)
        except NotFound:
            pages[crumb.id] = None

    async with anyio.create_task_group() as tasks:
        for crumb in crumbs:
            tasks.start_soon(load, crumb)
    return pages


async def _encode_history(store: Store, page: VersionPage) -> AsyncIterator[ExportedLine]:
    """Yield the lines of a breadcrumb with all its versions."""
    newest, older = page.newest, page.versions[1:]
    if page.next_before is None:
        yield ExportedLine(encode(newest, older), newest, len(older))
        return
    # The first version sets the session's state, so it must be in the first line.
    first: list[Breadcrumb] = []
    try:
        first = [await store.get_version(newest.owner_id, newest.id, 1)]
    except NotFound:
        pass  # missing since an earlier import, or the breadcrumb was deleted in the meantime
    yield ExportedLine(encode(newest, [*older, *first]), newest, len(older) + len(first))
    before: int | None = page.next_before
    while before is not None:
        try:
            page = await store.history_page(newest.owner_id, newest.id, before=before, max_bytes=_LINE_BYTES)
        except NotFound:
            return  # deleted in the meantime; the exported lines are still valid
        if versions := [version for version in page.versions if version.version > 1]:
            yield ExportedLine(encode_more(newest, versions), newest, len(versions), is_first=False)
        before = page.next_before


@dataclass(slots=True)
class BadLine:
    """Line that was not imported."""

    number: int
    message: str


@dataclass(slots=True)
class Imported:
    """Counts of an import. They grow while it runs."""

    lines: int = 0
    written: int = 0
    already_there: int = 0
    different: int = 0
    """Those of `already_there` that have another version in the store than in the file."""
    expired: int = 0
    archived: int = 0
    """Documents of the archive that were written."""
    records: int = 0
    """Agents, selectors and names of tenants that were written."""
    states: int = 0
    """States of sessions that were changed beyond what their breadcrumbs set."""
    bad_lines: list[BadLine] = field(default_factory=list)


async def import_lines(
    store: Store, lines: Iterable[bytes], *, owner: UUID | None = None, dry_run: bool = False
) -> AsyncIterator[Imported]:
    """Write the breadcrumbs that do not exist yet.

    Yield the counts after each batch and at the end. Invalid lines are recorded and skipped. An import can be repeated,
    because existing breadcrumbs are not changed.
    """
    importer = _Importer(store, owner, dry_run=dry_run)
    waiting: list[tuple[int, bytes]] = []
    size = 0
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith(MANIFEST_LINES):
            waiting.append((number, line))
            size += len(line)
        if len(waiting) == _BATCH_SIZE or size >= _LINE_BYTES:
            await importer.import_batch(waiting)
            waiting, size = [], 0
            yield importer.count
    await importer.import_batch(waiting)
    importer.count.bad_lines.sort(key=lambda bad: bad.number)
    yield importer.count


class _Importer:
    """Imports lines in batches."""

    def __init__(self, store: Store, owner: UUID | None, *, dry_run: bool) -> None:
        self._store = store
        self._owner = owner
        self._dry_run = dry_run
        self._expired: set[tuple[UUID, UUID]] = set()
        """Owner and id of expired breadcrumbs, which are skipped. Their history in later lines is not an error."""
        self._states: list[SessionLine] = []
        """States of sessions, which are restored after the breadcrumbs of their batch."""
        self.count = Imported()

    async def import_batch(self, lines: Sequence[tuple[int, bytes]]) -> None:
        """Import numbered lines: first the breadcrumbs, then the rest of their history."""
        self.count.lines += len(lines)
        lines = await self._without_documents(lines)
        decoded = [(number, line) for number, raw in lines if (line := self._decode(number, raw)) is not None]
        breadcrumbs = [line for _, line in decoded if not isinstance(line, MoreHistory)]
        async with anyio.create_task_group() as tasks:
            for crumb, history in self._without_repeats(breadcrumbs):
                tasks.start_soon(self._restore, crumb, history)
        for number, line in decoded:
            if isinstance(line, MoreHistory) and not self._dry_run:
                await self._extend_history(number, line)
        await self._restore_states()

    async def _without_documents(self, lines: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Import the documents of the archive and the records, and return the lines of breadcrumbs.

        The states of sessions wait for the breadcrumbs of the batch.
        """
        others = []
        for number, raw in lines:
            start = raw.lstrip()
            if not start.startswith((ARCHIVED, *RECORD_LINES)):
                others.append((number, raw))
                continue
            try:
                if start.startswith(ARCHIVED):
                    await self._restore_archived(decode_archived(raw, owner=self._owner))
                else:
                    await self._restore_record(decode_record(raw, owner=self._owner))
            except InvalidInput as error:
                self.count.bad_lines.append(BadLine(number, _error_text(error)))
        return others

    async def _restore_record(self, line: RecordLine | SessionLine) -> None:
        if isinstance(line, SessionLine):
            self._states.append(line)
        elif await restore_line(self._store, line, dry_run=self._dry_run):
            self.count.records += 1

    async def _restore_states(self) -> None:
        for line in self._states:
            if await restore_line(self._store, line, dry_run=self._dry_run):
                self.count.states += 1
        self._states = []

    async def _restore_archived(self, line: ArchiveLine) -> None:
        archive, document = Archive(self._store), line.document
        if self._dry_run:
            written = await archive.get(line.owner, document.digest, document.kind) is None
        else:
            written = await archive.restore(line.owner, document.kind, document.document, line.entries)
        if written:
            self.count.archived += 1

    def _decode(self, number: int, raw: bytes) -> tuple[Breadcrumb, list[Breadcrumb]] | MoreHistory | None:
        """Decode a line. If it is invalid, record it and return None."""
        try:
            return decode_line(raw, owner=self._owner)
        except InvalidInput as error:
            self.count.bad_lines.append(BadLine(number, _error_text(error)))
            return None

    def _without_repeats(
        self, lines: Iterable[tuple[Breadcrumb, list[Breadcrumb]]]
    ) -> Iterator[tuple[Breadcrumb, list[Breadcrumb]]]:
        """Skip repeated breadcrumbs in a batch. Concurrent tasks would both find that the id is free."""
        seen: set[tuple[UUID, UUID]] = set()
        for crumb, history in lines:
            if (crumb.owner_id, crumb.id) in seen:
                self.count.already_there += 1
                continue
            seen.add((crumb.owner_id, crumb.id))
            yield crumb, history

    async def _restore(self, crumb: Breadcrumb, history: list[Breadcrumb]) -> None:
        if record.is_gone(crumb, self._store.now()):
            self.count.expired += 1
            self._expired.add((crumb.owner_id, crumb.id))
            return
        try:
            if self._dry_run:
                await self._check_missing(crumb)
            else:
                await self._store.restore(crumb, history)
        except AlreadyExists:
            self.count.already_there += 1
            if await self._differs(crumb):
                self.count.different += 1
        else:
            self.count.written += 1

    async def _differs(self, crumb: Breadcrumb) -> bool:
        """Return whether the breadcrumb in the store has another version or was updated at another time."""
        stored = await get_stored(self._store, crumb.owner_id, crumb.id)
        return stored is not None and (stored.version, stored.updated) != (crumb.version, crumb.updated)

    async def _check_missing(self, crumb: Breadcrumb) -> None:
        """Raise `AlreadyExists` if the breadcrumb exists."""
        try:
            await self._store.get(crumb.owner_id, crumb.id, count_read=False)
        except NotFound:
            return
        raise AlreadyExists(f"breadcrumb {crumb.id} already exists")

    async def _extend_history(self, number: int, more: MoreHistory) -> None:
        newest = more.newest
        if (newest.owner_id, newest.id) in self._expired:
            return
        if not await self._store.extend_history(newest, more.versions):
            self.count.bad_lines.append(
                BadLine(number, "history_of: the breadcrumb is not in an earlier line")
            )


def _error_text(error: InvalidInput) -> str:
    complaint = error.complaints[0]
    # "body" and "line" refer to the whole line, so there is no field to add.
    return (
        complaint.message
        if complaint.where in ("", "body", "line")
        else f"{complaint.where}: {complaint.message}"
    )
