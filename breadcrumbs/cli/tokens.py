"""token: tokens of a running server."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID, uuid4

import typer

from breadcrumbs.cli.client import open_client, send_json
from breadcrumbs.cli.options import DEFAULT_URL, JsonOption, TokenOption, UrlOption
from breadcrumbs.cli.output import OK, UsageError, print_json, say, shown_time

commands = typer.Typer()


@commands.command()
def token(
    owner: Annotated[str | None, typer.Option("--owner", help="For this tenant (a UUID).")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="For this agent (a UUID).")] = None,
    role: Annotated[
        list[str] | None, typer.Option("--role", help="emitter, subscriber or curator; may be repeated.")
    ] = None,
    session: Annotated[
        str | None, typer.Option("--session", "-s", help="Good for this session only.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", help="Good for this user only.")] = None,
    ttl: Annotated[str | None, typer.Option("--ttl", help="How long it is good: 15m, 12h, 7d.")] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Get a token from a running server and print it, and nothing else.

    \b
    export CRUMB_TOKEN=$(crumb token)
    crumb token --role subscriber --session demo --ttl 1h

    Where the server has API keys, set CRUMB_API_KEY first.
    """
    wanted = {
        "owner_id": _read_uuid(owner, "owner_id"),
        "agent_id": _read_uuid(agent, "agent_id"),
        "roles": role or None,
        "session_id": session,
        "user_id": user,
        "ttl_sec": None if ttl is None else _read_seconds(ttl),
    }
    with open_client(url, token) as client:
        given = {name: value for name, value in wanted.items() if value is not None}
        answer = send_json(client, "POST", "/auth/token", given).json()
    if as_json:
        print_json(answer)
    else:
        _print_token(answer)
    return OK


def _print_token(answer: dict[str, Any]) -> None:
    """Print the token alone on standard output, so that CRUMB_TOKEN=$(crumb token) works."""
    sys.stdout.write(answer["token"] + "\n")
    if sys.stderr.isatty():
        expires = datetime.fromtimestamp(answer["exp"], UTC).isoformat()
        granted = ", ".join(answer["roles"])
        say(f"owner {answer['owner_id']}, roles {granted}, good until {shown_time(expires)}")


def _read_uuid(text: str | None, name: str) -> str | None:
    if text is None:
        return None
    try:
        return str(UUID(text))
    except ValueError:
        raise UsageError(f"{name} must be a UUID, such as {uuid4()}") from None


def _read_seconds(text: str) -> int:
    from breadcrumbs.runtime.breadcrumb.ttl import parse_duration

    try:
        return max(1, int(parse_duration(text).total_seconds()))
    except ValueError as error:
        raise UsageError(f"--ttl {text}: {error}") from None
