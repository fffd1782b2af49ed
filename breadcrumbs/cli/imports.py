"""The command `crumb import`. It writes the store directly, so history and times are kept."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from breadcrumbs.cli.export_verification import lines_of, open_file
from breadcrumbs.cli.options import ConfigOption, DataOption, JsonOption, RedisOption, read_owner
from breadcrumbs.cli.output import OK, PROBLEM, CommandError, UsageError, fail, for_people, print_json, say
from breadcrumbs.cli.progress import ProgressBar, progress

if TYPE_CHECKING:
    from uuid import UUID

    from breadcrumbs.runtime.maintenance.backup_chain import Chain
    from breadcrumbs.runtime.maintenance.export_import import Imported
    from breadcrumbs.runtime.settings.settings import Settings
    from breadcrumbs.runtime.store.store import Store

_MAX_BAD_LINES = 20  # shown on a terminal

commands = typer.Typer()


@commands.command("import")
def import_(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…",
            help="File of crumb export, or - for standard input. For a restore from increments: the full export and "
            "all increments, in any order.",
        ),
    ],
    owner: Annotated[
        str | None,
        typer.Option("--owner", help="Owner of the imported breadcrumbs (a UUID). [default: as in the file]"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the files, but write nothing.")] = False,
    no_verify: Annotated[
        bool,
        typer.Option(
            "--no-verify",
            help="Import the readable lines of damaged, edited or incomplete files, the last file first.",
        ),
    ] = False,
    data: DataOption = None,
    redis: RedisOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Import breadcrumbs from files of crumb export. Existing breadcrumbs are not changed.

    \b
    crumb import full.jsonl --dry-run
    crumb import full.jsonl monday.jsonl tuesday.jsonl
    crumb import full.jsonl --redis redis://db:6379/0

    An export of everything is checked first. If a file is damaged or an increment is missing, nothing is written.

    Safe to repeat. Invalid lines are reported and skipped, the other lines are imported, and the exit code is 1.
    """
    from breadcrumbs.composition.event_loop import run_async
    from breadcrumbs.composition.storage import server_address
    from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(config=config, data=data, redis=redis)
    owned_by = read_owner(owner)
    if files.count("-") > 1:
        raise UsageError("standard input can be read only once: use - once")
    with _open_sources(files) as sources:
        steps = _damaged_steps(sources) if no_verify else _checked_steps(sources)
        with server_address(settings, create=True) as server:
            job = _Import(settings, owned_by, dry_run)
            results = run_async(job.run(server, steps))
    total = _Total.of(results, several=len(sources) > 1)
    if for_people(as_json):
        _print_total(total, dry_run)
    else:
        print_json(total.document(dry_run))
    return PROBLEM if total.bad_lines else OK


# Sources


