"""Warns of `CRUMB_…` variables that are no settings, before a command runs."""

from __future__ import annotations

import os
from typing import Any

from breadcrumbs.cli.output import CommandError, fail

_COMMON = frozenset(
    f"CRUMB_{name}"
    for name in ("URL", "TOKEN", "API_KEY", "CONFIG", "HOST", "PORT", "LAUNCHER", "DATA", "REDIS")
)
"""Variables that need no look at the settings, which would load pydantic for each command."""
_LOGGING_COMMANDS = ("up", "serve", "build-contexts", "run-agents", "run-tools")
"""Commands that log the same warnings (composition/logs.py), also as JSON."""


def warn_of_unknown_variables(command: str | None) -> None:
    """Print a warning for each unknown variable, with the nearest known name."""
    names = [name for name in os.environ if name.upper().startswith("CRUMB_") and name.upper() not in _COMMON]
    if not names or command in _LOGGING_COMMANDS:
        return
    from breadcrumbs.runtime.settings.variables import describe_unknown, unknown_variables

    for name, nearest in unknown_variables(names, _models()).items():
        fail(f"warning: {describe_unknown(name, nearest)}")


def _models() -> dict[str, Any]:
    from breadcrumbs.cli.server_url import read_settings_file

    try:
        models = read_settings_file().get("models", {})
    except CommandError:
        return {}  # the command itself reports a file that cannot be read
    return models if isinstance(models, dict) else {}
