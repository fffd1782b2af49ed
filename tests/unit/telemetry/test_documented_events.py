"""docs/operations.md lists every event of the log at the level info and above, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")
LEVELS = ("info", "warning", "error", "exception")
NOT_OF_THE_SERVER = "breadcrumbs/adk"
"""Runs in the program of a user, who configures its logs."""


def events_in_code() -> Iterator[str]:
    for folder in ("runtime", "agents", "context_builder", "breadcrumbs"):
        for path in (ROOT / folder).rglob("*.py"):
            if not path.relative_to(ROOT).is_relative_to(NOT_OF_THE_SERVER):
                for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                    if isinstance(node, ast.Call) and (event := event_of(node)) is not None:
                        yield event


def event_of(call: ast.Call) -> str | None:
    """Return the event that a call logs, or None. The parts of a text that vary become `…`."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="_log" | "log"), attr=level) if level in LEVELS:
            return text_of(call.args[0])
        case ast.Name(id="log_store_error"):
            return text_of(call.args[1])
    return None


def text_of(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
    return None


def documented_events() -> set[str]:
    section = OPERATIONS.partition("\n### Logs\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


COMPOSED = {
    "turn answered",
    "turn failed, retrying",
    "turn failed",
    "turn cancelled",
    "turn abandoned",
    "context config is not used",
    "agent definition is not used",
    "limit of … reached, older ones are ignored: delete some",
}
"""Events whose text or level is chosen while the program runs."""


def test_every_event_is_documented_and_every_documented_event_exists() -> None:
    assert documented_events() == set(events_in_code()) | COMPOSED


def test_composed_events_exist_in_the_code() -> None:
    code = "".join(
        (ROOT / name).read_text("utf-8")
        for name in ("runtime/telemetry/turns.py", "runtime/workers/definitions.py")
    )
    for event in COMPOSED:
        for part in event.split("…"):
            assert part.removeprefix("context config").removeprefix("agent definition") in code, event
