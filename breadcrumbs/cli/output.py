"""Output of commands: text on a terminal, JSON in a pipe, messages on standard error."""

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
    """A command failed. The message states the reason and what to do next."""


class UsageError(CommandError):
    """The arguments of a command are invalid."""


def command() -> str:
    """Return the name under which the program was started, for commands to copy. `./crumb` sets the variable."""
    return os.environ.get("CRUMB_LAUNCHER", "crumb")


def for_people(as_json: bool) -> bool:
    """Return whether to print text for people. Otherwise print JSON, in a pipe or with `--json`."""
    return not as_json and sys.stdout.isatty()


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def print_json(document: Any) -> None:
    """Print one indented JSON document."""
    import orjson

    _write(orjson.dumps(document, option=orjson.OPT_INDENT_2))


def print_line(document: Any) -> None:
    """Print one line of JSON and flush it."""
    import orjson

    _write(orjson.dumps(document))
    sys.stdout.flush()


def print_array(items: Iterable[Any]) -> None:
    """Print a JSON array with one item per line. Each item is printed when it arrives, and not kept in memory."""
    import orjson

    opening = "[\n  "
    for item in items:
        sys.stdout.write(opening + orjson.dumps(item).decode())
        opening = ",\n  "
    sys.stdout.write("[]\n" if opening.startswith("[") else "\n]\n")


def print_columns(rows: Sequence[Sequence[str]], styles: Sequence[str], headers: Sequence[str] = ()) -> None:
    """Print rows in columns. Only the last column is cut on a narrow terminal, so that ids can be copied.

    Columns whose style begins with `right` are aligned at the right.
    """
    from rich.cells import cell_len
    from rich.text import Text

    out = console()
    all_rows = [headers, *rows] if headers else rows
    widths = [max(cell_len(row[column]) for row in all_rows) for column in range(len(styles))]
    remaining = max(20, out.width - sum(widths) - 2 * len(widths))
    for row in all_rows:
        line = Text()
        is_header = row is headers
        for cell, width, style in zip(row, widths, styles, strict=False):
            alignment, name = ("right", style[5:].strip()) if style.startswith("right") else ("left", style)
            padding = " " * (width - cell_len(cell))
            text = padding + cell if alignment == "right" else cell + padding
            line.append(text + "  ", style="bold" if is_header else name)
        line.append(one_line(row[-1], remaining), style="bold" if is_header else "")
        line.rstrip()
        out.print(line)


def _write(raw: bytes) -> None:
    sys.stdout.write(raw.decode() + "\n")


def say(message: str) -> None:
    """Print a message for people on standard error, never on standard output."""
    print(message, file=sys.stderr, flush=True)  # noqa: T201 - the only place that prints


def fail(error: BaseException | str) -> None:
    """Print an error on standard error."""
    mark = "crumb: "
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        mark = f"\x1b[1;31m{mark}\x1b[0m"
    say(mark + visible(str(error)))


def confirm(question: str) -> bool:
    """Ask the user to confirm a deletion. Raise `UsageError` if standard input is not a terminal."""
    if not sys.stdin.isatty():
        raise UsageError("cannot ask for confirmation without a terminal: add --yes to delete")
    say(f"{question} This cannot be undone. [y/N]")
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    say("nothing was deleted")
    return False


def visible(text: str) -> str:
    """Escape control characters. Text from a breadcrumb must not move the cursor or change colours."""
    return _INVISIBLE.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def escaped(text: str) -> str:
    """Escape rich markup and control characters."""
    from rich.markup import escape

    return escape(visible(text))


def one_line(text: object, length: int = 200) -> str:
    """Return the text in one line, cut to a length, with control characters escaped."""
    line = visible(" ".join(str(text).split()))
    return line if len(line) <= length else line[: length - 1] + "…"


def shown_time(text: str) -> str:
    """Return a time in the local time zone. For times of today, leave out the date."""
    try:
        moment = datetime.fromisoformat(text).astimezone()
    except ValueError:
        return visible(text)
    today = datetime.now(UTC).astimezone().date()
    return moment.strftime("%H:%M:%S" if moment.date() == today else "%Y-%m-%d %H:%M:%S")


def leave_closed_pipe() -> NoReturn:
    """Exit without an error after the reader closed the pipe, as in `crumb list | head`."""
    # The interpreter flushes standard output at exit. That flush goes to the null device and cannot fail.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(OK)
