"""The document that people see of a receipt: its facts, and the complete prompt with its tokens.

Items that the reader may not see are counted, but not shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from breadcrumbs.agents.models.offered import public_name
from breadcrumbs.agents.models.windows import window_of
from breadcrumbs.agents.receipts import decode_digest
from breadcrumbs.agents.tool_use import printable_name
from breadcrumbs.context_builder.referenced import (
    UNRESTRICTED,
    Reader,
    ReferencedBreadcrumbs,
    group_references,
)
from breadcrumbs.context_builder.references import ItemReference
from breadcrumbs.context_builder.tokens import token_counter
from breadcrumbs.proofs.requests import Missing, NotRebuildable, RebuiltTurn, Receipt, Setup, rebuild_request
from breadcrumbs.proofs.verification import compare
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.json_input import canonical
from breadcrumbs.runtime.store.archive import Archive
from breadcrumbs.runtime.store.store import Store

_TOKENS: Final = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Options of a receipt view."""

    reader: Reader = UNRESTRICTED
    shows_setup: bool = True
    """Show the system prompt and the tools. Otherwise only their digests and tokens."""
    verifies: bool = False
    windows: Mapping[str, int] = field(default_factory=dict)
    """Context windows of the settings, by model."""
    max_bytes: int = 8 << 20
    """Items above this total size are listed without their content."""


async def view_receipt(
    store: Store, answer: Breadcrumb, receipt: Receipt, options: ViewOptions
) -> dict[str, Any]:
    """Return the receipt of an answer with the complete prompt, as far as it still exists.

    `answer` can be a copy of the answer in the receipt.
    """
    document = _facts(answer, receipt)
    missing: list[Missing] = []
    turn: RebuiltTurn | None = None
    try:
        turn = await rebuild_request(store, receipt)
        missing = turn.missing
    except NotRebuildable as error:
        missing = [error.missing]
    if turn is not None:
        for number, step in turn.steps.items():
            document["calls"][number]["tools"] = [printable_name(one.name) for one in step.reply.tool_calls]
        document |= _setup_facts(turn.setup, shows_setup=options.shows_setup)
        if options.shows_setup and (definition := await _definition(store, turn)) is not None:
            document["agent"] = definition
        items = await _items(store, turn, options)
        document["prompt"] = _prompt(turn.setup, items, shows_setup=options.shows_setup)
        document["tokens"] = _tokens(turn, options.windows)
    if missing:
        document["missing"] = [_shown_missing(one, options.reader) for one in missing]
    if options.verifies:
        document["verification"] = _verification(answer, turn, document.get("missing", []), options.reader)
    return document


def _facts(answer: Breadcrumb, receipt: Receipt) -> dict[str, Any]:
    original = receipt.answer
    document: dict[str, Any] = {"answer_id": str(answer.id)}
    if answer.session_id is not None:
        document["session_id"] = answer.session_id
    if original.id != answer.id:
        document["copy_of"] = str(original.id)
    for name in ("context_id", "context_version"):
        if name in original.context:
            document[name] = original.context[name]
    document["digests"] = {"setup": _hex(receipt.fields, "setup"), "context": _hex(receipt.fields, "context")}
    document["calls"] = [_call(call) for call in receipt.calls]
    duration = receipt.fields.get("ms", sum(call.get("ms", 0) for call in receipt.calls))
    document["duration_ms"] = duration
    document["attempt"] = receipt.fields.get("attempt", 1)
    if hooks := receipt.fields.get("answer_hooks"):
        document["answer_hooks"] = [_hook(entry) for entry in hooks]
    return document


def _hex(fields: Mapping[str, Any], name: str) -> str:
    try:
        return decode_digest(str(fields.get(name, ""))).hex()
    except ValueError:
        return ""


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {"request": _hex(call, "request"), "attempts": call.get("attempts", 1)}
    names = {"id": "response_id", "model": "model", "finish": "finish_reason", "first": "first_token_ms"}
    shown |= {label: call[name] for name, label in {**names, "ms": "duration_ms"}.items() if name in call}
    if isinstance(by := call.get("by"), list) and by:
        shown["answered_by"] = by[0]
    if failed := call.get("failed"):
        shown["failed_models"] = [{"model": name, "error_class": kind} for name, kind in failed]
    tokens = call.get("tokens", [])
    shown |= {name: value for name, value in zip(_TOKENS, tokens, strict=False) if value is not None}
    if hooks := call.get("hooks"):
        shown["hooks"] = [_hook(entry) for entry in hooks]
    if "repair" in call:
        shown["schema_problems"] = call["repair"]
    if tools := call.get("tools"):
        shown["tool_requests"] = [entry if isinstance(entry, str) else entry[0] for entry in tools]
    if "step" in call:
        shown["step_id"] = call["step"]
    if call.get("replayed"):
        shown["replayed"] = True
    return shown


def _hook(entry: list[str]) -> dict[str, Any]:
    """Return a hook that ran. The digests are of the request or the text before and after its change."""
    if len(entry) != 3:
        return {"name": entry[0], "changed": False}
    digests = {"before": entry[1], "after": entry[2]}
    return {"name": entry[0], "changed": True, **{name: _hex(digests, name) for name in digests}}


