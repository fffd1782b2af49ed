"""sessions: conversations, over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from breadcrumbs.cli.commands.options import DEFAULT_URL, AsJson, Token, Url, open_api

commands = typer.Typer(
    name="sessions",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Conversations: list, show, begin, rename, fork, retry and delete them.

    \b
    crumb sessions list
    crumb sessions messages demo
    crumb sessions delete demo
    """,
)

SessionName = Annotated[str, typer.Argument(metavar="SESSION", help="The session.")]
MessageId = Annotated[str | None, typer.Option("--message", help="The id of a message.", show_default=False)]


@commands.command("list")
def list_sessions(
    user: Annotated[str | None, typer.Option("--user", help="Only those of this user.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """List sessions, the last active one first.

    \b
    crumb sessions list
    crumb sessions list --user ann --all --json | jq -r .[].id
    """
    from breadcrumbs.cli import sessions

    with open_api(url, token) as api:
        return sessions.list_(api, user=user, limit=limit, everything=everything, as_json=as_json)


@commands.command("show")
def show_session(
    session: SessionName, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False
) -> int:
    """Show one: its version, what is in it, its state.

    \b
    crumb sessions show demo
    crumb sessions show demo --json | jq .state
    """
    from breadcrumbs.cli import sessions

    with open_api(url, token) as api:
        return sessions.show(api, session, as_json=as_json)


@commands.command("new")
def new_session(
    session: Annotated[
        str | None,
        typer.Argument(metavar="[SESSION]", help="Its id. [default: a new one]", show_default=False),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="What it is about.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Whose it is.")] = None,
    state: Annotated[str | None, typer.Option("--state", help="What it begins with (JSON).")] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Begin a session with a title, a user, a state. The first message begins one, too.

    \b
    crumb sessions new demo --title "Holidays" --state '{"language": "en"}'
    """
    from breadcrumbs.cli import sessions

    with open_api(url, token) as api:
        return sessions.new(api, session, title=title, user=user, state=state, as_json=as_json)


@commands.command("rename")
def rename_session(
    session: SessionName,
    title: Annotated[str, typer.Argument(help="The new title; an empty one takes it away.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Give a session another title.

    \b
    crumb sessions rename demo "Summer holidays"
    """
    from breadcrumbs.cli import sessions

    with open_api(url, token) as api:
        return sessions.rename(api, session, title, as_json=as_json)


@commands.command("pause")
def pause_session(
    session: SessionName, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False
) -> int:
    """Let agents no longer answer in a session. What is said meanwhile waits.

    \b
    crumb sessions pause demo
    """
    from breadcrumbs.cli import sessions

    with open_api(url, token) as api:
        return sessions.set_active(api, session, False, as_json=as_json)


@commands.command("resume")
def resume_session(
    session: SessionName, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False
) -> int:
    """Let agents answer in a session again, first what waited.

    \b
    crumb sessions resume demo
    """
    from breadcrumbs.cli import sessions

    with open_api(url, token) as api:
        return sessions.set_active(api, session, True, as_json=as_json)


@commands.command("delete")
def delete_sessions(
    names: Annotated[list[str], typer.Argument(metavar="SESSION...", help="The sessions.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Delete sessions with everything in them. What is being answered there stops.

    \b
    crumb sessions delete demo
    """
    from breadcrumbs.cli import sessions

    with open_api(url, token) as api:
        return sessions.delete(api, names, yes=yes, as_json=as_json)


@commands.command("fork")
def fork_session(
    session: SessionName,
    message: MessageId = None,
    name: Annotated[
        str | None,
        typer.Option("--id", help="The id of the new session. [default: a new one]", show_default=False),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Its title. [default: the same]")] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Begin a session with what was said in another, up to --message or to its end.

    \b
    crumb sessions fork demo --id demo-2
    crumb sessions fork demo --message 0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b
    """
    from breadcrumbs.cli import sessions

    with open_api(url, token) as api:
        return sessions.fork(api, session, message=message, name=name, title=title, as_json=as_json)


@commands.command("retry")
def retry_turn(
    session: SessionName,
    message: MessageId = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Run a turn again that failed: the newest one, or that of --message. The message is not posted again.

    \b
    crumb sessions retry demo
    """
    from breadcrumbs.cli import sessions

    with open_api(url, token) as api:
        return sessions.retry(api, session, message=message, as_json=as_json)


@commands.command("messages")
def session_messages(
    session: SessionName,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many of the newest.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Show what was said, the oldest first: messages, answers, errors, the use of tools.

    \b
    crumb sessions messages demo
    crumb sessions messages demo --all --json | jq -r '.[] | .role + ": " + .text'
    """
    from breadcrumbs.cli import sessions

    with open_api(url, token) as api:
        return sessions.messages(api, session, limit=limit, everything=everything, as_json=as_json)
