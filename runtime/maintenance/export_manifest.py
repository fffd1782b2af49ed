"""Manifest of an export: its first line, its index and its last line.

An export of a whole store, or of one owner, begins with a header and ends with an index and an end line:

    {"export": {"format", "id", "kind", "began_at", "version", "store", "lanes", "owner_id"?, "since"?,
                "previous"?: {"id", "sha256"}}}
    {"index": {"owner_id", "breadcrumbs": [[id, version, updated, expires, reads, size, older], …]}}
    {"index": {"owner_id", "documents": [[name, digest], …]}}
    {"export_end": {"id", "lines", "breadcrumbs", "documents", "total", "sha256"}}

The index lists everything that a restore up to this file contains, also the parts that an earlier file of the chain
holds. An entry that is missing from the index was deleted. So a chain needs no records of deletions, and a check finds
every gap. The digest in the end line covers all lines before it. It detects damage, not forgery.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, get_args
from uuid import UUID

import orjson

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import parse_time
from breadcrumbs.runtime.breadcrumb.ids import parse_id
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.store.headers import Header
from breadcrumbs.runtime.store.store import Store

MANIFEST_FORMAT: Final = 1

HEADER: Final = b'{"export":'
INDEX: Final = b'{"index":'
END: Final = b'{"export_end":'
MANIFEST_LINES: Final = (HEADER, INDEX, END)
"""Beginnings of the lines of a manifest. An import skips them."""

ExportKind = Literal["full", "incremental"]

_ENTRIES_PER_LINE: Final = 500


class Fingerprint(NamedTuple):
    """State of a breadcrumb, to find out whether it has changed. Times are in microseconds."""

    version: int
    updated: int
    expires: int
    reads: int
    size: int
    """Bytes of its JSON. 0: unknown, see `ExportHeader.since`."""
    older: int
    """Number of older versions."""

    @classmethod
    def of(cls, header: Header) -> Fingerprint:
        return cls(header.version, header.updated, header.expires, header.reads, header.size, header.older)

    def matches(self, other: Fingerprint | None) -> bool:
        """Return whether two fingerprints stand for the same content, as far as both are known."""
        if other is None:
            return False
        if self.size and other.size:
            return self == other
        return self._replace(size=0) == other._replace(size=0)


class PreviousExport(NamedTuple):
    """Reference to the export that an increment continues."""

    id: UUID
    sha256: str


@dataclass(frozen=True, slots=True)
class ExportHeader:
    """First line of an export."""

    id: UUID
    kind: ExportKind
    began: int
    """Time of the store when the export began, in microseconds. Later breadcrumbs are not in the file."""
    version: str
    """Version of Breadcrumbs that wrote the file."""
    store: str
    """Identifies the store, without revealing its secret."""
    lanes: int
    owner: UUID | None = None
    """The only owner in the file. None: all owners."""
    since: int | None = None
    """Time of an increment that was made without the previous file. It contains what was written since that time."""
    previous: PreviousExport | None = None

    def encode(self) -> bytes:
        fields: dict[str, Any] = {
            "format": MANIFEST_FORMAT,
            "id": str(self.id),
            "kind": self.kind,
            "began_at": times.to_text(self.began),
            "version": self.version,
            "store": self.store,
            "lanes": self.lanes,
        }
        if self.owner is not None:
            fields["owner_id"] = str(self.owner)
        if self.since is not None:
            fields["since"] = times.to_text(self.since)
        if self.previous is not None:
            fields["previous"] = {"id": str(self.previous.id), "sha256": self.previous.sha256}
        return orjson.dumps({"export": fields})


@dataclass(slots=True)
class ExportIndex:
    """Everything that a restore contains, by owner."""

    breadcrumbs: dict[UUID, dict[bytes, Fingerprint]] = field(default_factory=dict)
    """Fingerprints by the 16 bytes of an id."""
    documents: dict[UUID, dict[str, str]] = field(default_factory=dict)
    """Digests of the other lines by name, see `document_name`."""

    @property
    def total(self) -> int:
        """Number of breadcrumbs."""
        return sum(map(len, self.breadcrumbs.values()))

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the index."""
        for owner, breadcrumbs in self.breadcrumbs.items():
            entries: list[Any] = [[_short(id), *print] for id, print in breadcrumbs.items()]
            yield from _index_lines(owner, "breadcrumbs", entries)
        for owner, documents in self.documents.items():
            yield from _index_lines(owner, "documents", [[*pair] for pair in documents.items()])

    def add(self, line: bytes) -> None:
        """Add the entries of a line, or raise `InvalidInput`."""
        fields = _fields(line, "index")
        owner = parse_id(_text(fields, "owner_id"), what="index.owner_id")
        try:
            breadcrumbs = {_long(id): Fingerprint(*rest) for id, *rest in fields.get("breadcrumbs", ())}
            documents = {str(name): str(digest) for name, digest in fields.get("documents", ())}
        except (TypeError, ValueError):
            raise InvalidInput("the index cannot be read", where="index") from None
        if breadcrumbs:
            self.breadcrumbs.setdefault(owner, {}).update(breadcrumbs)
        if documents:
            self.documents.setdefault(owner, {}).update(documents)


