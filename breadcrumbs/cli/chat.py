"""The command `crumb chat`."""

from __future__ import annotations

from typing import Annotated

import typer

from breadcrumbs.cli.client import open_client
from breadcrumbs.cli.options import DEFAULT_URL, TokenOption, UrlOption

_RETRIES = 5
_MESSAGES_AT_START = 6

commands = typer.Typer()


@commands.command()
def chat(
    session: Annotated[
        str | None, typer.Option("--session", "-s", help="Session to continue. [default: a new one]")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds to wait for an answer, 0 for no limit.")
    ] = 300.0,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
) -> int:
    """Chat in the terminal. Answers appear while they are written, and /help lists the chat commands.

    \b
    crumb chat
    crumb chat --session demo
    echo "What did I say?" | crumb chat --session demo

    Ctrl-C stops an answer. A second Ctrl-C leaves the chat. In a pipe, each line is a message and only the answers
    are printed.
    """
    from breadcrumbs.cli.chat_display import choose_display
    from breadcrumbs.cli.chat_loop import ChatLoop, LeaveChat, new_session_name

    name = session or new_session_name()
    with open_client(url, token) as first:  # without retries, to report a stopped server immediately
        before = first.session(name).messages(last=_MESSAGES_AT_START)
    display = choose_display()
    with open_client(url, token, retries=_RETRIES) as client:
        loop = ChatLoop(client, display, name, timeout or None)
        display.greet(name, client.url, before)
        try:
            loop.run()
        except LeaveChat as leave:
            return leave.code
    return loop.exit_code
