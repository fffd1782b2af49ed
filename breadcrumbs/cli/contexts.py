"""context and audit: what a model gets to see, why, and whether sessions are kept apart. Straight on the store."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from breadcrumbs.cli.attach import has_store, open_store, server_address, shown_address
from breadcrumbs.cli.output import (
    OK,
    PROBLEM,
    CommandError,
    UsageError,
    console,
    fail,
    for_people,
    one_line,
    print_json,
    say,
    shown_time,
    visible,
)
from breadcrumbs.context_builder.audit import Report, audit_isolation
from breadcrumbs.context_builder.book import ConfigError, parse_configs
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.diff import Difference, diff
from breadcrumbs.context_builder.explain import contexts_of, explain
from breadcrumbs.context_builder.explanation import ExplainedItem, Explanation, part_sizes
from breadcrumbs.context_builder.preview import PreviewInput, preview
from breadcrumbs.context_builder.rebuild import RebuiltContext, rebuild
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.settings.settings import DEVELOPER, Settings
from breadcrumbs.runtime.store.store import Store

if TYPE_CHECKING:
    from rich.table import Table

_T = TypeVar("_T")
_BAR = 32


# crumb context check


def check(files: list[Path], *, as_json: bool) -> int:
    """Say what is wrong with config files, line by line, or that they are fine."""
    good: list[tuple[Path, tuple[ContextConfig, ...]]] = []
    errors: list[ConfigError] = []
    for file in files:
        try:
            good.append((file, read_configs(file)))
        except ConfigError as error:
            errors.append(error)
            say(visible(str(error)).replace("\\x0a", "\n"))
    if for_people(as_json):
        for file, configs in good:
            names = ", ".join(config.consumer_id for config in configs)
            several = len(configs) != 1
            count = f"{len(configs)} config{'s' if several else ''}, consumer{'s' if several else ''} {names}"
            console().print(f"{file}: fine: {count}" if len(files) > 1 else f"fine: {count}", markup=False)
    else:
        print_json(
            {
                "ok": not errors,
                "configs": [
                    {"file": str(file), "consumer_id": config.consumer_id, "digest": config.digest}
                    for file, configs in good
                    for config in configs
                ],
                "complaints": [
                    {
                        "file": e.name,
                        "line": c.line,
                        "column": c.column,
                        "where": c.where,
                        "message": c.message,
                    }
                    for e in errors
                    for c in e.complaints
                ],
            }
        )
    return PROBLEM if errors else OK


def read_configs(file: Path) -> tuple[ContextConfig, ...]:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from None
    return parse_configs(raw, name=str(file))


# crumb context explain


def show(
    settings: Settings,
    of: str,
    *,
    version: int | None,
    consumer: str | None,
    owner: UUID | None,
    with_parts: bool,
    as_json: bool,
) -> int:
    """Why a context is as it is."""

    async def main(store: Store) -> tuple[Explanation, RebuiltContext | None]:
        whose = _owner(settings, owner)
        id = await _context_id(store, whose, of, consumer)
        explained = await explain(store, whose, id, version)
        return explained, await rebuild(store, whose, id, version) if with_parts else None

    explained, rebuilt = _on_store(settings, main)
    if not for_people(as_json):
        document = explained.as_dict()
        if rebuilt is not None:
            gone = [str(reference.id) for reference in rebuilt.gone]
            document |= {"parts": rebuilt.parts, "parts_are_as_shown_then": rebuilt.same, "parts_gone": gone}
        print_json(document)
        return OK
    _print(explained)
    if rebuilt is not None:
        out = console()
        for part in rebuilt.parts:
            out.print(f"\n{part['key']} ({part['place']})", style="bold", markup=False)
            for item in part["items"]:
                out.print(f"  {one_line(plain_text(item['content']), 2_000)}", markup=False)
        out.print(
            "\nbyte for byte what the model was shown"
            if rebuilt.same
            else f"\nnot all of what the model was shown: {len(rebuilt.gone)} items are gone",
            style="green" if rebuilt.same else "yellow",
        )
    return OK


async def _context_id(store: Store, owner: UUID, of: str, consumer: str | None) -> UUID:
    """The context that somebody means: by its id, or as the one of a session."""
    try:
        id = UUID(of)
        found = await store.get(owner, id, count_read=False)
        if "explain" in found.context:
            return id
    except (ValueError, NotFound):
        pass
    contexts = await contexts_of(store, owner, of)
    by_consumer = {str(context.context["consumer_id"]): context for context in contexts}
    if not by_consumer:
        raise CommandError(
            f"there is no context {of!r}, and no session {of!r} with one: contexts are made when messages "
            "arrive, and kept for an hour unless the config says otherwise"
        )
    names = ", ".join(by_consumer)
    if consumer is None:
        if len(by_consumer) > 1:
            raise UsageError(f"session {of!r} has contexts of {names}: choose one with --consumer")
        return contexts[0].id
    if consumer not in by_consumer:
        raise CommandError(f"session {of!r} has no context of {consumer}, but of {names}")
    return by_consumer[consumer].id


# crumb context preview


def show_preview(
    settings: Settings,
    *,
    session: str,
    file: Path,
    consumer: str | None,
    trigger: UUID | None,
    with_diff: bool,
    owner: UUID | None,
    as_json: bool,
) -> int:
    """What a model would see with another config."""
    config = _chosen(read_configs(file), file, consumer)

    async def main(store: Store) -> tuple[Explanation, list[dict[str, object]], Explanation | None]:
        whose = _owner(settings, owner)
        made = await preview(store, PreviewInput(whose, session, config, trigger))
        before = None
        if with_diff:
            before = await _context_for(
                store, whose, session, config.consumer_id, made.explanation.trigger_id
            )
        return made.explanation, made.parts, before

    explained, parts, before = _on_store(settings, main)
    difference = None if before is None else diff(before, explained)
    if not for_people(as_json):
        document = explained.as_dict() | {"parts": parts}
        print_json(document if difference is None else document | {"diff": difference.as_dict()})
        return OK
    _print(explained)
    if difference is not None:
        _print_difference(difference)
    return OK


async def _context_for(
    store: Store, owner: UUID, session: str, consumer: str, trigger_id: str
) -> Explanation:
    """The context that the model was shown for a message; where there is none, the session's newest."""
    for context in await contexts_of(store, owner, session):
        if context.context["consumer_id"] != consumer:
            continue
        async for version in store.versions(owner, context.id):
            if version.context.get("trigger_id") == trigger_id:
                return await explain(store, owner, context.id, version.version)
        return await explain(store, owner, context.id)
    raise CommandError(f"session {session!r} has no context of {consumer} to compare with: leave --diff out")