@dataclass(frozen=True, slots=True)
class ExportEnd:
    """Last line of an export."""

    id: UUID
    lines: int
    """Number of lines before this one."""
    breadcrumbs: int
    """Number of breadcrumbs in the file."""
    documents: int
    """Number of other entries in the file: archive, agents, selectors, names of tenants, sessions."""
    total: int
    """Number of breadcrumbs after a restore up to this file."""
    sha256: str
    """Digest of all bytes before this line."""

    def encode(self) -> bytes:
        fields = {
            "id": str(self.id),
            "lines": self.lines,
            "breadcrumbs": self.breadcrumbs,
            "documents": self.documents,
            "total": self.total,
            "sha256": self.sha256,
        }
        return orjson.dumps({"export_end": fields})


def decode_header(line: bytes) -> ExportHeader:
    """Decode the first line of an export, or raise `InvalidInput`."""
    fields = _fields(line, "export")
    if fields.get("format") != MANIFEST_FORMAT:
        raise InvalidInput(
            f"its format is {fields.get('format')!r}, but this version of Breadcrumbs reads only {MANIFEST_FORMAT}: "
            f"import it with version {fields.get('version')!r} or a later one",
            where="export.format",
        )
    kind = next((one for one in get_args(ExportKind) if one == fields.get("kind")), None)
    if kind is None:
        raise InvalidInput("kind must be full or incremental", where="export.kind")
    owner, since, previous = (fields.get(name) for name in ("owner_id", "since", "previous"))
    return ExportHeader(
        parse_id(_text(fields, "id"), what="export.id"),
        kind,
        parse_time(_text(fields, "began_at"), where="export.began_at"),
        _text(fields, "version"),
        _text(fields, "store"),
        _count(fields, "lanes"),
        None if owner is None else parse_id(str(owner), what="export.owner_id"),
        None if since is None else parse_time(str(since), where="export.since"),
        None if previous is None else _decode_previous(previous),
    )


def decode_end(line: bytes) -> ExportEnd:
    """Decode the last line of an export, or raise `InvalidInput`."""
    fields = _fields(line, "export_end")
    id = parse_id(_text(fields, "id"), what="export_end.id")
    return ExportEnd(
        id,
        _count(fields, "lines"),
        _count(fields, "breadcrumbs"),
        _count(fields, "documents"),
        _count(fields, "total"),
        _text(fields, "sha256"),
    )


def document_digest(line: bytes) -> str:
    """Return a short digest of a line, to find out whether it has changed."""
    return sha256(line).hexdigest()[:32]


def document_name(line: bytes) -> tuple[UUID, str]:
    """Return the owner and the name of a line that is not about a breadcrumb, or raise `InvalidInput`."""
    document = orjson.loads(line)
    ((kind, fields),) = document.items()
    owner = UUID(fields["owner_id"])
    if kind == "archived":
        return owner, f"archived/{fields['kind']}/{fields['digest']}"
    if kind == "record":
        return owner, f"record/{fields['kind']}/{fields['value']['id']}"
    if kind == "session":
        return owner, f"session/{fields['session_id']}"
    raise InvalidInput(f"unknown line {kind!r}", where="line")


def store_identity(store: Store) -> str:
    """Return a text that identifies a store. It is derived from its secret, but does not reveal it."""
    return sha256(b"breadcrumbs export\0" + store.secret).hexdigest()[:32]


def _decode_previous(fields: Any) -> PreviousExport:
    if not isinstance(fields, Mapping):
        raise InvalidInput("previous must be an object", where="export.previous")
    return PreviousExport(parse_id(_text(fields, "id"), what="export.previous.id"), _text(fields, "sha256"))


def _index_lines(owner: UUID, name: str, entries: Sequence[Any]) -> Iterator[bytes]:
    for start in range(0, len(entries), _ENTRIES_PER_LINE):
        part = entries[start : start + _ENTRIES_PER_LINE]
        yield orjson.dumps({"index": {"owner_id": str(owner), name: part}})


def _fields(line: bytes, name: str) -> Mapping[str, Any]:
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise InvalidInput(f"the line {name!r} is not JSON", where=name) from None
    fields = document.get(name) if isinstance(document, dict) else None
    if not isinstance(fields, dict):
        raise InvalidInput(f"the line {name!r} must be an object", where=name)
    return fields


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise InvalidInput(f"{name} is required and must be a string", where=name)
    return value


def _count(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidInput(f"{name} is required and must be a number", where=name)
    return value


def _short(id: bytes) -> str:
    return urlsafe_b64encode(id)[:22].decode()


def _long(text: str) -> bytes:
    raw = urlsafe_b64decode(text + "==")
    if len(raw) != 16:
        raise ValueError("an id has 16 bytes")
    return raw
