"""Options that several commands share, and parsers for their values."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from breadcrumbs.cli.completion import session_names
from breadcrumbs.cli.output import UsageError
from breadcrumbs.cli.server_url import complete_url

DEFAULT_URL = "http://127.0.0.1:8081"


def _check_wait_for(text: str) -> str:
    from breadcrumbs.runtime.errors import InvalidInput
    from breadcrumbs.runtime.sessions.wait_for import WaitFor

    try:
        return str(WaitFor.parse(text))
    except InvalidInput as error:
        raise typer.BadParameter(f"{text!r}: use first, last or agent:NAME") from error


UrlOption = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="CRUMB_URL",
        help="Address of the server. CRUMB_PORT works too.",
        callback=complete_url,
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", envvar="CRUMB_TOKEN", help="Token. CRUMB_API_KEY works too.", show_default=False),
]
UserOption = Annotated[
    str | None,
    typer.Option("--user", help="Act as this user: see and write only what belongs to the user."),
]
WaitForOption = Annotated[
    str,
    typer.Option(
        "--wait-for",
        help="Answer to wait for, if agents trigger each other: first, last or agent:NAME.",
        callback=_check_wait_for,
    ),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0, help="Seconds to wait for an answer, 0 for no limit.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on a terminal too.")]
SessionOption = Annotated[
    str | None,
    typer.Option("--session", "-s", help="Only this session.", autocompletion=session_names),
]
ContinueOption = Annotated[
    str | None,
    typer.Option(
        "--session", "-s", help="Session to continue. [default: a new one]", autocompletion=session_names
    ),
]
SchemaOption = Annotated[
    str | None, typer.Option("--schema", help="Only this schema, such as user.message.v1.")
]
TagsOption = Annotated[
    list[str] | None,
    typer.Option("--tag", "-t", help="Only with this tag. Repeat it to require several tags."),
]
AnyTagsOption = Annotated[
    list[str] | None, typer.Option("--any-tag", help="Only with at least one of these tags. Repeat it.")
]
SinceOption = Annotated[
    str | None, typer.Option("--since", help="Only written since a time, or a duration ago (10m, 2h, 7d).")
]
OwnerOption = Annotated[str | None, typer.Option("--owner", help="Only this owner (a UUID).")]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="Settings file. [env: CRUMB_CONFIG; default: crumb.toml if it exists]"),
]
RedisOption = Annotated[
    str | None,
    typer.Option(
        "--redis",
        help="Your own Redis server: redis:, rediss: (TLS), redis+cluster: or unix://… [env: CRUMB_REDIS]",
    ),
]
DataOption = Annotated[
    Path | None, typer.Option("--data", help="Data directory of the embedded server. [env: CRUMB_DATA]")
]


def read_since(text: str) -> datetime:
    """Parse `--since`, a time or a duration before now. A time without a zone is local time."""
    try:
        return _parse_moment(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(
            f"--since {text!r}: use a time (2026-11-16T09:00:00Z) or a duration (10m, 2h, 7d)"
        ) from None


def _parse_moment(text: str) -> datetime:
    from breadcrumbs.runtime.breadcrumb.ttl import parse_duration

    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return datetime.now(UTC) - parse_duration(text)


def read_owner(text: str | None) -> UUID | None:
    """Parse `--owner`."""
    if text is None:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise UsageError("--owner must be a UUID") from None
