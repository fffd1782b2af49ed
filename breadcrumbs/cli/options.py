"""Options that several commands have, and how their values are read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from breadcrumbs.cli.output import UsageError

DEFAULT_URL = "http://127.0.0.1:8081"

UrlOption = Annotated[str, typer.Option("--url", envvar="CRUMB_URL", help="The server to talk to.")]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", envvar="CRUMB_TOKEN", help="A token; or set CRUMB_API_KEY.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON also on a terminal.")]
SessionOption = Annotated[str | None, typer.Option("--session", "-s", help="Only this session.")]
SchemaOption = Annotated[
    str | None, typer.Option("--schema", help="Only this schema, such as user.message.v1.")
]
TagsOption = Annotated[
    list[str] | None, typer.Option("--tag", "-t", help="Must have this tag; all of them if repeated.")
]
AnyTagsOption = Annotated[
    list[str] | None, typer.Option("--any-tag", help="Must have at least one of these tags.")
]
SinceOption = Annotated[
    str | None, typer.Option("--since", help="Written since then: a time, or how long ago (10m, 2h, 7d).")
]
OwnerOption = Annotated[str | None, typer.Option("--owner", help="Only this owner (a UUID).")]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="Settings file. [env: CRUMB_CONFIG; default: crumb.toml if it is there]"),
]
RedisOption = Annotated[
    str | None,
    typer.Option(
        "--redis",
        help="A server of your own: redis:, rediss: (TLS), redis+cluster: or unix://… [env: CRUMB_REDIS]",
    ),
]
DataOption = Annotated[
    Path | None, typer.Option("--data", help="Where the embedded server keeps its data. [env: CRUMB_DATA]")
]


def read_since(text: str) -> datetime:
    """Read `--since`: a time, or how long ago. A time without a zone is local time."""
    from breadcrumbs.runtime.breadcrumb.ttl import parse_duration

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            moment = datetime.now(UTC) - parse_duration(text)
        except (ValueError, OverflowError):
            raise UsageError(
                f"{text!r} is neither a time (2026-11-16T09:00:00Z) nor how long ago (10m, 2h, 7d)"
            ) from None
    return moment.astimezone(UTC)


def read_owner(text: str | None) -> UUID | None:
    """Read `--owner`."""
    if text is None:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise UsageError("--owner must be a UUID") from None
