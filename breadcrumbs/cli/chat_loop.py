"""The input loop of `crumb chat`. It posts messages and follows the event stream through the public client."""

from __future__ import annotations

import secrets

from breadcrumbs.cli.chain_answers import ChainAnswers
from breadcrumbs.cli.chat_display import Display
from breadcrumbs.cli.output import INTERRUPTED, OK, PROBLEM, one_line, shown_time
from breadcrumbs.client.errors import AgentFailed, BreadcrumbsError, NoAnswer
from breadcrumbs.client.sync import Client
from breadcrumbs.client.values import Answer, ChatMessage, Delta, Event, Gap, Written, creator_in
from breadcrumbs.runtime.schema_names import (
    AGENT_ERROR,
    AGENT_RESPONSE,
    TOOL_REQUEST,
    TOOL_RESPONSE,
    USER_MESSAGE,
)

_MESSAGES_AT_SWITCH = 6
_HISTORY_LENGTH = 20
_MAX_SESSIONS = 20
_CANCEL_SECONDS = 15.0

_HELP = """\
/sessions        list sessions, most recently active first
/new [NAME]      start a new session
/switch NAME     continue another session
/to AGENT TEXT   send a message that only this agent answers
/history [N]     show the last N messages of this session
/help            show this help
/quit            leave the chat (or press Ctrl-D)
Ctrl-C stops a running answer. Press it again to leave the chat.
To send a message that begins with a slash, type two: //like this"""


_LEAVE_HINT = "press Ctrl-C again or Ctrl-D to leave"


