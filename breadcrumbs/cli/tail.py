"""tail: what happens on the blackboard, live, across restarts of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from breadcrumbs.cli.crumbs import session_in
from breadcrumbs.cli.output import console, for_people, one_line, print_line, say, shown_time
from breadcrumbs.client.options import Filters
from breadcrumbs.client.sync import Client
from breadcrumbs.client.values import Delta, Gap
from breadcrumbs.runtime.breadcrumb.text import find_text

_MARKS = {"created": ("+", "green"), "updated": ("~", "yellow"), "deleted": ("-", "red")}


def tail(client: Client, wanted: Filters, *, since_id: str | None, as_json: bool) -> int:
    show = _Person().show if for_people(as_json) else _as_line
    for event in client.events(**wanted, last_event_id=since_id, on_connection=_Connection().tell):
        if isinstance(event, Gap):
            say("some events are no longer kept: list what you need again (crumb list)")
        elif not isinstance(event, Delta):
            show(event.document, event.event_id)
    raise AssertionError("a stream has no end")


class _Connection:
    """Says once that the server has gone, however often it is looked for."""

    def __init__(self) -> None:
        self._is_lost = False

    def tell(self, state: str, reason: str) -> None:
        if state == "lost" and not self._is_lost:
            say(f"connection lost ({reason}), trying again …")
        elif state == "back":
            say("connected again; nothing was missed")
        self._is_lost = state == "lost"


def _as_line(event: Mapping[str, Any], id: str | None) -> None:
    print_line({**event, "event_id": id} if id is not None else event)


class _Person:
    def __init__(self) -> None:
        self._out = console()

    def show(self, event: Mapping[str, Any], _: str | None) -> None:
        from rich.text import Text

        operation = event.get("operation") or str(event.get("type", "")).rpartition(".")[2]
        mark, colour = _MARKS.get(operation, ("?", "white"))
        line = Text()
        line.append(f"{shown_time(event['updated_at'])} ", style="dim")
        line.append(f"{mark} ", style=f"bold {colour}")
        line.append(f"{one_line(event.get('schema_name') or '(no schema)', 60)} ", style="magenta")
        line.append(f"{one_line(session_in(event.get('tags', [])) or '-', 40)} ", style="cyan")
        line.append(_gist(event))
        line.append(f"  {event['breadcrumb_id']}", style="dim")
        self._out.print(line)


def _gist(event: Mapping[str, Any]) -> str:
    """What a person would want to read of it in one line."""
    context = event.get("context") or {}
    for text in (find_text(context), event.get("title")):
        if isinstance(text, str) and text.strip():
            return one_line(text, 160)
    return one_line(orjson.dumps(context).decode(), 160) if context else ""
