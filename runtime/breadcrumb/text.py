"""Finds the text of a message, and renders other content as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from breadcrumbs.runtime.schema_names import TEXT_KEYS


def find_text(content: Mapping[str, Any]) -> str | None:
    """Return the text of a message, or None if it has none."""
    for key in TEXT_KEYS:
        value = content.get(key)
        if isinstance(value, str):
            return value
    return None


def plain_text(content: Mapping[str, Any]) -> str:
    """Return the text of a message, or its JSON if it has none."""
    text = find_text(content)
    return json_text(content) if text is None else text


def encodable_text(text: str) -> str:
    """Replace lone surrogates with `?`. Models can produce them, and UTF-8 cannot encode them."""
    return text.encode("utf-8", "replace").decode()


def printable_line(text: str) -> str:
    """Replace unprintable characters and runs of white space with single spaces."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(text.split())


def shorten_line(text: str, max_length: int = 80) -> str:
    """Return the beginning of a text as one line, with an ellipsis if it is cut."""
    line = printable_line(text[: 5 * max_length])
    return line if len(line) <= max_length else line[: max_length - 1] + "…"


def json_text(content: Any) -> str:
    """Encode a value as JSON without null values."""
    return orjson.dumps(_without_nulls(content)).decode()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value if inner is not None]
    return value
