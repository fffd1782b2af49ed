"""Reads texts from the command line without pydantic, whose import takes longer than most commands.

typer builds a pydantic adapter for each option of the command, also for those that are not given. A text needs no
conversion, so the adapter is built only for other types, when their option is given.
"""

from __future__ import annotations

from typing import Any


def delay_adapters(command: Any, ctx: Any) -> None:
    """Let the options of a command and its subcommands build their adapters only when they are needed."""
    for parameter in command.get_params(ctx):  # with the option --help
        # Versions of typer without adapters have no such attribute.
        if getattr(parameter, "_runtime_param", ...) is None:
            parameter._runtime_param = _DelayedAdapter()
    for subcommand in getattr(command, "commands", {}).values():
        delay_adapters(subcommand, ctx)


class _DelayedAdapter:
    """Takes the place of typer's adapter of one option until a value needs it."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Convert a value as typer does."""
        is_multiple = param.multiple or param.nargs == -1
        if value is None:
            return () if is_multiple else None
        descriptor = param.type_descriptor
        if descriptor.parameter_info.parser is None:
            if descriptor.annotation is str and not is_multiple and isinstance(value, str):
                return value
            if descriptor.annotation == list[str] and _is_texts(value):
                return list(value)
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
