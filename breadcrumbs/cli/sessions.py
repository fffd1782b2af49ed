"""sessions: look at conversations, rename, fork, retry and delete them."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import orjson

from breadcrumbs.cli.client import Api
from breadcrumbs.cli.output import (
    OK,
    PROBLEM,
    CommandError,
    JsonArray,
    UsageError,
    agreed,
    console,
    fail,
    for_people,
    one_line,
    print_json,
    say,
    shown_time,
    visible,
)
from breadcrumbs.client.requests import segment

_PAGE = 100


def list_(api: Api, *, user: str | None, limit: int, everything: bool, as_json: bool) -> int:
    left, cursor, more = None if everything else limit, None, False
    found: list[dict[str, Any]] = []
    while True:
        params = [("limit", str(_PAGE if left is None else min(_PAGE, left)))]
        params += [("user_id", user)] if user is not None else []
        params += [("cursor", cursor)] if cursor is not None else []
        page = api.get("/sessions", params).json()
        found += page["sessions"]
        cursor = page.get("next_cursor")
        if left is not None:
            left -= len(page["sessions"])
        if cursor is None or left == 0:
            more = cursor is not None
            break
    if not for_people(as_json):
        array = JsonArray()
        for session in found:
            array.add(session)
        array.end()
    elif not found:
        say("there are no sessions yet")
    else:
        _print_lines(found)
    if more:
        say(f"there are more than these {limit}: --all lists everything, --limit more")
    return OK


def _print_lines(sessions: list[dict[str, Any]]) -> None:
    """Names are there to be copied: they are never cut, and on a narrow terminal what was said is."""
    from rich.text import Text

    rows = [
        (
            shown_time(session["last_active_at"]),
            visible(session["id"]),
            f"{session['counts']['messages']} said",
            one_line(session.get("user_id", "-"), 40),
            ("" if session["active"] else "(paused) ") + session.get("title", session.get("summary", "")),
        )
        for session in sessions
    ]
    out = console()
    widths = [max(len(row[place]) for row in rows) for place in range(4)]
    left = max(20, out.width - sum(widths) - 2 * len(widths))
    for row in rows:
        line = Text()
        for cell, width, style in zip(row, widths, ("dim", "cyan", "dim", "green"), strict=False):
            line.append(cell.ljust(width) + "  ", style=style)
        line.append(one_line(row[4], left))
        out.print(line)


def show(api: Api, session: str, *, as_json: bool) -> int:
    return _shown(api.get(_path(session)).json(), as_json=as_json)


def _shown(session: dict[str, Any], *, as_json: bool) -> int:
    if not for_people(as_json):
        print_json(session)
        return OK
    counts = session["counts"]
    rows = [
        ("session", visible(session["id"])),
        ("title", visible(session.get("title", "-"))),
        ("begins with", one_line(session.get("summary", "-"))),
        ("user", visible(session.get("user_id", "-"))),
        ("version", str(session["version"])),
        ("created", shown_time(session["created_at"])),
        ("last active", shown_time(session["last_active_at"])),
        ("agents", "answer" if session["active"] else "do not answer: it is paused"),
        ("messages", f"{counts['messages']}, {counts['answers']} answers, {counts['errors']} errors"),
        ("breadcrumbs", str(counts["breadcrumbs"])),
        ("state", one_line(orjson.dumps(session["state"]).decode(), 1_000)),
    ]
    width = max(len(name) for name, _ in rows)
    out = console()
    for name, text in rows:
        out.print(f"{name:{width}}  {text}", markup=False)
    return OK


def new(
    api: Api, name: str | None, *, title: str | None, user: str | None, state: str | None, as_json: bool
) -> int:
    given = {"id": name, "title": title, "user_id": user, "state": None if state is None else _state(state)}
    return _shown(_post(api, "/sessions", given), as_json=as_json)


def rename(api: Api, session: str, title: str, *, as_json: bool) -> int:
    change = {"title": title or None}
    return _shown(api.request("PATCH", _path(session), json=change).json(), as_json=as_json)


def set_active(api: Api, session: str, active: bool, *, as_json: bool) -> int:
    change = {"active": active}
    return _shown(api.request("PATCH", _path(session), json=change).json(), as_json=as_json)


def delete(api: Api, sessions: list[str], *, yes: bool, as_json: bool) -> int:
    what = f"session {visible(sessions[0])}" if len(sessions) == 1 else f"these {len(sessions)} sessions"
    if not yes and not agreed(f"Delete {what} with everything that was said?"):
        return PROBLEM
    results: list[dict[str, Any]] = []
    for session in sessions:
        try:
            gone = api.request("DELETE", _path(session)).json()
        except CommandError as error:
            fail(f"{session}: {error}")
            results.append({"id": session, "error": str(error)})
        else:
            results.append({"id": session, "deleted": gone["deleted"]})
    if for_people(as_json):
        for result in results:
            if "deleted" in result:
                console().print(
                    f"deleted {visible(result['id'])}: {result['deleted']} breadcrumbs", markup=False
                )
    else:
        print_json(results)
    return PROBLEM if any("error" in result for result in results) else OK


def fork(
    api: Api, session: str, *, message: str | None, name: str | None, title: str | None, as_json: bool
) -> int:
    given = {"message_id": message, "id": name, "title": title}
    return _shown(_post(api, f"{_path(session)}/fork", given), as_json=as_json)


def retry(api: Api, session: str, *, message: str | None, as_json: bool) -> int:
    given = {} if message is None else {"message_id": message}
    answer = api.request("POST", f"{_path(session)}/retry", json=given).json()
    if for_people(as_json):
        say(f"message {answer['message_id']} is being answered again")
    else:
        print_json(answer)
    return OK


def messages(api: Api, session: str, *, limit: int, everything: bool, as_json: bool) -> int:
    """The newest, or all of them; the oldest first either way."""
    found: list[dict[str, Any]] = []
    before: str | None = None
    more = True
    while more and (everything or len(found) < limit):
        size = _PAGE if everything else min(_PAGE, limit - len(found))
        params = [("limit", str(size)), *([("before", before)] if before is not None else [])]
        page = api.get(f"{_path(session)}/messages", params).json()
        found = page["messages"] + found
        more, before = page["has_more"], page.get("before")
    if not for_people(as_json):
        array = JsonArray()
        for message in found:
            array.add(message)
        array.end()
    else:
        for message in found:
            _print_message(message)
    if more:
        say(f"there are older ones than these {len(found)}: --all shows everything, --limit more")
    return OK


def _print_message(message: dict[str, Any]) -> None:
    from rich.text import Text

    role = message["role"]
    who = "user" if role == "user" else message.get("agent_id", role)
    if role == "tool":
        who = (
            f"{message.get('tool', {}).get('name', 'tool')} {message.get('tool', {}).get('step', '')}".strip()
        )
    line = Text()
    line.append(f"{shown_time(message['created_at'])}  ", style="dim")
    line.append(f"{message['id']}  ", style="cyan")
    line.append(f"{one_line(who, 40)}: ", style={"user": "green", "error": "red"}.get(role, "magenta"))
    line.append(visible(message.get("text", "(secret)")))
    console().print(line)


def _post(api: Api, path: str, fields: dict[str, Any]) -> dict[str, Any]:
    document = {name: value for name, value in fields.items() if value is not None}
    made: dict[str, Any] = api.request(
        "POST", path, json=document, headers={"idempotency-key": str(uuid4())}
    ).json()
    return made


def _state(text: str) -> dict[str, Any]:
    try:
        state = orjson.loads(text)
    except orjson.JSONDecodeError:
        state = None
    if not isinstance(state, dict):
        raise UsageError("""--state must be a JSON object, such as '{"language": "en"}'""")
    return state


def _path(session: str) -> str:
    return f"/sessions/{segment(session)}"
