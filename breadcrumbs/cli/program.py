"""Builds the program `crumb` from its command modules, with its exit codes.

A command module imports the client, the server and rich only when a command runs, so that `crumb --help` is fast. A run
of one command loads only the module of that command.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from breadcrumbs.cli.output import INTERRUPTED, PROBLEM, USAGE, UsageError, fail, leave_closed_pipe
from breadcrumbs.cli.plain_values import delay_adapters
from breadcrumbs.cli.variables import warn_of_unknown_variables
from breadcrumbs.runtime.errors import BreadcrumbsError

MODULES: Final[dict[str, tuple[str, ...]]] = {
    "servers": ("up", "serve", "build-contexts", "run-agents", "run-tools"),
    "crumbs": ("post", "get", "list", "tail", "history", "delete"),
    "tokens": ("token",),
    "exports": ("export",),
    "imports": ("import",),
    "doctor": ("doctor",),
    "version": ("version",),
    "models": ("models", "model"),
    "init": ("init",),
    "keys": ("keys",),
    "chat": ("chat",),
    "ask": ("ask",),
    "context_tests": ("context",),
    "audits": ("audit",),
    "proofs": ("verify",),
    "replay": ("replay",),
    "configs": ("config",),
    "sessions": ("sessions",),
    "feedback": ("feedback",),
    "usage": ("usage",),
    "dead_letters": ("dead-letters",),
    "workers": ("workers",),
    "agents": ("agents",),
    "completion": ("completion",),
}
"""The commands of each command module, in the order of the help."""

_GROUPS: Final = {"context_tests": "contexts", "audits": "audits", "configs": "configs"}
"""Name of the commands in a module, if it is not `commands`."""


class Commands(TyperGroup):
    """Command group that turns expected errors into a message and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        delay_adapters(self, ctx)
        return super().parse_args(ctx, args)

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


_OPTIONS: Final[dict[str, Any]] = {
    "cls": Commands,
    "no_args_is_help": True,
    "add_completion": False,
    # Help and tracebacks are plain text, because rich would take 400 ms to load.
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
    "help": """Breadcrumbs: post, read and follow small tagged JSON documents.

    \b
    crumb up                              start a server on this machine
    crumb chat                            chat with an agent (in another terminal)
    crumb ask "What is a blackboard?"     print one answer
    crumb post "Hello" --session demo     post one message
    crumb tail --session demo             follow a session live

    Output is a table on a terminal, and JSON in a pipe. Settings come from flags, then CRUMB_… variables,
    then crumb.toml. Run crumb COMMAND --help for examples.
    """,
}


def _print_version(wanted: bool) -> None:
    if wanted:
        from breadcrumbs import __version__

        typer.echo(f"crumb {__version__}")
        raise typer.Exit


def _options(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    warn_of_unknown_variables(context.invoked_subcommand)


def build_program(modules: Iterable[str] = MODULES) -> typer.Typer:
    """Return the program with the commands of some modules."""
    program = typer.Typer(**_OPTIONS)
    program.callback()(_options)
    for module in modules:
        commands = getattr(import_module(f"breadcrumbs.cli.{module}"), _GROUPS.get(module, "commands"))
        program.add_typer(commands)
    return program


def modules_for(arguments: list[str]) -> Iterable[str]:
    """Return the modules that a command line needs: the one of its command, or all if it names no command."""
    named = [module for module, names in MODULES.items() if arguments[:1] and arguments[0] in names]
    return named or MODULES