def _setup_facts(setup: Setup, *, shows_setup: bool) -> dict[str, Any]:
    document = setup.document
    facts = {
        name: document[name]
        for name in ("agent_id", "kind", "model", "provider", "config", "software")
        if name in document
    }
    facts["definition"] = document.get("agent", "")
    if shows_setup and "parameters" in document:
        facts["parameters"] = document["parameters"]
    return facts


async def _definition(store: Store, turn: RebuiltTurn) -> dict[str, Any] | None:
    """Return the agent definition of the turn. Only the operator should see the URL of the model's server."""
    digest = str(turn.setup.document.get("agent", ""))
    found = await Archive(store).get(turn.receipt.answer.owner_id, digest, "agent")
    if found is None or not isinstance(found.document, dict):
        return None
    definition = dict(found.document)
    if isinstance(model := definition.get("model"), str):
        definition["model"] = public_name(model)
    elif isinstance(model, list):
        definition["model"] = [public_name(str(name)) for name in model]
    return definition


def _prompt(setup: Setup, items: list[dict[str, Any]], *, shows_setup: bool) -> dict[str, Any]:
    document = setup.document
    tools = str(document.get("tools", "[]"))
    prompt: dict[str, Any] = {
        "items": items,
        "digests": {
            "system_prompt": _digest(setup.system_prompt.encode()),
            "tools": _digest(tools.encode()),
            "parameters": _digest(canonical(document.get("parameters", {}))),
        },
    }
    if shows_setup:
        prompt |= {"system_prompt": setup.system_prompt, "tools": setup.tool_schemas}
    else:
        prompt["setup_hidden"] = True
    return prompt


def _digest(raw: bytes) -> str:
    return sha256(raw).hexdigest()


def _tokens(turn: RebuiltTurn, windows: Mapping[str, int]) -> dict[str, Any]:
    """Count all parts of the first request."""
    setup, record, counter = turn.setup, turn.record, token_counter()
    tools = str(setup.document.get("tools", "[]"))
    counts: dict[str, Any] = {
        "system_prompt": counter.count(setup.system_prompt),
        "tools": 0 if tools == "[]" else counter.count(tools),
        "items": 0 if record is None else sum(item.tokens for item in record.items),
    }
    counts["total"] = sum(counts.values())
    counts["counted_by"] = counter.method
    if record is not None and record.budget:
        counts["budget"] = record.budget
    model = setup.document.get("model")
    if isinstance(model, str) and (window := window_of(model, windows)) is not None:
        counts["window"] = window
    return counts


async def _items(store: Store, turn: RebuiltTurn, options: ViewOptions) -> list[dict[str, Any]]:
    """Return the items of the prompt in order, without the content that the reader may not see."""
    if turn.record is None:
        return []
    contents = {str(item.get("id")): item for part in turn.parts for item in part["items"]}
    owner, size = turn.receipt.answer.owner_id, 0
    shown: list[dict[str, Any]] = []
    for group in group_references(turn.record.items):
        loaded = await ReferencedBreadcrumbs.load(store, owner, turn.record, group, options.reader)
        for reference in group:
            item = _item(loaded, reference)
            if not (item.get("hidden") or item.get("gone")) and str(reference.id) in contents:
                content = contents[str(reference.id)]["content"]
                size += len(canonical(content))
                if size <= options.max_bytes:
                    item["content"] = content
                else:
                    item["content_omitted"] = True
            shown.append(item)
    return shown


def _item(loaded: ReferencedBreadcrumbs, reference: ItemReference) -> dict[str, Any]:
    item: dict[str, Any] = {
        "source": reference.source,
        "place": reference.place,
        "tokens": reference.tokens,
    }
    if loaded.is_hidden(reference):
        return {**item, "hidden": True}
    item |= {"id": str(reference.id), "version": reference.version}
    crumb = loaded.get(reference)
    if crumb is None:
        return {**item, "gone": True}
    if crumb.schema_name is not None:
        item["schema_name"] = crumb.schema_name
    return {**item, "created_at": crumb.created_at}


def _shown_missing(missing: Missing, reader: Reader) -> dict[str, Any]:
    """Return what is missing. A reader from whom deleted breadcrumbs are concealed gets no id."""
    if reader.conceals_gone and missing.kind in ("item", "schema definition"):
        return {"kind": missing.kind, "reason": f"{missing.kind} deleted or expired"}
    return missing.as_dict()


def _verification(
    answer: Breadcrumb, turn: RebuiltTurn | None, missing: list[dict[str, Any]], reader: Reader
) -> dict[str, Any]:
    """Return the result of a verification. A difference can be in a breadcrumb that the reader may not see."""
    if turn is None or turn.missing:
        return {"outcome": "not rebuildable", "requests": 0, "missing": missing}
    result = compare(answer, turn).as_dict()
    if reader.conceals_gone and "difference" in result:
        result["difference"] = {"where": "request", "cause": "this token may not see the cause"}
    return {
        name: value
        for name, value in result.items()
        if name in ("outcome", "requests", "edited", "difference", "missing", "changed_by_hooks")
    }
