"""export and import: straight on the store, so that everything survives, history and times included."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol
from uuid import UUID

from breadcrumbs.cli.attach import has_store, open_store, server_address, shown_address
from breadcrumbs.cli.output import OK, PROBLEM, CommandError, UsageError, fail, for_people, print_json, say
from breadcrumbs.runtime.breadcrumb.query import MAX_LIMIT, Query
from breadcrumbs.runtime.maintenance.export_import import Imported, export_lines, import_lines
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.scan import owners

MOST_SHOWN = 20

_STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1")


def read_owner(text: str | None) -> UUID | None:
    if text is None:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise UsageError("--owner must be a UUID") from None


# Export


def export(settings: Settings, target: str | None, query: Query, *, owner: UUID | None, history: bool) -> int:
    with server_address(settings, create=False) as url:
        if target is None or target in _STANDARD_OUTPUT:
            count = asyncio.run(_export(settings, url, sys.stdout.buffer, query, owner, history))
        else:
            count = _export_to_file(settings, url, Path(target), query, owner, history)
    if sys.stderr.isatty() or target not in (None, *_STANDARD_OUTPUT):
        say(f"{count:,} breadcrumbs exported")
    return OK


def _export_to_file(
    settings: Settings, url: str, target: Path, query: Query, owner: UUID | None, history: bool
) -> int:
    if target.exists() and not target.is_file():
        # A pipe or a device: there is nothing to replace, and a file in its place would be a harm.
        try:
            with target.open("wb") as file:
                return asyncio.run(_export(settings, url, file, query, owner, history))
        except OSError as error:
            raise CommandError(f"cannot write {target}: {error.strerror}") from None
    # Where a link leads: it is to stay one.
    target = Path(os.path.realpath(target))
    # Beside the target and then renamed: an export that breaks off does not replace the last good one.
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        # For this user alone: an export holds everything.
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            count = asyncio.run(_export(settings, url, file, query, owner, history))
        unfinished.replace(target)
    except OSError as error:
        raise CommandError(f"cannot write {target}: {error.strerror}") from None
    finally:
        unfinished.unlink(missing_ok=True)
    return count


async def _export(
    settings: Settings, url: str, file: IO[bytes], query: Query, owner: UUID | None, history: bool
) -> int:
    if not await has_store(settings, url):
        raise CommandError(
            f"there is nothing to export: {shown_address(url)} has no store named {settings.namespace!r}"
        )
    store = await open_store(settings, url)
    count = 0
    try:
        with _progress("exporting", None) as bar:
            for one in [owner] if owner is not None else await owners(store):
                async for line in export_lines(store, one, query, history=history):
                    file.write(line + b"\n")
                    if line.startswith(b'{"breadcrumb":'):  # others go on with its history
                        count += 1
                        bar.advance(1)
        file.flush()
    finally:
        await store.close()
    return count


def export_query(
    *, session: str | None, schema: str | None, tags: list[str], any_tags: list[str], since: int | None
) -> Query:
    return Query(
        schema_name=schema,
        session_id=session,
        all_tags=tuple(tags),
        any_tags=tuple(any_tags),
        updated_since=since,
        # The oldest first: imported in this order, events come in the order in which things happened.
        sort="created_at",
        limit=MAX_LIMIT // 10,
    )


# Import


def import_(settings: Settings, source: str, *, owner: UUID | None, dry_run: bool, as_json: bool) -> int:
    with _opened(source) as (file, size), server_address(settings, create=True) as url:
        result = asyncio.run(_import(settings, url, file, size, owner, dry_run))
    if for_people(as_json):
        _tell(result, dry_run)
    else:
        print_json(
            {
                "lines": result.lines,
                "imported": 0 if dry_run else result.written,
                **({"would_import": result.written} if dry_run else {}),
                "already_there": result.already_there,
                "expired": result.expired,
                "bad_lines": [{"line": bad.number, "error": bad.message} for bad in result.bad_lines],
            }
        )
    return PROBLEM if result.bad_lines else OK


def _tell(result: Imported, dry_run: bool) -> None:
    say(f"{result.written:,} {'would be imported' if dry_run else 'imported'}")
    if result.already_there:
        say(f"{result.already_there:,} were there already and stay as they are")
    if result.expired:
        say(f"{result.expired:,} have expired and were left out")
    for bad in result.bad_lines[:MOST_SHOWN]:
        fail(f"line {bad.number}: {bad.message}")
    if len(result.bad_lines) > MOST_SHOWN:
        fail(f"… and {len(result.bad_lines) - MOST_SHOWN:,} more bad lines")


@contextmanager
def _opened(source: str) -> Iterator[tuple[IO[bytes], int | None]]:
    if source == "-":
        yield sys.stdin.buffer, None
        return
    try:
        file = Path(source).open("rb")  # noqa: SIM115 - closed below; only opening it may fail here
    except OSError as error:
        raise CommandError(f"cannot read {source}: {error.strerror}") from None
    with file:
        yield file, os.fstat(file.fileno()).st_size


async def _import(
    settings: Settings, url: str, file: IO[bytes], size: int | None, owner: UUID | None, dry_run: bool
) -> Imported:
    store = await open_store(settings, url)
    read = 0

    def lines() -> Iterator[bytes]:
        nonlocal read
        for line in file:
            read += len(line)
            yield line

    try:
        with _progress("importing", size) as bar:
            shown = 0
            result = Imported()
            async for so_far in import_lines(store, lines(), owner=owner, dry_run=dry_run):
                bar.advance(read - shown)
                shown, result = read, so_far
            return result
    finally:
        await store.close()


# Progress, for somebody who watches


class _Bar(Protocol):
    def advance(self, amount: int) -> None: ...


class _NoBar:
    def advance(self, amount: int) -> None:
        pass


class _RichBar:
    def __init__(self, progress: object, task: object) -> None:
        self._progress, self._task = progress, task

    def advance(self, amount: int) -> None:
        self._progress.advance(self._task, amount)  # type: ignore[attr-defined]


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[_Bar]:
    if not sys.stderr.isatty():
        yield _NoBar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _RichBar(progress, progress.add_task(what, total=total))
