"""Checks of export files: `crumb export --verify`, and before an import."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from breadcrumbs.cli.output import (
    OK,
    PROBLEM,
    CommandError,
    UsageError,
    fail,
    for_people,
    print_columns,
    print_json,
    say,
    shown_time,
)
from breadcrumbs.cli.progress import ProgressBar, progress

if TYPE_CHECKING:
    from breadcrumbs.runtime.maintenance.backup_chain import Chain, ExportFile


def verify_files(names: Sequence[str], *, as_json: bool) -> int:
    """Check that files are undamaged and form a complete chain. Print the result and return the exit code."""
    from breadcrumbs.runtime.maintenance.backup_chain import BrokenExport, check_chain

    if not names:
        raise UsageError("name the files to check: crumb export --verify full.jsonl monday.jsonl")
    try:
        chain = check_chain([read_manifest(name) for name in names])
    except BrokenExport as error:
        if for_people(as_json):
            fail(error)
        else:
            print_json({"ok": False, "error": str(error)})
        return PROBLEM
    if for_people(as_json):
        _print_chain(chain)
    else:
        print_json({"ok": True, "breadcrumbs": chain.total, "files": [_shown(file) for file in chain.files]})
    return OK


def read_manifest(name: str) -> ExportFile:
    """Read and check an export file. Raise `CommandError` if it has no manifest."""
    from breadcrumbs.runtime.maintenance.backup_chain import read_export

    with open_file(name) as file, progress(f"checking {name}", _size(name)) as bar:
        found = read_export(name, lines_of(file, bar))
    if found is None:
        raise CommandError(
            f"{name} has no manifest: an earlier version wrote it, or it is an export of a part. Only an export of "
            "everything (crumb export FILE) can be checked and continued"
        )
    return found


def open_file(name: str) -> IO[bytes]:
    """Open a file, or raise `CommandError`."""
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise CommandError(f"cannot read {name}: {error.strerror}") from None


def lines_of(file: IO[bytes], bar: ProgressBar) -> Iterator[bytes]:
    """Yield the lines of a file, and advance the bar by their bytes."""
    for line in file:
        bar.advance(len(line))
        yield line


def _size(name: str) -> int:
    return Path(name).stat().st_size


def _shown(file: ExportFile) -> dict[str, Any]:
    from breadcrumbs.runtime.breadcrumb import times

    header, end = file.header, file.end
    return {
        "file": file.name,
        "id": str(header.id),
        "kind": header.kind,
        "began_at": times.to_text(header.began),
        "version": header.version,
        "breadcrumbs": end.breadcrumbs,
        "documents": end.documents,
        "total": end.total,
        "sha256": end.sha256,
    }


def _print_chain(chain: Chain) -> None:
    files = [_shown(file) for file in chain.files]
    rows = [
        (
            shown_time(one["began_at"]),
            one["kind"],
            f"{one['breadcrumbs']:,}",
            f"{one['total']:,}",
            one["file"],
        )
        for one in files
    ]
    print_columns(rows, ("", "", "right", "right"), ("began", "kind", "in file", "total", "file"))
    say(f"the files are undamaged and complete: a restore has {chain.total:,} breadcrumbs")
