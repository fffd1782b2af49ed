"""Checks of export files, and the plan of a restore from a full export and its increments.

`read_export` reads one file and checks its digest and counts. `check_chain` checks that files belong together: one full
export, and each increment continues the one before it. The index of each file must be covered by its own lines and by
the files before it, so a missing or incomplete increment is detected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, TypeVar
from uuid import UUID

import orjson

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.errors import BreadcrumbsError, InvalidInput
from breadcrumbs.runtime.maintenance.export_manifest import (
    END,
    HEADER,
    INDEX,
    MANIFEST_LINES,
    ExportEnd,
    ExportHeader,
    ExportIndex,
    decode_end,
    decode_header,
    document_digest,
    document_name,
)
from breadcrumbs.runtime.maintenance.record_lines import SESSION

_BREADCRUMB: Final = re.compile(
    rb'\{"(breadcrumb|history_of)":\{"id":"([0-9a-f-]{36})","owner_id":"([0-9a-f-]{36})","version":(\d+),'
)
"""Beginning of a line of a breadcrumb, as an export writes it."""


_T = TypeVar("_T")
_Key = TypeVar("_Key")


class BrokenExport(BreadcrumbsError):
    """An export file is damaged, or files do not form a chain. The message says what to do."""


@dataclass(slots=True)
class ExportFile:
    """An export file that was read and checked."""

    name: str
    header: ExportHeader
    end: ExportEnd
    index: ExportIndex
    breadcrumbs: dict[UUID, set[bytes]] = field(default_factory=dict)
    """Ids of the breadcrumbs in the file, by owner."""
    documents: dict[UUID, set[str]] = field(default_factory=dict)
    """Names of the other entries in the file, by owner."""


# Single files


def read_export(name: str, lines: Iterable[bytes]) -> ExportFile | None:
    """Read and check a file. None: it has no manifest, because an earlier version or an export of a part wrote it.

    Raise `BrokenExport` if it is damaged.
    """
    reader = _Reader(name)
    for line in lines:
        if not reader.add(line):
            return None
    return reader.result()


class _Reader:
    """Reads the lines of a file."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._header: ExportHeader | None = None
        self._end: ExportEnd | None = None
        self._index = ExportIndex()
        self._digest = sha256()
        self._lines = 0
        self._versions: dict[tuple[UUID, bytes], int] = {}
        self._documents: dict[tuple[UUID, str], str] = {}

    def add(self, line: bytes) -> bool:
        """Add a line. Return False if the file has no manifest."""
        if self._header is None:
            if not line.startswith(HEADER):
                return False
            self._header = self._decode(decode_header, line)
        elif self._end is not None:
            raise self._broken("it has lines after its end")
        elif line.startswith(END):
            self._end = self._decode(decode_end, line)
            return True
        elif line.startswith(INDEX):
            self._decode(self._index.add, line)
        else:
            self._decode(self._add_data, line)
        self._digest.update(line)
        self._lines += 1
        return True

    def _add_data(self, line: bytes) -> None:
        match = _BREADCRUMB.match(line)
        if match is None:
            owner, name = document_name(line)
            self._documents[owner, name] = document_digest(line.rstrip(b"\n"))
            return
        kind, id, raw_owner, version = match.groups()
        key = UUID(raw_owner.decode()), UUID(id.decode()).bytes
        if kind == b"breadcrumb":
            self._versions[key] = int(version)
        elif self._versions.get(key) != int(version):
            raise InvalidInput("a history is without its breadcrumb", where="line")

    def result(self) -> ExportFile | None:
        if self._header is None:
            return None  # an empty file
        end = self._end
        if end is None:
            raise self._broken("it ends too early, so the export or a copy of the file was interrupted")
        found = ExportFile(self._name, self._header, end, self._index)
        for owner, id in self._versions:
            found.breadcrumbs.setdefault(owner, set()).add(id)
        for owner, document in self._documents:
            found.documents.setdefault(owner, set()).add(document)
        self._check_digest(end)
        self._check_index()
        return found

    def _check_digest(self, end: ExportEnd) -> None:
        if self._header is None or end.id != self._header.id:
            raise self._broken("its first and its last line belong to different exports")
        if self._digest.hexdigest() != end.sha256:
            raise self._broken("its content does not match its digest")
        counts = (self._lines, len(self._versions), len(self._documents), self._index.total)
        if counts != (end.lines, end.breadcrumbs, end.documents, end.total):
            raise self._broken("its numbers of entries do not match its last line")

    def _check_index(self) -> None:
        """Check that the index lists the lines of the file."""
        for (owner, id), version in self._versions.items():
            entry = self._index.breadcrumbs.get(owner, {}).get(id)
            if entry is None or entry.version != version:
                raise self._broken(f"its index does not match breadcrumb {UUID(bytes=id)}")
        for (owner, name), digest in self._documents.items():
            if self._index.documents.get(owner, {}).get(name) != digest:
                raise self._broken(f"its index does not match {name}")

    def _decode(self, decode: Callable[[bytes], _T], line: bytes) -> _T:
        try:
            return decode(line)
        except InvalidInput as error:
            raise self._broken(f"line {self._lines + 1}: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError, orjson.JSONDecodeError):
            raise self._broken(f"line {self._lines + 1} cannot be read") from None

    def _broken(self, reason: str) -> BrokenExport:
        return BrokenExport(f"{self._name} is damaged: {reason}. Use another copy of the file")


# Chains


@dataclass(frozen=True, slots=True)
class Chain:
    """A full export and its increments, in order. Each breadcrumb is restored from one of the files."""

    files: Sequence[ExportFile]
    breadcrumbs: Mapping[UUID, Mapping[bytes, int]]
    """Number of the file that holds a breadcrumb, by owner and id."""
    documents: Mapping[UUID, Mapping[str, int]]

    @property
    def total(self) -> int:
        """Number of breadcrumbs after a restore."""
        return sum(map(len, self.breadcrumbs.values()))

    def restored_lines(self, number: int, lines: Iterable[bytes], *, states: bool) -> Iterator[bytes]:
        """Yield the lines of a file that a restore uses, and empty lines for the others.

        `states`: yield the states of sessions. Otherwise yield all other lines. A state is restored after the
        breadcrumbs of its session, which can be in a later file.
        """
        for line in lines:
            wanted = line.startswith(SESSION) == states and not line.startswith(MANIFEST_LINES)
            yield line if wanted and self._holder(line) == number else b""

    def _holder(self, line: bytes) -> int | None:
        """Return the number of the file that holds the entry of a line. None: it was deleted."""
        if match := _BREADCRUMB.match(line):
            _, id, owner, _ = match.groups()
            return self.breadcrumbs.get(UUID(owner.decode()), {}).get(UUID(id.decode()).bytes)
        owned_by, name = document_name(line)
        return self.documents.get(owned_by, {}).get(name)


def check_chain(files: Sequence[ExportFile]) -> Chain:
    """Return the chain of some files, in any order. Raise `BrokenExport` if they are not complete."""
    ordered = sorted(files, key=lambda file: file.header.began)
    first = ordered[0]
    if first.header.kind != "full":
        raise BrokenExport(
            f"{first.name} is an increment. Add the full export that its chain begins with, and all increments between"
        )
    breadcrumbs: dict[UUID, dict[bytes, int]] = {}
    documents: dict[UUID, dict[str, int]] = {}
    for number, file in enumerate(ordered):
        if number:
            _check_link(ordered[number - 1], file)
        breadcrumbs = _holders(file, number, file.index.breadcrumbs, file.breadcrumbs, breadcrumbs)
        documents = _holders(file, number, file.index.documents, file.documents, documents)
        if number:
            _check_unchanged(ordered[number - 1], file)
    return Chain(ordered, breadcrumbs, documents)


def _check_link(before: ExportFile, file: ExportFile) -> None:
    header, previous = file.header, file.header.previous
    if header.id == before.header.id:
        raise BrokenExport(f"{before.name} and {file.name} are the same export. Remove one of them")
    if header.kind == "full":
        raise BrokenExport(
            f"{before.name} and {file.name} belong to different chains, because {file.name} is a full export. "
            "Use one full export and its increments"
        )
    if (header.store, header.owner) != (before.header.store, before.header.owner):
        raise BrokenExport(f"{before.name} and {file.name} are exports of different stores or owners")
    if previous is not None and previous.id != before.header.id:
        raise BrokenExport(
            f"an export is missing between {before.name} and {file.name}. Add the export with id {previous.id}"
        )
    if previous is not None and previous.sha256 != before.end.sha256:
        raise BrokenExport(
            f"{before.name} is not the file that {file.name} continues. Use another copy of it"
        )
    if header.since is not None and header.since > before.header.began:
        raise BrokenExport(
            f"changes are missing between {before.name} and {file.name}: the first ends at "
            f"{times.to_text(before.header.began)}, the second begins at {times.to_text(header.since)}. Add the "
            "exports between them"
        )


def _holders(
    file: ExportFile,
    number: int,
    index: Mapping[UUID, Mapping[_Key, object]],
    contained: Mapping[UUID, Set[_Key]],
    before: Mapping[UUID, Mapping[_Key, int]],
) -> dict[UUID, dict[_Key, int]]:
    """Return the number of the file that holds each entry of an index."""
    holders: dict[UUID, dict[_Key, int]] = {}
    missing = 0
    for owner, entries in index.items():
        own, earlier = contained.get(owner, frozenset()), before.get(owner, {})
        found = {key: number if key in own else earlier.get(key, -1) for key in entries}
        missing += sum(holder < 0 for holder in found.values())
        holders[owner] = found
    if missing:
        raise _incomplete(file, missing)
    return holders


def _check_unchanged(before: ExportFile, file: ExportFile) -> None:
    """Check that the entries that an increment does not contain are the same in the file before it."""
    changed = 0
    for owner, entries in file.index.breadcrumbs.items():
        own, earlier = file.breadcrumbs.get(owner, set()), before.index.breadcrumbs.get(owner, {})
        changed += sum(not entry.matches(earlier.get(id)) for id, entry in entries.items() if id not in own)
    for owner, names in file.index.documents.items():
        contained, known = file.documents.get(owner, set()), before.index.documents.get(owner, {})
        changed += sum(digest != known.get(name) for name, digest in names.items() if name not in contained)
    if changed:
        raise _incomplete(file, changed)


def _incomplete(file: ExportFile, count: int) -> BrokenExport:
    if file.header.since is not None:
        return BrokenExport(
            f"{file.name} is incomplete: {count:,} entries changed before its --since, or were imported with older "
            "times. Make a new increment with --since PREVIOUS-FILE, which finds every change"
        )
    return BrokenExport(f"{file.name} is incomplete: {count:,} entries of its index are in none of the files")
