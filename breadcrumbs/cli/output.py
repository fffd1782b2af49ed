"""What a command says and how: for people on a terminal, as JSON for programs, errors in one line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

from breadcrumbs.runtime.errors import BreadcrumbsError

if TYPE_CHECKING:
    from rich.console import Console

OK, PROBLEM, USAGE, INTERRUPTED = 0, 1, 2, 130

_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class CommandError(BreadcrumbsError):
    """What a command cannot do, in one sentence with what to do next."""


class UsageError(CommandError):
    """The command line itself is wrong."""


def command() -> str:
    """How this command was called, for advice that can be copied: `./crumb` sets the variable."""
    return os.environ.get("CRUMB_LAUNCHER", "crumb")


def for_people(as_json: bool) -> bool:
    """Tables and colours on a terminal; JSON when piped, or when asked for."""
    return not as_json and sys.stdout.isatty()


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def print_json(document: Any) -> None:
    """One document, readable."""
    import orjson

    _write(orjson.dumps(document, option=orjson.OPT_INDENT_2))


def print_line(document: Any) -> None:
    """One line of a stream, out at once."""
    import orjson

    _write(orjson.dumps(document))
    sys.stdout.flush()


def print_array(items: Iterable[Any]) -> None:
    """Print one JSON array, an item per line. Each item is printed when it arrives, and none is kept."""
    import orjson

    opening = "[\n  "
    for item in items:
        sys.stdout.write(opening + orjson.dumps(item).decode())
        opening = ",\n  "
    sys.stdout.write("[]\n" if opening.startswith("[") else "\n]\n")


def print_columns(rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    """Print rows. On a narrow terminal the last column is cut, never the others: ids are copied."""
    from rich.text import Text

    out = console()
    widths = [max(len(row[place]) for row in rows) for place in range(len(styles))]
    left = max(20, out.width - sum(widths) - 2 * len(widths))
    for row in rows:
        line = Text()
        for cell, width, style in zip(row, widths, styles, strict=False):
            line.append(cell.ljust(width) + "  ", style=style)
        line.append(one_line(row[-1], left))
        out.print(line)


def _write(raw: bytes) -> None:
    sys.stdout.write(raw.decode() + "\n")


def say(message: str) -> None:
    """To the person in front of it, never into a pipe."""
    print(message, file=sys.stderr, flush=True)  # noqa: T201 - this is where it is printed


def fail(error: BaseException | str) -> None:
    mark = "crumb: "
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        mark = f"\x1b[1;31m{mark}\x1b[0m"
    say(mark + visible(str(error)))


def agreed(question: str) -> bool:
    """Ask whoever sits there before something is deleted."""
    if not sys.stdin.isatty():
        raise UsageError("nobody is here to be asked: say --yes to delete")
    say(f"{question} There is no way back. [y/N]")
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    say("nothing was deleted")
    return False


def visible(text: str) -> str:
    """Text from a breadcrumb on a terminal: what it holds must not move the cursor or recolour the screen."""
    return _INVISIBLE.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def escaped(text: str) -> str:
    """Escape text for rich, so that it cannot carry markup or control characters."""
    from rich.markup import escape

    return escape(visible(text))


def one_line(text: object, length: int = 200) -> str:
    line = visible(" ".join(str(text).split()))
    return line if len(line) <= length else line[: length - 1] + "…"


def shown_time(text: str) -> str:
    """A time of the store on the reader's clock: only the hour where it was today."""
    try:
        moment = datetime.fromisoformat(text).astimezone()
    except ValueError:
        return visible(text)
    today = datetime.now(UTC).astimezone().date()
    return moment.strftime("%H:%M:%S" if moment.date() == today else "%Y-%m-%d %H:%M:%S")


def leave_closed_pipe() -> NoReturn:
    """Whoever read our output has gone: that is how `… | head` ends, and no error."""
    # The interpreter flushes standard output once more on its way out, into nothing.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(OK)
