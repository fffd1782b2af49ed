"""Compares the requests of past answers with their receipts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal
from uuid import UUID

from breadcrumbs.agents.receipts import decode_digest
from breadcrumbs.context_builder.references import ContextRecord
from breadcrumbs.context_builder.tokens import token_counter
from breadcrumbs.proofs.requests import (
    Missing,
    NotRebuildable,
    RebuiltTurn,
    Receipt,
    has_first_receipt,
    load_receipt,
    rebuild_request,
)
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.retrieval.part_digests import parts_digest
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.version import VERSION

Outcome = Literal["equal", "different", "not rebuildable"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between a rebuilt request and its receipt."""

    where: str
    cause: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The result for one answer."""

    answer_id: str
    outcome: Outcome
    session_id: str | None = None
    agent_id: str | None = None
    requests: int = 0
    """Number of requests that were compared. 0 for an agent on an ADK server: only its context is compared."""
    edited: bool = False
    """The text of the answer is no longer the one that the runtime wrote. The proof is about its first version."""
    difference: Difference | None = None
    missing: list[Missing] = field(default_factory=list)
    changed_by_hooks: list[str] = field(default_factory=list)
    """Hooks that changed a prompt or the answer. Equal means then: the prompt before the hooks was rebuilt, and the
    receipt has an unbroken chain of digests from it to the request that was sent."""

    def as_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "answer_id": self.answer_id,
            "outcome": self.outcome,
            "requests": self.requests,
        }
        if self.session_id is not None:
            document["session_id"] = self.session_id
        if self.agent_id is not None:
            document["agent_id"] = self.agent_id
        if self.edited:
            document["edited"] = True
        if self.changed_by_hooks:
            document["changed_by_hooks"] = self.changed_by_hooks
        if self.difference is not None:
            document["difference"] = {"where": self.difference.where, "cause": self.difference.cause}
        if self.missing:
            document["missing"] = [missing.as_dict() for missing in self.missing]
        return document


async def verify_answer(store: Store, owner: UUID, answer_id: UUID) -> Verification:
    """Rebuild the requests of an answer and compare them. Raise `NotFound` if the answer does not exist."""
    answer = await store.get(owner, answer_id, count_read=False)
    try:
        turn = await rebuild_request(store, await load_receipt(store, owner, answer_id))
    except NotRebuildable as error:
        return _result(answer, "not rebuildable", missing=[error.missing])
    return compare(answer, turn)


def compare(answer: Breadcrumb, turn: RebuiltTurn) -> Verification:
    """Compare a rebuilt turn with the receipt of its answer."""
    if turn.missing:
        return _result(answer, "not rebuildable", missing=turn.missing)
    try:
        difference = _find_difference(turn)
    except ValueError:
        unreadable = Missing("receipt", f"the receipt of answer {answer.id} cannot be read", str(answer.id))
        return _result(answer, "not rebuildable", missing=[unreadable])
    outcome: Outcome = "equal" if difference is None else "different"
    edited = plain_text(answer.context) != plain_text(turn.receipt.answer.context)
    return _result(
        answer,
        outcome,
        requests=len(turn.bodies),
        edited=edited,
        difference=difference,
        changed_by_hooks=_changing_hooks(turn.receipt),
    )


def _result(answer: Breadcrumb, outcome: Outcome, **more: Any) -> Verification:
    creator = answer.context.get("creator")
    agent_id = creator.get("agent_id") if isinstance(creator, dict) else None
    return Verification(
        str(answer.id), outcome, answer.session_id, agent_id if isinstance(agent_id, str) else None, **more
    )


def _find_difference(turn: RebuiltTurn) -> Difference | None:
    if parts_digest(turn.parts) != turn.receipt.digest("context"):
        return _context_difference(turn)
    if any(rebuilt != recorded for rebuilt, recorded in turn.context_digests):
        return Difference("context", "the context of a replayed step was changed without a new version")
    for number, (call, body) in enumerate(zip(turn.receipt.calls, turn.bodies, strict=True)):
        recorded = decode_digest(str(call["request"]))
        digest = sha256(body).digest()
        for name, before, after in _changes(call):
            if digest != decode_digest(before):
                where = f"request {number + 1} of {len(turn.bodies)}, before the hook {name}"
                return replace(_request_difference(turn, number), where=where)
            digest = decode_digest(after)
        if digest != recorded:
            return _request_difference(turn, number)
        if number in turn.steps and turn.steps[number].sent.digest != recorded:
            return Difference(f"step {number + 1}", "the step or the receipt was changed")
    return None


def _changes(call: Mapping[str, Any], field: str = "hooks") -> list[tuple[str, str, str]]:
    """Return the hooks that changed a text: name, digest before and digest after."""
    entries = call.get(field, [])
    if not isinstance(entries, list):
        raise ValueError("invalid entries of hooks")
    return [(str(one[0]), str(one[1]), str(one[2])) for one in entries if len(one) == 3]


def _changing_hooks(receipt: Receipt) -> list[str]:
    """Return the names of the hooks that changed a prompt or the answer of a turn."""
    changes = [change for call in receipt.calls for change in _changes(call)]
    return list(dict.fromkeys(name for name, _, _ in (*changes, *_changes(receipt.fields, "answer_hooks"))))


def _context_difference(turn: RebuiltTurn) -> Difference:
    """Name the first item whose size differs from the one that the context recorded."""
    items = [item for part in turn.parts for item in part["items"]]
    if turn.record is None or len(items) != len(turn.record.items):
        return Difference("context", f"the context has {len(items)} items instead of those that it recorded")
    counter = token_counter()
    for number, (item, reference) in enumerate(zip(items, _in_order(turn.record), strict=True), start=1):
        tokens = counter.count(plain_text(item["content"]))
        if item.get("id") != str(reference.id) or tokens != reference.tokens:
            return Difference(
                f"item {number} of {len(items)}, breadcrumb {reference.id} version {reference.version}",
                f"its content was changed without a new version: it had {reference.tokens} tokens and now has {tokens}",
            )
    return Difference(
        "context", "an item was changed without a new version. Its number of tokens is the same as before"
    )


def _in_order(record: ContextRecord) -> list[Any]:
    """Return the references in the order of the parts."""
    order: dict[tuple[str, str], list[Any]] = {}
    for reference in record.items:
        key = "conversation" if reference.place == "conversation" else reference.source
        order.setdefault((reference.place, key), []).append(reference)
    return [reference for references in order.values() for reference in references]


def _request_difference(turn: RebuiltTurn, number: int) -> Difference:
    where = f"request {number + 1} of {len(turn.bodies)}"
    if number > 0:
        return Difference(where, f"the tool calls of step {number} or their results were changed")
    software = str(turn.setup.document.get("software"))
    if software != VERSION:
        return Difference(
            where,
            f"version {software} of this software encoded the request, and version {VERSION} rebuilt it",
        )
    return Difference(where, "setup and context are unchanged, so the receipt itself was changed")


@dataclass(slots=True)
class Summary:
    """Counts of a verification of many answers."""

    equal: int = 0
    different: int = 0
    not_rebuildable: int = 0
    without_receipt: int = 0
    """Answers that were written before receipts existed, or by clients. They are not verified."""

    def add(self, result: Verification) -> None:
        match result.outcome:
            case "equal":
                self.equal += 1
            case "different":
                self.different += 1
            case "not rebuildable":
                self.not_rebuildable += 1

    @property
    def verified(self) -> int:
        return self.equal + self.different + self.not_rebuildable


async def verify_all(
    store: Store, owner: UUID, session: str | None, summary: Summary
) -> AsyncIterator[Verification]:
    """Verify all answers of an owner or of a session, the newest first. Only one answer is in memory at a time."""
    async for crumb in store.walk(owner, Query(session_id=session, keep=_may_be_answer)):
        if not await has_first_receipt(store, crumb):
            summary.without_receipt += is_answer(crumb)
            continue
        try:
            result = await verify_answer(store, owner, crumb.id)
        except NotFound:
            continue  # deleted in the meantime
        summary.add(result)
        yield result


def _may_be_answer(crumb: Breadcrumb) -> bool:
    """Return whether a breadcrumb is an answer, or was one before it was edited."""
    return crumb.version > 1 or is_answer(crumb)


def is_answer(crumb: Breadcrumb) -> bool:
    """Return whether a breadcrumb is the answer of an agent that the runtime wrote."""
    creator = crumb.context.get("creator")
    return (
        crumb.created_by is None
        and "trigger_id" in crumb.context
        and isinstance(creator, dict)
        and creator.get("type") == "agent"
    )
