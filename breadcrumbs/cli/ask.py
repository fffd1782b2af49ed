"""The command `crumb ask`: one question, one answer on standard output."""

from __future__ import annotations

import secrets
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from breadcrumbs.cli.agent_choice import AgentOption, ToOption, choose_agent
from breadcrumbs.cli.client import as_user, open_client
from breadcrumbs.cli.options import (
    DEFAULT_URL,
    ContinueOption,
    TimeoutOption,
    TokenOption,
    UrlOption,
    UserOption,
    WaitForOption,
)
from breadcrumbs.cli.output import INTERRUPTED, OK, PROBLEM, CommandError, UsageError, fail, one_line, say

if TYPE_CHECKING:
    from breadcrumbs.cli.chat_display import Display
    from breadcrumbs.client.sync import Client, Session

_RETRIES = 5
_RUNNER_SECONDS = 10.0
"""Time to wait for an answer while no agent runner is alive. One that is being started, or an agent of another kind,
can still answer."""
_NO_RUNNER = (
    "no agent runner is alive. Start one with crumb run-agents, or everything in one process with crumb up"
)
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
    to: ToOption = None,
    wait_for: WaitForOption = "first",
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
    crumb ask "Write a poem" --to poet           only this message
    crumb ask "Write a poem" --agent poet        also later messages
    crumb ask "Write about tea" --wait-for last  the end of a chain of agents

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
        code = _ask(_Turn(client, client.session(name), to), text, _Wait(wait_for, timeout or None))
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


def _ask(turn: _Turn, text: str, wait: _Wait) -> int:
    from breadcrumbs.client.errors import AgentFailed, BreadcrumbsError, NoAnswer

    display = turn.display
    try:
        turn.run(text, wait)
    except KeyboardInterrupt:
        display.end_unfinished()
        if turn.message_id:
            _cancel(turn.session)
        return INTERRUPTED
    except AgentFailed as failure:
        return _report(display, f"no answer: {failure.reason}")
    except NoAnswer as error:
        late = f"crumb sessions messages {one_line(turn.session.id)} shows a late answer"
        reason = str(error) if _has_runner(turn.client) else _NO_RUNNER
        return _report(display, f"no answer: {reason}. {late}")
    except BreadcrumbsError:
        display.end_unfinished()
        raise
    return OK


@dataclass(frozen=True, slots=True)
class _Wait:
    """The answer to wait for, and the seconds to wait."""

    wait_for: str
    timeout: float | None


class _Turn:
    """One question and its answer."""

    def __init__(self, client: Client, session: Session, to: str | None) -> None:
        from breadcrumbs.cli.chat_display import PipeDisplay, TerminalDisplay

        self.client = client
        self.session = session
        self.display: Display = TerminalDisplay() if sys.stdout.isatty() else PipeDisplay()
        self._to = to
        self.message_id = ""
        """Id of the question. Empty: it is not stored yet."""

    def run(self, text: str, wait: _Wait) -> None:
        """Ask, and show the answer. Raises `NoAnswer` early if no agent runner is alive."""
        from breadcrumbs.client.errors import NoAnswer

        began, timeout = time.monotonic(), wait.timeout
        is_alive = _has_runner(self.client)
        if is_alive or (timeout is not None and timeout <= _RUNNER_SECONDS):
            self._follow(text, wait)
            return
        try:
            self._follow(text, replace(wait, timeout=_RUNNER_SECONDS))
        except NoAnswer:
            left = None if timeout is None else timeout - (time.monotonic() - began)
            if not _has_runner(self.client) or (left is not None and left <= 0):
                raise
            # A runner has started meanwhile.
            self.display.show_answer(
                self.session.wait(self.message_id, timeout=left, wait_for=wait.wait_for).text
            )

    def _follow(self, text: str, wait: _Wait) -> None:
        from breadcrumbs.client.outcomes import ChainIds
        from breadcrumbs.client.values import Answer, Delta, Written

        ids = ChainIds("")
        for step in self.session.turn(text, timeout=wait.timeout, to=self._to, wait_for=wait.wait_for):
            if isinstance(step, Written):
                self.message_id = step.id
                ids = ChainIds(step.id)
            elif isinstance(step, Answer):
                self.display.show_answer(step.text)
            elif isinstance(step, Delta) and ids.has_delta(step):
                self.display.show_piece(step)
            elif wait.wait_for != "first":
                ids.add(step)


def _has_runner(client: Client) -> bool:
    """Return whether a process that runs agents is alive, or it is not known."""
    from breadcrumbs.client.errors import BreadcrumbsError

    try:
        known = client.request("GET", "/agents/answering").json()
    except BreadcrumbsError:
        return True
    return bool(known.get("running", True))  # older servers do not report it


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
