"""Rebuilds the requests of a past answer, byte for byte, without calling a model.

A request is determined by the setup in the archive, the items of the context in the versions that it refers to, and the
tool calls of the turn. If one of them was deleted, the request is not rebuilt, and `Missing` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal
from uuid import UUID

import orjson

from breadcrumbs.agents.external_calls import external_result
from breadcrumbs.agents.models.base import (
    Dialect,
    ModelReply,
    ModelRequest,
    PromptMessage,
    ToolCall,
    ToolSpec,
)
from breadcrumbs.agents.models.chat_format import request_json
from breadcrumbs.agents.prompt import build_prompt, find_parts_problem
from breadcrumbs.agents.prompt_cache import prompt_cache_key
from breadcrumbs.agents.prompt_images import load_images
from breadcrumbs.agents.receipts import RecordedCall, decode_digest, has_receipt
from breadcrumbs.agents.step_journal import load_step, read_step
from breadcrumbs.agents.structured_output import repair_messages, with_instruction
from breadcrumbs.agents.tool_use import step_messages, stored_result
from breadcrumbs.agents.tools.base import ToolResult
from breadcrumbs.context_builder.rebuild import rebuild, rebuild_gathered
from breadcrumbs.context_builder.referenced import load_context, load_version
from breadcrumbs.context_builder.references import ContextRecord, NotAContext, Reference, read_gathered
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.errors import BreadcrumbsError, NotFound
from breadcrumbs.runtime.retrieval.part_digests import parts_digest
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT, RECEIPT, TOOL_REQUEST, TOOL_RESPONSE
from breadcrumbs.runtime.store.archive import Archive
from breadcrumbs.runtime.store.store import Store

MissingKind = Literal[
    "receipt", "answer", "setup", "context", "item", "schema definition", "tool call", "step"
]

_LANE_BITS: Final = 0xFFF
_MAX_COPIES: Final = 16
"""Maximum number of forks of edited copies between an answer and its original."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that is needed to rebuild a request and no longer exists."""

    kind: MissingKind
    reason: str
    id: str | None = None
    version: int | None = None

    def as_dict(self) -> dict[str, Any]:
        fields = {"kind": self.kind, "id": self.id, "version": self.version, "reason": self.reason}
        return {name: value for name, value in fields.items() if value is not None}


class NotRebuildable(BreadcrumbsError):
    """A request cannot be rebuilt."""

    def __init__(self, missing: Missing) -> None:
        super().__init__(missing.reason)
        self.missing = missing


@dataclass(frozen=True, slots=True)
class Receipt:
    """The receipt of an answer, with the answer that has it."""

    answer: Breadcrumb
    """The first version of the original answer. Only this version is written by the runtime."""
    fields: Mapping[str, Any]

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        calls = self.fields.get("calls", [])
        return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []

    def digest(self, name: str) -> bytes:
        return decode_digest(str(self.fields.get(name, "")))


@dataclass(frozen=True, slots=True)
class Setup:
    """The archived facts that a request was made with."""

    digest: str
    document: Mapping[str, Any]

    @property
    def system_prompt(self) -> str:
        return str(self.document.get("system_prompt", ""))

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return tuple(
            ToolSpec(one["function"]["name"], one["function"]["description"], one["function"]["parameters"])
            for one in self.tool_schemas
        )

    @property
    def tool_schemas(self) -> list[dict[str, Any]]:
        """The tools as the request contains them."""
        return list(orjson.loads(self.document.get("tools", "[]")))

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """The schema of structured answers. The order of its keys is part of the request."""
        raw = self.document.get("output_schema")
        return orjson.loads(raw) if isinstance(raw, str) else None

    def dialect(self, call: Mapping[str, Any]) -> Dialect:
        """Return the dialect of a call. The receipt names it only if it differs from the setup."""
        usual = self.document["dialect"]
        stream, omit = usual["stream"], usual["omit"]
        if isinstance(other := call.get("dialect"), list) and other:
            stream, *omit = other
        by = call.get("by")  # a fallback list can answer each call with another model
        model = by[1] if isinstance(by, list) and len(by) == 2 else usual["model"]
        return Dialect(str(model), bool(stream), tuple(omit))


