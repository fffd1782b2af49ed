"""Reads and prints the receipt of the answer that a context was made for, for `crumb context explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from breadcrumbs.agents.receipts import has_receipt
from breadcrumbs.cli.client import path_of
from breadcrumbs.cli.output import console, one_line
from breadcrumbs.context_builder.explanation import Explanation
from breadcrumbs.proofs.requests import NotRebuildable, answer_id_of, load_receipt
from breadcrumbs.runtime.errors import Forbidden, NotFound

if TYPE_CHECKING:
    from rich.console import Console

    from breadcrumbs.client.sync import Client
    from breadcrumbs.runtime.settings.settings import Settings
    from breadcrumbs.runtime.store.store import Store


_MAX_SEARCHED = 1_000
"""Maximum number of breadcrumbs of a session among which the answer is searched, the newest first."""


async def stored_receipt(
    store: Store, owner: UUID, explained: Explanation, settings: Settings
) -> dict[str, Any] | None:
    """Return the receipt of the answer to an explained context, or None if there is none."""
    from breadcrumbs.agents.models.windows import windows_in
    from breadcrumbs.proofs.receipt_view import ViewOptions, view_receipt

    async def read(id: UUID) -> dict[str, Any] | None:
        try:
            answer = await store.get(owner, id, count_read=False)
            receipt = await load_receipt(store, owner, id)
        except (NotFound, NotRebuildable):
            return None
        return await view_receipt(store, answer, receipt, ViewOptions(windows=windows_in(settings.models)))

    if (id := _likely_answer(explained)) is None:
        return None
    if (found := await read(id)) is not None and _is_of(found, explained):
        return found
    other = await _find_stored(store, owner, explained)
    return None if other is None else await read(other)


async def _find_stored(store: Store, owner: UUID, explained: Explanation) -> UUID | None:
    from breadcrumbs.runtime.breadcrumb.query import Query

    if explained.session_id is None:
        return None
    searched = 0
    async for crumb in store.walk(owner, Query(session_id=explained.session_id)):
        if has_receipt(crumb.context) and _is_of(crumb.context, explained):
            return crumb.id
        searched += 1
        if searched == _MAX_SEARCHED:
            break
    return None


def server_receipt(client: Client, explained: Explanation) -> dict[str, Any] | None:
    """Return the receipt of the answer to an explained context from a server, or None if there is none."""

    def read(id: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = client.request("GET", path_of("breadcrumbs", id, "receipt")).json()
        except (NotFound, Forbidden):
            return None
        return found

    if (id := _likely_answer(explained)) is None:
        return None
    if (found := read(str(id))) is not None and _is_of(found, explained):
        return found
    if explained.session_id is None:
        return None
    listed = client.list(session=explained.session_id, limit=_MAX_SEARCHED)
    for crumb in listed:
        context = crumb.document.get("context", {})
        if has_receipt(context) and _is_of(context, explained):
            return read(crumb.id)
    return None


def _likely_answer(explained: Explanation) -> UUID | None:
    """Return the id of the answer if the agent has the name of the consumer, which is usual. None for a preview."""
    if explained.context_id is None:
        return None
    return answer_id_of(UUID(explained.context_id), explained.consumer_id, explained.trigger_id)


def _is_of(answer: dict[str, Any], explained: Explanation) -> bool:
    """Return whether an answer, or its receipt, names this version of the context."""
    named = (answer.get("context_id"), answer.get("context_version"))
    return named == (explained.context_id, explained.version)


def _print_calls(out: Console, calls: list[dict[str, Any]]) -> None:
    """Print the model calls of an answer that called tools: its steps, and the call that made the answer."""
    if not any("step_id" in call for call in calls):
        return
    out.print("\n[bold]model calls[/]")
    for number, call in enumerate(calls, start=1):
        called = f"called {', '.join(call['tools'])}" if call.get("tools") else "answered"
        if "step_id" in call and "tools" not in call:
            called = "called tools"
        tokens = (
            f", {call['input_tokens']:,} + {call['output_tokens']:,} tokens" if "input_tokens" in call else ""
        )
        replayed = ", replayed after a takeover" if call.get("replayed") else ""
        step = f"  step {call['step_id']}" if "step_id" in call else ""
        out.print(f"  {number}  {one_line(called, 200)}{tokens}{replayed}{step}", markup=False)


def print_prompt(receipt: dict[str, Any], *, with_text: bool) -> None:
    """Print the tokens of the complete prompt, and with `with_text` its system prompt and its tools."""
    out = console()
    tokens, prompt = receipt.get("tokens"), receipt.get("prompt")
    if tokens is None or prompt is None:
        return
    window = tokens.get("window")
    limit = f" of {window:,}" if window else ""
    unknown = "" if window else " (the window of the model is unknown)"
    out.print(f"\n[bold]complete prompt[/]  {tokens['total']:,}{limit} tokens{unknown}")
    counts = {"system prompt": "system_prompt", "tools": "tools", "items": "items"}
    out.print(
        "  " + ", ".join(f"{label} {tokens[name]:,}" for label, name in counts.items()),
        style="dim",
        markup=False,
    )
    _print_calls(out, receipt["calls"])
    if not with_text:
        return
    out.print("\nsystem prompt", style="bold")
    out.print(f"  {one_line(prompt.get('system_prompt', '(hidden)'), 2_000)}", markup=False)
    out.print("\ntools", style="bold")
    for tool in prompt.get("tools", []):
        function = tool["function"]
        out.print(f"  {one_line(function['name'])}: {one_line(function['description'], 400)}", markup=False)
