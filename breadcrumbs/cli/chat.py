"""chat: a conversation in the terminal. It posts messages and follows the event stream, as any client would.

On a terminal answers are shown while they are made; in a pipe each line is a message, and the answers, and
nothing else, go to standard output.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from breadcrumbs.cli.client import open_client
from breadcrumbs.cli.output import (
    INTERRUPTED,
    OK,
    PROBLEM,
    console,
    fail,
    one_line,
    say,
    shown_time,
    visible,
)
from breadcrumbs.client.errors import AgentFailed, BreadcrumbsError, NoAnswer
from breadcrumbs.client.sync import Client
from breadcrumbs.client.values import Answer, ChatMessage, Delta, Event, Gap, Written, creator_in

if TYPE_CHECKING:
    from rich.live import Live

_MESSAGE, _ANSWER, _ERROR = "user.message.v1", "agent.response.v1", "agent.error.v1"
_TOOL_REQUEST, _TOOL_RESPONSE = "tool.request.v1", "tool.response.v1"

_RETRIES = 5
_SHOWN_AT_START = 6
_SHOWN_OF_HISTORY = 20
_MOST_SESSIONS = 20
_CANCEL_SECONDS = 15.0

_HELP = """\
/sessions        the sessions, the last active one first
/new [NAME]      begin a new session
/switch NAME     go on with another session
/history [N]     what was said here: the last N messages
/help            this
/quit            leave; so does Ctrl-D
Ctrl-C stops an answer that is being made; once more leaves.
A text that begins with a slash is sent with two: //like this"""


class Face(Protocol):
    """How a chat shows itself."""

    interactive: bool

    def greet(self, session: str, url: str, before: tuple[ChatMessage, ...]) -> None: ...
    def lines(self) -> Iterator[str]: ...
    def prompt(self, session: str) -> None: ...
    def notice(self, text: str) -> None: ...
    def told(self, text: str) -> None: ...
    def piece(self, delta: Delta) -> None: ...
    def aside(self, text: str) -> None: ...
    def said(self, who: str, text: str) -> None: ...
    def answer(self, text: str) -> None: ...
    def problem(self, text: str) -> None: ...


