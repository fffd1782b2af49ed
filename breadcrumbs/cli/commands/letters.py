"""dead-letters: what workers have given up on."""

from __future__ import annotations

from typing import Annotated

import typer

from breadcrumbs.cli.commands.options import DEFAULT_URL, AsJson, Token, Url, open_api

commands = typer.Typer(
    name="dead-letters",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""What workers have given up on.

    \b
    crumb dead-letters list
    crumb dead-letters retry 0197a3c4-5e6f-8007-8a9b-0c1d2e3f4a5b
    """,
)

LetterIds = Annotated[list[str] | None, typer.Argument(help="Ids of dead letters.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]


@commands.command("list")
def list_letters(url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False) -> int:
    """List what failed for good, the newest first, with the reason.

    \b
    crumb dead-letters list
    crumb dead-letters list --json | jq .[].last_error
    """
    from breadcrumbs.cli import letters

    with open_api(url, token) as api:
        return letters.show(api, as_json=as_json)


@commands.command("retry")
def retry_letters(
    ids: LetterIds = None, every: All = False, url: Url = DEFAULT_URL, token: Token = None
) -> int:
    """Let workers try again, once whatever made them fail is mended.

    \b
    crumb dead-letters retry 0197a3c4-5e6f-8007-8a9b-0c1d2e3f4a5b
    crumb dead-letters retry --all
    """
    from breadcrumbs.cli import letters

    with open_api(url, token) as api:
        return letters.act(api, "POST", "/dlq/{id}/retry", ids or [], every=every, done="tried again")


@commands.command("delete")
def delete_letters(
    ids: LetterIds = None, every: All = False, url: Url = DEFAULT_URL, token: Token = None
) -> int:
    """Throw dead letters away.

    \b
    crumb dead-letters delete 0197a3c4-5e6f-8007-8a9b-0c1d2e3f4a5b
    """
    from breadcrumbs.cli import letters

    with open_api(url, token) as api:
        return letters.act(api, "DELETE", "/dlq/{id}", ids or [], every=every, done="deleted")