def _chosen(configs: tuple[ContextConfig, ...], file: Path, consumer: str | None) -> ContextConfig:
    by_consumer = {config.consumer_id: config for config in configs}
    if consumer is None and len(configs) == 1:
        return configs[0]
    if consumer in by_consumer:
        return by_consumer[consumer]
    names = ", ".join(by_consumer)
    if consumer is None:
        raise UsageError(f"{file} has configs of {names}: choose one with --consumer")
    raise CommandError(f"{file} has no config of {consumer}, but of {names}")


# crumb context diff


def show_diff(
    settings: Settings, old: str, new: str, *, consumer: str | None, owner: UUID | None, as_json: bool
) -> int:
    """What has changed from one context to another, or from one version of it to another."""

    async def main(store: Store) -> Difference:
        whose = _owner(settings, owner)

        async def one(reference: str) -> Explanation:
            of, version = _read_reference(reference)
            return await explain(store, whose, await _context_id(store, whose, of, consumer), version)

        return diff(await one(old), await one(new))

    difference = _on_store(settings, main)
    if for_people(as_json):
        _print_difference(difference)
    else:
        print_json(difference.as_dict())
    return OK


def _read_reference(text: str) -> tuple[str, int | None]:
    """`SESSION`, `CONTEXT_ID`, or either with `@VERSION`."""
    of, at, version = text.rpartition("@")
    if at and of and version.isascii() and version.isdigit():
        return of, int(version)
    return text, None


# crumb audit isolation


def audit(settings: Settings, *, owner: UUID | None, history: bool, as_json: bool) -> int:
    """Prove that no session has bled into another; exit code 1 where one has."""

    async def main(store: Store) -> Report:
        if not sys.stderr.isatty():
            return await audit_isolation(store, owner, history=history)
        with console(stderr=True).status("looking at every breadcrumb …") as status:
            return await audit_isolation(
                store,
                owner,
                history=history,
                progress=lambda count: status.update(f"{count:,} breadcrumbs looked at …"),
            )

    report = _on_store(settings, main)
    if not for_people(as_json):
        print_json(report.as_dict())
        return OK if report.is_clean else PROBLEM
    for finding in report.findings:
        version = f" version {finding.version}" if finding.version is not None else ""
        fail(f"{finding.breadcrumb_id}{version}: {finding.what}")
    out = console()
    out.print(
        f"looked at {report.breadcrumbs:,} breadcrumbs (owners: {len(report.owners):,}) and "
        f"{report.items:,} items in {report.versions:,} contexts"
        + (f"; {report.gone:,} items are gone since and tell no more" if report.gone else "")
        + (f"; {report.unreadable:,} contexts are not of our making" if report.unreadable else "")
    )
    if report.is_clean:
        out.print("no session has anything of another one in it", style="bold green")
    else:
        out.print(f"{len(report.findings):,} findings", style="bold red")
    return OK if report.is_clean else PROBLEM


# On the store


def _on_store(settings: Settings, work: Callable[[Store], Awaitable[_T]]) -> _T:
    async def main(url: str) -> _T:
        if not await has_store(settings, url):
            raise CommandError(
                f"there is nothing to look at: {shown_address(url)} has no store named {settings.namespace!r}"
            )
        store = await open_store(settings, url)
        try:
            return await work(store)
        finally:
            await store.close()

    with server_address(settings, create=False) as url:
        return asyncio.run(main(url))


