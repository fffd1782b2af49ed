"""The command `crumb audit isolation`. It reads the store without a server and writes nothing into it."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from breadcrumbs.cli.contexts import on_store_at
from breadcrumbs.cli.options import ConfigOption, DataOption, JsonOption, OwnerOption, RedisOption, read_owner
from breadcrumbs.cli.output import OK, PROBLEM, UsageError, command, for_people, print_json, say
from breadcrumbs.cli.progress import progress

if TYPE_CHECKING:
    from uuid import UUID

    from breadcrumbs.context_builder.audit_checkpoint import AuditCheckpoint
    from breadcrumbs.runtime.settings.settings import Settings
    from breadcrumbs.runtime.store.store import Store

audits = typer.Typer(
    name="audit",
    short_help="Check that sessions are isolated.",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Check guarantees on the stored data.

    \b
    crumb audit isolation     check that no session contains data of another one
    """,
)


@audits.command("isolation")
def audit_isolation(
    history: Annotated[
        bool, typer.Option("--history", help="Also check the older versions of every context.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Processes that check. [default: one per CPU core]"),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="FILE", help="Continue an interrupted audit from its file."),
    ] = None,
    owner: OwnerOption = None,
    data: DataOption = None,
    redis: RedisOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check that no session contains data of another one.

    \b
    crumb audit isolation
    crumb audit isolation --history --json | jq .findings

    Reads every breadcrumb and every context of the store. The exit code is 1 if there are violations. If the audit is
    interrupted, it prints the command that continues it.
    """
    from breadcrumbs.composition.storage import server_address
    from breadcrumbs.runtime.settings.settings import load_settings

    began = time.monotonic()
    settings, named = load_settings(config=config, data=data, redis=redis), read_owner(owner)
    if resume is not None and (history or named is not None):
        raise UsageError(
            "--resume continues with the --history and --owner of the interrupted audit: omit them"
        )
    with server_address(settings, create=False) as url:
        checkpoint = (
            _open_checkpoint(settings, url, resume) if resume else _begin(settings, url, named, history)
        )
        resumed = checkpoint.checked
        _run(settings, url, checkpoint, jobs or os.cpu_count() or 1)
    report = checkpoint.report
    if for_people(as_json):
        from breadcrumbs.cli.explanations import print_report

        print_report(report)
    else:
        seconds = round(time.monotonic() - began, 3)
        print_json(report.as_dict() | {"resumed_after": resumed, "seconds": seconds})
    return OK if report.is_clean else PROBLEM


def _begin(settings: Settings, url: str, owner: UUID | None, history: bool) -> AuditCheckpoint:
    """List the breadcrumbs to check in a new checkpoint."""
    from breadcrumbs.context_builder.audit import list_audited
    from breadcrumbs.context_builder.audit_checkpoint import AuditCheckpoint, AuditScope

    async def begin(store: Store) -> AuditCheckpoint:
        scope = AuditScope(store.identity or "", None if owner is None else str(owner), history)
        return AuditCheckpoint.create(_new_path(settings), scope, await list_audited(store, owner))

    return on_store_at(url, settings, begin)


def _open_checkpoint(settings: Settings, url: str, path: Path) -> AuditCheckpoint:
    from breadcrumbs.context_builder.audit_checkpoint import AuditCheckpoint

    async def reopen(store: Store) -> AuditCheckpoint:
        return AuditCheckpoint.open(path, store.identity or "")

    return on_store_at(url, settings, reopen)


def _new_path(settings: Settings) -> Path:
    """Return the path of a new checkpoint, in the data directory or, if that is not writable, a temporary one."""
    from breadcrumbs.composition.storage import data_directory

    directory = data_directory(settings) / "audits"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        directory = Path(tempfile.gettempdir())
    if not os.access(directory, os.W_OK):
        directory = Path(tempfile.gettempdir())
    return directory / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.audit"


def _run(settings: Settings, url: str, checkpoint: AuditCheckpoint, jobs: int) -> None:
    """Check everything that is pending, and remove the checkpoint. If it fails, tell how to continue."""
    from breadcrumbs.composition.audit_processes import AuditServer, run_audit

    try:
        with progress("checking", checkpoint.total) as bar:
            bar.advance(checkpoint.checked)
            run_audit(AuditServer(settings, url), checkpoint, jobs, bar.advance)
    except BaseException:
        checkpoint.close()
        say(
            f"checked {checkpoint.checked:,} of {checkpoint.total:,} breadcrumbs. "
            f"To continue, use: {command()} audit isolation{_location(settings)} --resume {checkpoint.path}"
        )
        raise
    checkpoint.remove()


def _location(settings: Settings) -> str:
    """Return the options that name the store, without a password."""
    from breadcrumbs.composition.storage import shown_address

    if settings.redis is not None:
        return f" --redis {shown_address(settings.redis)}"
    return "" if settings.data is None else f" --data {settings.data}"
