"""doctor and version: what is installed here, and whether it works."""

from __future__ import annotations

from typing import Annotated

import typer

from breadcrumbs.cli.commands.options import AsJson, Config, Data, Redis, open_api

commands = typer.Typer()


@commands.command()
def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="Mend what can be mended: indexes, expired leftovers.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option("--url", envvar="CRUMB_URL", help="The API to look for. [default: as in the settings]"),
    ] = None,
    data: Data = None,
    redis: Redis = None,
    config: Config = None,
    as_json: AsJson = False,
) -> int:
    """Look at everything, say what is wrong and how to mend it. Exit code 1 if something is.

    \b
    crumb doctor
    crumb doctor --fix
    crumb doctor --redis redis://db:6379/0 --json | jq '.findings[] | select(.status == "wrong")'
    """
    from breadcrumbs.cli.checkup import doctor

    flags = {"config": config, "data": data, "redis": redis}
    return doctor(flags, api=None if url is None else open_api(url, None), fix=fix, as_json=as_json)


@commands.command()
def version(as_json: AsJson = False) -> int:
    """Print the version.

    \b
    crumb version
    crumb version --json
    """
    import platform

    from breadcrumbs import __version__
    from breadcrumbs.cli.output import for_people, print_json

    if for_people(as_json):
        typer.echo(f"breadcrumbs {__version__} (Python {platform.python_version()})")
    else:
        print_json({"version": __version__, "python": platform.python_version()})
    return 0