class Leave(Exception):
    """The user wants to go."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def chat(
    url: str, *, token: str | None, api_key: str | None, session: str | None, timeout: float | None
) -> int:
    name = session or _new_name()
    with open_client(url, token=token, api_key=api_key) as first:  # no retries: nobody there is said at once
        before = first.session(name).messages(last=_SHOWN_AT_START)
    face: Face = Terminal() if sys.stdin.isatty() and sys.stdout.isatty() else Pipe()
    with open_client(url, token=token, api_key=api_key, retries=_RETRIES) as client:
        talk = Chat(client, face, name, timeout)
        face.greet(name, client.url, before)
        try:
            talk.run()
        except Leave as leave:
            return leave.code
    return talk.exit_code


class Chat:
    """What the user says, and what comes of it."""

    def __init__(self, client: Client, face: Face, session: str, timeout: float | None) -> None:
        self.failed = False
        self._client = client
        self._face = face
        self._timeout = timeout
        self._disconnected = False
        self._interrupted = False
        """Ctrl-C was the last thing that the user did."""
        self._seen: dict[str, str] = {}
        """Up to which event each session was shown: what others say meanwhile is shown with the next turn."""
        self._shown: set[str] = set()
        """What was shown besides, and need not be shown again with the next turn."""
        self._switch(session)

    @property
    def exit_code(self) -> int:
        """A person has seen what went wrong; a program looks at this."""
        return PROBLEM if self.failed and not self._face.interactive else OK

    def run(self) -> None:
        lines = self._face.lines()
        while True:
            try:
                line = next(lines)
            except StopIteration:
                return
            except KeyboardInterrupt:
                self._interrupt("Ctrl-C again, or Ctrl-D, leaves")
                lines = self._face.lines()
                continue
            text = line.encode("utf-8", "replace").decode().strip()
            if not text:
                continue
            self._interrupted = False
            try:
                if text.startswith("/") and not text.startswith("//"):
                    self._command(text)
                else:
                    self._say(text.removeprefix("/") if text.startswith("//") else text)
            except KeyboardInterrupt:
                self._interrupt("stopped")
            except BreadcrumbsError as error:
                self.failed = True
                self._face.problem(str(error))

    def _interrupt(self, notice: str) -> None:
        if self._interrupted or not self._face.interactive:
            raise Leave(INTERRUPTED)
        self._interrupted = True
        self._face.notice(notice)

    def _switch(self, name: str) -> None:
        self._session = self._client.session(name)
        self._face.prompt(name)

    # A turn

    def _say(self, text: str) -> None:
        message_id = ""
        try:
            for step in self._session.turn(
                text,
                timeout=self._timeout,
                last_event_id=self._seen.get(self._session.id),
                on_connection=self._connection,
            ):
                if isinstance(step, Written):
                    message_id = step.id
                elif isinstance(step, Answer):
                    self._face.answer(step.text)
                else:
                    self._show(step, message_id)
        except KeyboardInterrupt:
            if message_id:
                self._stop(message_id)
            self._interrupt(
                "Ctrl-C again, or Ctrl-D, leaves" if message_id else "stopped; it may have been sent"
            )
        except AgentFailed as failure:
            self._failure(failure)
        except NoAnswer as error:
            self.failed = True
            self._face.problem(f"{error}. If it comes later, it is shown with your next message")

    def _stop(self, message_id: str) -> None:
        """Ask the agent to stop, and see what comes of it. Another Ctrl-C here leaves."""
        self._face.notice("stopping …")
        try:
            self._session.cancel("stopped by the user")
            answer = self._session.wait(message_id, timeout=_CANCEL_SECONDS)
        except AgentFailed as failure:
            self._failure(failure)
        except NoAnswer:
            self._face.notice("asked to stop; nobody has confirmed it")
        except KeyboardInterrupt:
            raise Leave(INTERRUPTED) from None
        else:  # it was faster
            self._shown.add(answer.id)
            self._face.answer(answer.text)

    def _failure(self, failure: AgentFailed) -> None:
        self._shown.add(failure.breadcrumb_id)
        if failure.cancelled:
            self._face.notice(failure.reason)
        else:
            self.failed = True
            self._face.problem(f"no answer: {failure.reason}")

    def _show(self, event: Event, message_id: str) -> None:
        if event.event_id is not None:
            self._seen[self._session.id] = event.event_id
        if isinstance(event, Delta):
            if event.trigger_id == message_id:
                self._face.piece(event)
            return
        if isinstance(event, Gap):
            self._face.notice("some of what was said meanwhile is not shown here: /history has it")
            return
        if event.operation != "created" or event.breadcrumb_id == message_id:
            return
        if event.breadcrumb_id in self._shown:
            return
        if event.schema_name == _MESSAGE:
            self._face.said("somebody", event.text)
        elif event.context.get("trigger_id") == message_id:
            if event.schema_name in (_TOOL_REQUEST, _TOOL_RESPONSE):
                self._face.aside(_tool_line(event))
        elif event.schema_name == _ANSWER:
            self._face.said(creator_in(event.context) or "agent", event.text)
        elif event.schema_name == _ERROR:
            self._face.aside(f"an earlier message was not answered: {event.context.get('error', '')}")

    def _connection(self, state: str, detail: str) -> None:
        if state == "lost" and not self._disconnected:
            self._face.notice(f"connection lost ({detail}), trying again …")
        elif state == "back":
            self._face.notice("connected again")
        self._disconnected = state == "lost"

    # Commands

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        match name.lower():
            case "/quit" | "/exit":
                raise Leave(self.exit_code)
            case "/help":
                self._face.told(_HELP)
            case "/sessions":
                self._sessions()
            case "/new" if rest and self._client.session(rest).messages(last=1):
                self.failed = True
                self._face.problem(f"there is a session {rest} already: /switch {rest} enters it")
            case "/new":
                self._switch(rest or _new_name())
                self._face.notice(f"session {self._session.id}")
            case "/switch" if rest:
                before = self._client.session(rest).messages(last=_SHOWN_AT_START)
                self._switch(rest)
                self._face.notice(
                    f"session {rest}" if before else f"session {rest}: nothing was said here yet"
                )
                self._recite(before)
            case "/switch":
                self.failed = True
                self._face.problem("say which: /switch NAME; /sessions lists them")
            case "/history" if not rest or rest.isdecimal():
                self._recite(self._session.messages(last=max(1, int(rest or _SHOWN_OF_HISTORY))))
            case "/history":
                self.failed = True
                self._face.problem("/history takes a number: /history 50")
            case _:
                self.failed = True
                self._face.problem(f"there is no command {name}: /help lists them, and //… sends a slash")

    def _recite(self, messages: tuple[ChatMessage, ...]) -> None:
        for message in messages:
            who = "you" if message.role == "user" else message.agent_id or "agent"
            self._shown.add(message.id)
            self._face.said(who, message.text)

    def _sessions(self) -> None:
        found = list(self._client.sessions(limit=_MOST_SESSIONS))
        if not found:
            self._face.notice("there are no sessions yet")
        width = max((len(one_line(session.id, 40)) for session in found), default=0)
        for session in found:
            mark = "*" if session.id == self._session.id else " "
            when = shown_time(session.last_active_at.isoformat())
            words = one_line(session.title or session.summary or "", 60)
            self._face.told(f"{mark} {one_line(session.id, 40):{width}}  {when}  {words}")


class Pipe:
    """For programs: a line is a message, the answers go to standard output, everything else to standard error."""

    interactive = False

    def greet(self, session: str, url: str, before: tuple[ChatMessage, ...]) -> None: ...

    def lines(self) -> Iterator[str]:
        yield from sys.stdin

    def prompt(self, session: str) -> None: ...

    def notice(self, text: str) -> None:
        say(visible(text))

    def told(self, text: str) -> None:
        self.answer(text)

    def piece(self, delta: Delta) -> None: ...

    def aside(self, text: str) -> None: ...

    def said(self, who: str, text: str) -> None:
        self.answer(f"{who}: {text}")

    def answer(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def problem(self, text: str) -> None:
        fail(text)


class Terminal:
    """For people."""

    interactive = True

    def __init__(self) -> None:
        try:
            import readline  # noqa: F401 - input() has line editing and a history from now on
        except ImportError:  # a Python without it: plain input does
            pass
        self._out = console()
        self._prompt = "› "
        self._live: Live | None = None
        self._growing = ""
        self._answering = ""

    def greet(self, session: str, url: str, before: tuple[ChatMessage, ...]) -> None:
        self.notice(f"session {session} at {url}; /help lists the commands, Ctrl-D leaves")
        for message in before:
            self.said("you" if message.role == "user" else message.agent_id or "agent", message.text)

    def lines(self) -> Iterator[str]:
        while True:
            try:
                yield input(self._prompt)
            except EOFError:
                self._out.print()
                return
            except KeyboardInterrupt:
                self._out.print()
                raise

    def prompt(self, session: str) -> None:
        name = one_line(session, 40)
        # The marks tell readline what takes no room on the line.
        self._prompt = f"\x01\x1b[1;32m\x02{name} ›\x01\x1b[0m\x02 " if self._coloured else f"{name} › "

    @property
    def _coloured(self) -> bool:
        return self._out.color_system is not None and not self._out.no_color

    def notice(self, text: str) -> None:
        self._settle()
        self._print(text, "dim")

    def told(self, text: str) -> None:
        self._print(text)

    def piece(self, delta: Delta) -> None:
        """Shown in a region that is drawn anew with each piece, and replaced by the answer in the end."""
        if delta.offset == 0 or delta.breadcrumb_id != self._answering:
            self._growing, self._answering = "", delta.breadcrumb_id
        if delta.offset > len(self._growing):
            return  # one got lost: what is there stays until the answer comes
        self._growing = self._growing[: delta.offset] + delta.text
        if self._live is None:
            from rich.live import Live

            self._live = Live(console=self._out, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(self._tail(), refresh=True)

    def aside(self, text: str) -> None:
        self._print(f"  {text}", "dim")  # above the region, if there is one

    def said(self, who: str, text: str) -> None:
        from rich.text import Text

        line = Text()
        line.append(f"{one_line(who, 40)}: ", style="green" if who == "you" else "cyan")
        line.append(visible(text))
        self._out.print(line)

    def answer(self, text: str) -> None:
        self._end_live()
        self._print(text)

    def problem(self, text: str) -> None:
        self._settle()
        self._print(text, "red")

    def _settle(self) -> None:
        """What was shown of an answer that will not come to an end stays."""
        unfinished = self._growing
        self._end_live()
        if unfinished:
            self._print(f"{unfinished} …", "dim")

    def _end_live(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._live, self._growing, self._answering = None, "", ""

    def _tail(self) -> Any:
        """The end of what there is, as much as fits on the screen: more than that cannot be drawn anew."""
        from rich.text import Text

        lines = Text(visible(self._growing)).wrap(self._out, self._out.width)
        return Text("\n").join(lines[-max(1, self._out.height - 2) :])

    def _print(self, text: str, style: str = "") -> None:
        from rich.text import Text

        self._out.print(Text(visible(text), style=style))


def _tool_line(event: Event) -> str:
    context = event.context
    tool = one_line(context.get("tool", "tool"), 64)
    if event.schema_name == _TOOL_REQUEST:
        return f"{tool} {one_line(_as_json(context.get('input')), 100)}"
    if context.get("status") == "error":
        return f"{tool} failed: {one_line(context.get('error', ''), 160)}"
    return f"{tool} → {one_line(_as_json(context.get('output')), 100)}"


def _as_json(value: object) -> str:
    import orjson

    return orjson.dumps(value).decode()


def _new_name() -> str:
    return f"chat-{secrets.token_hex(3)}"