@dataclass(frozen=True, slots=True)
class _Source:
    """A file that can be read several times."""

    name: str
    file: IO[bytes]

    @property
    def size(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def lines(self, bar: ProgressBar) -> Iterator[bytes]:
        self.file.seek(0)
        return lines_of(self.file, bar)


@contextmanager
def _open_sources(names: Sequence[str]) -> Iterator[list[_Source]]:
    with ExitStack() as stack:
        yield [_Source(name, stack.enter_context(_open_source(name))) for name in names]


def _open_source(name: str) -> IO[bytes]:
    """Open a file. Input that cannot be read twice is copied: the check comes before the first write."""
    if name == "-":
        return _copy_of(sys.stdin.buffer)
    file = open_file(name)
    if Path(name).is_file():
        return file
    with file:
        return _copy_of(file)


def _copy_of(file: IO[bytes]) -> IO[bytes]:
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    shutil.copyfileobj(file, copy)
    copy.flush()
    return copy


# Steps


@dataclass(frozen=True, slots=True)
class _Step:
    """A pass over a file. With a chain, only the lines that the chain restores from this file are imported."""

    source: _Source
    chain: Chain | None = None
    number: int = 0
    states: bool = False

    def lines(self, bar: ProgressBar) -> Iterable[bytes]:
        lines = self.source.lines(bar)
        return (
            lines if self.chain is None else self.chain.restored_lines(self.number, lines, states=self.states)
        )


def _damaged_steps(sources: Sequence[_Source]) -> list[_Step]:
    """Return the steps without a check. The last file is first, because existing breadcrumbs are not changed."""
    return [_Step(source) for source in reversed(sources)]


def _checked_steps(sources: Sequence[_Source]) -> list[_Step]:
    """Check the files and return the steps of a restore."""
    from breadcrumbs.runtime.maintenance.backup_chain import check_chain, read_export

    found = {}
    for source in sources:
        with progress(f"checking {source.name}", source.size) as bar:
            export = read_export(source.name, source.lines(bar))
        if export is None:
            if len(sources) == 1:
                return [_Step(source)]
            raise CommandError(
                f"{source.name} has no manifest: an earlier version wrote it, or it is an export of a part. Import it "
                "alone"
            )
        found[export.name] = (source, export)
    chain = check_chain([export for _, export in found.values()])
    return [
        _Step(found[file.name][0], chain, number, states)
        for states in (False, True)
        for number, file in enumerate(chain.files)
    ]


# Import


@dataclass(frozen=True, slots=True)
class _Import:
    """An import into a store."""

    settings: Settings
    owner: UUID | None
    dry_run: bool

    async def run(self, server: str, steps: Sequence[_Step]) -> list[tuple[str, Imported]]:
        from breadcrumbs.composition.storage import known_store, open_store

        store = await open_store(self.settings, server)
        if store.identity is not None and not self.dry_run:
            # An import into an emptied server is a decision for the new store: the next start needs no --new-store.
            known_store(self.settings).remember(store.identity)
        try:
            with progress("importing", sum(step.source.size for step in steps)) as bar:
                return [(step.source.name, await self._run_step(store, step, bar)) for step in steps]
        finally:
            await store.close()

    async def _run_step(self, store: Store, step: _Step, bar: ProgressBar) -> Imported:
        from breadcrumbs.runtime.maintenance.export_import import Imported, import_lines

        result = Imported()
        lines = step.lines(bar)
        async for so_far in import_lines(store, lines, owner=self.owner, dry_run=self.dry_run):
            result = so_far
        return result


@dataclass(slots=True)
class _Total:
    """Counts of all steps."""

    lines: int = 0
    written: int = 0
    already_there: int = 0
    different: int = 0
    expired: int = 0
    archived: int = 0
    records: int = 0
    states: int = 0
    bad_lines: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, results: Sequence[tuple[str, Imported]], *, several: bool) -> _Total:
        total = cls()
        for name, result in results:
            total.lines += result.lines
            total.written += result.written
            total.already_there += result.already_there
            total.different += result.different
            total.expired += result.expired
            total.archived += result.archived
            total.records += result.records
            total.states += result.states
            file = {"file": name} if several else {}
            total.bad_lines += [
                {**file, "line": bad.number, "error": bad.message} for bad in result.bad_lines
            ]
        return total

    def document(self, dry_run: bool) -> dict[str, Any]:
        return {
            "lines": self.lines,
            "imported": 0 if dry_run else self.written,
            **({"would_import": self.written} if dry_run else {}),
            "already_there": self.already_there,
            "different": self.different,
            "expired": self.expired,
            "archived": self.archived,
            "records": self.records,
            "states": self.states,
            "bad_lines": self.bad_lines,
        }


def _print_total(total: _Total, dry_run: bool) -> None:
    say(f"{total.written:,} {'would be imported' if dry_run else 'imported'}")
    if total.already_there:
        say(f"{total.already_there:,} already exist and were not changed")
    if total.different:
        say(f"{total.different:,} of them have another version in the store: restore into an empty store")
    if total.expired:
        say(f"{total.expired:,} have expired and were skipped")
    added = "would be added" if dry_run else "added"
    if total.archived:
        say(f"{total.archived:,} documents {added} to the archive")
    if total.records:
        say(f"{total.records:,} agents, selectors and names of tenants {added}")
    for bad in total.bad_lines[:_MAX_BAD_LINES]:
        where = f"{bad['file']}, line {bad['line']}" if "file" in bad else f"line {bad['line']}"
        fail(f"{where}: {bad['error']}")
    if len(total.bad_lines) > _MAX_BAD_LINES:
        fail(f"… and {len(total.bad_lines) - _MAX_BAD_LINES:,} more invalid lines")
