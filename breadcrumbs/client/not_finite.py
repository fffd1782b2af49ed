"""Finds numbers that JSON cannot represent."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any


def find_not_finite(document: Any) -> str | None:
    """Return a description of the first NaN or infinity, such as "context.scores[2] is nan", or None."""
    pending: list[tuple[str, Any]] = [("", document)]
    # Iterative, so that a deeply nested document cannot exhaust the stack.
    while pending:
        path, value = pending.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return f"{path.removeprefix('.') or 'the value'} is {value}"
        pending.extend(reversed([(path + step, inner) for step, inner in _inner_values(value)]))
    return None


def _inner_values(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values directly inside a value that orjson can encode, each with its step of the path."""
    if isinstance(value, Mapping):
        yield from ((f".{key}", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{number}]", inner) for number, inner in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value))
