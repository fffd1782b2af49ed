"""The commands `crumb export` and `crumb import`. They use the store directly, so history and times are kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Protocol

import typer

from breadcrumbs.cli.options import (
    AnyTagsOption,
    ConfigOption,
    DataOption,
    JsonOption,
    OwnerOption,
    RedisOption,
    SchemaOption,
    SessionOption,
    SinceOption,
    TagsOption,
    read_owner,
    read_since,
)
from breadcrumbs.cli.output import OK, PROBLEM, CommandError, fail, for_people, print_json, say

if TYPE_CHECKING:
    from uuid import UUID

    from breadcrumbs.runtime.breadcrumb.query import Query
    from breadcrumbs.runtime.maintenance.archive_lines import WantedDocuments
    from breadcrumbs.runtime.maintenance.export_import import Imported
    from breadcrumbs.runtime.settings.settings import Settings

_MAX_BAD_LINES = 20  # shown on a terminal
_STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1")

commands = typer.Typer()


# export


@commands.command()
def export(
    file: Annotated[
        str | None, typer.Argument(help="Target file. - or no file writes to standard output.")
    ] = None,
    session: SessionOption = None,
    schema: SchemaOption = None,
    tag: TagsOption = None,
    any_tag: AnyTagsOption = None,
    since: SinceOption = None,
    with_history: Annotated[
        bool, typer.Option("--history/--no-history", help="Include older versions.")
    ] = True,
    owner: OwnerOption = None,
    data: DataOption = None,
    redis: RedisOption = None,
    config: ConfigOption = None,
) -> int:
    """Export breadcrumbs to a JSON Lines file. Ids, times, versions and history are kept.

    \b
    crumb export backup.jsonl
    crumb export --session demo --no-history | jq .breadcrumb.title

    Reads the store directly, whether crumb up is running or not.
    """
    from breadcrumbs.composition.storage import server_address
    from breadcrumbs.runtime.breadcrumb.breadcrumb import parse_time
    from breadcrumbs.runtime.breadcrumb.query import MAX_LIMIT, Query
    from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(config=config, data=data, redis=redis)
    query = Query(
        schema_name=schema,
        session_id=session,
        all_tags=tuple(tag or ()),
        any_tags=tuple(any_tag or ()),
        updated_since=None if since is None else parse_time(read_since(since).isoformat(), where="--since"),
        # Oldest first, so that an import writes its events in the original order.
        sort="created_at",
        limit=MAX_LIMIT // 10,
    )
    owned_by = read_owner(owner)
    with server_address(settings, create=False) as server:
        job = _Export(settings, server, query, owned_by, with_history)
        if file is None or file in _STANDARD_OUTPUT:
            count = job.write_to(sys.stdout.buffer)
        else:
            count = _export_to_file(job, Path(file))
    if sys.stderr.isatty() or file not in (None, *_STANDARD_OUTPUT):
        say(f"{count:,} breadcrumbs exported")
    return OK


@dataclass(frozen=True, slots=True)
class _Export:
    """An export: the store to read, and the breadcrumbs to select."""

    settings: Settings
    server: str
    query: Query
    owner: UUID | None
    history: bool

    def write_to(self, file: IO[bytes]) -> int:
        """Write the lines and return the number of breadcrumbs."""
        from breadcrumbs.composition.event_loop import run_async

        return run_async(self._write(file))

    async def _write(self, file: IO[bytes]) -> int:
        from breadcrumbs.composition.storage import has_store, open_store, shown_address
        from breadcrumbs.runtime.maintenance.archive_lines import archive_lines
        from breadcrumbs.runtime.maintenance.export_import import export_lines
        from breadcrumbs.runtime.store.scan import owners

        if not await has_store(self.settings, self.server):
            raise CommandError(
                f"nothing to export: {shown_address(self.server)} has no store named "
                f"{self.settings.namespace!r}. Check --redis and --data"
            )
        store = await open_store(self.settings, self.server)
        count = 0
        try:
            with _progress("exporting", None) as bar:
                for owner in [self.owner] if self.owner is not None else await owners(store):
                    wanted = self._wanted_documents()
                    async for line in export_lines(store, owner, self.query, history=self.history):
                        file.write(line + b"\n")
                        if wanted is not None:
                            wanted.add(line)
                        if line.startswith(b'{"breadcrumb":'):  # other lines continue a history
                            count += 1
                            bar.advance(1)
                    if wanted is not None:
                        async for line in archive_lines(store, owner, wanted):
                            file.write(line + b"\n")
            file.flush()
        finally:
            await store.close()
        return count

    def _wanted_documents(self) -> WantedDocuments | None:
        """Return the documents of the archive to export: all, those that the session needs, or None.

        An export without history or with other filters is for other programs. It contains breadcrumbs only.
        """
        from breadcrumbs.runtime.maintenance.archive_lines import WantedDocuments

        query = self.query
        if not self.history or query.schema_name or query.all_tags or query.any_tags or query.updated_since:
            return None
        return WantedDocuments(everything=query.session_id is None)


def _export_to_file(job: _Export, target: Path) -> int:
    write = _replace_file
    if target.exists() and not target.is_file():
        write = _write_device
    else:
        target = Path(os.path.realpath(target))  # replace the target of a symbolic link, not the link
    try:
        return write(job, target)
    except OSError as error:
        raise CommandError(f"cannot write {target}: {error.strerror}") from None


def _write_device(job: _Export, target: Path) -> int:
    """Write to a pipe or a device, without replacing it."""
    with target.open("wb") as file:
        return job.write_to(file)


def _replace_file(job: _Export, target: Path) -> int:
    """Write a temporary file, then rename it. An interrupted export does not damage an existing file."""
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        # Readable by this user only, because an export also contains secret breadcrumbs.
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            count = job.write_to(file)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


# import


@commands.command("import")
def import_(
    file: Annotated[str, typer.Argument(help="File of crumb export, or - for standard input.")],
    owner: Annotated[
        str | None,
        typer.Option("--owner", help="Owner of the imported breadcrumbs (a UUID). [default: as in the file]"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the file, but write nothing.")] = False,
    data: DataOption = None,
    redis: RedisOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Import breadcrumbs from a file of crumb export. Existing breadcrumbs are not changed.

    \b
    crumb import backup.jsonl --dry-run
    crumb import backup.jsonl --redis redis://db:6379/0

    Safe to repeat. Invalid lines are reported and skipped, the other lines are imported, and the exit code is 1.
    """
    from breadcrumbs.composition.event_loop import run_async
    from breadcrumbs.composition.storage import server_address
    from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(config=config, data=data, redis=redis)
    owned_by = read_owner(owner)
    with _open_source(file) as source, server_address(settings, create=True) as server:
        result = run_async(_import(settings, server, source, owned_by, dry_run))
    if for_people(as_json):
        _print_import(result, dry_run)
    else:
        print_json(
            {
                "lines": result.lines,
                "imported": 0 if dry_run else result.written,
                **({"would_import": result.written} if dry_run else {}),
                "already_there": result.already_there,
                "expired": result.expired,
                "archived": result.archived,
                "bad_lines": [{"line": bad.number, "error": bad.message} for bad in result.bad_lines],
            }
        )
    return PROBLEM if result.bad_lines else OK


