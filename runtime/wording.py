"""The words in a breadcrumb: what a person or a model would read of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

_WORDS = ("message", "content", "text", "response_text", "formatted")


def plain_text(content: Mapping[str, Any]) -> str:
    """The words of a message; anything else as JSON."""
    for key in _WORDS:
        value = content.get(key)
        if isinstance(value, str):
            return value
    return orjson.dumps(content).decode()
