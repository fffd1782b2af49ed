"""The command `crumb context test`: tests a changed context config on past turns."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from breadcrumbs.cli.client import open_client, send_json
from breadcrumbs.cli.contexts import (
    ContextUrlOption,
    Place,
    RequiredOwnerOption,
    choose_config,
    choose_owner,
    choose_place,
    contexts,
    on_store,
    read_configs,
)
from breadcrumbs.cli.options import (
    DataOption,
    JsonOption,
    RedisOption,
    SessionOption,
    TokenOption,
    read_owner,
    read_since,
)
from breadcrumbs.cli.output import (
    INTERRUPTED,
    OK,
    PROBLEM,
    USAGE,
    CommandError,
    UsageError,
    command,
    console,
    fail,
    for_people,
    print_columns,
    print_json,
    say,
    visible,
)
from breadcrumbs.runtime.errors import BreadcrumbsError

if TYPE_CHECKING:
    from uuid import UUID

    from breadcrumbs.context_builder.config import ContextConfig
    from breadcrumbs.context_builder.context_tests import ContextTestReport
    from breadcrumbs.runtime.settings.settings import Settings
    from breadcrumbs.runtime.store.store import Store

__all__ = ["contexts"]

_SAVE_SECONDS = 2.0
_SHOWN_TURNS = 10
_CONDITIONS = "changed, lost-item, boundary, gone, skipped, tokens:+10%"


@contexts.command("test")
def context_test(
    context_config: Annotated[Path, typer.Option("--config", help="The changed context config (JSON).")],
    consumer: Annotated[
        str | None, typer.Option("--consumer", help="Consumer of the config, if the file has several.")
    ] = None,
    session: SessionOption = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only turns since a time, or a duration ago (2h, 30d).")
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, max=1_000_000, help="Test about N turns, spread evenly.")
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option("--fail-on", help=f"Exit code 1 if this happens: {_CONDITIONS}. [default: changed]"),
    ] = None,
    price: Annotated[
        float | None, typer.Option("--price", min=0, help="Price of a million input tokens, for the cost.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Save the progress to this file, and continue from it.")
    ] = None,
    owner: RequiredOwnerOption = None,
    data: DataOption = None,
    redis: RedisOption = None,
    settings: Annotated[
        Path | None, typer.Option("--settings", help="Settings file. [env: CRUMB_CONFIG]")
    ] = None,
    url: ContextUrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Test a changed config on past turns, without a model.

    \b
    crumb context test --config new.json
    crumb context test --config new.json --since 30d --sample 1000
    crumb context test --config new.json --fail-on boundary --fail-on tokens:+10%

    Assembles the contexts of past turns with the config of that time and with the changed one, and reports which
    prompts would have been different. Nothing is written. Exit codes: 0 no change, 1 a change, or what --fail-on
    names, 2 an error.
    """
    try:
        conditions = [_parse_condition(text) for text in fail_on or ["changed"]]
        config = choose_config(read_configs(context_config), context_config, consumer)
        begun = None if since is None else int(read_since(since).timestamp() * 1_000_000)
        wanted = _Wanted(context_config, config, session, begun, sample)
        place = choose_place(Place(settings, data, redis, owner, url))
        progress = _Progress.open(resume, wanted)
        with progress.shown():
            if isinstance(place, str):
                _test_on_server(place, token, wanted, progress)
            else:
                _test_stored(place, read_owner(owner), wanted, progress)
    except KeyboardInterrupt:
        if resume is not None:
            say(f"stopped: the same command with --resume {visible(str(resume))} continues")
        else:
            say("stopped: with --resume FILE, a stopped run can be continued")
        return INTERRUPTED
    except BreadcrumbsError as error:
        fail(error)
        return USAGE
    report = progress.report
    if report.turns == 0 and not report.skipped:
        say(f"no past turns of {visible(config.consumer_id)} were found, so nothing was tested")
    failed = [name for name, holds in conditions if holds(report)]
    if for_people(as_json):
        _print_report(report, price, failed)
    else:
        print_json(_report_json(report, price, failed))
    return PROBLEM if failed else OK


@dataclass(frozen=True, slots=True)
class _Wanted:
    file: Path
    config: ContextConfig
    session: str | None
    since: int | None
    sample: int | None

    def key(self) -> dict[str, Any]:
        """Return the values that must be equal to continue a run. A duration ago is another time in each run."""
        return {
            "config": self.config.digest,
            "consumer": self.config.consumer_id,
            "session": self.session,
            "sample": self.sample,
        }


# Conditions

_Condition = tuple[str, Callable[["ContextTestReport"], bool]]