def _print_import(result: Imported, dry_run: bool) -> None:
    say(f"{result.written:,} {'would be imported' if dry_run else 'imported'}")
    if result.already_there:
        say(f"{result.already_there:,} already exist and were not changed")
    if result.expired:
        say(f"{result.expired:,} have expired and were skipped")
    if result.archived:
        say(f"{result.archived:,} documents {'would be added' if dry_run else 'added'} to the archive")
    for bad in result.bad_lines[:_MAX_BAD_LINES]:
        fail(f"line {bad.number}: {bad.message}")
    if len(result.bad_lines) > _MAX_BAD_LINES:
        fail(f"… and {len(result.bad_lines) - _MAX_BAD_LINES:,} more invalid lines")


class _LineReader:
    """The lines of a file. Counts the bytes read, for the progress bar."""

    def __init__(self, file: IO[bytes], size: int | None) -> None:
        self._file = file
        self.size = size
        self.bytes_read = 0

    def lines(self) -> Iterator[bytes]:
        for line in self._file:
            self.bytes_read += len(line)
            yield line


@contextmanager
def _open_source(name: str) -> Iterator[_LineReader]:
    if name == "-":
        yield _LineReader(sys.stdin.buffer, None)
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115 - closed below, this `try` only covers opening
    except OSError as error:
        raise CommandError(f"cannot read {name}: {error.strerror}") from None
    with file:
        yield _LineReader(file, os.fstat(file.fileno()).st_size)


async def _import(
    settings: Settings, server: str, source: _LineReader, owner: UUID | None, dry_run: bool
) -> Imported:
    from breadcrumbs.composition.storage import known_store, open_store
    from breadcrumbs.runtime.maintenance.export_import import Imported, import_lines

    store = await open_store(settings, server)
    if store.identity is not None:
        # An import into an emptied server is a decision for the new store: the next start needs no --new-store.
        known_store(settings).remember(store.identity)
    try:
        with _progress("importing", source.size) as bar:
            shown, result = 0, Imported()
            async for so_far in import_lines(store, source.lines(), owner=owner, dry_run=dry_run):
                bar.advance(source.bytes_read - shown)
                shown, result = source.bytes_read, so_far
            return result
    finally:
        await store.close()


# Progress


class _ProgressBar(Protocol):
    def advance(self, amount: int) -> None: ...


class _NoBar:
    def advance(self, amount: int) -> None: ...


class _RichBar:
    def __init__(self, progress: object, task: object) -> None:
        self._progress, self._task = progress, task

    def advance(self, amount: int) -> None:
        self._progress.advance(self._task, amount)  # type: ignore[attr-defined]


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[_ProgressBar]:
    if not sys.stderr.isatty():
        yield _NoBar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _RichBar(progress, progress.add_task(what, total=total))
