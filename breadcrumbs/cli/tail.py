"""tail: what happens on the blackboard, live, across restarts of the server."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from breadcrumbs.cli.client import Api
from breadcrumbs.cli.crumbs import session_in
from breadcrumbs.cli.output import console, for_people, one_line, print_line, say, shown_time

_LONGEST_WAIT = 5.0
_MARKS = {"created": ("+", "green"), "updated": ("~", "yellow"), "deleted": ("-", "red")}


@dataclass(frozen=True, slots=True)
class Message:
    """One server-sent event."""

    event: str
    data: str
    id: str | None
    """The last id seen so far: where to go on from after this message."""


def parse_sse(chunks: Iterable[bytes]) -> Iterator[Message]:
    """Messages out of bytes, also those that carry no data but an id."""
    event, id = "message", None
    data: list[str] = []
    for line in _lines(chunks):
        if not line:
            if data or id is not None:
                yield Message(event, "\n".join(data), id)
            event, data = "message", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            event = value
        elif name == "id" and "\0" not in value:
            id = value


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    # Not str.splitlines: it also cuts at characters that JSON has inside of strings.
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode(errors="replace")


def tail(api: Api, params: list[tuple[str, str]], *, since_id: str | None, as_json: bool) -> int:
    show = _Person().show if for_people(as_json) else _as_line
    last_id, connected, wait = since_id, False, 0.5
    while True:
        began = time.monotonic()
        try:
            headers = {"last-event-id": last_id} if last_id else {}
            with api.stream("/events/stream", params, headers) as response:
                if connected:
                    say("connected again; nothing was missed" if last_id else "connected again")
                connected = True
                for message in parse_sse(response.iter_raw()):
                    last_id = message.id or last_id
                    if message.event == "gap":
                        say("some events are no longer kept: list what you need again (crumb list)")
                    elif message.event == "message" and message.data:
                        show(orjson.loads(message.data), last_id)
            reason = "the server ended the stream"
        except httpx.HTTPError as error:
            if not connected:
                raise api.unreachable(error) from error
            reason = str(error) or type(error).__name__
        if time.monotonic() - began > 2 * _LONGEST_WAIT:
            wait = 0.5
        say(f"connection lost ({reason}), trying again in {wait:g} s …")
        time.sleep(wait)
        wait = min(_LONGEST_WAIT, wait * 2)


def _as_line(event: dict[str, Any], id: str | None) -> None:
    print_line(event if id is None else event | {"event_id": id})


class _Person:
    def __init__(self) -> None:
        self._out = console()

    def show(self, event: dict[str, Any], _: str | None) -> None:
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


def _gist(event: dict[str, Any]) -> str:
    """What a person would want to read of it in one line."""
    context = event.get("context") or {}
    for text in (context.get("message"), context.get("content"), event.get("title")):
        if isinstance(text, str) and text.strip():
            return one_line(text, 160)
    return one_line(orjson.dumps(context).decode(), 160) if context else ""
