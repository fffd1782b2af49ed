"""Commands on feedback, the ratings of answers: `crumb feedback …`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from breadcrumbs.cli.client import as_user, open_client, path_of, send_json
from breadcrumbs.cli.id_prefixes import find_breadcrumb
from breadcrumbs.cli.options import (
    DEFAULT_URL,
    JsonOption,
    SessionOption,
    TokenOption,
    UrlOption,
    UserOption,
    read_since,
)
from breadcrumbs.cli.output import (
    OK,
    command,
    console,
    for_people,
    one_line,
    print_array,
    print_columns,
    print_json,
    say,
    shown_time,
)

if TYPE_CHECKING:
    from breadcrumbs.client.sync import Client

_PAGE_SIZE = 100
_DIGEST_LENGTH = 12


class _RateByDefault(TyperGroup):
    """Runs `rate` if the first argument is the id of an answer."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["rate", *args]
        return super().resolve_command(ctx, args)


commands = typer.Typer(
    name="feedback",
    cls=_RateByDefault,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Rate answers, and list and count the ratings.

    \b
    crumb feedback 0197a3c4 down --note "The date is wrong."
    crumb feedback list --down
    crumb feedback counts

    Each user has one rating per answer. Models never see it.
    """,
)

AnswerArgument = Annotated[str, typer.Argument(metavar="ANSWER", help="Id of the answer, or its beginning.")]
SinceDayOption = Annotated[
    str | None, typer.Option("--since", help="Only rated since a time, or a duration ago (2h, 7d).")
]
AgentOption = Annotated[str | None, typer.Option("--agent", help="Only answers of this agent.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="Only answers of this model.")]
DigestOption = Annotated[
    str | None, typer.Option("--config", help="Only this config version: its digest, or its beginning.")
]


@commands.command("rate")
def rate(
    answer: AnswerArgument,
    rating: Annotated[Literal["up", "down"], typer.Argument(metavar="up|down", help="The rating.")],
    note: Annotated[str | None, typer.Option("--note", "-m", help="The reason.")] = None,
    user: UserOption = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Rate an answer. The word "rate" can be left out. A second rating replaces the first.

    \b
    crumb feedback 0197a3c4 up
    crumb feedback 0197a3c4 down --note "The date is wrong."
    """
    with open_client(url, token) as first:
        credentials = token if user is None else as_user(first, user)
    with open_client(url, credentials) as client:
        body = {"rating": rating} if note is None else {"rating": rating, "note": note}
        path = path_of("breadcrumbs", find_breadcrumb(client, answer), "feedback")
        found = send_json(client, "PUT", path, body).json()
    if for_people(as_json):
        say(f"rated {rating}: {found['answer_id']}")
    else:
        print_json(found)
    return OK


@commands.command("withdraw")
def withdraw(
    answer: AnswerArgument,
    user: UserOption = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
) -> int:
    """Withdraw your rating of an answer.

    \b
    crumb feedback withdraw 0197a3c4
    """
    with open_client(url, token) as first:
        credentials = token if user is None else as_user(first, user)
    with open_client(url, credentials) as client:
        client.request("DELETE", path_of("breadcrumbs", find_breadcrumb(client, answer), "feedback"))
    say("feedback withdrawn")
    return OK


@commands.command("list")
def list_feedback(
    down: Annotated[bool, typer.Option("--down", help="Only disliked answers.")] = False,
    up: Annotated[bool, typer.Option("--up", help="Only liked answers.")] = False,
    session: SessionOption = None,
    since: SinceDayOption = None,
    agent: AgentOption = None,
    model: ModelOption = None,
    config: DigestOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number.")] = 20,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """List rated answers, newest rating first.

    \b
    crumb feedback list --down
    crumb feedback list --down --since 7d --json | jq -r .[].answer_id
    """
    rating = None if up == down else "down" if down else "up"
    wanted = _filters(rating=rating, session_id=session, since=since, agent=agent, model=model, config=config)
    with open_client(url, token) as client:
        found, more = _read_feedback(client, wanted, limit)
    if not for_people(as_json):
        print_array(found)
    elif found:
        _print_feedback(found)
    else:
        say("no feedback")
    if more:
        say(f"only the first {limit} are listed: use --limit for more")
    return OK


def _filters(*, since: str | None, **texts: str | None) -> list[tuple[str, str]]:
    wanted = dict(texts)
    if since is not None:
        wanted["since"] = read_since(since).isoformat()
    return [(name, text) for name, text in wanted.items() if text is not None]


def _read_feedback(
    client: Client, wanted: Sequence[tuple[str, str]], limit: int
) -> tuple[list[dict[str, Any]], bool]:
    """Read feedback page by page, up to the limit. Also return whether there is more."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        size = min(_PAGE_SIZE, limit - len(found))
        params = [*wanted, ("limit", str(size)), *([] if cursor is None else [("cursor", cursor)])]
        page = client.request("GET", "/feedback", params=params).json()
        found += page["feedback"]
        cursor = page.get("next_cursor")
        if cursor is None or len(found) >= limit:
            return found, cursor is not None


def _print_feedback(found: list[dict[str, Any]]) -> None:
    out = console()
    for one in found:
        facts = [
            shown_time(one["updated_at"]),
            one_line(one.get("agent_id", "-"), 40),
            one_line(one.get("model", "-"), 40),
            f"config {one_line(one['config'][:_DIGEST_LENGTH])}" if "config" in one else "config -",
        ]
        rating = "down" if one["rating"] == "down" else "up"
        out.print(
            f"{rating:<5}{one['answer_id']}", style="red" if rating == "down" else "green", markup=False
        )
        lines = [
            "  ".join(facts),
            f"session   {one_line(one.get('session_id', '-'), 60)}  by {one_line(one['user'], 40)}",
        ]
        texts = (("question", one.get("question")), ("answer", one.get("answer")), ("note", one.get("note")))
        lines += [f"{label:<9} {one_line(text, out.width - 16)}" for label, text in texts if text]
        for line in lines:
            out.print(f"     {line}", markup=False)
    say(f"{command()} replay ANSWER asks the model again, {command()} config show DIGEST prints a config")


@commands.command("counts")
def counts(
    since: SinceDayOption = None,
    session: SessionOption = None,
    agent: AgentOption = None,
    model: ModelOption = None,
    config: DigestOption = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Count ratings per config version, agent and model. Without --since, those of the last 30 days.

    \b
    crumb feedback counts
    crumb feedback counts --since 7d --json | jq .models
    """
    wanted = _filters(session_id=session, since=since, agent=agent, model=model, config=config)
    with open_client(url, token) as client:
        found = client.request("GET", "/feedback/counts", params=wanted).json()
    if not for_people(as_json):
        print_json(found)
        return OK
    _print_counts(found)
    if not found["complete"]:
        say("there are more ratings: the oldest were not counted, so use a later --since")
    return OK


def _print_counts(found: dict[str, Any]) -> None:
    rows = [("all answers", found["total"])]
    for kind, name in (("config", "configs"), ("agent_id", "agents"), ("model", "models")):
        label = "agent" if kind == "agent_id" else kind
        for row in found[name]:
            value = row.get(kind)
            shown = "unknown" if value is None else value[:_DIGEST_LENGTH] if kind == "config" else value
            rows.append((f"{label} {one_line(shown, 60)}", row))
    print_columns(
        [(str(row["up"]), str(row["down"]), label) for label, row in rows],
        ("right green", "right red"),
        ("up", "down", f"since {shown_time(found['since'])}"),
    )
