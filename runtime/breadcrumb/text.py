"""Finds the text of a message, and renders other content as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from breadcrumbs.runtime.schema_names import RUNTIME_KEYS, TEXT_KEYS

_JOINERS: Final = "\u200c\u200d"
"""Zero-width joiner and non-joiner. They have no width, but they decide which letters or emoji form one shape."""


def find_text(content: Mapping[str, Any]) -> str | None:
    """Return the text of a message, or None if it has none."""
    for key in TEXT_KEYS:
        value = content.get(key)
        if isinstance(value, str):
            return value
    return None


def plain_text(content: Mapping[str, Any]) -> str:
    """Return the text of a message, or its JSON without the keys of the runtime if it has none."""
    text = content.get(TEXT_KEYS[0])  # nearly all messages have it, and each turn reads its conversation
    if isinstance(text, str):
        return text
    text = find_text(content)
    if text is not None:
        return text
    return json_text({key: value for key, value in content.items() if key not in RUNTIME_KEYS})


def encodable_text(text: str) -> str:
    """Replace lone surrogates with `?`. Models can produce them, and UTF-8 cannot encode them."""
    return text.encode("utf-8", "replace").decode()


def printable_line(text: str) -> str:
    """Replace unprintable characters and runs of white space with single spaces. Joiners inside words stay."""
    if not text.isprintable():
        text = "".join(
            char if char.isprintable() or _joins(text, at) else " " for at, char in enumerate(text)
        )
    return " ".join(text.split())


def _joins(text: str, at: int) -> bool:
    """Return whether a character is a joiner between two visible ones, as in an emoji or a Persian word."""
    before, after = text[at - 1 : at], text[at + 1 : at + 2]
    return text[at] in _JOINERS and _is_visible(before) and _is_visible(after)


def _is_visible(character: str) -> bool:
    return character.isprintable() and bool(character.strip())


def shorten_line(text: str, max_length: int = 80) -> str:
    """Return the beginning of a text as one line, with an ellipsis if it is cut."""
    line = printable_line(text[: 5 * max_length])
    return line if len(line) <= max_length else line[: max_length - 1].rstrip(_JOINERS) + "…"


def json_text(content: Any) -> str:
    """Encode a value as JSON without null values."""
    return orjson.dumps(_without_nulls(content)).decode()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value if inner is not None]
    return value