def _parse_condition(text: str) -> _Condition:
    """Parse a value of `--fail-on`."""
    simple: dict[str, Callable[[ContextTestReport], bool]] = {
        "changed": lambda report: report.changed > 0,
        "lost-item": lambda report: report.removed.total() > 0,
        "boundary": lambda report: report.crossings > 0,
        "gone": lambda report: report.with_gone > 0,
        "skipped": lambda report: report.skipped.total() > 0,
    }
    if text in simple:
        return text, simple[text]
    name, _, limit = text.partition(":")
    if name == "tokens" and limit.startswith("+") and limit.endswith("%"):
        try:
            percent = float(limit[1:-1])
        except ValueError:
            percent = -1.0
        if percent >= 0:
            return text, lambda report: report.tokens[1] > report.tokens[0] * (1 + percent / 100)
    raise UsageError(f"--fail-on {text!r}: use one of {_CONDITIONS}")


# Progress


class _Progress:
    """The totals so far. They are shown on a terminal, and saved to a file if there is one."""

    def __init__(self, file: Path | None, wanted: _Wanted, report: ContextTestReport) -> None:
        self._file = file
        self._wanted = wanted
        self.report = report
        self.since = wanted.since
        self.cursor: str | None = None
        self._saved_at = time.monotonic()
        self._update: Callable[[str], None] | None = None

    @classmethod
    def open(cls, file: Path | None, wanted: _Wanted) -> _Progress:
        """Return the progress in a file, or a new one."""
        import orjson

        from breadcrumbs.context_builder.context_tests import ContextTestReport, Position

        progress = cls(file, wanted, ContextTestReport())
        if file is None:
            return progress
        if not file.parent.is_dir():
            raise CommandError(f"cannot write {file}: there is no folder {file.parent}")
        if not file.exists():
            return progress
        try:
            saved = orjson.loads(file.read_bytes())
            if saved["run"] != wanted.key():
                raise CommandError(
                    f"{file} belongs to a run with another config or other options: delete it, or name another file"
                )
            progress.report = ContextTestReport.from_dict(saved["report"])
            progress.cursor, progress.since = str(Position.parse(saved["cursor"])), saved["since"]
        except OSError as error:
            raise CommandError(f"cannot read {file}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CommandError(
                f"cannot continue from {file}: it is not the progress of a context test"
            ) from None
        return progress

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress while the block runs, and save it at its end."""
        try:
            if not sys.stderr.isatty():
                yield
                return
            with console(stderr=True).status("testing …") as status:
                self._update = status.update
                yield
        finally:
            self.save()

    def advance(self, cursor: str | None, total: int | None = None) -> None:
        """Record a position. Save and show the totals now and then."""
        self.cursor = cursor
        now = time.monotonic()
        if now - self._saved_at < (_SAVE_SECONDS if self._update is None else 0.2):
            return
        self._saved_at = now
        self.save()
        if self._update is not None:
            of = "" if total is None else f" of at most {total:,}"
            self._update(f"testing … {self.report.turns:,}{of} turns, {self.report.changed:,} changed")

    def end_with(self, part: ContextTestReport) -> None:
        """Add the last part. The file keeps the totals before it, so a run that continues later adds it only once."""
        self.save()
        self._file = None
        self.report.merge(part)

    def save(self) -> None:
        if self._file is None or self.cursor is None:
            return
        import orjson

        document = {
            "run": self._wanted.key(),
            "since": self.since,
            "cursor": self.cursor,
            "report": self.report.as_dict(),
        }
        new = self._file.with_name(self._file.name + ".new")
        try:
            new.write_bytes(orjson.dumps(document))
            os.replace(new, self._file)
        except OSError as error:
            raise CommandError(f"cannot write {self._file}: {error.strerror}") from None


# Running


def _test_on_server(url: str, token: str | None, wanted: _Wanted, progress: _Progress) -> None:
    """Test the turns that the server has, page by page."""
    import orjson

    from breadcrumbs.context_builder.context_tests import ContextTestReport
    from breadcrumbs.runtime.breadcrumb import times

    body: dict[str, Any] = {
        "config": orjson.loads(wanted.file.read_bytes()),
        "consumer_id": wanted.config.consumer_id,
        "limit": 500,
    }
    if wanted.session is not None:
        body["session_id"] = wanted.session
    if progress.since is not None:
        body["since"] = times.to_text(progress.since)
    if wanted.sample is not None:
        body["sample"] = wanted.sample
    with open_client(url, token) as client:
        while True:
            page = body if progress.cursor is None else body | {"cursor": progress.cursor}
            reply = send_json(client, "POST", "/contexts/test", page).json()
            part = ContextTestReport.from_dict(reply)
            cursor = reply.get("next_cursor")
            if cursor is None:
                progress.end_with(part)
                return
            progress.report.merge(part)
            progress.advance(cursor, reply["total"])


def _test_stored(settings: Settings, named: UUID | None, wanted: _Wanted, progress: _Progress) -> None:
    """Test the turns of a store."""
    from breadcrumbs.context_builder.context_tests import ContextTester, ContextTestRequest, Position
    from breadcrumbs.context_builder.old_configs import OldConfigs
    from breadcrumbs.runtime.sessions.sessions import Sessions

    async def run(store: Store) -> None:
        whose = choose_owner(settings, named)
        if wanted.session is not None and await Sessions(store).belonging(whose, wanted.session) is None:
            raise CommandError(f"session {wanted.session!r} not found")
        after = None if progress.cursor is None else Position.parse(progress.cursor)
        request = ContextTestRequest(
            whose, wanted.config, wanted.session, progress.since or 0, wanted.sample, after=after
        )
        old = OldConfigs(store, whose, _configs_of_file(settings))
        tester = ContextTester(store, request, old.get)
        total = await tester.count_turns()
        async for result in tester.run():
            progress.report.add(result)
            progress.advance(str(result.position), total)

    on_store(settings, run)


def _configs_of_file(settings: Settings) -> tuple[ContextConfig, ...]:
    """Return the configs of the config file in the settings. An invalid file is not in force."""
    from breadcrumbs.context_builder.config_checks import ConfigError

    path = settings.context_config
    try:
        return () if path is None else read_configs(path)
    except (ConfigError, CommandError):
        return ()


# Output


def _cost(report: ContextTestReport, price: float) -> dict[str, float]:
    return {
        name: round(tokens * price / 1_000_000, 6)
        for name, tokens in zip(("old", "new"), report.tokens, strict=True)
    }


def _report_json(report: ContextTestReport, price: float | None, failed: list[str]) -> dict[str, Any]:
    document = report.as_dict() | {"failed": failed}
    return document if price is None else document | {"cost": _cost(report, price)}


def _print_report(report: ContextTestReport, price: float | None, failed: list[str]) -> None:
    out = console()
    old, new = report.tokens
    out.print(f"{report.changed:,} of {report.turns:,} turns would have been different")
    change = f" ({(new - old) / old:+.1%})" if old else ""
    rows = [("tokens", f"{old:,}", f"{new:,}{change}")]
    if (reuse := report.reuse) is not None:
        rows.append(("repeats the previous prompt", f"{reuse[0]:.1%}", f"{reuse[1]:.1%}"))
    if price is not None:
        cost = _cost(report, price)
        rows.append(("cost of the input", f"{cost['old']:,.4f}", f"{cost['new']:,.4f}"))
    print_columns(rows, ("", "right"), ("", "old", "new"))
    sources = report.as_dict()["sources"]
    if sources:
        out.print()
        print_columns(
            [(entry["key"], f"+{entry['added']:,}", f"-{entry['removed']:,}") for entry in sources],
            ("", "right"),
            ("source", "items added", "items removed"),
        )
    _print_warnings(report)
    if report.listed:
        out.print()
        rows_of_turns = [
            (
                turn["trigger_id"],
                f"{turn['tokens'][0]:,} → {turn['tokens'][1]:,}",
                f"+{len(turn['added'])} -{len(turn['removed'])}",
                turn["session_id"] or "",
            )
            for turn in report.listed[:_SHOWN_TURNS]
        ]
        print_columns(rows_of_turns, ("cyan", "right", ""), ("message", "tokens", "items", "session"))
        if report.changed > _SHOWN_TURNS:
            out.print(f"… and {report.changed - _SHOWN_TURNS:,} more")
        first = report.listed[0]
        out.print(
            f"\nCompare one: {command()} context preview --session {first['session_id']} --config … "
            f"--trigger {first['trigger_id']} --diff",
            markup=False,
        )
    if failed:
        say(f"failed: {', '.join(failed)}")


def _print_warnings(report: ContextTestReport) -> None:
    out = console()
    if report.crossings:
        out.print(f"\n{report.crossings:,} items would newly cross a session or user boundary:")
        for crossing in report.listed_crossings[:_SHOWN_TURNS]:
            out.print(
                f"  {crossing['item_id']} of {crossing['boundary']} {crossing['origin']}, in session "
                f"{crossing['session_id']} ({crossing['source']})",
                markup=False,
            )
    if report.with_gone:
        out.print(f"\n{report.with_gone:,} turns have items that were deleted since: tested without them")
    for reason, count in sorted(report.skipped.items()):
        out.print(f"{count:,} turns not tested: {reason}")