@dataclass(slots=True)
class RebuiltTurn:
    """The parts and the requests of a past turn."""

    receipt: Receipt
    setup: Setup
    parts: list[dict[str, Any]]
    record: ContextRecord | None = None
    """The references of the items. None if they cannot be read."""
    bodies: list[bytes] = field(default_factory=list)
    """One body per model call. Empty for an agent on an ADK server, which builds its own requests."""
    missing: list[Missing] = field(default_factory=list)
    steps: dict[int, RecordedCall] = field(default_factory=dict)
    """The stored steps, by the number of the model call."""
    context_digests: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Digests of the context of each replayed call that had another context: rebuilt, and of the receipt."""


def answer_id_of(context_id: UUID, agent_id: str, trigger_id: str) -> UUID:
    """Return the id of the answer of an agent to a message. It is derived, and in the lane of the context."""
    return derived_id(context_id.int >> 64 & _LANE_BITS, "answer", agent_id, trigger_id)


async def has_first_receipt(store: Store, crumb: Breadcrumb) -> bool:
    """Return whether the runtime wrote this breadcrumb as an answer with a receipt. An edit can have removed it."""
    if crumb.created_by is not None or crumb.schema_name == AGENT_CONTEXT:
        return False
    if crumb.version == 1:
        return has_receipt(crumb.context)
    try:
        return has_receipt((await _first_version(store, crumb)).context)
    except NotRebuildable:
        return has_receipt(crumb.context)


async def load_receipt(store: Store, owner: UUID, answer_id: UUID) -> Receipt:
    """Return the receipt of an answer. Raise `NotFound` without the answer, `NotRebuildable` without a receipt."""
    answer = await _first_version(store, await store.get(owner, answer_id, count_read=False))
    fields = _receipt_of(answer)
    for _ in range(_MAX_COPIES):
        if not isinstance(original := fields.get("copy_of"), str):
            break
        try:
            found = await store.get(owner, UUID(original), count_read=False)
        except (NotFound, ValueError):
            reason = f"this answer was copied by a fork, and the original answer {original} was deleted"
            raise NotRebuildable(Missing("answer", reason, original)) from None
        answer = await _first_version(store, found)
        fields = _receipt_of(answer)
    return Receipt(answer, fields)


def _receipt_of(answer: Breadcrumb) -> Mapping[str, Any]:
    receipt: Any = answer.context.get(RECEIPT)
    # The breadcrumbs of clients have an author. A client must not be able to invent a receipt.
    if not has_receipt(answer.context) or answer.created_by is not None:
        raise NotRebuildable(Missing("receipt", _no_receipt(answer), str(answer.id)))
    fields: Mapping[str, Any] = receipt
    return fields


def _no_receipt(crumb: Breadcrumb) -> str:
    if "trigger_id" not in crumb.context or "creator" not in crumb.context:
        return f"breadcrumb {crumb.id} is not an answer of an agent, so it has no receipt"
    if crumb.created_by is not None:
        return f"answer {crumb.id} was written by a client, so it has no receipt"
    return f"answer {crumb.id} has no receipt: it was written before receipts existed"


async def _first_version(store: Store, newest: Breadcrumb) -> Breadcrumb:
    """Return the first version. Only it is written by the runtime: clients can write the later ones.

    Raise `NotRebuildable` if it is not stored, as after an import without history.
    """
    if newest.version == 1:
        return newest
    try:
        return await store.get_version(newest.owner_id, newest.id, 1)
    except NotFound:
        kind: MissingKind = "tool call" if newest.schema_name in (TOOL_REQUEST, TOOL_RESPONSE) else "answer"
        reason = f"breadcrumb {newest.id} was edited, and its first version is not stored"
        raise NotRebuildable(Missing(kind, reason, str(newest.id), 1)) from None


async def rebuild_request(store: Store, receipt: Receipt) -> RebuiltTurn:
    """Rebuild all requests of an answer. Raise `NotRebuildable` if the setup or the context is gone.

    If only items or tool calls are gone, they are in `missing`, and no request is returned.
    """
    setup = await _load_setup(store, receipt)
    turn = await _load_parts(store, receipt, setup)
    if turn.missing or setup.document.get("kind") == "adk":
        return turn
    usual = await _Prompt.of(store, turn, setup)
    added: tuple[PromptMessage, ...] = ()
    try:
        for number, call in enumerate(receipt.calls):
            prompt = await _prompt_of(store, turn, call, usual)
            turn.bodies.append(prompt.body(receipt.answer, call, added))
            if "step" in call:
                turn.steps[number] = await _load_step(store, receipt, call)
            if number + 1 < len(receipt.calls):
                added = (*added, *await _added_messages(store, turn, call, number))
    except NotRebuildable as error:
        turn.missing.append(error.missing)
        turn.bodies.clear()
    return turn


@dataclass(frozen=True, slots=True)
class _Prompt:
    """The setup of a model call and the messages before its steps."""

    setup: Setup
    messages: tuple[PromptMessage, ...]

    @classmethod
    async def of(cls, store: Store, turn: RebuiltTurn, setup: Setup) -> _Prompt:
        messages = build_prompt(setup.system_prompt, turn.parts, str(setup.document["agent_id"]))
        messages = with_instruction(messages, setup.output_schema)
        return cls(setup, await load_images(store, turn.receipt.answer.owner_id, messages))

    def body(self, answer: Breadcrumb, call: Mapping[str, Any], added: tuple[PromptMessage, ...]) -> bytes:
        """Return the body of a request. `added` are the messages of the steps before it."""
        document = self.setup.document
        parameters = document.get("parameters", {})
        owner = UUID(document["owner_id"]) if "owner_id" in document else answer.owner_id
        request = ModelRequest(
            (*self.messages, *added),
            self.setup.tools,
            parameters.get("temperature"),
            parameters.get("max_tokens"),
            cache_key=prompt_cache_key(owner, answer.session_id, str(document["agent_id"])),
            parallel_tool_calls=parameters.get("parallel_tool_calls"),
            output_schema=self.setup.output_schema,
        )
        return request_json(self.setup.dialect(call), request)


async def _prompt_of(store: Store, turn: RebuiltTurn, call: Mapping[str, Any], usual: _Prompt) -> _Prompt:
    """Return the prompt of a call. A replayed call can have been made with another setup and context."""
    made_with = call.get("made_with")
    if not isinstance(made_with, dict):
        return usual
    answer = turn.receipt.answer
    own = Receipt(replace(answer).with_document({**answer.document, "context": {**made_with}}), made_with)
    setup = await _load_setup(store, own)
    rebuilt = await _load_parts(store, own, setup)
    if rebuilt.missing:
        raise NotRebuildable(rebuilt.missing[0])
    turn.context_digests.append((parts_digest(rebuilt.parts), own.digest("context")))
    return await _Prompt.of(store, rebuilt, setup)


async def _load_step(store: Store, receipt: Receipt, call: Mapping[str, Any]) -> RecordedCall:
    """Return the stored step of a call. Raise `NotRebuildable` if it is gone."""
    id = str(call["step"])
    try:
        step = await load_step(store, receipt.answer.owner_id, UUID(id))
        if step.session_id != receipt.answer.session_id:
            raise NotFound("a step of another session")
        if step.context.get("too_long"):
            raise NotRebuildable(Missing("step", f"the reply of step {id} was too long to be stored", id))
        return read_step(step)
    except (NotFound, KeyError, TypeError, ValueError):
        raise NotRebuildable(Missing("step", f"the step {id} was deleted or cannot be read", id)) from None


async def _load_setup(store: Store, receipt: Receipt) -> Setup:
    try:
        digest = receipt.digest("setup").hex()
    except ValueError:
        reason = f"the receipt of answer {receipt.answer.id} cannot be read"
        raise NotRebuildable(Missing("receipt", reason, str(receipt.answer.id))) from None
    found = await Archive(store).get(receipt.answer.owner_id, digest, "setup")
    if found is None or not isinstance(found.document, dict):
        reason = f"the setup {digest[:16]} (system prompt, tools, parameters) is no longer in the archive"
        raise NotRebuildable(Missing("setup", reason, digest))
    return Setup(digest, found.document)


async def _load_parts(store: Store, receipt: Receipt, setup: Setup) -> RebuiltTurn:
    answer = receipt.answer
    try:
        if "items" in receipt.fields:
            record = read_gathered(receipt.fields["items"])
            parts, gone = await rebuild_gathered(store, answer.owner_id, record)
        else:
            id, version = UUID(str(answer.context["context_id"])), int(answer.context["context_version"])
            context, record = await load_context(store, answer.owner_id, id, version)
            if context.session_id != answer.session_id:
                raise NotFound("the context belongs to another session")
            rebuilt = await rebuild(store, answer.owner_id, id, version)
            parts, gone = rebuilt.parts, rebuilt.gone
    except (NotFound, KeyError, TypeError, ValueError, NotAContext):
        named = answer.context.get("context_id"), answer.context.get("context_version")
        reason = f"version {named[1]} of the context {named[0]} was deleted"
        raise NotRebuildable(Missing("context", reason, str(named[0]), named[1])) from None
    if problem := find_parts_problem(parts):
        reason = f"the context cannot be read: {problem}"
        raise NotRebuildable(Missing("context", reason, str(answer.context.get("context_id"))))
    missing = [await _missing_item(store, answer.owner_id, record, reference) for reference in gone]
    return RebuiltTurn(receipt, setup, parts, record, missing=missing)


async def _missing_item(store: Store, owner: UUID, record: ContextRecord, reference: Reference) -> Missing:
    """Return what is missing to render an item: its breadcrumb, or the definition of its schema with the hints."""
    found = await load_version(store, owner, reference.id, reference.version)
    if found is not None and found.then.schema_name in record.hints:
        id, version = record.hints[found.then.schema_name]
        reason = f"version {version} of the definition {id} of {found.then.schema_name}, with its hints, was deleted"
        return Missing("schema definition", reason, str(id), version)
    reason = (
        f"version {reference.version} of breadcrumb {reference.id} (source {reference.source}) was deleted or has "
        "expired"
    )
    return Missing("item", reason, str(reference.id), reference.version)


# Tool calls


async def _added_messages(
    store: Store, turn: RebuiltTurn, call: Mapping[str, Any], step: int
) -> list[PromptMessage]:
    """Return the messages that a step added to the prompt. Raise `NotRebuildable` if one is gone."""
    if "repair" not in call:
        return await _tool_messages(store, turn, call, step)
    stored = turn.steps.get(step)
    text = call.get("text") if stored is None else stored.reply.text
    if not isinstance(text, str):
        raise NotRebuildable(
            Missing("answer", "a reply that did not match the output schema was too long to be stored")
        )
    return repair_messages(text, str(call["repair"]))


async def _tool_messages(
    store: Store, turn: RebuiltTurn, call: Mapping[str, Any], step: int
) -> list[PromptMessage]:
    """Return the messages that the tool calls of a step added to the prompt. Raise `NotRebuildable` if one is gone."""
    receipt, text = turn.receipt, call.get("text")
    if (stored := turn.steps.get(step)) is not None:
        return await _step_messages(store, turn, call, step, stored.reply)
    calls: list[ToolCall] = []
    results: list[ToolResult] = []
    for number, entry in enumerate(call.get("tools", [])):
        id, call_id = (entry, None) if isinstance(entry, str) else entry
        found = await load_call(store, receipt, UUID(id), f"{step}.{number}")
        if isinstance(found, Missing):
            raise NotRebuildable(found)
        if "text" not in call and number == 0:
            text = found.text
        calls.append(
            found.call if call_id is None else ToolCall(call_id, found.call.name, found.call.arguments)
        )
        results.append(found.result)
    if text is None:
        reason = "the text before a tool call was too long to be stored"
        raise NotRebuildable(Missing("tool call", reason))
    return step_messages(text, calls, results)


async def _step_messages(
    store: Store, turn: RebuiltTurn, call: Mapping[str, Any], number: int, reply: ModelReply
) -> list[PromptMessage]:
    """Return the messages of a stored step: its reply, and the responses to its tool calls."""
    answer = turn.receipt.answer
    agent_id, origin = str(turn.setup.document["agent_id"]), str(answer.context.get("trigger_id"))
    results: list[ToolResult] = []
    for place, (id, made) in enumerate(zip(call["tools"], reply.tool_calls, strict=True)):
        if isinstance(outside := call.get("responses"), dict) and id in outside:
            results.append(await _load_result(store, answer, UUID(outside[id]), external_result))
            continue
        lane = UUID(id).int >> 64 & _LANE_BITS
        step = f"{number}.{place}"
        response_id = derived_id(lane, "response", agent_id, origin, step, made.name, made.arguments)
        results.append(await _load_result(store, answer, response_id))
    return step_messages(reply.text, reply.tool_calls, results)


async def _load_result(
    store: Store,
    answer: Breadcrumb,
    id: UUID,
    read: Callable[[Mapping[str, Any]], ToolResult] = stored_result,
) -> ToolResult:
    """Return the result in a tool response. Raise `NotRebuildable` if it is gone."""
    try:
        response = await _first_version(store, await store.get(answer.owner_id, id, count_read=False))
        if response.schema_name != TOOL_RESPONSE or response.session_id != answer.session_id:
            raise NotFound("not a tool response of this session")
        return read(response.context)
    except (NotFound, KeyError, TypeError):
        reason = f"the tool response {id} was deleted or has expired"
        raise NotRebuildable(Missing("tool call", reason, str(id))) from None


@dataclass(frozen=True, slots=True)
class _StoredCall:
    call: ToolCall
    result: ToolResult
    text: str | None


async def load_call(store: Store, receipt: Receipt, id: UUID, step: str) -> _StoredCall | Missing:
    """Load a tool request and its response in their first versions."""
    owner, session = receipt.answer.owner_id, receipt.answer.session_id
    wanted, what = id, "tool request"
    try:
        request = await _first_version(store, await store.get(owner, id, count_read=False))
        context = request.context
        if request.schema_name != TOOL_REQUEST or request.session_id != session:
            raise NotFound("not a tool request of this session")
        facts = context[RECEIPT]
        name = facts.get("name", context["tool"])
        arguments = facts.get("arguments", orjson.dumps(context["input"]).decode())
        if arguments is None:
            reason = f"the arguments of the tool request {id} were too long to be stored"
            return Missing("tool call", reason, str(id))
        wanted, what = _response_id(id, context, step, name, arguments), "tool response"
        response = await _first_version(store, await store.get(owner, wanted, count_read=False))
        result = stored_result(response.context)
    except NotRebuildable as error:
        return error.missing
    except (NotFound, KeyError, TypeError, AttributeError):
        return Missing("tool call", f"the {what} {wanted} was deleted or has expired", str(wanted))
    return _StoredCall(ToolCall(str(facts["call"]), name, arguments), result, facts.get("text", ""))


def _response_id(id: UUID, context: Mapping[str, Any], step: str, name: str, arguments: str) -> UUID:
    """Return the id of the response to a tool request. It is derived like that of the request."""
    lane = id.int >> 64 & _LANE_BITS
    agent_id, origin = str(context["requestedBy"]), str(context["trigger_id"])
    return derived_id(lane, "response", agent_id, origin, step, name, arguments)
