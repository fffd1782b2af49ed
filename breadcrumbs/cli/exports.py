"""The command `crumb export`. It reads the store directly, so history and times are kept."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from breadcrumbs.cli.export_target import check_target, is_standard_output, write_target
from breadcrumbs.cli.export_verification import read_manifest, verify_files
from breadcrumbs.cli.options import (
    AnyTagsOption,
    ConfigOption,
    DataOption,
    JsonOption,
    OwnerOption,
    RedisOption,
    SchemaOption,
    SessionOption,
    TagsOption,
    read_owner,
    read_since,
)
from breadcrumbs.cli.output import OK, CommandError, UsageError, say
from breadcrumbs.cli.progress import progress

if TYPE_CHECKING:
    from uuid import UUID

    from breadcrumbs.runtime.breadcrumb.query import Query
    from breadcrumbs.runtime.maintenance.archive_lines import WantedDocuments
    from breadcrumbs.runtime.maintenance.backup_chain import ExportFile
    from breadcrumbs.runtime.settings.settings import Settings
    from breadcrumbs.runtime.store.store import Store

commands = typer.Typer()


@commands.command()
def export(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]",
            help="Target file. - or no file writes to standard output. With --verify: files to check.",
        ),
    ] = None,
    session: SessionOption = None,
    schema: SchemaOption = None,
    tag: TagsOption = None,
    any_tag: AnyTagsOption = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="Only changes since an earlier export (its file), a time, or a duration ago (10m, 2h, 7d).",
        ),
    ] = None,
    with_history: Annotated[
        bool, typer.Option("--history/--no-history", help="Include older versions.")
    ] = True,
    owner: OwnerOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check exports instead: undamaged, and a complete chain.")
    ] = False,
    data: DataOption = None,
    redis: RedisOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Export breadcrumbs to a JSON Lines file. Ids, times, versions and history are kept.

    \b
    crumb export full.jsonl
    crumb export monday.jsonl --since full.jsonl
    crumb export --verify full.jsonl monday.jsonl
    crumb export --session demo --no-history | jq .breadcrumb.title

    An export of everything has a manifest, so damage is detected. With --since and the file of an earlier export, it
    contains only what has changed or was deleted since. crumb import restores the full export and its increments
    together.

    Reads the store directly, whether crumb up is running or not.
    """
    if verify:
        return verify_files(files or [], as_json=as_json)
    if len(files or []) > 1:
        raise UsageError("an export writes one file: to check several files, add --verify")
    file = files[0] if files else None
    check_target(file, force=force)
    return _run(
        file,
        _Options(session, schema, tuple(tag or ()), tuple(any_tag or ()), since, with_history, owner),
        _Place(config, data, redis),
        force=force,
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Options that name the store."""

    config: Path | None
    data: Path | None
    redis: str | None


@dataclass(frozen=True, slots=True)
class _Options:
    """Options that select a part of the store."""

    session: str | None
    schema: str | None
    tags: tuple[str, ...]
    any_tags: tuple[str, ...]
    since: str | None
    history: bool
    owner: str | None

    @property
    def is_partial(self) -> bool:
        """Whether the export is a part that is not a backup: without a manifest, for other programs."""
        return bool(self.session or self.schema or self.tags or self.any_tags or not self.history)

    def previous(self) -> ExportFile | None:
        """Return the earlier export that `--since` names, or None if it is a time or a duration."""
        if self.since is None or not os.path.isfile(self.since):  # False for a name that is too long
            return None
        if self.is_partial:
            raise UsageError(
                "an increment contains everything that has changed: remove the filters and --no-history, or use a "
                "time with --since"
            )
        return read_manifest(self.since)

    def since_time(self) -> int | None:
        """Return the time of `--since` in microseconds."""
        from breadcrumbs.runtime.breadcrumb.breadcrumb import parse_time

        if self.since is None:
            return None
        try:
            moment = read_since(self.since)
        except UsageError as error:
            raise UsageError(f"{error}, or the file of an earlier export") from None
        if moment > datetime.now(UTC):
            raise UsageError(f"--since {self.since!r} is in the future")
        return parse_time(moment.isoformat(), where="--since")


def _run(file: str | None, options: _Options, place: _Place, *, force: bool) -> int:
    from breadcrumbs.composition.event_loop import run_async
    from breadcrumbs.composition.storage import server_address
    from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(config=place.config, data=place.data, redis=place.redis)
    job = _job(settings, options)
    with server_address(settings, create=False) as server:
        count = write_target(file, lambda target: run_async(job.write(server, target)), force=force)
    _report(file, job.summary(count))
    return OK


def _report(file: str | None, message: str) -> None:
    """Print a message, unless the export goes to a pipe."""
    if sys.stderr.isatty() or not is_standard_output(file):
        say(message)


def _job(settings: Settings, options: _Options) -> _Export:
    owner, previous = read_owner(options.owner), options.previous()
    since = None if previous is not None else options.since_time()
    if options.is_partial:
        return _PartialExport(settings, owner, _query(options, since), options.history)
    return _Backup(settings, owner, since, previous)


def _query(options: _Options, since: int | None) -> Query:
    from breadcrumbs.runtime.breadcrumb.query import MAX_LIMIT, Query

    return Query(
        schema_name=options.schema,
        session_id=options.session,
        all_tags=options.tags,
        any_tags=options.any_tags,
        updated_since=since,
        # Oldest first, so that an import writes its events in the original order.
        sort="created_at",
        limit=MAX_LIMIT // 10,
    )


@dataclass(frozen=True, slots=True)
class _Export(ABC):
    """An export: the store to read, and the owner to select."""

    settings: Settings
    owner: UUID | None

    async def write(self, server: str, file: IO[bytes]) -> int:
        """Write the lines and return the number of breadcrumbs."""
        from breadcrumbs.composition.storage import has_store, open_store, shown_address

        if not await has_store(self.settings, server):
            raise CommandError(
                f"nothing to export: {shown_address(server)} has no store named "
                f"{self.settings.namespace!r}. Check --redis and --data"
            )
        store = await open_store(self.settings, server)
        count = 0
        try:
            with progress("exporting", None) as bar:
                async for line in self.lines(store):
                    file.write(line + b"\n")
                    if line.startswith(b'{"breadcrumb":'):  # other lines continue a history
                        count += 1
                        bar.advance(1)
            file.flush()
        finally:
            await store.close()
        return count

    @abstractmethod
    def lines(self, store: Store) -> AsyncIterator[bytes]:
        """Return the lines of the file."""

    def summary(self, count: int) -> str:
        """Return a message about a finished export."""
        return f"{count:,} breadcrumbs exported"


@dataclass(frozen=True, slots=True)
class _PartialExport(_Export):
    """An export of breadcrumbs that filters select, without a manifest."""

    query: Query
    history: bool

    async def lines(self, store: Store) -> AsyncIterator[bytes]:
        from breadcrumbs.runtime.maintenance.archive_lines import archive_lines
        from breadcrumbs.runtime.maintenance.export_import import export_lines
        from breadcrumbs.runtime.store.scan import owners

        for owner in [self.owner] if self.owner is not None else await owners(store):
            wanted = self._wanted_documents()
            async for line in export_lines(store, owner, self.query, history=self.history):
                if wanted is not None:
                    wanted.add(line)
                yield line
            if wanted is not None:
                async for line in archive_lines(store, owner, wanted):
                    yield line

    def _wanted_documents(self) -> WantedDocuments | None:
        """Return the documents of the archive that a session with its history needs.

        An export without history or with other filters is for other programs. It contains breadcrumbs only.
        """
        from breadcrumbs.runtime.maintenance.archive_lines import WantedDocuments

        query = self.query
        if not self.history or query.schema_name or query.all_tags or query.any_tags or query.updated_since:
            return None
        return WantedDocuments(everything=False)


@dataclass(frozen=True, slots=True)
class _Backup(_Export):
    """An export of everything, or an increment, with a manifest."""

    since: int | None
    previous: ExportFile | None

    def lines(self, store: Store) -> AsyncIterator[bytes]:
        from breadcrumbs.runtime.maintenance.backup_export import BackupRange, backup_lines

        return backup_lines(store, BackupRange(self.owner, self.since, self.previous))

    def summary(self, count: int) -> str:
        if self.previous is not None:
            return f"{count:,} changed breadcrumbs exported, since {self.previous.name}"
        if self.since is not None:
            return f"{count:,} changed breadcrumbs exported"
        return f"{count:,} breadcrumbs exported"
