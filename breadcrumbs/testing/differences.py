"""Texts of failed assertions: prompts, the nearest line, and line-by-line differences."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
"""One message of a prompt, as the request contains it."""

_MAX_SHOWN = 12_000


def message_text(message: Message) -> str:
    """Return everything that a model reads in a message: its text, and its tool calls."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return "\n".join([*([text] if text else []), *(f"{one['name']}({one['arguments']})" for one in calls)])


def show_prompt(messages: Iterable[Message]) -> str:
    """Return a prompt as people read it, one paragraph per message."""
    shown = "\n".join(f"{message.get('role', '?')}: {message_text(message)}" for message in messages)
    cut = f"\n… {len(shown) - _MAX_SHOWN:,} more characters" if len(shown) > _MAX_SHOWN else ""
    return shown[:_MAX_SHOWN] + cut


def nearest_line(wanted: str, text: str) -> str | None:
    """Return the line of a text that resembles the wanted text most, or None."""
    lines = [line for line in text.splitlines() if line.strip()]
    found = difflib.get_close_matches(wanted, lines, n=1, cutoff=0.5)
    return found[0] if found else None


def difference(expected: str, actual: str) -> str:
    """Return the lines of two texts that differ, with some lines around them."""
    lines = difflib.unified_diff(
        expected.splitlines(), actual.splitlines(), "expected", "actual", n=2, lineterm=""
    )
    return "\n".join(lines)


def indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def as_list(names: Sequence[str], empty: str = "none") -> str:
    return ", ".join(names) or empty


def show_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
