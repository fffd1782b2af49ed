"""Documents of the archive in an export file: see `export_import.py` for the other lines.

An export of everything contains the whole archive of each owner. An export of a session contains the documents that its
lines name by their digest, and the documents that these name.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import orjson

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import parse_time
from breadcrumbs.runtime.breadcrumb.ids import parse_id
from breadcrumbs.runtime.breadcrumb.json_input import MAX_DEPTH, canonical, parse_json
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.store.archive import (
    KINDS,
    MAX_DOCUMENT_BYTES,
    MAX_ENTRIES,
    SHORT_DIGEST,
    Archive,
    ArchivedDocument,
    LogEntry,
    digest_of,
)
from breadcrumbs.runtime.store.store import Store

ARCHIVED: Final = b'{"archived":'
"""The beginning of a line with a document of the archive."""

_DIGEST: Final = re.compile(rb"(?<![0-9a-f-])[0-9a-f]{16,64}(?![0-9a-f-])")
_SETUP: Final = re.compile(rb'"setup":"([A-Za-z0-9_-]{43})"')
"""The digest of a setup in a receipt, in base64."""


class WantedDocuments:
    """The digests in the lines of an export. `everything`: all documents of the owner are wanted."""

    def __init__(self, *, everything: bool) -> None:
        self.everything = everything
        self._digests: set[bytes] = set()

    def add(self, line: bytes) -> None:
        """Collect the digests in a line."""
        if not self.everything:
            self._digests.update(found[:SHORT_DIGEST] for found in _DIGEST.findall(line))
            self._digests.update(
                urlsafe_b64decode(found + b"=").hex()[:SHORT_DIGEST].encode()
                for found in _SETUP.findall(line)
            )

    def __contains__(self, digest: str) -> bool:
        return self.everything or digest[:SHORT_DIGEST].encode() in self._digests


@dataclass(frozen=True, slots=True)
class ArchiveLine:
    """A line with a document of the archive."""

    owner: UUID
    document: ArchivedDocument
    entries: list[LogEntry]


async def archive_lines(store: Store, owner: UUID, wanted: WantedDocuments) -> AsyncIterator[bytes]:
    """Yield a line for each wanted document of an owner.

    A setup is first: it names other documents, which are then wanted, too.
    """
    archive = Archive(store)
    for kind in reversed(KINDS):
        entries: dict[str, list[LogEntry]] = {}
        for entry in await archive.log(owner, kind):
            entries.setdefault(entry.digest, []).append(entry)
        async for document in archive.documents(owner, kind):
            digest = document.digest[:SHORT_DIGEST]
            # A context names its hints by the breadcrumb of the schema definition, not by their digest.
            if kind == "hints" or digest in wanted:
                line = _encode(owner, document, entries.get(digest, []))
                wanted.add(line)
                yield line


def _encode(owner: UUID, document: ArchivedDocument, entries: list[LogEntry]) -> bytes:
    log = []
    for entry in entries:
        shown: dict[str, Any] = {"at": times.to_text(entry.at)}
        if entry.name:
            shown["name"] = entry.name
        if entry.source:
            shown["source"] = entry.source
        log.append(shown)
    fields = {"owner_id": str(owner), "kind": document.kind, "digest": document.digest, "log": log}
    return orjson.dumps({"archived": {**fields, "document": document.document}})


def decode_archived(raw: bytes, *, owner: UUID | None = None) -> ArchiveLine:
    """Decode a line with a document of the archive, or raise `InvalidInput`. `owner` replaces the owner in the line."""
    line = parse_json(raw, levels=MAX_DEPTH + 2)
    fields = line.get("archived") if isinstance(line, dict) else None
    if not isinstance(fields, dict) or "document" not in fields:
        raise InvalidInput('a line of the archive must be an object {"archived": {…}}', where="line")
    document = fields["document"]
    kind = next((one for one in KINDS if one == fields.get("kind")), None)
    if kind is None:
        raise InvalidInput(f"kind must be one of {', '.join(KINDS)}", where="archived.kind")
    if not isinstance(document, dict):
        raise InvalidInput("the document must be an object", where="archived.document")
    if len(canonical(document)) > MAX_DOCUMENT_BYTES:
        raise InvalidInput("the document is too large", where="archived.document")
    digest = digest_of(document)
    if fields.get("digest") != digest:
        raise InvalidInput("the digest does not match the document", where="archived.digest")
    owned_by = owner or parse_id(_text(fields, "owner_id"), what="archived.owner_id")
    log = fields.get("log")
    if not isinstance(log, list) or not 0 < len(log) <= MAX_ENTRIES:
        raise InvalidInput(f"log must be a list of 1 to {MAX_ENTRIES} entries", where="archived.log")
    entries = [_decode_entry(entry, digest, f"archived.log.{n}") for n, entry in enumerate(log)]
    found = ArchivedDocument(kind, digest, min(entry.at for entry in entries), document)
    return ArchiveLine(owned_by, found, entries)


def _decode_entry(entry: Any, digest: str, where: str) -> LogEntry:
    if not isinstance(entry, dict):
        raise InvalidInput("an entry must be an object", where=where)
    at = parse_time(_text(entry, "at"), where=f"{where}.at")
    name, source = (_text(entry, field, default="") for field in ("name", "source"))
    return LogEntry(max(1, at), digest[:SHORT_DIGEST], name, source)


def _text(fields: dict[str, Any], name: str, default: str | None = None) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise InvalidInput(f"{name} is required and must be a string", where=f"archived.{name}")
    return value
