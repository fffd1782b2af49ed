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
    """Replace lone surrogates. A model may produce them, and UTF-8 cannot encode them."""
    return text.encode("utf-8", "replace").decode()


def json_text(content: Any) -> str:
    """Render JSON without null members."""
    return orjson.dumps(_without_nulls(content)).decode()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value if inner is not None]
    return value
