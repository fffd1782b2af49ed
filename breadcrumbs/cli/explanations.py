"""Prints explanations, differences of contexts and audit reports on a terminal."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from breadcrumbs.cli.context_reader import ShownContext
from breadcrumbs.cli.output import console, escaped, fail, one_line, print_columns, shown_time, visible
from breadcrumbs.context_builder.audit import AuditReport
from breadcrumbs.context_builder.diff import Difference
from breadcrumbs.context_builder.explanation import ExplainedItem, Explanation, part_name, part_sizes
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.schema_names import ATTACHMENT_SCHEMAS

if TYPE_CHECKING:
    from rich.console import Console

_BAR_WIDTH = 24


def print_explanation(explained: Explanation) -> None:
    """Print a context: its items, the items left out, and the budget. No line is longer than 80 columns if possible."""
    out = console()
    _print_header(out, explained)
    out.print()
    out.print(_budget_bar(explained), markup=False)
    for number, line in enumerate(explained.reuse_lines()):
        out.print(f"{'' if number else 'prefix'}".ljust(8) + one_line(line, 400), markup=False, style="dim")
    out.print()
    for name, items in groupby(explained.items, part_name):
        _print_part(out, name, list(items))
    if explained.left_out:
        _print_left_out(out, explained)
    for gap in explained.gaps():
        out.print(f"\n! {visible(gap)}", style="yellow", markup=False)
    for note in explained.notes:
        out.print(f"\n! {visible(note)}", style="yellow", markup=False)


def _print_header(out: Console, explained: Explanation) -> None:
    where = "" if explained.session_id is None else f" · session [bold]{escaped(explained.session_id)}[/]"
    consumer = f"consumer [bold]{escaped(explained.consumer_id)}[/]{where}"
    if explained.context_id is None:
        out.print(f"preview · {consumer}")
    else:
        out.print(f"context {explained.context_id} version {explained.version}")
        out.print(consumer)
    out.print(f"trigger {explained.trigger_id}", style="dim", markup=False)
    built = f"built {shown_time(explained.made_at)}" if explained.made_at else "not stored"
    out.print(
        f"{built} · data as of {shown_time(explained.as_of)} · config {visible(explained.config)}",
        style="dim",
        markup=False,
    )


def _print_part(out: Console, name: str, items: list[ExplainedItem]) -> None:
    """Print one part. Items are in the order of the prompt; # counts from the newest that the source found."""
    sizes = part_sizes(items)
    count = f"{len(items):,} item{'' if len(items) == 1 else 's'}, {sum(sizes.values()):,} tokens"
    if "attachments" in sizes:
        count += f", {sizes['attachments']:,} of them in attachments"
    out.print(f"[bold]{escaped(name)}[/]  [dim]{count}[/]")
    print_columns(
        [_item_cells(item) for item in items],
        ("right dim", "right dim", "dim", "magenta"),
        ("  #", "tokens", "time", "schema", "  content"),
    )
    out.print()


def _item_cells(item: ExplainedItem) -> tuple[str, ...]:
    if item.hidden:
        return ("", f"{item.tokens:,}", "", "", "  (hidden)")
    words = "(deleted or expired)" if item.gone else _item_words(item)
    return (
        str(item.rank),
        f"{item.tokens:,}",
        shown_time(item.created_at) if item.created_at else "",
        _schema_label(item),
        f"▸ {words}" if item.is_trigger else f"  {words}",
    )


def _print_left_out(out: Console, explained: Explanation) -> None:
    out.print(f"[bold]left out[/]  [dim]{len(explained.left_out) + explained.left_out_besides:,}[/]")
    rows = [
        (
            f"  {one_line(left.reason, 40)}",
            "" if left.tokens is None else f"{left.tokens:,}",
            one_line(f"{left.source}: {left.schema_name or 'no schema'}", 40),
            "(hidden)" if left.hidden else "(deleted or expired)" if left.gone else one_line(left.title, 400),
        )
        for left in explained.left_out
    ]
    print_columns(rows, ("yellow", "right dim", "magenta"), ("  reason", "tokens", "source", "title"))
    if explained.left_out_besides:
        out.print(f"  … and {explained.left_out_besides:,} more", style="dim")


def print_parts(shown: ShownContext) -> None:
    """Print the content that the model was shown."""
    out = console()
    for part in shown.parts or []:
        out.print(f"\n{part['key']} ({part['place']})", style="bold", markup=False)
        for item in part["items"]:
            out.print(f"  {one_line(plain_text(item['content']), 2_000)}", markup=False)
    out.print(
        "\ncomplete: byte for byte what the model was shown"
        if shown.same
        else f"\nincomplete: {len(shown.gone)} items that the model was shown no longer exist",
        style="green" if shown.same else "yellow",
    )


def _budget_bar(explained: Explanation) -> str:
    share = explained.tokens / max(1, explained.budget)
    filled = min(_BAR_WIDTH, max(round(_BAR_WIDTH * share), int(explained.tokens > 0)))
    bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
    return (
        f"tokens  {bar}  {explained.tokens:,} of {explained.budget:,} ({share:.0%}, {explained.counted_by})"
    )


def _item_words(item: ExplainedItem) -> str:
    """Return the beginning of an item. An attachment begins with its title, a cut item with its size."""
    cut = "" if item.cut is None else f"(cut to {item.cut.kept:,} of {item.cut.of:,} characters) "
    if item.schema_name in ATTACHMENT_SCHEMAS:
        return one_line(f"attached: {item.title} {cut}{item.excerpt}", 400)
    return one_line(cut + (item.excerpt or item.title), 400)


def _schema_label(item: ExplainedItem) -> str:
    """Return the schema of an item and the tags that matched, and its source if the part does not name it."""
    schema = one_line(item.schema_name or "no schema", 30)
    source = "" if part_name(item).startswith(item.source) else f"{one_line(item.source, 30)}: "
    return source + schema + "".join(f" +{one_line(tag, 40)}" for tag in item.matched)


def print_difference(difference: Difference) -> None:
    """Print the changes between two contexts."""
    out = console()
    old, new = difference.tokens
    budget = f"budget {difference.budget[0]:,} → {difference.budget[1]:,}"
    out.print(f"\ntokens {old:,} → {new:,} ({new - old:+,}), {budget}")
    for item in difference.added:
        _print_change(out, "+", item, "", "green")
    for item, reason in difference.removed:
        _print_change(out, "-", item, reason or "", "red")
    for item, was, is_now in difference.moved:
        _print_change(out, "~", item, f"position {was} → {is_now}", "yellow")
    for before, item in difference.changed:
        what = f"version {before.version} → {item.version}, tokens {before.tokens:,} → {item.tokens:,}"
        _print_change(out, "~", item, what, "yellow")
    out.print(
        "no difference" if difference.is_empty else f"{difference.unchanged:,} unchanged",
        style="dim",
    )


def _print_change(out: Console, mark: str, item: ExplainedItem, what: str, style: str) -> None:
    """Print one changed item in one line of the terminal, if it is wide enough."""
    beginning = f"{mark} {part_name(item)} · {_schema_label(item)} · {item.tokens:,} tokens · "
    end = f" ({what})" if what else ""
    words = one_line(item.excerpt or item.title, max(20, out.width - len(beginning) - len(end)))
    out.print(beginning + words + end, style=style, markup=False)


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
