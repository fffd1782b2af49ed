"""The file of an audit: the breadcrumbs to check, and the reports of those that were checked.

An interrupted audit continues from it, also after a restart of the server. The file consists of a header (one line of
JSON), the names of all breadcrumbs, and one line of JSON per checked group. It only grows. A line that a crash has cut
off is ignored: its group is checked again.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Final, Self
from uuid import UUID

import orjson

from breadcrumbs.context_builder.audit import AuditReport, Violation
from breadcrumbs.runtime.errors import BreadcrumbsError
from breadcrumbs.runtime.store.breadcrumb_scan import NAME_BYTES, NamedGroup
from breadcrumbs.runtime.version import VERSION

_FORMAT: Final = "crumb-audit-1"
_AGAIN: Final = "start the audit again without --resume"


class CheckpointError(BreadcrumbsError):
    """A checkpoint cannot be used. The message states the reason and what to do next."""


@dataclass(frozen=True, slots=True)
class AuditScope:
    """The store that an audit checks, and which part of it."""

    store: str
    """Identity of the store. "": it has none."""
    owner: str | None
    """None: all owners."""
    history: bool


class AuditCheckpoint:
    """An audit in a file."""

    def __init__(self, path: Path, file: IO[bytes], header: dict[str, Any]) -> None:
        """Use a file whose header was written or read."""
        self.path = path
        self.scope = AuditScope(**header["scope"])
        self.report = AuditReport()
        """Report about everything that was checked so far."""
        self._file = file
        self._lanes: list[int] = [lane for lane, _ in header["groups"]]
        sizes = [count * NAME_BYTES for _, count in header["groups"]]
        self._starts: list[int] = list(accumulate(sizes, initial=file.tell()))
        self._done: set[int] = set()

    @classmethod
    def create(cls, path: Path, scope: AuditScope, groups: list[NamedGroup]) -> Self:
        """Write a new file. Only its owner can read it."""
        header = {
            "format": _FORMAT,
            "version": VERSION,
            "scope": asdict(scope),
            "groups": [(group.lane, group.count) for group in groups],
        }
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b")
        file.write(orjson.dumps(header) + b"\n")
        checkpoint = cls(path, file, header)
        for group in groups:
            file.write(group.names)
        file.flush()
        return checkpoint

    @classmethod
    def open(cls, path: Path, store: str) -> Self:
        """Open the file of an interrupted audit. Raise `CheckpointError` if it cannot be continued on this store."""
        try:
            file = path.open("r+b")
        except OSError as error:
            raise CheckpointError(f"cannot open the checkpoint {path}: {error.strerror}") from error
        header = _read_header(path, file)
        if header["version"] != VERSION:
            raise CheckpointError(
                f"version {header['version']} wrote the checkpoint {path}, but this is version {VERSION}: {_AGAIN}"
            )
        checkpoint = cls(path, file, header)
        if checkpoint.scope.store != store:
            raise CheckpointError(
                f"the checkpoint {path} belongs to another store: check --data and --redis, or {_AGAIN}"
            )
        checkpoint._read_reports()
        return checkpoint

    @property
    def total(self) -> int:
        """Number of breadcrumbs to check."""
        return (self._starts[-1] - self._starts[0]) // NAME_BYTES

    @property
    def checked(self) -> int:
        """Number of breadcrumbs in the groups that were checked."""
        return sum(self.size(number) for number in self._done)

    def pending(self) -> list[int]:
        """Return the numbers of the groups that were not checked."""
        return [number for number in range(len(self._lanes)) if number not in self._done]

    def size(self, number: int) -> int:
        """Return the number of breadcrumbs in a group."""
        return (self._starts[number + 1] - self._starts[number]) // NAME_BYTES

    def group(self, number: int) -> NamedGroup:
        start, end = self._starts[number : number + 2]
        self._file.seek(start)
        return NamedGroup(self._lanes[number], self._file.read(end - start))

    def finish(self, number: int, report: AuditReport) -> None:
        """Record the report of a group."""
        self._file.seek(0, os.SEEK_END)
        self._file.write(orjson.dumps([number, _encode(report)]) + b"\n")
        self._file.flush()
        self._add(number, report)

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        """Remove the file of a completed audit."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _read_reports(self) -> None:
        self._file.seek(0, os.SEEK_END)
        if self._file.tell() < self._starts[-1]:
            raise CheckpointError(f"the checkpoint {self.path} is incomplete: {_AGAIN}")
        self._file.seek(self._starts[-1])
        complete = self._starts[-1]
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            complete += len(line)
            number, report = orjson.loads(line)
            self._add(number, _decode(report))
        self._file.truncate(complete)

    def _add(self, number: int, report: AuditReport) -> None:
        self._done.add(number)
        self.report.add(report)


def _read_header(path: Path, file: IO[bytes]) -> dict[str, Any]:
    try:
        header = orjson.loads(file.readline())
        if header["format"] == _FORMAT:
            return dict(header)
    except (orjson.JSONDecodeError, TypeError, KeyError):
        pass
    raise CheckpointError(f"{path} is not a checkpoint of an audit: {_AGAIN}")


def _encode(report: AuditReport) -> dict[str, Any]:
    return asdict(report) | {"owners": list(report.owners)}


def _decode(document: dict[str, Any]) -> AuditReport:
    findings = [
        Violation(
            finding["what"],
            UUID(finding["owner_id"]),
            UUID(finding["breadcrumb_id"]),
            finding["version"],
            None if finding["item_id"] is None else UUID(finding["item_id"]),
        )
        for finding in document["findings"]
    ]
    owners = {UUID(owner) for owner in document["owners"]}
    return AuditReport(**document | {"owners": owners, "findings": findings})
