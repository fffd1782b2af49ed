"""Shell completion: the command `crumb completion`, and names from the server for it.

A shell runs `crumb` with `_CRUMB_COMPLETE` at each press of the tab key. Completion is quick, or it offers nothing. It
prints no errors, because they would appear in the middle of the line that the user types.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated, Any

import typer

from breadcrumbs.cli.output import OK, UsageError
from breadcrumbs.cli.server_url import server_url

VARIABLE = "_CRUMB_COMPLETE"
"""Set by the shell scripts of `crumb completion`."""

_SHELLS = ("bash", "zsh", "fish")
_MAX_SECONDS = 0.7
_MAX_BYTES = 1 << 20
_SAFE = re.compile(r"[A-Za-z0-9._@+-]+")
"""Names that no shell expands. The script for zsh evaluates the output, and other people choose session names."""

commands = typer.Typer()


@commands.command()
def completion(
    shell: Annotated[
        str | None, typer.Argument(help="bash, zsh or fish. [default: your shell]", show_default=False)
    ] = None,
) -> int:
    """Print a script for completion with the tab key.

    \b
    eval "$(crumb completion bash)"      in ~/.bashrc
    eval "$(crumb completion zsh)"       in ~/.zshrc, after compinit
    crumb completion fish > ~/.config/fish/completions/crumb.fish

    It completes commands, options, sessions and ids. Sessions and ids come from the running server.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    chosen = shell or os.path.basename(os.environ.get("SHELL", ""))
    if chosen not in _SHELLS:
        raise UsageError(f"no completion for {chosen or 'this shell'!r}: choose one of {', '.join(_SHELLS)}")
    typer.echo(get_completion_script(prog_name="crumb", complete_var=VARIABLE, shell=chosen).strip())
    return OK


def complete_quietly(app: typer.Typer) -> None:
    """Answer the shell, and exit without an error message in any case."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        completion_init()
        app(prog_name="crumb")
    except SystemExit:
        raise
    except BaseException:  # a traceback, or Ctrl-C during the completion
        sys.exit(1)


# Names from the server


def session_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the most recently active sessions that begin with the text."""
    reply = _fetch(ctx, "/sessions?limit=100")
    return _names(reply.get("sessions") if isinstance(reply, dict) else None, incomplete)


def breadcrumb_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the newest breadcrumbs that begin with the text."""
    return _names(_fetch(ctx, "/breadcrumbs?limit=200"), incomplete)


def dead_letter_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the dead letters that begin with the text."""
    return _names(_fetch(ctx, "/dlq"), incomplete)


def worker_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the workers that run and begin with the text."""
    reply = _fetch(ctx, "/operations/workers")
    workers = reply.get("workers") if isinstance(reply, dict) else None
    running = [one for one in workers if one.get("alive")] if isinstance(workers, list) else None
    return sorted(set(_names(running, incomplete, "name")))


def agent_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the agents that answer users and begin with the text."""
    reply = _fetch(ctx, "/agents/answering")
    return _names(reply.get("agents") if isinstance(reply, dict) else None, incomplete, "agent_id")


def _names(items: Any, incomplete: str, field: str = "id") -> list[str]:
    if not isinstance(items, list):
        return []
    ids = [str(item.get(field)) for item in items if isinstance(item, dict)]
    return [id for id in ids if id.startswith(incomplete) and _SAFE.fullmatch(id)]


def _fetch(ctx: typer.Context, path: str) -> Any:
    """Return the JSON of a reply, or None. It takes at most `_MAX_SECONDS`, also if a name server does not answer."""
    import threading

    replies: list[Any] = []

    def fetch() -> None:
        try:
            replies.append(_get(ctx, path))
        except Exception:  # noqa: S110 - no server, no permission, not JSON: nothing to offer
            pass

    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    thread.join(_MAX_SECONDS)
    return replies[0] if replies else None


def _get(ctx: typer.Context, path: str) -> Any:
    """Send one request without the client, whose import takes longer than the request."""
    import json
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.parse import urlsplit

    source = ctx.get_parameter_source("url")
    given = ctx.params.get("url") if source is not None and source.name == "COMMANDLINE" else None
    address = urlsplit(server_url(given))
    kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
    connection = kind(address.hostname or "", address.port, timeout=_MAX_SECONDS)
    connection.request("GET", address.path.rstrip("/") + path, headers=_credentials(ctx))
    reply = connection.getresponse()
    return json.loads(reply.read(_MAX_BYTES)) if reply.status == 200 else None


def _credentials(ctx: typer.Context) -> dict[str, str]:
    if token := ctx.params.get("token") or os.environ.get("CRUMB_TOKEN"):
        return {"authorization": f"Bearer {token}"}
    key = os.environ.get("CRUMB_API_KEY")
    return {"x-api-key": key} if key else {}
