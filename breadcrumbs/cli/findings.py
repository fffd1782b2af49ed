"""Output of findings: grouped text on a terminal, JSON in a pipe, and the exit code for monitoring."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from breadcrumbs.cli.output import console, for_people, print_json, visible

if TYPE_CHECKING:
    from rich.console import Console

    from breadcrumbs.runtime.maintenance.checks import Finding, Status

# The exit codes of Nagios plugins, which most monitoring systems understand.
EXIT_CODES: Final = {"ok": 0, "warning": 1, "error": 2, "unknown": 3}
UNKNOWN: Final = EXIT_CODES["unknown"]

_GROUPS: Final[tuple[tuple[Status, str, str, str], ...]] = (
    ("error", "Errors", "✗", "red"),
    ("warning", "Warnings", "!", "yellow"),
    ("unknown", "Could not check", "?", "magenta"),
    ("skipped", "Skipped", "·", "dim"),
    ("ok", "OK", "✓", "green"),
)
_MAX_WIDTH: Final = 100


def report_findings(findings: list[Finding], *, as_json: bool, source: dict[str, Any] | None = None) -> int:
    """Print findings and return the exit code. `source` is added to the JSON."""
    from breadcrumbs.runtime.maintenance.checks import CHECKS, verdict_of

    order = {id: place for place, id in enumerate(CHECKS)}
    findings = sorted(findings, key=lambda one: order.get(one.id, len(order)))
    status = verdict_of(findings)
    if not for_people(as_json):
        document = {"ok": status == "ok", "status": status, **(source or {})}
        print_json({**document, "findings": [finding.as_dict() for finding in findings]})
    else:
        _print_groups(findings)
    return EXIT_CODES[status]


def _print_groups(findings: list[Finding]) -> None:
    from rich.text import Text

    out = console()
    for status, title, mark, colour in _GROUPS:
        group = [finding for finding in findings if finding.status == status]
        if group:
            out.print(Text(f"{title} ({len(group)})", style=f"bold {colour}"))
            for finding in group:
                _print_finding(out, finding, mark, colour)
            out.print()
    counts = {status: sum(finding.status == status for finding in findings) for status, *_ in _GROUPS}
    out.print(Text(_summary(counts), style="bold"))


def _print_finding(out: Console, finding: Finding, mark: str, colour: str) -> None:
    """Print a finding, with a line for its advice. Long lines are wrapped at the width of the terminal."""
    from rich.text import Text

    name = f"{finding.id} ({visible(finding.subject)})" if finding.subject else finding.id
    first, *others = _wrap(out, f"{name}: {visible(finding.message)}", "  ")
    line = Text()
    line.append(f"{mark} ", style=f"bold {colour}")
    # A very long name is wrapped too, and then the bold part ends with the first line.
    line.append(first[: len(name) + 1], style="bold")
    line.append(first[len(name) + 1 :])
    out.print(line)
    for text in others:
        out.print(Text(f"  {text}"))
    if finding.advice:
        for place, text in enumerate(_wrap(out, visible(finding.advice), "    ")):
            out.print(Text(f"  {'→' if place == 0 else ' '} {text}", style="" if colour == "dim" else "cyan"))


def _wrap(out: Console, text: str, indent: str) -> list[str]:
    import textwrap

    width = max(20, min(out.width, _MAX_WIDTH) - len(indent))
    # Words are not broken: they can be commands, ids or paths to copy.
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _summary(counts: dict[Status, int]) -> str:
    named = {"error": "error", "warning": "warning"}
    parts = [
        f"{counts[status]} {name}{'' if counts[status] == 1 else 's'}"  # type: ignore[index]
        for status, name in named.items()
        if counts[status]  # type: ignore[index]
    ]
    if counts["unknown"]:
        parts.append(f"{counts['unknown']} could not be checked")
    return ", ".join(parts) if parts else "no problems found"


@contextmanager
def shown_progress(as_json: bool) -> Iterator[Callable[[str], None]]:
    """Show the current step on a terminal, on standard error. The line disappears at the end."""
    if not for_people(as_json) or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda text: None
        return
    with console(stderr=True).status("checking …") as line:
        yield lambda text: line.update(f"checking: {text} …")
