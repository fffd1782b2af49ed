"""The program `crumb`: its commands, in the order of the help, and its exit codes.

The command modules import the client, the server and rich only when a command runs, so that `crumb --help` is fast.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from breadcrumbs.cli import (
    ask,
    audits,
    chat,
    completion,
    configs,
    context_tests,
    crumbs,
    dead_letters,
    doctor,
    exports,
    feedback,
    imports,
    init,
    keys,
    models,
    proofs,
    replay,
    servers,
    sessions,
    tokens,
    version,
    workers,
)
from breadcrumbs.cli.output import INTERRUPTED, PROBLEM, USAGE, UsageError, fail, leave_closed_pipe
from breadcrumbs.cli.variables import warn_of_unknown_variables
from breadcrumbs.runtime.errors import BreadcrumbsError


class Commands(TyperGroup):
    """Command group that turns expected errors into a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            code = super().invoke(ctx)
        except UsageError as error:
            fail(error)
            code = USAGE
        except UnicodeError as error:
            fail(f"the input is not valid UTF-8: {error}")
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
    # Help and tracebacks are plain text, because rich would take 400 ms to load.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Breadcrumbs: post, read and follow small tagged JSON documents.

    \b
    crumb up                              start a server on this machine
    crumb chat                            chat with an agent (in another terminal)
    crumb ask "What is a blackboard?"     print one answer
    crumb post "Hello" --session demo     post one message
    crumb tail --session demo             follow a session live

    Output is a table on a terminal, and JSON in a pipe. Settings come from flags, then CRUMB_… variables,
    then crumb.toml. Run crumb COMMAND --help for examples.
    """,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from breadcrumbs import __version__

        typer.echo(f"crumb {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    warn_of_unknown_variables(context.invoked_subcommand)


for commands in (
    servers.commands,
    crumbs.commands,
    tokens.commands,
    exports.commands,
    imports.commands,
    doctor.commands,
    version.commands,
    models.commands,
    init.commands,
    keys.commands,
    chat.commands,
    ask.commands,
    context_tests.contexts,
    audits.audits,
    proofs.commands,
    replay.commands,
    configs.configs,
    sessions.commands,
    feedback.commands,
    dead_letters.commands,
    workers.commands,
    completion.commands,
):
    app.add_typer(commands)
