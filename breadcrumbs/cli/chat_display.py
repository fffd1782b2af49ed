"""Displays of `crumb chat`: a terminal that shows answers while they are made, and a pipe for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from breadcrumbs.cli.output import console, fail, one_line, say, visible
from breadcrumbs.client.values import ChatMessage, Delta

if TYPE_CHECKING:
    from rich.live import Live


class Display(Protocol):
    """Reads the user's lines, and shows a conversation."""

    interactive: bool

    def greet(self, session: str, url: str, before: tuple[ChatMessage, ...]) -> None: ...
    def lines(self) -> Iterator[str]: ...
    def set_prompt(self, session: str) -> None: ...
    def show_notice(self, text: str) -> None: ...
    def show_text(self, text: str) -> None: ...
    def show_piece(self, delta: Delta) -> None: ...
    def show_aside(self, text: str) -> None: ...
    def show_message(self, who: str, text: str) -> None: ...
    def show_answer(self, text: str) -> None: ...
    def show_problem(self, text: str) -> None: ...


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

    def show_problem(self, text: str) -> None:
        fail(text)


class TerminalDisplay:
    """Shows answers on a terminal while they are made."""

    interactive = True

    def __init__(self) -> None:
        try:
            import readline  # noqa: F401 - gives input() line editing and a history
        except ImportError:  # this Python was built without it
            pass
        self._out = console()
        self._prompt = "› "
        self._live: Live | None = None
        self._growing = ""
        self._answering = ""

    def greet(self, session: str, url: str, before: tuple[ChatMessage, ...]) -> None:
        self.show_notice(f"session {session} at {url}; /help lists the commands, Ctrl-D leaves")
        for message in before:
            self.show_message("you" if message.role == "user" else message.agent_id or "agent", message.text)

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

    def set_prompt(self, session: str) -> None:
        name = one_line(session, 40)
        # \x01 and \x02 tell readline which characters have no width.
        self._prompt = f"\x01\x1b[1;32m\x02{name} ›\x01\x1b[0m\x02 " if self._coloured else f"{name} › "

    @property
    def _coloured(self) -> bool:
        return self._out.color_system is not None and not self._out.no_color

    def show_notice(self, text: str) -> None:
        self._keep_unfinished()
        self._print(text, "dim")

    def show_text(self, text: str) -> None:
        self._print(text)

    def show_piece(self, delta: Delta) -> None:
        """Add a piece to the region that is redrawn with each piece. The answer replaces the region."""
        if delta.offset == 0 or delta.breadcrumb_id != self._answering:
            self._growing, self._answering = "", delta.breadcrumb_id
        if delta.offset > len(self._growing):
            return  # a piece was lost: the region stays as it is until the answer arrives
        self._growing = self._growing[: delta.offset] + delta.text
        if self._live is None:
            from rich.live import Live

            self._live = Live(console=self._out, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(self._tail(), refresh=True)

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

    def show_problem(self, text: str) -> None:
        self._keep_unfinished()
        self._print(text, "red")

    def _keep_unfinished(self) -> None:
        """Print the unfinished answer, if there is one: it will not be completed."""
        unfinished = self._growing
        self._end_live()
        if unfinished:
            self._print(f"{unfinished} …", "dim")

    def _end_live(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._live, self._growing, self._answering = None, "", ""

    def _tail(self) -> Any:
        """Return the end of the answer that fits on the screen. More cannot be redrawn."""
        from rich.text import Text

        lines = Text(visible(self._growing)).wrap(self._out, self._out.width)
        return Text("\n").join(lines[-max(1, self._out.height - 2) :])

    def _print(self, text: str, style: str = "") -> None:
        from rich.text import Text

        self._out.print(Text(visible(text), style=style))


def choose_display() -> Display:
    """Return the display for this process: a terminal, or a pipe."""
    return TerminalDisplay() if sys.stdin.isatty() and sys.stdout.isatty() else PipeDisplay()
