"""Commands on the sessions of a server: `crumb sessions …`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from breadcrumbs.cli.client import command_errors, open_client, path_of, send_json
from breadcrumbs.cli.completion import session_names
from breadcrumbs.cli.id_prefixes import find_message, find_session
from breadcrumbs.cli.options import DEFAULT_URL, JsonOption, TokenOption, UrlOption
from breadcrumbs.cli.output import (
    OK,
    PROBLEM,
    UsageError,
    confirm,
    console,
    fail,
    for_people,
    one_line,
    print_array,
    print_columns,
    print_json,
    say,
    shown_time,
    visible,
)

if TYPE_CHECKING:
    from breadcrumbs.client.sync import Client

_PAGE_SIZE = 100

commands = typer.Typer(
    name="sessions",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List, create, change and delete sessions (conversations).

    \b
    crumb sessions list
    crumb sessions messages demo
    crumb sessions delete demo
    """,
)

SessionArgument = Annotated[
    str,
    typer.Argument(
        metavar="SESSION", help="Id of the session, or its beginning.", autocompletion=session_names
    ),
]
MessageIdOption = Annotated[
    str | None, typer.Option("--message", help="Id of a message, or its beginning.", show_default=False)
]


@commands.command("list")
def list_sessions(
    user: Annotated[str | None, typer.Option("--user", help="Only sessions of this user.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="List all, without a limit.")] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """List sessions, most recently active first.

    \b
    crumb sessions list
    crumb sessions list --user ann --all --json | jq -r .[].id
    """
    with open_client(url, token) as client:
        found, more = _read_sessions(client, user, None if everything else limit)
    if not for_people(as_json):
        print_array(found)
    elif found:
        _print_sessions(found)
    else:
        say("no sessions yet")
    if more:
        say(f"only the first {limit} are listed: use --limit or --all for more")
    return OK


def _read_sessions(client: Client, user: str | None, limit: int | None) -> tuple[list[dict[str, Any]], bool]:
    """Read sessions page by page, up to the limit. Also return whether there are more."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        size = _PAGE_SIZE if limit is None else min(_PAGE_SIZE, limit - len(found))
        wanted = {"limit": str(size), "user_id": user, "cursor": cursor}
        params = [(name, value) for name, value in wanted.items() if value is not None]
        page = client.request("GET", "/sessions", params=params).json()
        found += page["sessions"]
        cursor = page.get("next_cursor")
        if cursor is None or len(found) == limit:
            return found, cursor is not None


def _print_sessions(sessions: list[dict[str, Any]]) -> None:
    with_agents = any("agent" in session for session in sessions)  # most installations never choose one
    rows = [
        (
            shown_time(session["last_active_at"]),
            visible(session["id"]),
            str(session["counts"]["messages"]),
            one_line(session.get("user_id", "-"), 40),
            *((one_line(session.get("agent", "-"), 40),) if with_agents else ()),
            ("" if session["active"] else "(paused) ") + session.get("title", session.get("summary", "")),
        )
        for session in sessions
    ]
    agent = (("agent", "magenta"),) if with_agents else ()
    columns = (
        ("last active", "dim"), ("session", "cyan"), ("messages", "right dim"), ("user", "green"), *agent
    )  # fmt: skip
    print_columns(rows, tuple(style for _, style in columns), (*(name for name, _ in columns), "title"))


@commands.command("show")
def show_session(
    session: SessionArgument,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show a session: title, user, agent, counts and state.

    \b
    crumb sessions show demo
    crumb sessions show demo --json | jq .state
    """
    with open_client(url, token) as client:
        path = path_of("sessions", find_session(client, session))
        _show(client.request("GET", path).json(), as_json)
    return OK


def _show(session: dict[str, Any], as_json: bool) -> None:
    import orjson

    if not for_people(as_json):
        print_json(session)
        return
    counts = session["counts"]
    rows = [
        ("session", visible(session["id"])),
        ("title", visible(session.get("title", "-"))),
        ("begins with", one_line(session.get("summary", "-"))),
        ("user", visible(session.get("user_id", "-"))),
        ("version", str(session["version"])),
        ("created", shown_time(session["created_at"])),
        ("last active", shown_time(session["last_active_at"])),
        ("agents", "active" if session["active"] else "paused, messages wait"),
        ("answered by", visible(session.get("agent", "all agents that react to a message"))),
        ("messages", f"{counts['messages']}, {counts['answers']} answers, {counts['errors']} errors"),
        ("breadcrumbs", str(counts["breadcrumbs"])),
        ("state", one_line(orjson.dumps(session["state"]).decode(), 1_000)),
    ]
    width = max(len(name) for name, _ in rows)
    out = console()
    for name, text in rows:
        out.print(f"{name:{width}}  {text}", markup=False)


@commands.command("new")
def new_session(
    session: Annotated[
        str | None,
        typer.Argument(metavar="[SESSION]", help="Id. [default: a new one]", show_default=False),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Title.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Id of the user it belongs to.")] = None,
    state: Annotated[str | None, typer.Option("--state", help="Initial state (JSON object).")] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Create a session with a title, a user or a state.

    \b
    crumb sessions new demo --title "Holidays" --state '{"language": "en"}'

    This is optional: the first message to a new session id also creates the session.
    """
    fields = {
        "id": session,
        "title": title,
        "user_id": user,
        "state": None if state is None else _read_state(state),
    }
    with open_client(url, token) as client:
        _show(_create(client, "/sessions", fields), as_json)
    return OK


def _read_state(text: str) -> dict[str, Any]:
    import orjson

    try:
        state = orjson.loads(text)
    except orjson.JSONDecodeError:
        state = None
    if not isinstance(state, dict):
        raise UsageError("""--state must be a JSON object, such as '{"language": "en"}'""")
    return state


def _create(client: Client, path: str, fields: dict[str, Any]) -> dict[str, Any]:
    document = {name: value for name, value in fields.items() if value is not None}
    created: dict[str, Any] = send_json(client, "POST", path, document, idempotency_key=str(uuid4())).json()
    return created


@commands.command("rename")
def rename_session(
    session: SessionArgument,
    title: Annotated[str, typer.Argument(help="New title. An empty text removes the title.")],
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Change the title of a session.

    \b
    crumb sessions rename demo "Summer holidays"
    """
    with open_client(url, token) as client:
        _show(_change(client, session, {"title": title or None}), as_json)
    return OK


def _change(client: Client, session: str, fields: dict[str, Any]) -> dict[str, Any]:
    path = path_of("sessions", find_session(client, session))
    changed: dict[str, Any] = send_json(client, "PATCH", path, fields).json()
    return changed


@commands.command("pause")
def pause_session(
    session: SessionArgument,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Pause a session. Agents stop answering, and new messages wait.

    \b
    crumb sessions pause demo
    """
    with open_client(url, token) as client:
        _show(_change(client, session, {"active": False}), as_json)
    return OK


@commands.command("resume")
def resume_session(
    session: SessionArgument,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Resume a paused session. Agents answer the waiting messages first.

    \b
    crumb sessions resume demo
    """
    with open_client(url, token) as client:
        _show(_change(client, session, {"active": True}), as_json)
    return OK


@commands.command("delete")
def delete_sessions(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="SESSION...",
            help="Ids of the sessions. Without --yes, their beginnings.",
            autocompletion=session_names,
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without confirmation.")] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Delete sessions with all their breadcrumbs. Running answers are cancelled.

    \b
    crumb sessions delete demo
    """
    with open_client(url, token) as client:
        if not yes:  # --yes takes whole ids only, because demo must not delete demo-2 if there is no demo
            names = [find_session(client, name) for name in names] if sys.stdin.isatty() else names
            what = f"session {visible(names[0])}" if len(names) == 1 else f"these {len(names)} sessions"
            if not confirm(f"Delete {what} with all messages?"):
                return PROBLEM
        results = [_delete_one(client, name) for name in names]
    if not for_people(as_json):
        print_json(results)
    else:
        for result in results:
            if "deleted" in result:
                done = f"deleted {visible(result['id'])}: {result['deleted']} breadcrumbs"
                console().print(done, markup=False)
    return PROBLEM if any("error" in result for result in results) else OK


def _delete_one(client: Client, session: str) -> dict[str, Any]:
    from breadcrumbs.client.errors import BreadcrumbsError

    try:
        with command_errors(client.url):
            deleted = client.request("DELETE", path_of("sessions", session)).json()["deleted"]
    except BreadcrumbsError as error:
        fail(f"{session}: {error}")
        return {"id": session, "error": str(error)}
    return {"id": session, "deleted": deleted}


@commands.command("fork")
def fork_session(
    session: SessionArgument,
    message: MessageIdOption = None,
    name: Annotated[
        str | None,
        typer.Option("--id", help="Id of the new session. [default: a new one]", show_default=False),
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", help="Title of the new session. [default: the same title]")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Copy a session into a new one. With --message, copy it up to this message.

    \b
    crumb sessions fork demo --id demo-2
    crumb sessions fork demo --message 0197a3c4-5e6f
    """
    with open_client(url, token) as client:
        session = find_session(client, session)
        fields = {"message_id": find_message(client, session, message), "id": name, "title": title}
        _show(_create(client, path_of("sessions", session, "fork"), fields), as_json)
    return OK


@commands.command("retry")
def retry_turn(
    session: SessionArgument,
    message: MessageIdOption = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Retry a failed turn. The message is not posted again.

    \b
    crumb sessions retry demo
    crumb sessions retry demo --message 0197a3c4-5e6f

    Without --message, the newest failed turn is retried.
    """
    with open_client(url, token) as client:
        session = find_session(client, session)
        document = {} if message is None else {"message_id": find_message(client, session, message)}
        retried = send_json(client, "POST", path_of("sessions", session, "retry"), document).json()
    if for_people(as_json):
        say(f"retrying message {retried['message_id']}")
    else:
        print_json(retried)
    return OK


@commands.command("messages")
def session_messages(
    session: SessionArgument,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Number of newest messages.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="Show all, without a limit.")] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show the messages of a session, oldest first. Includes answers, errors and tool calls.

    \b
    crumb sessions messages demo
    crumb sessions messages demo --all --json | jq -r '.[] | .role + ": " + .text'
    """
    with open_client(url, token) as client:
        session = find_session(client, session)
        found, more = _read_messages(client, session, None if everything else limit)
    if not for_people(as_json):
        print_array(found)
    else:
        for message in found:
            _print_message(message)
    if more:
        say(f"only the newest {len(found)} are shown: use --limit or --all for more")
    return OK


def _read_messages(client: Client, session: str, limit: int | None) -> tuple[list[dict[str, Any]], bool]:
    """Read the newest messages, oldest first, up to the limit. Also return whether there are older ones."""
    found: list[dict[str, Any]] = []
    before: str | None = None
    while True:
        size = _PAGE_SIZE if limit is None else min(_PAGE_SIZE, limit - len(found))
        params = [("limit", str(size)), *([("before", before)] if before is not None else [])]
        page = client.request("GET", path_of("sessions", session, "messages"), params=params).json()
        found = page["messages"] + found
        more, before = page["has_more"], page.get("before")
        if not more or len(found) == limit:
            return found, more


def _print_message(message: dict[str, Any]) -> None:
    from rich.text import Text

    role = message["role"]
    who = "user" if role == "user" else message.get("agent_id", role)
    if role == "tool":
        tool = message.get("tool", {})
        who = f"{tool.get('name', 'tool')} {tool.get('step', '')}".strip()
    line = Text()
    line.append(f"{shown_time(message['created_at'])}  ", style="dim")
    line.append(f"{message['id']}  ", style="cyan")
    line.append(f"{one_line(who, 40)}: ", style={"user": "green", "error": "red"}.get(role, "magenta"))
    line.append(visible(message.get("text", "(secret)")))
    console().print(line)


@commands.command("export-test")
def export_test(
    session: SessionArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Python file to write. [default: tests/test_SESSION.py]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Write a pytest test that repeats a session.

    \b
    crumb sessions export-test demo
    crumb sessions export-test demo --output tests/test_refund.py

    Writes a test of three lines, and a JSON file with the messages, prompts,
    replies and answers beside it. The test runs the agents of your project with
    the recorded replies of the model, on a temporary server. It fails when a
    prompt or an answer changes. Requires the role curator.
    """
    from breadcrumbs.cli.recorded_tests import default_path, save_test, say_written

    with open_client(url, token) as client:
        found = find_session(client, session)
        recording = client.request("GET", path_of("sessions", found, "recording")).json()
    files = save_test(recording, output or default_path(found), force=force)
    if for_people(as_json):
        import json

        say_written(files, json.loads(files[1].read_text("utf-8")))
    else:
        print_json({"files": [str(file) for file in files], "turns": len(recording["turns"])})
    return OK
