"""export and import: breadcrumbs in a file."""

from __future__ import annotations

from typing import Annotated

import typer

from breadcrumbs.cli.commands.options import (
    AnyTags,
    AsJson,
    Config,
    Data,
    OwnerOf,
    Redis,
    Schema,
    Session,
    Since,
    Tags,
)

commands = typer.Typer()


@commands.command()
def export(
    file: Annotated[str | None, typer.Argument(help="Where to; nothing or - is standard output.")] = None,
    session: Session = None,
    schema: Schema = None,
    tag: Tags = None,
    any_tag: AnyTags = None,
    since: Since = None,
    with_history: Annotated[
        bool, typer.Option("--history/--no-history", help="With the older versions.")
    ] = True,
    owner: OwnerOf = None,
    data: Data = None,
    redis: Redis = None,
    config: Config = None,
) -> int:
    """Write breadcrumbs to a file: one line of JSON each, with their ids, times, versions and history.

    \b
    crumb export backup.jsonl
    crumb export --session demo --no-history | jq .breadcrumb.title

    Works on the store itself, whether crumb up is running or not.
    """
    from breadcrumbs.cli import moves
    from breadcrumbs.cli.crumbs import read_since
    from breadcrumbs.runtime.breadcrumb.breadcrumb import parse_time
    from breadcrumbs.runtime.settings.settings import load_settings

    return moves.export(
        load_settings(config=config, data=data, redis=redis),
        file,
        moves.export_query(
            session=session,
            schema=schema,
            tags=tag or [],
            any_tags=any_tag or [],
            since=None if since is None else parse_time(read_since(since), where="--since"),
        ),
        owner=moves.read_owner(owner),
        history=with_history,
    )


@commands.command("import")
def import_(
    file: Annotated[str, typer.Argument(help="A file that crumb export has written; - is standard input.")],
    owner: Annotated[
        str | None,
        typer.Option("--owner", help="Give everything to this owner (a UUID). [default: as in the file]"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, write nothing.")] = False,
    data: Data = None,
    redis: Redis = None,
    config: Config = None,
    as_json: AsJson = False,
) -> int:
    """Read breadcrumbs from a file of crumb export. Safe to repeat: what is there stays as it is.

    \b
    crumb import backup.jsonl --dry-run
    crumb import backup.jsonl --redis redis://db:6379/0

    Bad lines are named and left out, the others are imported, and the exit code is 1.
    """
    from breadcrumbs.cli import moves
    from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(config=config, data=data, redis=redis)
    return moves.import_(settings, file, owner=moves.read_owner(owner), dry_run=dry_run, as_json=as_json)
