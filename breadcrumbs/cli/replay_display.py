"""Shows an answer and its replays on a terminal: side by side, or below each other at less than 100 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from breadcrumbs.cli.output import console, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from breadcrumbs.agents.models.prices import Price

_MIN_WIDE: Final = 100
_MAX_ARGUMENTS: Final = 60


def add_costs(document: dict[str, Any], price: Price) -> None:
    """Add the cost to each replay. The original gets one only if it has the same model, to which the price applies."""
    replays, original = document["replays"], document["original"]
    same_model = all(one["model"] == original["model"] for one in replays)
    for one in [*replays, *([original] if same_model else [])]:
        if (cost := price.cost(one)) is not None:
            one["cost"] = cost


def print_replays(document: dict[str, Any]) -> None:
    """Print both answers with their figures."""
    out = console()
    original, replays = document["original"], document["replays"]
    out.print(
        f"answer {visible(document['answer_id'])} of {visible(document['agent_id'])}",
        style="bold",
        markup=False,
    )
    for note in document["notes"]:
        out.print(f"note: {visible(note)}", style="yellow", markup=False)
    shown = _different(replays)
    for number, (replay, count) in enumerate(shown):
        label = "Replay" if len(replays) == 1 else f"Replay, {count} of {len(replays)} times"
        left, right = _block("Original", original), _block(label, replay)
        if out.width >= _MIN_WIDE and number == 0:
            _print_columns(out, left, right)
            continue
        for block in (left, right) if number == 0 else (right,):
            out.print()
            out.print(block, soft_wrap=False)
    out.print()
    _print_summary(out, document)


def _different(replays: list[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Return the replays with different texts, each with the number of times that it occurred."""
    counts: dict[tuple[str | None, str | None], tuple[dict[str, Any], int]] = {}
    for one in replays:
        key = (one.get("text"), one.get("error"))
        first, count = counts.get(key, (one, 0))
        counts[key] = (first, count + 1)
    return list(counts.values())


def _print_columns(out: Console, left: Text, right: Text) -> None:
    from rich.table import Table

    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(ratio=1, overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    table.add_row(left, right)
    out.print()
    out.print(table, soft_wrap=False)


def _block(label: str, figures: dict[str, Any]) -> Text:
    from rich.text import Text

    block = Text(overflow="fold")
    block.append(label, style="bold cyan")
    block.append(f"  {visible(figures['model'])}\n")
    block.append(_figures(figures) + "\n", style="dim")
    for call in figures.get("tool_calls", ()):
        missing = call.get("result") == "missing"
        arguments = visible(call["arguments"])
        if len(arguments) > _MAX_ARGUMENTS:
            arguments = arguments[: _MAX_ARGUMENTS - 1] + "…"
        block.append(f"tool {call['step']} {visible(call['name'])} {arguments}")
        block.append("  no stored response: the model got an error\n" if missing else "\n", style="yellow")
    if "error" in figures:
        block.append(f"\nfailed: {visible(figures['error'])}", style="bold red")
    else:
        block.append("\n" + visible(figures["text"]))
    return block


def _figures(figures: dict[str, Any]) -> str:
    parts = []
    if "input_tokens" in figures:
        cached = f" ({figures['cached_tokens']:,} cached)" if figures.get("cached_tokens") else ""
        parts.append(f"{figures['input_tokens']:,}{cached} + {figures.get('output_tokens', 0):,} tokens")
    else:
        parts.append("tokens not reported")
    if "cost" in figures:
        parts.append(f"cost {figures['cost']:.6f}")
    parts.append(f"{figures['duration_ms'] / 1000:.1f} s")
    if figures["calls"] > 1:
        parts.append(f"{figures['calls']} model calls")
    return ", ".join(parts)


def _print_summary(out: Console, document: dict[str, Any]) -> None:
    replays = document["replays"]
    answered = [one for one in replays if "text" in one]
    if not answered:
        return
    same_request = all(one.get("same_request") for one in answered)
    request = "the same request" if same_request else "a different request"
    if len(replays) == 1:
        result = "the same answer" if document["same"] else "a different answer"
    else:
        result = (
            f"the same answer {document['same']} of {len(answered)} times, {document['distinct']} different answers"
            if document["distinct"] != 1
            else f"the same answer {document['same']} of {len(answered)} times, always the same replay"
        )
    out.print(
        f"{request}, {result}", style="green" if document["same"] == len(answered) else "yellow", markup=False
    )
