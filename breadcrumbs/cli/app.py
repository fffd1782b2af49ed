"""The app `crumb`: its commands in the order of the help, and the exit codes of their errors.

The modules of the commands import what is heavy (the client, the server, rich) when a command runs. `crumb --help`
loads none of it.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from breadcrumbs.cli import (
    chat,
    contexts,
    crumbs,
    dead_letters,
    doctor,
    export_import,
    servers,
    sessions,
    tokens,
)
from breadcrumbs.cli.output import INTERRUPTED, PROBLEM, USAGE, UsageError, fail, leave_closed_pipe
from breadcrumbs.runtime.errors import BreadcrumbsError


class Commands(TyperGroup):
    """Runs a command. Expected errors become one line on standard error and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            code = super().invoke(ctx)
        except UsageError as error:
            fail(error)
            code = USAGE
        except UnicodeError as error:
            fail(f"this is not valid UTF-8: {error}")
            code = USAGE
        except BreadcrumbsError as error:
            fail(error)
            code = PROBLEM
        except ExceptionGroup as group:
            # A task group raises a group even for a single error.
            expected, others = group.split(BreadcrumbsError)
            if expected is None or others is not None:
                raise
            fail(_first(expected))
            code = PROBLEM
        except BrokenPipeError:
            leave_closed_pipe()
        except KeyboardInterrupt:
            code = INTERRUPTED
        raise typer.Exit(code or 0)


def _first(group: ExceptionGroup[BreadcrumbsError]) -> BreadcrumbsError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    # Plain help: drawing it with rich costs 400 ms. Tracebacks are for bugs, and then Python's own.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Breadcrumbs: post, read and follow small tagged JSON packets.

    \b
    crumb up                                 start everything on this machine
    crumb post "Hello" --session demo        (in another terminal)
    crumb tail --session demo                follow what happens, live

    On a terminal you get tables, in a pipe JSON. Settings come from flags, from CRUMB_… variables and from
    crumb.toml, in this order. crumb COMMAND --help has examples.
    """,
)

for commands in (
    servers.commands,
    crumbs.commands,
    tokens.commands,
    export_import.commands,
    doctor.commands,
    chat.commands,
    contexts.contexts,
    contexts.audits,
    sessions.commands,
    dead_letters.commands,
):
    app.add_typer(commands)
