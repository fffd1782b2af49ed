"""The command `crumb token`."""

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
    owner: Annotated[str | None, typer.Option("--owner", help="Owner of the token (a UUID).")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Agent of the token (a UUID).")] = None,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", help="emitter, subscriber or curator. Repeat it for several."),
    ] = None,
    session: Annotated[
        str | None, typer.Option("--session", "-s", help="Limit the token to this session.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", help="Limit the token to this user.")] = None,
    ttl: Annotated[str | None, typer.Option("--ttl", help="Lifetime: 15m, 12h, 7d.")] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Get a token from a running server. Only the token is printed.

    \b
    export CRUMB_TOKEN=$(crumb token)
    crumb token --role subscriber --session demo --ttl 1h

    If the server has API keys, set CRUMB_API_KEY first.
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
        granted = send_json(client, "POST", "/auth/token", given).json()
    if as_json:
        print_json(granted)
    else:
        _print_token(granted)
    return OK


def _print_token(granted: dict[str, Any]) -> None:
    """Print the token alone on standard output, so that CRUMB_TOKEN=$(crumb token) works."""
    sys.stdout.write(granted["token"] + "\n")
    if sys.stderr.isatty():
        expires = datetime.fromtimestamp(granted["exp"], UTC).isoformat()
        roles = ", ".join(granted["roles"])
        say(f"owner {granted['owner_id']}, roles {roles}, expires {shown_time(expires)}")


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
