"""chat: a conversation in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from breadcrumbs.cli.commands.options import DEFAULT_URL, Token, Url, api_key

commands = typer.Typer()


@commands.command()
def chat(
    session: Annotated[
        str | None, typer.Option("--session", "-s", help="The session to go on with. [default: a new one]")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds to wait for an answer; 0 = for ever.")
    ] = 300.0,
    url: Url = DEFAULT_URL,
    token: Token = None,
) -> int:
    """Chat in the terminal: answers appear while they are made. /help inside lists what it can do.

    \b
    crumb chat
    crumb chat --session demo
    echo "What did I say?" | crumb chat --session demo

    Ctrl-C stops an answer, once more leaves. In a pipe each line is a message, and only the answers are printed.
    """
    from breadcrumbs.cli.chat import chat

    return chat(
        url,
        token=token,
        api_key=api_key(),
        session=session,
        timeout=timeout or None,
    )
