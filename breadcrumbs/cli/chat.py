"""The command `crumb chat`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from breadcrumbs.cli.agent_choice import AgentOption, choose_agent
from breadcrumbs.cli.client import as_user, open_client
from breadcrumbs.cli.options import (
    DEFAULT_URL,
    ContinueOption,
    TimeoutOption,
    TokenOption,
    UrlOption,
    UserOption,
)

if TYPE_CHECKING:
    from breadcrumbs.cli.chat_display import Display

_RETRIES = 5
_MESSAGES_AT_START = 6

commands = typer.Typer()


@commands.command()
def chat(
    session: ContinueOption = None,
    agent: AgentOption = None,
    user: UserOption = None,
    history: Annotated[
        bool,
        typer.Option(
            "--history/--no-history", help="Keep the lines that you type for the arrow keys of later chats."
        ),
    ] = True,
    timeout: TimeoutOption = 300.0,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
) -> int:
    """Chat in the terminal. Answers appear while they are written, and /help lists the chat commands.

    \b
    crumb chat
    crumb chat --session demo
    crumb chat --agent poet               only this agent answers
    crumb chat --user ann                 try what the user ann gets
    echo "What did I say?" | crumb chat --session demo

    Ctrl-C stops an answer. A second Ctrl-C leaves the chat. In a pipe, each line is a message and only the answers
    are printed. With --user, the chat has its own token, which is limited to this user.
    """
    from breadcrumbs.cli.chat_display import choose_display
    from breadcrumbs.cli.chat_loop import ChatLoop, LeaveChat, new_session_name

    name = session or new_session_name()
    with open_client(url, token) as first:  # without retries, to report a stopped server immediately
        credentials = token if user is None else as_user(first, user)
    with open_client(url, credentials) as first:
        choose_agent(first, name, agent)
        before = first.session(name).messages(last=_MESSAGES_AT_START)
    display = choose_display()
    with open_client(url, credentials, retries=_RETRIES) as client, _line_history(display, wanted=history):
        loop = ChatLoop(client, display, name, timeout or None)
        display.greet(name, client.url, before)
        try:
            loop.run()
        except LeaveChat as leave:
            return leave.code
    return loop.exit_code


def _line_history(display: Display, *, wanted: bool) -> AbstractContextManager[None]:
    """Load the typed lines of earlier chats, and save those of this one at the end. Only at a terminal."""
    from breadcrumbs.cli.line_input import saved_history

    return saved_history() if wanted and display.interactive else nullcontext()
