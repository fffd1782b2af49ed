"""The command `crumb ask`: one question, one answer on standard output."""

from __future__ import annotations

import secrets
import sys
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
from breadcrumbs.cli.output import INTERRUPTED, OK, PROBLEM, CommandError, UsageError, fail, one_line, say

if TYPE_CHECKING:
    from breadcrumbs.cli.chat_display import Display
    from breadcrumbs.client.sync import Client, Session

_RETRIES = 5
_MAX_INPUT_BYTES = 16 << 20
"""Bound of the text from a pipe. The server has its own bound, the setting max_body_bytes."""

commands = typer.Typer()


@commands.command()
def ask(
    question: Annotated[
        str | None, typer.Argument(help="The question. [default: the text from a pipe]", show_default=False)
    ] = None,
    session: ContinueOption = None,
    agent: AgentOption = None,
    user: UserOption = None,
    timeout: TimeoutOption = 300.0,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
) -> int:
    """Ask one question. Only the answer is printed on standard output.

    \b
    crumb ask "What is a blackboard?"
    crumb ask "Summarize this text" < notes.txt
    git diff | crumb ask "Write a commit message" > message.txt
    crumb ask "And in French?" --session demo
    crumb ask "Write a poem" --agent poet

    Text from a pipe is sent after the question, separated by an empty line. The exit code is 0 with an answer and 1
    without one; the reason is printed on standard error. Ctrl-C cancels the answer, and the exit code is 130.
    """
    text = _read_question(question)
    name = session or f"ask-{secrets.token_hex(3)}"
    with open_client(url, token) as first:  # without retries, to report a stopped server immediately
        first.request("GET", "/health")
        credentials = token if user is None else as_user(first, user)
    with open_client(url, credentials, retries=_RETRIES) as client:
        choose_agent(client, name, agent)
        code = _ask(client, name, text, timeout or None)
    if session is None and sys.stdout.isatty() and sys.stderr.isatty():
        say(f"continue with: crumb ask --session {name} …")
    return code


def _read_question(question: str | None) -> str:
    """Return the question with the text from a pipe or a file, if there is one."""
    piped = "" if sys.stdin is None or sys.stdin.isatty() else _read_input()
    parts = [part for part in ((question or "").strip(), piped.strip()) if part]
    if not parts:
        raise UsageError(
            'no question: add one (crumb ask "What is a blackboard?"), or send a text through a pipe'
        )
    return "\n\n".join(parts)


def _read_input() -> str:
    raw = sys.stdin.buffer.read(_MAX_INPUT_BYTES + 1)
    if len(raw) > _MAX_INPUT_BYTES:
        raise CommandError(f"the text from the pipe is larger than {_MAX_INPUT_BYTES >> 20} MiB: send less")
    return raw.decode()


def _ask(client: Client, name: str, text: str, timeout: float | None) -> int:
    from breadcrumbs.cli.chat_display import PipeDisplay, TerminalDisplay
    from breadcrumbs.client.errors import AgentFailed, BreadcrumbsError, NoAnswer
    from breadcrumbs.client.values import Answer, Delta, Written

    display = TerminalDisplay() if sys.stdout.isatty() else PipeDisplay()
    session, message_id = client.session(name), ""
    try:
        for step in session.turn(text, timeout=timeout):
            if isinstance(step, Written):
                message_id = step.id
            elif isinstance(step, Answer):
                display.show_answer(step.text)
            elif isinstance(step, Delta) and step.trigger_id == message_id:
                display.show_piece(step)
    except KeyboardInterrupt:
        display.end_unfinished()
        if message_id:
            _cancel(session)
        return INTERRUPTED
    except AgentFailed as failure:
        return _report(display, f"no answer: {failure.reason}")
    except NoAnswer as error:
        late = f"crumb sessions messages {one_line(name)} shows a late answer"
        return _report(display, f"no answer: {error}. {late}")
    except BreadcrumbsError:
        display.end_unfinished()
        raise
    return OK


def _report(display: Display, reason: str) -> int:
    display.end_unfinished()
    fail(reason)
    return PROBLEM


def _cancel(session: Session) -> None:
    from breadcrumbs.client.errors import BreadcrumbsError

    try:
        session.cancel("stopped by the user")
    except BreadcrumbsError as error:
        fail(f"the answer was possibly not cancelled: {error}")
