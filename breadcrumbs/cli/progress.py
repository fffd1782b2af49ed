"""Progress bar on a terminal. In a pipe or a log there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class ProgressBar(Protocol):
    def advance(self, amount: int) -> None: ...


class _NoBar:
    def advance(self, amount: int) -> None: ...


class _RichBar:
    def __init__(self, progress: object, task: object) -> None:
        self._progress, self._task = progress, task

    def advance(self, amount: int) -> None:
        self._progress.advance(self._task, amount)  # type: ignore[attr-defined]


@contextmanager
def progress(what: str, total: int | None) -> Iterator[ProgressBar]:
    """Show a bar on standard error if it is a terminal. `total` None: the end is unknown."""
    if not sys.stderr.isatty():
        yield _NoBar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield _RichBar(shown, shown.add_task(what, total=total))
