"""The options `--agent` and `--to`: the agent that answers in a session, and the one that answers a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from breadcrumbs.cli.completion import agent_names
from breadcrumbs.cli.output import CommandError, one_line

if TYPE_CHECKING:
    from breadcrumbs.client.sync import Client

_MAX_LISTED = 20

AgentOption = Annotated[
    str | None,
    typer.Option(
        "--agent",
        help="Agent that answers in the session from now on. An empty text: all agents.",
        show_default=False,
        autocompletion=agent_names,
    ),
]


ToOption = Annotated[
    str | None,
    typer.Option(
        "--to",
        help="The only agent that answers this message. --agent is for the whole session.",
        show_default=False,
        autocompletion=agent_names,
    ),
]


def choose_agent(client: Client, session_id: str, agent: str | None) -> None:
    """Choose the agent of a session, and create the session if needed. None changes nothing."""
    from breadcrumbs.client.errors import NotFound

    if agent is None:
        return
    if agent:
        _check_answers_users(client, agent)
    session = client.session(session_id)
    try:
        if session.info().agent == (agent or None):
            return
    except NotFound:
        if not agent:
            return
        client.create_session(id=session_id)
    session.change(agent=agent or None)


def _check_answers_users(client: Client, agent: str) -> None:
    """Refuse an unknown agent before a session is created for it."""
    names = [one["agent_id"] for one in client.request("GET", "/agents/answering").json()["agents"]]
    if agent not in names:
        listed = ", ".join(one_line(name) for name in names[:_MAX_LISTED]) or "none"
        raise CommandError(f"no agent {one_line(agent)!r} answers users. Agents that do: {listed}")
