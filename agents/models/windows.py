"""Context windows of well-known models, in tokens. The setting `models.windows` adds others and has priority."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_WINDOWS: Final[dict[str, int]] = {
    "claude-3": 200_000,
    "claude-3.5": 200_000,
    "claude-3.7": 200_000,
    "claude-haiku-4.5": 200_000,
    "claude-opus-4.1": 200_000,
    "claude-opus-4.5": 200_000,
    "claude-sonnet-4.5": 200_000,
    "deepseek-chat": 131_072,
    "deepseek-reasoner": 131_072,
    "gemini-2.0-flash": 1_048_576,
    "gemini-2.5-flash": 1_048_576,
    "gemini-2.5-flash-image": 32_768,
    "gemini-2.5-pro": 1_048_576,
    "gpt-3.5-turbo": 16_385,
    "gpt-4": 8_192,
    "gpt-4-0125": 128_000,
    "gpt-4-1106": 128_000,
    "gpt-4-turbo": 128_000,
    "gpt-4.1": 1_047_576,
    "gpt-4o": 128_000,
    "gpt-5": 400_000,
    "gpt-5-chat": 128_000,
    "gpt-5.1": 400_000,
    "gpt-5.1-chat": 128_000,
    "gpt-5.2": 400_000,
    "gpt-5.2-chat": 128_000,
    "o1": 200_000,
    "o1-mini": 128_000,
    "o1-preview": 128_000,
    "o3": 200_000,
    "o4-mini": 200_000,
}
"""By the name, or its beginning up to `-` or `:`. The longest one applies.

Models on a server of one's own, such as Ollama, are not listed: the settings of that server determine their windows.
"""

_NUMBER: Final = re.compile(r"(?<=-\d)-(?=\d\b)")
"""The hyphen in `claude-sonnet-4-5`. Some providers write `claude-sonnet-4.5`."""


def window_of(model: str, settings: Mapping[str, int] | None = None) -> int | None:
    """Return the context window of a model, or None if it is unknown. `model` can begin with its provider."""
    if settings and (given := settings.get(model)) is not None:
        return given
    name = (model.rpartition("/")[2] if "/" in model else model.partition(":")[2] or model).lower()
    if settings and (given := settings.get(name)) is not None:
        return given
    name = _NUMBER.sub(".", name)
    found = max((known for known in _WINDOWS if _is_of(name, known)), key=len, default=None)
    return None if found is None else _WINDOWS[found]


def _is_of(name: str, known: str) -> bool:
    return name.startswith(known) and name[len(known) :][:1] in ("", "-", ":")
