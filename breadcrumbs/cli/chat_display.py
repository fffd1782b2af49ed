"""Displays of `crumb chat`: a terminal for people, and a pipe for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from breadcrumbs.cli.line_input import read_line
from breadcrumbs.cli.output import console, fail, one_line, say, visible
from breadcrumbs.client.values import ChatMessage, Delta, RetryNotice

if TYPE_CHECKING:
    from rich.live import Live

_REASONING_LINES: Final = 4
"""Lines of the reasoning that are shown until the answer begins."""


class Display(Protocol):
    """Reads lines of the user, and shows a conversation."""

    interactive: bool
    """Whether a person uses the chat on a terminal."""

    def greet(self, session: str, url: str, before: tuple[ChatMessage, ...]) -> None:
        """Show the session and its last messages at the start."""

    def lines(self) -> Iterator[str]:
        """Yield the lines that the user types."""
        ...

    def set_prompt(self, session: str) -> None: ...

    def show_notice(self, text: str) -> None:
        """Show a message of the program, such as a lost connection."""

    def show_text(self, text: str) -> None:
        """Show the result of a chat command."""

    def show_piece(self, delta: Delta) -> None:
        """Show a piece of an answer that is still being written."""

    def show_aside(self, text: str) -> None:
        """Show an event outside the answer, such as a tool call."""

    def show_message(self, who: str, text: str) -> None:
        """Show a message of a user, or an answer to another message."""

    def show_answer(self, text: str) -> None:
        """Show the complete answer in place of its pieces."""

    def show_named_answer(self, who: str, text: str) -> None:
        """Show one of several answers to a message in place of its pieces."""

    def show_problem(self, text: str) -> None: ...

    def end_unfinished(self) -> None:
        """Keep the text of an answer that will not be completed."""


class PipeDisplay:
    """Reads one message per line. Writes answers to standard output, everything else to standard error."""

    interactive = False

    def greet(self, session: str, url: str, before: tuple[ChatMessage, ...]) -> None: ...

    def lines(self) -> Iterator[str]:
        yield from sys.stdin

    def set_prompt(self, session: str) -> None: ...

    def show_notice(self, text: str) -> None:
        say(visible(text))

    def show_text(self, text: str) -> None:
        self.show_answer(text)

    def show_piece(self, delta: Delta) -> None: ...

    def show_aside(self, text: str) -> None: ...

    def show_message(self, who: str, text: str) -> None:
        self.show_answer(f"{who}: {text}")

    def show_answer(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def show_named_answer(self, who: str, text: str) -> None:
        self.show_message(who, text)

    def show_problem(self, text: str) -> None:
        fail(text)

    def end_unfinished(self) -> None: ...


class TerminalDisplay:
    """Shows answers on a terminal while they are written."""

    interactive = True

    def __init__(self) -> None:
        self._out = console()
        self._prompt = "› "
        self._live: Live | None = None
        self._partial_text = ""
        self._partial_id = ""
        """Id of the answer that `_partial_text` belongs to."""
        self._reasoning = ""

    def greet(self, session: str, url: str, before: tuple[ChatMessage, ...]) -> None:
        self.show_notice(f"session {session} at {url}. /help lists the commands, Ctrl-D leaves the chat")
        for message in before:
            self.show_message("you" if message.role == "user" else message.agent_id or "agent", message.text)

    def lines(self) -> Iterator[str]:
        while True:
            try:
                yield read_line(self._prompt)
            except EOFError:
                self._out.print()
                return
            except KeyboardInterrupt:
                self._out.print()
                raise

    def set_prompt(self, session: str) -> None:
        name = one_line(session, 40)
        # \x01 and \x02 enclose characters that have no width, for readline.
        self._prompt = f"\x01\x1b[1;32m\x02{name} ›\x01\x1b[0m\x02 " if self._coloured else f"{name} › "

    @property
    def _coloured(self) -> bool:
        return self._out.color_system is not None and not self._out.no_color

    def show_notice(self, text: str) -> None:
        self.end_unfinished()
        self._print(text, "dim")

    def show_text(self, text: str) -> None:
        self._print(text)

    def show_piece(self, delta: Delta) -> None:
        """Draw the region again: the answer so far, or before it, the reasoning or the last failure of the model."""
        if delta.breadcrumb_id != self._partial_id:
            self._partial_text, self._reasoning, self._partial_id = "", "", delta.breadcrumb_id
        if delta.offset > len(self._partial_text):
            return  # a piece was lost, so the region does not change until the answer arrives
        self._partial_text = self._partial_text[: delta.offset] + delta.text
        if delta.reasoning:
            start = int(delta.document.get("reasoning_offset", 0))
            self._reasoning = self._reasoning[:start] + delta.reasoning
        if delta.notice is not None:
            self._reasoning = ""
            self._draw(_notice_line(delta.notice), "dim")
        elif self._partial_text:
            self._draw(self._partial_text)
        elif self._reasoning:
            self._draw(self._reasoning, "dim italic", heading="thinking …", lines=_REASONING_LINES)

    def _draw(self, text: str, style: str = "", *, heading: str = "", lines: int | None = None) -> None:
        """Show the end of a text in the region. Lines above the screen cannot be redrawn."""
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            self._live = Live(console=self._out, auto_refresh=False, transient=True)
            self._live.start()
        wrapped = Text(visible(text), style=style).wrap(self._out, self._out.width)
        limit = max(1, min(self._out.height - 2, lines or self._out.height))
        shown = [Text(heading, style="dim"), *wrapped[-limit:]] if heading else wrapped[-limit:]
        self._live.update(Text("\n").join(shown), refresh=True)

    def show_aside(self, text: str) -> None:
        self._print(f"  {text}", "dim")  # rich prints it above the region

    def show_message(self, who: str, text: str) -> None:
        from rich.text import Text

        line = Text()
        line.append(f"{one_line(who, 40)}: ", style="green" if who == "you" else "cyan")
        line.append(visible(text))
        self._out.print(line)

    def show_answer(self, text: str) -> None:
        self._end_live()
        self._print(text)

    def show_named_answer(self, who: str, text: str) -> None:
        self._end_live()
        self.show_message(who, text)

    def show_problem(self, text: str) -> None:
        self.end_unfinished()
        self._print(text, "red")

    def end_unfinished(self) -> None:
        """Print the unfinished answer, if there is one, because it will not be completed."""
        unfinished = self._partial_text
        self._end_live()
        if unfinished:
            self._print(f"{unfinished} …", "dim")

    def _end_live(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._live, self._partial_text, self._partial_id, self._reasoning = None, "", "", ""

    def _print(self, text: str, style: str = "") -> None:
        from rich.text import Text

        self._out.print(Text(visible(text), style=style))


def _notice_line(notice: RetryNotice) -> str:
    when = f"in {notice.retry_in:.0f} s" if notice.retry_in >= 1 else "now"
    return f"{notice.reason}. Attempt {notice.attempt} {when} …"


def choose_display() -> Display:
    """Return the display for this process: a terminal, or a pipe."""
    return TerminalDisplay() if sys.stdin.isatty() and sys.stdout.isatty() else PipeDisplay()
