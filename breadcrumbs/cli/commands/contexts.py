"""context and audit: what models get to see."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from breadcrumbs.cli.commands.options import AsJson, Config, Data, OwnerOf, Redis

contexts = typer.Typer(
    name="context",
    short_help="What a model gets to see of a session, and why.",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""What a model gets to see of a session, and why.

    \b
    crumb context check context.json                             is this config fine?
    crumb context explain demo                                   what was shown for the last message, and why
    crumb context preview --session demo --config context.json   what would be shown with this config
    crumb context diff demo@3 demo@4                             what has changed from turn to turn

    All of them work on the store itself, whether crumb up is running or not, and write nothing.
    """,
)

audits = typer.Typer(
    name="audit",
    short_help="Prove that sessions are kept apart.",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Prove on the store itself that what must hold does hold.

    \b
    crumb audit isolation             no session has anything of another one in it
    """,
)

Consumer = Annotated[
    str | None, typer.Option("--consumer", help="Whose context, where a session has several.")
]
OwnedBy = Annotated[
    str | None,
    typer.Option("--owner", help="Whose session (a UUID). [default: the only one of the settings]"),
]


@contexts.command("check")
def context_check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Context configs (JSON).")],
    as_json: AsJson = False,
) -> int:
    """Check context configs. Exit code 1 if one cannot be used, with each fault at its line and column.

    \b
    crumb context check context.json
    """
    from breadcrumbs.cli.contexts import check

    return check(files, as_json=as_json)


@contexts.command("explain")
def context_explain(
    of: Annotated[
        str, typer.Argument(metavar="SESSION_OR_CONTEXT_ID", help="A session, or the id of a context.")
    ],
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="An older version. [default: the newest]")
    ] = None,
    consumer: Consumer = None,
    parts: Annotated[
        bool, typer.Option("--parts", help="Also what the model was shown, rendered again.")
    ] = False,
    owner: OwnedBy = None,
    data: Data = None,
    redis: Redis = None,
    config: Config = None,
    as_json: AsJson = False,
) -> int:
    """Show what is in a context and what was left out, which source found it, its tokens and the budget.

    \b
    crumb context explain demo
    crumb context explain demo --version 3 --parts
    crumb context explain demo --json | jq '.left_out[] | select(.reason == "over budget")'
    """
    from breadcrumbs.cli.contexts import show
    from breadcrumbs.cli.moves import read_owner
    from breadcrumbs.runtime.settings.settings import load_settings

    return show(
        load_settings(config=config, data=data, redis=redis),
        of,
        version=version,
        consumer=consumer,
        owner=read_owner(owner),
        with_parts=parts,
        as_json=as_json,
    )


@contexts.command("preview")
def context_preview(
    session: Annotated[str, typer.Option("--session", "-s", help="The session to look at.")],
    context_config: Annotated[Path, typer.Option("--config", help="The context config to try (JSON).")],
    consumer: Annotated[
        str | None, typer.Option("--consumer", help="Which config, where the file has several.")
    ] = None,
    trigger: Annotated[
        str | None,
        typer.Option("--trigger", help="For this message (an id). [default: the newest it reacts to]"),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--diff", help="Also the difference to what the model was shown.")
    ] = False,
    owner: OwnedBy = None,
    data: Data = None,
    redis: Redis = None,
    settings: Annotated[
        Path | None, typer.Option("--settings", help="Settings file. [env: CRUMB_CONFIG]")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show what a model would see with another config. Nothing is written.

    \b
    crumb context preview --session demo --config context.json
    crumb context preview --session demo --config context.json --diff
    """
    from breadcrumbs.cli.contexts import show_preview
    from breadcrumbs.cli.moves import read_owner
    from breadcrumbs.runtime.breadcrumb.ids import parse_id
    from breadcrumbs.runtime.settings.settings import load_settings

    return show_preview(
        load_settings(config=settings, data=data, redis=redis),
        session=session,
        file=context_config,
        consumer=consumer,
        trigger=None if trigger is None else parse_id(trigger, what="--trigger"),
        with_diff=compare,
        owner=read_owner(owner),
        as_json=as_json,
    )


@contexts.command("diff")
def context_diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A session or a context, or one @VERSION of it.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The same.")],
    consumer: Consumer = None,
    owner: OwnedBy = None,
    data: Data = None,
    redis: Redis = None,
    config: Config = None,
    as_json: AsJson = False,
) -> int:
    """Show what has changed from one context to another: + in, - out, ~ moved or changed.

    \b
    crumb context diff demo@3 demo@4
    crumb context diff demo other-session
    """
    from breadcrumbs.cli.contexts import show_diff
    from breadcrumbs.cli.moves import read_owner
    from breadcrumbs.runtime.settings.settings import load_settings

    return show_diff(
        load_settings(config=config, data=data, redis=redis),
        old,
        new,
        consumer=consumer,
        owner=read_owner(owner),
        as_json=as_json,
    )


@audits.command("isolation")
def audit_isolation(
    history: Annotated[
        bool, typer.Option("--history", help="Also the older versions of every context.")
    ] = False,
    owner: OwnerOf = None,
    data: Data = None,
    redis: Redis = None,
    config: Config = None,
    as_json: AsJson = False,
) -> int:
    """Look at every breadcrumb and every context: nothing of one session may be in another. Exit code 1 if so.

    \b
    crumb audit isolation
    crumb audit isolation --history --json | jq .findings
    """
    from breadcrumbs.cli.contexts import audit
    from breadcrumbs.cli.moves import read_owner
    from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(config=config, data=data, redis=redis)
    return audit(settings, owner=read_owner(owner), history=history, as_json=as_json)
