"""Archive of an owner: the documents that past turns were made with, by the digest of their content.

A context or an answer names such a document by its digest, so a past prompt can be derived again after the document was
edited or deleted. There is one kind of document for each `Kind`. A log per kind records when a document came into use.

The archive is bounded per owner and kind. Above a limit, the oldest entries of the log are dropped, and documents
without an entry are deleted. The newest entry of each name stays up to twice the limit, so the documents in force are
not deleted. The archive does not count against the quota of an owner.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal, get_args
from uuid import UUID

import orjson
import structlog

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.breadcrumb.json_input import canonical
from breadcrumbs.runtime.store.store import Store

Kind = Literal["config", "agent", "hints", "setup"]
"""Kinds of documents: context config, agent definition, schema hints, and the setup of an agent with its tools."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

MAX_DOCUMENT_BYTES: Final = 1 << 20
"""Maximum size of a document. A larger one has a digest, but it is not kept."""
MAX_ENTRIES: Final = 1_000
"""Maximum number of entries in the log of a kind."""
MAX_BYTES: Final = 16 << 20
"""Maximum size of all documents of a kind."""
SHORT_DIGEST: Final = 16
"""Number of hexadecimal digits by which contexts name a document."""

_LANE: Final = 0
_MAX_NAME: Final = 200
_MAX_SOURCE: Final = 500
_REMEMBERED: Final = 10_000
_REMEMBERED_SECONDS: Final = 300
"""Time after which a document is written again, in case it was deleted in the meantime."""

_KEEP = Script("archive")
_log = structlog.get_logger("breadcrumbs.archive")


@dataclass(frozen=True, slots=True)
class ArchivedDocument:
    """A document of the archive."""

    kind: Kind
    digest: str
    """SHA-256 of the canonical JSON, 64 hexadecimal digits."""
    kept_at: int
    """Time in microseconds when it was first kept."""
    document: Any


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Record of a document that came into use."""

    at: int
    """Time in microseconds."""
    digest: str
    """The first 16 hexadecimal digits."""
    name: str
    """Name under which the document was in force, such as a consumer. Empty: it has none."""
    source: str
    """Origin of the document, such as the path of a file or the id and version of a breadcrumb."""


def digest_of(document: Any) -> str:
    """Return the digest of a document: SHA-256 of its canonical JSON, in hexadecimal."""
    return sha256(canonical(document)).hexdigest()


class Archive:
    """Reads and writes the archive of each owner.

    A process remembers the documents that it has written, so a turn normally needs no round trip.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._remembered: dict[tuple[UUID, Kind, str], tuple[str, str, float]] = {}

    def is_kept(
        self, owner: UUID, kind: Kind, digest: str | None, *, name: str = "", source: str = ""
    ) -> bool:
        """Return whether this process has kept the document recently under this name and from this source.

        `digest` can be short. It is None if name and source determine the document. Callers skip `keep` without
        encoding the document.
        """
        short = None if digest is None else digest[:SHORT_DIGEST]
        found = self._remembered.get((owner, kind, name or short or ""))
        return (
            found is not None
            and (short is None or found[0] == short)
            and found[1] == source
            and found[2] > time.monotonic()
        )

    async def keep(self, owner: UUID, kind: Kind, document: Any, *, name: str = "", source: str = "") -> str:
        """Keep a document and return its digest.

        `name` says that the document is now in force under this name. The log then gets an entry if another document
        was in force before. Without a name, only the first use is recorded.
        """
        raw = canonical(document)
        digest = sha256(raw).hexdigest()
        if self.is_kept(owner, kind, digest, name=name, source=source):
            return digest
        if len(raw) > MAX_DOCUMENT_BYTES:
            _log.warning("document too large for the archive", kind=kind, name=name, bytes=len(raw))
        else:
            await self._write(owner, LogEntry(0, digest[:SHORT_DIGEST], name, source), kind, raw)
        if len(self._remembered) >= _REMEMBERED:
            self._remembered.clear()
        short = digest[:SHORT_DIGEST]
        until = time.monotonic() + _REMEMBERED_SECONDS
        self._remembered[owner, kind, name or short] = (short, source, until)
        return digest

    async def get(self, owner: UUID, digest: str, kind: Kind | None = None) -> ArchivedDocument | None:
        """Return a document by its digest, or None.

        The digest has 16 to 64 hexadecimal digits. Without a kind, all kinds are searched.
        """
        kinds = KINDS if kind is None else (kind,)
        fields = [_field(one, digest) for one in kinds]
        values = await self._call(b"HMGET", self._store.keys.archive(owner), *fields)
        for one, value in zip(kinds, values, strict=True):
            if value is not None:
                found = _decode(one, value)
                if found.digest.startswith(digest):
                    return found
        return None

    async def log(self, owner: UUID, kind: Kind) -> list[LogEntry]:
        """Return the log of a kind, the newest entry first."""
        raw = await self._call(b"LRANGE", self._store.keys.archive_log(owner, kind), 0, -1)
        return [_decode_entry(entry) for entry in raw]

    async def documents(self, owner: UUID, kind: Kind) -> AsyncIterator[ArchivedDocument]:
        """Yield the documents of a kind, one at a time, the most recently used first."""
        for digest in dict.fromkeys(entry.digest for entry in await self.log(owner, kind)):
            if (found := await self.get(owner, digest, kind)) is not None:
                yield found

    async def restore(self, owner: UUID, kind: Kind, document: Any, entries: list[LogEntry]) -> bool:
        """Keep an imported document with its entries, and return whether something was written.

        Existing entries stay. The caller checks the digest of the document and its size.
        """
        raw = canonical(document)
        written = False
        for entry in entries:
            written = await self._write(owner, entry, kind, raw) or written
        return written

    async def _write(self, owner: UUID, entry: LogEntry, kind: Kind, raw: bytes) -> bool:
        name, source = _plain(entry.name, _MAX_NAME), _plain(entry.source, _MAX_SOURCE)
        reply = await self._store.connection.run(
            _LANE,
            _KEEP,
            [self._store.keys.archive(owner), self._store.keys.archive_log(owner, kind)],
            [
                _field(kind, entry.digest),
                raw,
                b"%s\0%s" % (name, source),
                name,
                MAX_ENTRIES,
                MAX_BYTES,
                entry.at or b"",
            ],
        )
        return bool(reply)

    async def _call(self, *command: Any) -> Any:
        return await self._store.connection.call(_LANE, *command)


async def delete_archive(store: Store, owner: UUID) -> bool:
    """Delete the archive of an owner. Return whether there was one."""
    keys = [store.keys.archive(owner), *(store.keys.archive_log(owner, kind) for kind in KINDS)]
    return bool(await store.connection.call(_LANE, b"DEL", *keys))


def _field(kind: Kind, digest: str) -> bytes:
    return kind[0].encode() + digest[:SHORT_DIGEST].encode()


def _plain(text: str, limit: int) -> bytes:
    """Return a text without null bytes, which separate the fields of an entry. It is cut to a number of characters."""
    return text.replace("\0", " ")[:limit].encode(errors="replace")


def _decode(kind: Kind, value: bytes) -> ArchivedDocument:
    at, _, raw = value.partition(b" ")
    return ArchivedDocument(kind, sha256(raw).hexdigest(), int(at), orjson.loads(raw))


def _decode_entry(raw: bytes) -> LogEntry:
    head, _, source = raw.partition(b"\0")
    at, digest, name = head.split(b" ", 2)
    return LogEntry(int(at), digest.decode(), name.decode(errors="replace"), source.decode(errors="replace"))
