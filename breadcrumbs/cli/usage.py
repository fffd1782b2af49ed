"""The command `crumb usage`: tokens and costs of models, and the budgets that limit them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from breadcrumbs.cli.client import open_client
from breadcrumbs.cli.options import DEFAULT_URL, JsonOption, TokenOption, UrlOption
from breadcrumbs.cli.output import OK, for_people, print_columns, print_json, say

if TYPE_CHECKING:
    from breadcrumbs.client.sync import Client

commands = typer.Typer()

_PAGE_SIZE = 1_000
_MAX_ROWS = 10_000


@commands.command()
def usage(
    by: Annotated[
        Literal["day", "agent", "model", "user"],
        typer.Option("--by", help="One row per day, agent, model or user."),
    ] = "day",
    since: Annotated[
        str | None, typer.Option("--from", metavar="DAY", help="First day (UTC). [default: 30 days]")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="DAY", help="Last day. [default: today]")
    ] = None,
    daily: Annotated[bool, typer.Option("--daily", help="Also one row per day.")] = False,
    agent: Annotated[str | None, typer.Option("--agent", help="Only this agent.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only this model.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Only this user.")] = None,
    session: Annotated[str | None, typer.Option("--session", help="The sum of this session.")] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show tokens and costs of models, and budgets.

    \b
    crumb usage
    crumb usage --by agent --from 2026-11-01
    crumb usage --user ann --json

    Costs need prices: the setting models.prices. Days are those of UTC.
    """
    filters = {
        "by": by, "from": since, "to": until, "agent_id": agent, "model": model, "user_id": user,
        "session_id": session, "daily": "true" if daily else None,
    }  # fmt: skip
    with open_client(url, token) as client:
        document = _read(client, {name: value for name, value in filters.items() if value is not None})
    if for_people(as_json):
        _print(document)
    else:
        print_json(document)
    return OK


def _read(client: Client, filters: dict[str, str]) -> dict[str, Any]:
    """Read all pages as one document."""
    params = {**filters, "limit": str(_PAGE_SIZE)}
    document: dict[str, Any] = client.request("GET", "/usage", params=params).json()
    while "next_cursor" in document and len(document["rows"]) < _MAX_ROWS:
        page = client.request(
            "GET", "/usage", params={**params, "cursor": document.pop("next_cursor")}
        ).json()
        document["rows"] += page["rows"]
        if "next_cursor" in page:
            document["next_cursor"] = page["next_cursor"]
    return document


def _print(document: dict[str, Any]) -> None:
    rows = document["rows"]
    if not rows and not document["total"]["calls"]:
        say("no usage in this time. Only models that report tokens are counted, from this version on")
    else:
        names = [name for name in ("day", "agent_id", "model", "user_id") if any(name in row for row in rows)]
        table = [[*(row.get(name, "") for name in names), *_cells(row)] for row in rows]
        total = [*(["total"] + [""] * (len(names) - 1) if names else []), *_cells(document["total"])]
        headers = [*names, "calls", "input", "output", "cached", "cost", ""]
        print_columns([*table, total], ["bold"] * len(names) + ["right"] * 5, headers)
    unpriced = document["total"]["unpriced_calls"]
    if unpriced:
        say(f"{unpriced:,} calls of models without a price are not in the cost: add them to models.prices")
    if unreported := document["total"]["unreported_calls"]:
        say(f"{unreported:,} calls without reported tokens are not in the tokens")
    _print_budgets(document["budgets"], document.get("budget_problems", ()))


def _cells(row: dict[str, Any]) -> list[str]:
    numbers = [f"{row[name]:,}" for name in ("calls", "input_tokens", "output_tokens", "cached_tokens")]
    return [*numbers, f"{row['cost']:.4f}", ""]


def _print_budgets(budgets: Sequence[dict[str, Any]], problems: Sequence[dict[str, Any]]) -> None:
    if budgets:
        say("\nbudgets")
        print_columns(
            [
                [_whose(one), one["period"], _used(one), "used up" if one.get("used_up") else ""]
                for one in budgets
            ],
            ["bold", "", "right"],
        )
    for problem in problems:
        say(f"budget {problem['id']}: {problem['problem']}")


def _whose(budget: dict[str, Any]) -> str:
    name = budget.get("user_id") or budget.get("session_id")
    return f"{budget['scope']} {name}" if name else f"each {budget['scope']}".replace("each owner", "owner")


def _used(budget: dict[str, Any]) -> str:
    """Return the usage and the limit. Without usage: the request names no user or session."""
    parts = []
    if "tokens" in budget:
        used = f"{budget['used_tokens']:,} of " if "used_tokens" in budget else ""
        parts.append(f"{used}{budget['tokens']:,} tokens")
    if "cost" in budget:
        used = f"{budget['used_cost']:.4f} of " if "used_cost" in budget else ""
        parts.append(f"{used}{budget['cost']:g} cost")
    return ", ".join(parts)
