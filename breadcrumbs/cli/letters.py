"""dead-letters: what workers have given up on."""

from __future__ import annotations

from breadcrumbs.cli.client import Api
from breadcrumbs.cli.output import OK, UsageError, console, for_people, one_line, print_json, say, shown_time
from breadcrumbs.client.requests import segment


def show(api: Api, *, as_json: bool) -> int:
    letters = api.get("/dlq").json()
    if not for_people(as_json):
        print_json(letters)
        return OK
    if not letters:
        say("no dead letters")
        return OK
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for heading in ("failed at", "id", "worker", "session", "tries", "reason"):
        table.add_column(heading)
    for letter in letters:
        cells = (
            shown_time(letter["created_at"]),
            letter["id"],
            one_line(letter["kind"], 40),
            one_line(letter.get("session_id", "-"), 40),
            str(letter["attempts"]),
            one_line(letter["last_error"], 200),
        )
        # As it is: what a model said may look like rich's markup.
        table.add_row(*(Text(cell) for cell in cells))
    console().print(table)
    return OK


def act(api: Api, method: str, path: str, ids: list[str], *, every: bool, done: str) -> int:
    if every == bool(ids):
        raise UsageError("name the ids of dead letters, or --all: crumb dead-letters list shows them")
    chosen = [letter["id"] for letter in api.get("/dlq").json()] if every else ids
    for id in chosen:
        api.request(method, path.format(id=segment(id)))
    say(f"{len(chosen)} {done}")
    return OK
