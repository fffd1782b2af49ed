"""The command `crumb version`: the version of this program, and of a running server."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from breadcrumbs.cli.client import open_client
from breadcrumbs.cli.options import DEFAULT_URL, JsonOption, TokenOption, UrlOption
from breadcrumbs.cli.output import OK, fail, for_people, print_json, visible

commands = typer.Typer()


@commands.command()
def version(
    server: Annotated[
        bool, typer.Option("--server", help="Also print the versions of the running server and its workers.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Print the version.

    \b
    crumb version
    crumb version --server
    crumb version --server --url https://crumbs.example.org --json

    With --server, it also prints the format and the lanes of the store, and names processes with another version. The
    store and the workers are shown to curators only.
    """
    import platform

    from breadcrumbs import __version__

    document: dict[str, Any] = {"version": __version__, "python": platform.python_version()}
    if server:
        document["server"] = _read_server(url, token)
        document["mismatches"] = _mismatches(__version__, document["server"])
    if not for_people(as_json):
        print_json(document)
        return OK
    typer.echo(f"breadcrumbs {document['version']} (Python {document['python']})")
    if server:
        _print_server(document["server"])
        for mismatch in document["mismatches"]:
            fail(f"warning: {visible(mismatch)}")
    return OK


def _read_server(url: str, token: str | None) -> dict[str, Any]:
    """Read the versions from a server. Without the rights of a curator, only its own version is known."""
    from breadcrumbs.client.errors import Forbidden, Unauthenticated

    with open_client(url, token) as client:
        server: dict[str, Any] = {
            "url": client.url,
            "version": client.request("GET", "/health").json()["version"],
        }
        try:
            state = client.request("GET", "/operations").json()
        except (Forbidden, Unauthenticated) as error:
            return server | {"store": None, "workers": None, "reason": str(error)}
    store = {"format": state["store"].get("format"), "lanes": len(state["lanes"])}
    workers = [
        {"kind": worker["kind"], "name": worker["name"], "version": worker.get("version")}
        for worker in state["workers"]
        if worker["alive"]
    ]
    return server | {"store": store, "workers": workers}


def _mismatches(own: str, server: dict[str, Any]) -> list[str]:
    """Return a sentence for each process whose version differs."""
    found = []
    if server["version"] != own:
        found.append(f"this program has version {own}, but the server has {server['version']}")
    found += [
        f"the worker {worker['name']} ({worker['kind']}) has version {worker['version']}, but the server has "
        f"{server['version']}"
        for worker in server["workers"] or ()
        if worker["version"] not in (None, server["version"])
    ]
    return found


def _print_server(server: dict[str, Any]) -> None:
    typer.echo(f"server {visible(server['version'])} at {visible(server['url'])}")
    if server["store"] is None:
        typer.echo(f"store and workers: unknown ({visible(server['reason'])})")
        return
    store = server["store"]
    typer.echo(f"store format {visible(str(store['format'] or 'unknown'))}, {store['lanes']} lanes")
    for worker in server["workers"]:
        shown = worker["version"] or "unknown version"
        typer.echo(f"worker {visible(worker['name'])} ({visible(worker['kind'])}): {visible(shown)}")
    if not server["workers"]:
        typer.echo("no workers are running")
