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
    return json_text(content)


def writable(text: str) -> str:
    """Without halves of characters, which a model may produce and nothing can store."""
    return text.encode("utf-8", "replace").decode()


def json_text(content: Any) -> str:
    """Anything as JSON, without what is null: nobody said that."""
    return orjson.dumps(_without_nulls(content)).decode()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value if inner is not None]
    return value
