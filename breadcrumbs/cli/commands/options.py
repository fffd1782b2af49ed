"""What several commands take, and the key that none of them does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from breadcrumbs.cli.client import Api

DEFAULT_URL = "http://127.0.0.1:8081"

Url = Annotated[str, typer.Option("--url", envvar="CRUMB_URL", help="The server to talk to.")]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="CRUMB_TOKEN", help="A token; or set CRUMB_API_KEY.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON also on a terminal.")]
Session = Annotated[str | None, typer.Option("--session", "-s", help="Only this session.")]
Schema = Annotated[str | None, typer.Option("--schema", help="Only this schema, such as user.message.v1.")]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", "-t", help="Must have this tag; all of them if repeated.")
]
AnyTags = Annotated[list[str] | None, typer.Option("--any-tag", help="Must have at least one of these tags.")]
Since = Annotated[
    str | None, typer.Option("--since", help="Written since then: a time, or how long ago (10m, 2h, 7d).")
]
OwnerOf = Annotated[str | None, typer.Option("--owner", help="Only this owner (a UUID).")]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="Settings file. [env: CRUMB_CONFIG; default: crumb.toml if it is there]"),
]
Redis = Annotated[
    str | None,
    typer.Option(
        "--redis",
        help="A server of your own: redis:, rediss: (TLS), redis+cluster: or unix://… [env: CRUMB_REDIS]",
    ),
]
Data = Annotated[
    Path | None, typer.Option("--data", help="Where the embedded server keeps its data. [env: CRUMB_DATA]")
]


def api_key() -> str | None:
    """From the environment alone: what is on a command line, every user of the machine can see."""
    return os.environ.get("CRUMB_API_KEY")


def open_api(url: str, token: str | None) -> Api:
    from breadcrumbs.cli.client import Api

    return Api(url, token=token, api_key=api_key())