def _owner(settings: Settings, named: UUID | None) -> UUID:
    """Whose contexts: who was named, else the only one that the settings know."""
    if named is not None:
        return named
    if settings.development_mode:
        return DEVELOPER
    owners = {key.owner_id for key in settings.api_keys}
    if len(owners) > 1:
        names = ", ".join(sorted(str(owner) for owner in owners))
        raise UsageError(f"the settings have keys of several owners: choose one with --owner ({names})")
    return owners.pop()


# For people


def _print(explained: Explanation) -> None:
    from rich.markup import escape

    out = console()
    what = (
        f"context {explained.context_id} version {explained.version}" if explained.context_id else "preview"
    )
    where = (
        "" if explained.session_id is None else f" · session [bold]{escape(visible(explained.session_id))}[/]"
    )
    out.print(f"{what} · consumer [bold]{escape(visible(explained.consumer_id))}[/]{where}")
    made = f"made {shown_time(explained.made_at)}" if explained.made_at else "as it would be made"
    out.print(
        f"{made} for {explained.trigger_id}, from what was there at {shown_time(explained.as_of)} · "
        f"config {visible(explained.config)}",
        style="dim",
        markup=False,
    )
    out.print()
    out.print(_budget_bar(explained), markup=False)
    sizes = part_sizes(explained.items)
    out.print(
        "        " + " · ".join(f"{name} {size:,}" for name, size in sizes.items()), style="dim", markup=False
    )
    out.print()
    out.print(_items_table(explained.items))
    if explained.left_out:
        out.print()
        table = _table("left out", "why", "tokens", "of", "what")
        for left in explained.left_out:
            what = "not for you" if left.hidden else "gone since" if left.gone else one_line(left.title, 60)
            size = "" if left.tokens is None else f"{left.tokens:,}"
            table.add_row(
                _text(left.source), _text(left.reason), size, _text(left.schema_name or ""), _text(what)
            )
        out.print(table)
        if explained.left_out_besides:
            out.print(f"… and {explained.left_out_besides:,} more", style="dim")
    for note in explained.notes:
        out.print(f"\n! {visible(note)}", style="yellow", markup=False)


def _budget_bar(explained: Explanation) -> str:
    share = explained.tokens / max(1, explained.budget)
    filled = min(_BAR, max(round(_BAR * share), int(explained.tokens > 0)))
    bar = "█" * filled + "░" * (_BAR - filled)
    return (
        f"tokens  {bar}  {explained.tokens:,} of {explained.budget:,} ({share:.0%}, {explained.counted_by})"
    )


def _items_table(items: list[ExplainedItem]) -> Table:
    table = _table("in", "why", "rank", "tokens", "time", "what")
    for item in items:
        if item.hidden:
            table.add_row(_text(item.place), _text(item.source), "", f"{item.tokens:,}", "", "not for you")
            continue
        words = "gone since" if item.gone else one_line(item.excerpt or item.title, 80)
        table.add_row(
            _text(item.place),
            _text(_why(item)),
            str(item.rank),
            f"{item.tokens:,}",
            shown_time(item.created_at) if item.created_at else "",
            _text(f"▸ {words}" if item.is_trigger else words),
            style="bold" if item.is_trigger else None,
        )
    return table


def _why(item: ExplainedItem) -> str:
    """The source, and what made it take this one."""
    of = item.schema_name or "no schema"
    return f"{item.source}: {of}" + "".join(f" +{tag}" for tag in item.matched)


def _print_difference(difference: Difference) -> None:
    out = console()
    old, new = difference.tokens
    budget = f"budget {difference.budget[0]:,} → {difference.budget[1]:,}"
    out.print(f"\ntokens {old:,} → {new:,} ({new - old:+,}), {budget}")
    for item in difference.came:
        out.print(f"+ {_line(item)}", style="green", markup=False)
    for item, reason in difference.went:
        out.print(f"- {_line(item)}{f' ({reason})' if reason else ''}", style="red", markup=False)
    for item, was, is_now in difference.moved:
        out.print(f"~ {_line(item)} (place {was} → {is_now})", style="yellow", markup=False)
    for before, item in difference.changed:
        what = f"version {before.version} → {item.version}, tokens {before.tokens:,} → {item.tokens:,}"
        out.print(f"~ {_line(item)} ({what})", style="yellow", markup=False)
    out.print(
        "no difference" if difference.is_empty else f"{difference.stayed:,} stayed as they were", style="dim"
    )


def _line(item: ExplainedItem) -> str:
    return (
        f"{item.place} · {_why(item)} · {item.tokens:,} tokens · {one_line(item.excerpt or item.title, 80)}"
    )


def _text(text: str) -> str:
    from rich.markup import escape

    return escape(visible(text))


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        number = name in ("tokens", "rank")
        table.add_column(name, justify="right" if number else "left", no_wrap=True, overflow="ellipsis")
    return table
