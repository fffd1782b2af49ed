"""Removes tokens, keys and passwords from log entries."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from structlog.typing import EventDict, WrappedLogger

_SECRET_NAMES: Final = frozenset(
    ("token", "access_token", "authorization", "api_key", "x_api_key", "password", "secret", "token_secret")
)
# Credentials in a URL: `token=…` in the query, or the password before the host.
_IN_URL: Final = re.compile(r"((?:token|access_token|password)=)[^&\s\"']+|(://[^/@\s:]*:)[^@\s/]+(?=@)")
_BEARER: Final = re.compile(r"(?i)(bearer\s+)\S+")


def without_secrets(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Replace tokens, keys and passwords in a log entry with `…`."""
    for name, value in event.items():
        if _is_secret_name(name):
            event[name] = "…"
        elif isinstance(value, str):
            # The expressions are tried at every character of every field, so look for their fixed parts first.
            if "=" in value or "@" in value:
                value = _IN_URL.sub(r"\1\2…", value)
            if "bearer" in value.lower():
                value = _BEARER.sub(r"\1…", value)
            event[name] = value
    return event


def may_contain_secrets(line: str) -> bool:
    """Return whether a rendered entry has a character or a word that `without_secrets` looks for in its values."""
    return "=" in line or "@" in line or "bearer" in line.lower()


@lru_cache(maxsize=1024)
def has_secret_names(names: tuple[str, ...]) -> bool:
    """Return whether one of the fields of an entry is a secret by its name."""
    return any(map(_is_secret_name, names))


@lru_cache(maxsize=1024)
def _is_secret_name(name: str) -> bool:
    return name.lower().replace("-", "_") in _SECRET_NAMES
