"""Prints explanations, differences of contexts and audit reports on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from breadcrumbs.cli.output import console, escaped, fail, one_line, shown_time, visible
from breadcrumbs.context_builder.audit import AuditReport
from breadcrumbs.context_builder.diff import Difference
from breadcrumbs.context_builder.explanation import ExplainedItem, Explanation, part_sizes
from breadcrumbs.context_builder.rebuild import RebuiltContext
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.schema_names import ATTACHMENT_SCHEMAS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_BAR_WIDTH = 32


def print_explanation(explained: Explanation) -> None:
    """Print a context: its items, the items left out, and the budget."""
    out = console()
    _print_header(out, explained)
    out.print()
    out.print(_budget_bar(explained), markup=False)
    sizes = part_sizes(explained.items)
    out.print(
        "        " + " · ".join(f"{name} {size:,}" for name, size in sizes.items()), style="dim", markup=False
    )
    out.print()
    out.print(_items_table(explained.items))
    if explained.left_out:
        _print_left_out(out, explained)
    for gap in explained.gaps():
        out.print(f"\n! {visible(gap)}", style="yellow", markup=False)
    for note in explained.notes:
        out.print(f"\n! {visible(note)}", style="yellow", markup=False)


def _print_header(out: Console, explained: Explanation) -> None:
    what = (
        f"context {explained.context_id} version {explained.version}" if explained.context_id else "preview"
    )
    where = "" if explained.session_id is None else f" · session [bold]{escaped(explained.session_id)}[/]"
    out.print(f"{what} · consumer [bold]{escaped(explained.consumer_id)}[/]{where}")
    built = f"built {shown_time(explained.made_at)}" if explained.made_at else "not stored"
    out.print(
        f"{built} · trigger {explained.trigger_id} · data as of {shown_time(explained.as_of)} · "
        f"config {visible(explained.config)}",
        style="dim",
        markup=False,
    )


def _print_left_out(out: Console, explained: Explanation) -> None:
    out.print()
    table = _table("left out", "reason", "tokens", "schema", "title")
    for left in explained.left_out:
        what = (
            "(hidden)" if left.hidden else "(deleted or expired)" if left.gone else one_line(left.title, 60)
        )
        size = "" if left.tokens is None else f"{left.tokens:,}"
        cells = (left.source, left.reason, size, left.schema_name or "", what)
        table.add_row(*(escaped(cell) for cell in cells))
    out.print(table)
    if explained.left_out_besides:
        out.print(f"… and {explained.left_out_besides:,} more", style="dim")


def print_rebuilt(rebuilt: RebuiltContext) -> None:
    """Print the content that the model was shown."""
    out = console()
    for part in rebuilt.parts:
        out.print(f"\n{part['key']} ({part['place']})", style="bold", markup=False)
        for item in part["items"]:
            out.print(f"  {one_line(plain_text(item['content']), 2_000)}", markup=False)
    out.print(
        "\ncomplete: byte for byte what the model was shown"
        if rebuilt.same
        else f"\nincomplete: {len(rebuilt.gone)} items that the model was shown no longer exist",
        style="green" if rebuilt.same else "yellow",
    )


def _budget_bar(explained: Explanation) -> str:
    share = explained.tokens / max(1, explained.budget)
    filled = min(_BAR_WIDTH, max(round(_BAR_WIDTH * share), int(explained.tokens > 0)))
    bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
    return (
        f"tokens  {bar}  {explained.tokens:,} of {explained.budget:,} ({share:.0%}, {explained.counted_by})"
    )


def _items_table(items: list[ExplainedItem]) -> Table:
    table = _table("place", "source", "rank", "tokens", "time", "content")
    for item in items:
        if item.hidden:
            table.add_row(escaped(item.place), escaped(item.source), "", f"{item.tokens:,}", "", "(hidden)")
            continue
        words = "(deleted or expired)" if item.gone else _item_words(item)
        table.add_row(
            escaped(item.place),
            escaped(_source_label(item)),
            str(item.rank),
            f"{item.tokens:,}",
            shown_time(item.created_at) if item.created_at else "",
            escaped(f"▸ {words}" if item.is_trigger else words),
            style="bold" if item.is_trigger else None,
        )
    return table


def _item_words(item: ExplainedItem) -> str:
    """Return the beginning of an item. An attachment begins with its title, a cut item with its size."""
    cut = "" if item.cut is None else f"(cut to {item.cut.kept:,} of {item.cut.of:,} characters) "
    if item.schema_name in ATTACHMENT_SCHEMAS:
        return one_line(f"attached: {item.title} {cut}{item.excerpt}", 80)
    return one_line(cut + (item.excerpt or item.title), 80)


def _source_label(item: ExplainedItem) -> str:
    """Return the source of an item, its schema and the tags that matched."""
    schema = item.schema_name or "no schema"
    return f"{item.source}: {schema}" + "".join(f" +{tag}" for tag in item.matched)


def print_difference(difference: Difference) -> None:
    """Print the changes between two contexts."""
    out = console()
    old, new = difference.tokens
    budget = f"budget {difference.budget[0]:,} → {difference.budget[1]:,}"
    out.print(f"\ntokens {old:,} → {new:,} ({new - old:+,}), {budget}")
    for item in difference.added:
        out.print(f"+ {_item_line(item)}", style="green", markup=False)
    for item, reason in difference.removed:
        out.print(f"- {_item_line(item)}{f' ({reason})' if reason else ''}", style="red", markup=False)
    for item, was, is_now in difference.moved:
        out.print(f"~ {_item_line(item)} (position {was} → {is_now})", style="yellow", markup=False)
    for before, item in difference.changed:
        what = f"version {before.version} → {item.version}, tokens {before.tokens:,} → {item.tokens:,}"
        out.print(f"~ {_item_line(item)} ({what})", style="yellow", markup=False)
    out.print(
        "no difference" if difference.is_empty else f"{difference.unchanged:,} unchanged",
        style="dim",
    )


def _item_line(item: ExplainedItem) -> str:
    return f"{item.place} · {_source_label(item)} · {item.tokens:,} tokens · {one_line(item.excerpt or item.title, 80)}"


def print_report(report: AuditReport) -> None:
    """Print the findings of an audit."""
    for finding in report.findings:
        version = f" version {finding.version}" if finding.version is not None else ""
        fail(f"{finding.breadcrumb_id}{version}: {finding.what}")
    out = console()
    out.print(
        f"checked {report.breadcrumbs:,} breadcrumbs (owners: {len(report.owners):,}) and "
        f"{report.items:,} items in {report.versions:,} contexts"
        + (f"; skipped {report.gone:,} items that no longer exist" if report.gone else "")
        + (
            f"; skipped {report.unreadable:,} contexts that the context builder did not write"
            if report.unreadable
            else ""
        )
    )
    if report.is_clean:
        out.print("no session contains data of another one", style="bold green")
    else:
        out.print(f"{len(report.findings):,} violations", style="bold red")


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        number = name in ("tokens", "rank")
        table.add_column(name, justify="right" if number else "left", no_wrap=True, overflow="ellipsis")
    return table
