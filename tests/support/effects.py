"""Tools with effects that are counted from outside: each effect is a line in a file."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import orjson

from breadcrumbs.agents.tools import ToolContext, tool

NAMES = ("record", "record_keyed")
SPECS = tuple(f"tests.support.effects:{name}" for name in NAMES)


def at_point(point: str) -> None:
    """Called before and after each effect. A killable worker replaces it."""


def _append(path: str, word: str, key: str | None) -> None:
    """Append one line. A line of this length is written at once, so a kill never leaves half of it."""
    at_point(f"before effect {word}")
    line = orjson.dumps([word, key]) + b"\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)
    at_point(f"after effect {word}")


@tool
async def record(path: str, turn: str, word: str, context: ToolContext) -> str:
    """Record a word."""
    _append(path, f"{turn}/{word}", context.request_id)
    return f"recorded {word}"


@tool(idempotent=True)
async def record_keyed(path: str, turn: str, word: str, context: ToolContext) -> str:
    """Record a word with its idempotency key. The receiver ignores a key that it knows."""
    _append(path, f"{turn}/{word}", context.request_id)
    return f"recorded {word}"


def read_effects(path: Path) -> list[tuple[str, str]]:
    """Return the words and keys of all effects."""
    if not path.exists():
        return []
    return [tuple(orjson.loads(line)) for line in path.read_bytes().splitlines()]


def repeated(path: Path, *, by_key: bool) -> dict[str, int]:
    """Return the effects that happened more than once. `by_key`: the receiver ignores known keys."""
    found = read_effects(path)
    words = [word for word, _ in (dict.fromkeys(found) if by_key else found)]
    return {word: times for word, times in Counter(words).items() if times > 1}
