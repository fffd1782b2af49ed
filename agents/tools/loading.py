"""Load the tools of the settings, given as `package.module:function`.

Only the settings may name a tool to import. If a breadcrumb could, every client could run Python code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce
from importlib import import_module
from typing import Any

from breadcrumbs.agents.tools.base import Tool, tool
from breadcrumbs.agents.tools.output import error_text
from breadcrumbs.runtime.errors import InvalidInput, StartupError

_ENTRY = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<path>[^\W\d]\w*(?:\.[^\W\d]\w*)*)")


def load_tools(specs: Iterable[str]) -> list[Tool]:
    """Import the tools. A function without a decorator becomes a tool with the defaults of `@tool`."""
    return [_load(spec) for spec in dict.fromkeys(specs)]


def _load(spec: str) -> Tool:
    entry = _ENTRY.fullmatch(spec)
    if entry is None:
        raise StartupError(f"invalid tool name {spec!r}: write package.module:function")
    try:
        module = import_module(entry["module"])
    except (Exception, SystemExit) as error:  # an import can run any code
        raise StartupError(f"the tool {spec!r} cannot be imported: {error_text(error)}") from error
    try:
        found: Any = reduce(getattr, entry["path"].split("."), module)
    except AttributeError:
        raise StartupError(f"tool {spec!r} not found: {entry['module']} has no {entry['path']}") from None
    if isinstance(found, Tool):
        return found
    if isinstance(found, type) or not callable(found):
        raise StartupError(f"the tool {spec!r} is not a function, but a {type(found).__name__}")
    try:
        return tool(found)
    except InvalidInput as error:
        raise StartupError(f"the tool {spec!r} cannot be described to a model: {error.message}") from None
