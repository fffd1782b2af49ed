"""Finds environment variables that look like settings, but are none: `CRUMB_PROT` instead of `CRUMB_PORT`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

from breadcrumbs.runtime.settings.settings import Settings

_PREFIX: Final = "CRUMB_"
_OTHERS: Final = ("CRUMB_CONFIG", "CRUMB_URL", "CRUMB_TOKEN", "CRUMB_API_KEY")
"""Variables that are not settings of a process."""
_INTERNAL: Final = ("CRUMB_LAUNCHER", "CRUMB_COMPLETE")
"""Variables that the launcher and the shell set. They are never suggested."""
_FROM_KUBERNETES: Final = re.compile(r"CRUMB_(.*_)?(SERVICE_(HOST|PORT.*)|PORT_\d+_(TCP|UDP).*)")
"""Variables that Kubernetes sets for a service whose name begins with `crumb`."""


def unknown_variables(
    environment: Iterable[str], models: Mapping[str, Any] | None = None
) -> dict[str, str | None]:
    """Return the unknown variables, each with the nearest known name, or None.

    `models`: the setting of the same name. It can name more variables, as `key_env`.
    """
    settings = [_PREFIX + name.upper() for name in Settings.model_fields]
    known = {*settings, *_OTHERS, *_INTERNAL, *_key_variables(models or {})}
    unknown = {}
    for name in sorted(environment):
        shown = name.upper()  # pydantic ignores the case, too
        is_setting = shown.partition("__")[0] in known  # CRUMB_RATE_LIMITS__ENABLED is a part of a setting
        if shown.startswith(_PREFIX) and not is_setting and not _FROM_KUBERNETES.fullmatch(shown):
            unknown[name] = _nearest(shown, [*settings, *_OTHERS])
    return unknown


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar name, or None. The common prefix does not count."""
    parts = [one.removeprefix(_PREFIX) for one in known]
    close = get_close_matches(name.removeprefix(_PREFIX), parts, 1)
    return _PREFIX + close[0] if close else None


def describe_unknown(name: str, nearest: str | None) -> str:
    """Return a message about an unknown variable."""
    if nearest is not None:
        return f"{name} is not a setting and is ignored: did you mean {nearest}?"
    return f"{name} is not a setting and is ignored"


def _key_variables(models: Mapping[str, Any]) -> set[str]:
    """Return the variables that the models read their keys from."""
    found = set()
    for name, value in models.items():
        if isinstance(value, Mapping):
            found |= _key_variables(value)
        elif name == "key_env" and isinstance(value, str):
            found.add(value.upper())
    return found