class LeaveChat(Exception):
    """The user leaves the chat. `code` is the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class ChatLoop:
    """Sends the lines that the user types, and shows answers and other events."""

    def __init__(self, client: Client, display: Display, session: str, timeout: float | None) -> None:
        self.failed = False
        self._client = client
        self._display = display
        self._timeout = timeout
        self._disconnected = False
        self._interrupted = False
        """Whether Ctrl-C was the last input. A second Ctrl-C leaves the chat."""
        self._last_event_ids: dict[str, str] = {}
        """Id of the last event shown, per session. The next turn also shows the events after it."""
        self._shown: set[str] = set()
        """Ids of breadcrumbs that were shown outside the event stream. The next turn does not show them again."""
        self._switch(session)

    @property
    def exit_code(self) -> int:
        """Exit code of the chat. On a terminal it is always 0, because the user has seen the errors."""
        return PROBLEM if self.failed and not self._display.interactive else OK

    def run(self) -> None:
        """Read and handle lines until the end of the input. Raise `LeaveChat` if the user leaves earlier."""
        lines = self._display.lines()
        while True:
            try:
                line = next(lines)
            except StopIteration:
                return
            except KeyboardInterrupt:
                self._interrupt(_LEAVE_HINT)
                lines = self._display.lines()
                continue
            text = line.encode("utf-8", "replace").decode().strip()
            if not text:
                continue
            self._interrupted = False
            try:
                if text.startswith("/") and not text.startswith("//"):
                    self._run_command(text)
                else:
                    self._say(text.removeprefix("/") if text.startswith("//") else text)
            except KeyboardInterrupt:
                self._interrupt("stopped")
            except BreadcrumbsError as error:
                self.failed = True
                self._display.show_problem(str(error))

    def _interrupt(self, notice: str) -> None:
        if self._interrupted or not self._display.interactive:
            raise LeaveChat(INTERRUPTED)
        self._interrupted = True
        self._display.show_notice(notice)

    def _switch(self, name: str) -> None:
        self._session = self._client.session(name)
        self._display.set_prompt(name)

    # A turn

    def _say(self, text: str, to: str | None = None) -> None:
        message_id = ""
        answers = ChainAnswers(self._display)
        try:
            for step in self._session.turn(
                text,
                timeout=self._timeout,
                to=to,
                wait_for="last",
                last_event_id=self._last_event_ids.get(self._session.id),
                on_connection=self._on_connection,
            ):
                if isinstance(step, Written):
                    message_id = answers.message_id = step.id
                elif isinstance(step, Answer):
                    answers.show_last(step)
                else:
                    answers.show(step)
                    self._show(step, message_id)
        except KeyboardInterrupt:
            if message_id:
                self._stop(message_id)
            self._interrupt(_LEAVE_HINT if message_id else "stopped, but the message was possibly sent")
        except AgentFailed as failure:
            answers.show_waiting()
            self._show_failure(failure)
        except NoAnswer as error:
            self.failed = True
            answers.show_waiting()
            self._display.show_problem(f"{error}. A late answer is shown with your next message")

    def _stop(self, message_id: str) -> None:
        """Cancel the turn and wait for its outcome. Another Ctrl-C leaves the chat."""
        self._display.show_notice("stopping …")
        try:
            self._session.cancel("stopped by the user")
            answer = self._session.wait(message_id, timeout=_CANCEL_SECONDS)
        except AgentFailed as failure:
            self._show_failure(failure)
        except NoAnswer:
            self._display.show_notice("cancel requested, but not confirmed yet")
        except KeyboardInterrupt:
            raise LeaveChat(INTERRUPTED) from None
        else:  # the answer was finished before the cancel arrived
            self._shown.add(answer.id)
            self._display.show_answer(answer.text)

    def _show_failure(self, failure: AgentFailed) -> None:
        self._shown.add(failure.breadcrumb_id)
        if failure.cancelled:
            self._display.show_notice(failure.reason)
        else:
            self.failed = True
            self._display.show_problem(f"no answer: {failure.reason}")

    def _show(self, event: Event, message_id: str) -> None:
        if event.event_id is not None:
            self._last_event_ids[self._session.id] = event.event_id
        if isinstance(event, Delta):
            return  # shown by `ChainAnswers`
        if isinstance(event, Gap):
            self._display.show_notice("some newer messages are not shown: use /history to see them")
        elif (
            event.operation == "created"
            and event.breadcrumb_id != message_id
            and event.breadcrumb_id not in self._shown
        ):
            self._show_created(event, message_id)

    def _show_created(self, event: Event, message_id: str) -> None:
        if event.schema_name == USER_MESSAGE:
            self._display.show_message("user", event.text)
        elif message_id in (event.context.get("trigger_id"), event.context.get("root_id")):
            if event.schema_name in (TOOL_REQUEST, TOOL_RESPONSE):
                self._display.show_aside(_tool_line(event))
        elif event.schema_name == AGENT_RESPONSE:
            self._display.show_message(creator_in(event.context) or "agent", event.text)
        elif event.schema_name == AGENT_ERROR:
            error = event.context.get("error", "")
            self._display.show_aside(f"an earlier message was not answered: {error}")

    def _on_connection(self, state: str, detail: str) -> None:
        if state == "lost" and not self._disconnected:
            self._display.show_notice(f"connection lost ({detail}), reconnecting …")
        elif state == "back":
            self._display.show_notice("connected again")
        self._disconnected = state == "lost"

    # Commands

    def _run_command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        match name.lower():
            case "/quit" | "/exit":
                raise LeaveChat(self.exit_code)
            case "/help":
                self._display.show_text(_HELP)
            case "/sessions":
                self._list_sessions()
            case "/new" if rest and self._client.session(rest).messages(last=1):
                self.failed = True
                self._display.show_problem(f"session {rest} already exists: continue it with /switch {rest}")
            case "/new":
                self._switch(rest or new_session_name())
                self._display.show_notice(f"session {self._session.id}")
            case "/switch" if rest:
                before = self._client.session(rest).messages(last=_MESSAGES_AT_SWITCH)
                self._switch(rest)
                self._display.show_notice(f"session {rest}" if before else f"session {rest}, no messages yet")
                self._show_messages(before)
            case "/switch":
                self.failed = True
                self._display.show_problem(
                    "/switch needs the name of a session: /switch NAME (/sessions lists the names)"
                )
            case "/to":
                self._say_to(rest)
            case "/history":
                self._show_history(rest)
            case _:
                self.failed = True
                self._display.show_problem(
                    f"unknown command {name}: /help lists the commands, and //… sends text with a slash"
                )

    def _say_to(self, rest: str) -> None:
        agent, _, text = rest.partition(" ")
        if text.strip():
            self._say(text.strip(), agent)
        else:
            self.failed = True
            self._display.show_problem("/to needs an agent and a text: /to poet Write about rain")

    def _show_history(self, count: str) -> None:
        if not count or count.isdecimal():
            self._show_messages(self._session.messages(last=max(1, int(count or _HISTORY_LENGTH))))
        else:
            self.failed = True
            self._display.show_problem("/history needs a number: /history 50")

    def _show_messages(self, messages: tuple[ChatMessage, ...]) -> None:
        for message in messages:
            who = "you" if message.role == "user" else message.agent_id or "agent"
            self._shown.add(message.id)
            self._display.show_message(who, message.text)

    def _list_sessions(self) -> None:
        found = list(self._client.sessions(limit=_MAX_SESSIONS))
        if not found:
            self._display.show_notice("no sessions yet")
        width = max((len(one_line(session.id, 40)) for session in found), default=0)
        for session in found:
            mark = "*" if session.id == self._session.id else " "
            when = shown_time(session.last_active_at.isoformat())
            words = one_line(session.title or session.summary or "", 60)
            self._display.show_text(f"{mark} {one_line(session.id, 40):{width}}  {when}  {words}")


def _tool_line(event: Event) -> str:
    context = event.context
    tool = one_line(context.get("tool", "tool"), 64)
    if event.schema_name == TOOL_REQUEST:
        return f"{tool} {one_line(_as_json(context.get('input')), 100)}"
    if context.get("status") == "error":
        return f"{tool} failed: {one_line(context.get('error', ''), 160)}"
    return f"{tool} → {one_line(_as_json(context.get('output')), 100)}"


def _as_json(value: object) -> str:
    import orjson

    return orjson.dumps(value).decode()


def new_session_name() -> str:
    return f"chat-{secrets.token_hex(3)}"
