"""Commands on dead letters, the events that failed every attempt: `crumb dead-letters …`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from breadcrumbs.cli.client import open_client, path_of
from breadcrumbs.cli.completion import dead_letter_ids
from breadcrumbs.cli.id_prefixes import choose_id, is_id_prefix
from breadcrumbs.cli.options import DEFAULT_URL, JsonOption, TokenOption, UrlOption
from breadcrumbs.cli.output import OK, UsageError, console, for_people, one_line, print_json, say, shown_time

if TYPE_CHECKING:
    from breadcrumbs.client.sync import Client

commands = typer.Typer(
    name="dead-letters",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List, retry and delete events that failed every attempt.

    \b
    crumb dead-letters list
    crumb dead-letters retry 0197a3c4-5e6f-8007-8a9b-0c1d2e3f4a5b
    """,
)

LetterIdsArgument = Annotated[
    list[str] | None,
    typer.Argument(help="Ids of dead letters, or their beginnings.", autocompletion=dead_letter_ids),
]
AllOption = Annotated[bool, typer.Option("--all", help="All dead letters.")]


@commands.command("list")
def list_letters(url: UrlOption = DEFAULT_URL, token: TokenOption = None, as_json: JsonOption = False) -> int:
    """List dead letters with the reason, newest first.

    \b
    crumb dead-letters list
    crumb dead-letters list --json | jq .[].last_error
    """
    with open_client(url, token) as client:
        letters = client.request("GET", "/dlq").json()
    if not for_people(as_json):
        print_json(letters)
    elif letters:
        _print_letters(letters)
    else:
        say("no dead letters")
    return OK


def _print_letters(letters: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for heading in ("event at", "id", "worker", "session", "attempts", "reason"):
        table.add_column(heading, no_wrap=heading == "id")
    for letter in letters:
        cells = (
            shown_time(letter["created_at"]),
            letter["id"],
            one_line(letter["kind"], 40),
            one_line(letter.get("session_id", "-"), 40),
            str(letter["attempts"]),
            one_line(letter["last_error"], 200),
        )
        # As `Text`, because an error can contain rich markup from a model.
        table.add_row(*(Text(cell) for cell in cells))
    console().print(table)


@commands.command("retry")
def retry_letters(
    ids: LetterIdsArgument = None,
    every: AllOption = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
) -> int:
    """Retry dead letters. Fix the cause of the failure first.

    \b
    crumb dead-letters retry 0197a3c4-5e6f-8007-8a9b-0c1d2e3f4a5b
    crumb dead-letters retry --all

    A retry never duplicates an answer.
    """
    with open_client(url, token) as client:
        chosen = _chosen_ids(client, ids or [], every)
        for id in chosen:
            client.request("POST", path_of("dlq", id, "retry"))
    say(f"retrying {len(chosen)}")
    return OK


@commands.command("delete")
def delete_letters(
    ids: LetterIdsArgument = None,
    every: AllOption = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
) -> int:
    """Delete dead letters. Their events are not retried.

    \b
    crumb dead-letters delete 0197a3c4-5e6f-8007-8a9b-0c1d2e3f4a5b
    """
    with open_client(url, token) as client:
        chosen = _chosen_ids(client, ids or [], every)
        for id in chosen:
            client.request("DELETE", path_of("dlq", id))
    say(f"{len(chosen)} deleted")
    return OK


def _chosen_ids(client: Client, ids: list[str], every: bool) -> list[str]:
    if every == bool(ids):
        raise UsageError("add the ids of dead letters or --all: crumb dead-letters list shows the ids")
    if not every and not any(is_id_prefix(id) for id in ids):
        return ids
    letters = [(letter["id"], letter["last_error"]) for letter in client.request("GET", "/dlq").json()]
    if every:
        return [id for id, _ in letters]
    return [choose_id(id, letters, "dead letter") if is_id_prefix(id) else id for id in ids]
