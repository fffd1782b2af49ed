"""The journal of a turn: each model reply that calls tools is stored as a step before its tools run.

A reply that does not match the output schema is also stored, before the model is asked for a corrected one.

A worker that takes over the turn replays the stored steps instead of calling the model again. The id of a step is
derived from the turn and the number of the step. A requested retry and an edited message are other turns: they start
with new steps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias
from uuid import UUID

from breadcrumbs.agents.commit import NewBreadcrumb, commit_together
from breadcrumbs.agents.models.base import Dialect, FailedModel, ModelReply, SentRequest, TokenUsage, ToolCall
from breadcrumbs.agents.models.offered import public_name
from breadcrumbs.agents.receipts import RecordedCall, TurnRecord, decode_digest
from breadcrumbs.agents.request import AnswerRequest
from breadcrumbs.agents.tool_use import printable_name
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.tags import inherited_tags
from breadcrumbs.runtime.breadcrumb.text import encodable_text, shorten_line
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.events.deltas import MAX_REASONING_CHARACTERS
from breadcrumbs.runtime.schema_names import AGENT_STEP, REASONING, RECEIPT, ROOT
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.errors import TurnFailed
from breadcrumbs.runtime.workers.turn import INTERNAL

MAX_STEP_CHARACTERS: Final = 400_000
"""Maximum length of the text and the tool calls of a step. A longer reply is stored without them."""

MadeWith: TypeAlias = Callable[[TurnRecord], Awaitable[Mapping[str, Any]]]
"""Returns the setup and the context of the model calls of a turn."""


class StepJournal:
    """Stores and loads the steps of one turn."""

    def __init__(
        self, store: Store, request: AnswerRequest, made_with: MadeWith, inherited: tuple[str, ...]
    ) -> None:
        self._store = store
        self._request = request
        self._made_with = made_with
        self._inherited = inherited
        self._may_have_more = request.may_be_repeated

    async def load(self, number: int) -> RecordedCall | None:
        """Return the model call of a stored step, or None if this attempt has to call the model."""
        if not self._may_have_more:
            return None
        call = await self._stored_call(number)
        self._may_have_more = call is not None
        return call

    async def write(
        self, number: int, call: RecordedCall, record: TurnRecord, *along: NewBreadcrumb
    ) -> RecordedCall:
        """Store a reply as a step, together with other breadcrumbs. Return the stored call.

        If an earlier attempt has stored this step, its reply is used instead.
        """
        id = self._step_id(number)
        made_with = await self._made_with(record)
        context = {
            "agent_id": self._request.definition.agent_id,
            "trigger_id": self._request.origin.id,
            ROOT: self._request.origin.root,
            "hops": self._request.origin.hops + 1,
            "step": number,
            "model": public_name(call.model),
            **_reply_fields(call),
            RECEIPT: {"call": call.entry(None), "dialect": _dialect_list(call), "made_with": made_with},
        }
        tags = [INTERNAL, *inherited_tags(self._request.trigger.tags, self._inherited)]
        names = ", ".join(printable_name(one.name) for one in call.reply.tool_calls) or "answer to correct"
        new = BreadcrumbCreate.parse(
            {
                "schema_name": AGENT_STEP,
                "title": shorten_line(f"Step {number + 1}: {names}"),
                "tags": tags,
                "context": context,
            }
        )
        if await commit_together(self._store, self._request.turn, (id, new), *along):
            call.step_id = id
            return call
        return await self._stored_call(number) or replace(call, step_id=id)

    def _step_id(self, number: int) -> UUID:
        request = self._request
        return request.turn.derived_id(
            "step",
            request.definition.agent_id,
            request.origin.id,
            str(request.retried_at),
            str(request.message_version),
            str(number),
        )

    async def _stored_call(self, number: int) -> RecordedCall | None:
        try:
            step = await load_step(self._store, self._request.owner, self._step_id(number))
        except NotFound:
            return None
        if step.context.get("too_long"):
            raise TurnFailed(
                f"step {number + 1} of this turn was too long to be stored, so the turn cannot go on after the worker "
                "stopped: retry the message"
            )
        return read_step(step)


async def load_step(store: Store, owner: UUID, id: UUID) -> Breadcrumb:
    """Return a step in the version that the runtime wrote. Raise `NotFound` if there is none."""
    step = await store.get(owner, id, count_read=False)
    if step.version > 1:  # edited by a client
        step = await store.get_version(owner, id, 1)
    if step.schema_name != AGENT_STEP or step.created_by is not None:
        raise NotFound(f"step {id} not found")
    return step


def read_step(step: Breadcrumb) -> RecordedCall:
    """Return the model call that a step contains."""
    context = step.context
    facts = context[RECEIPT]
    entry: Mapping[str, Any] = facts["call"]
    model, stream, *omit = facts["dialect"]
    tokens = entry.get("tokens")
    sent = SentRequest(
        Dialect(model, stream, tuple(omit)),
        decode_digest(entry["request"]),
        entry.get("attempts", 1),
        entry.get("id"),
        entry.get("model"),
    )
    reply = ModelReply(
        context["text"],
        tuple(ToolCall(call["id"], call["name"], call["arguments"]) for call in context["calls"]),
        None if tokens is None else TokenUsage(*tokens),
        entry.get("finish"),
        sent,
        failed=tuple(FailedModel(name, kind) for name, kind in entry.get("failed", ())),
    )
    return RecordedCall(
        sent,
        reply,
        entry.get("first"),
        entry["ms"],
        context["model"],
        context.get(REASONING, ""),
        step.id,
        made_with=facts["made_with"],
        is_replayed=True,
        hooks=entry.get("hooks", []),
        repair=entry.get("repair", ""),
    )


def storable_reply(reply: ModelReply) -> ModelReply:
    """Return a reply with tool calls in a form that can be stored. The turn uses it too, so a replay is equal."""
    calls = [
        ToolCall(encodable_text(call.id), encodable_text(call.name), encodable_text(call.arguments))
        for call in reply.tool_calls
    ]
    return replace(reply, text=encodable_text(reply.text), tool_calls=tuple(calls))


def _reply_fields(call: RecordedCall) -> dict[str, Any]:
    reply = call.reply
    calls = [
        {"id": one.id, "name": one.name, "arguments": one.arguments, "request_id": str(request_id)}
        for one, request_id in zip(reply.tool_calls, call.tool_requests, strict=True)
    ]
    fields: dict[str, Any] = {"text": reply.text, "calls": calls}
    if call.reasoning:
        fields[REASONING] = encodable_text(call.reasoning)[:MAX_REASONING_CHARACTERS]
    size = len(reply.text) + sum(len(one.id) + len(one.name) + len(one.arguments) for one in reply.tool_calls)
    if size <= MAX_STEP_CHARACTERS:
        return fields
    cut = [{"name": printable_name(one["name"]), "request_id": one["request_id"]} for one in calls]
    return {**fields, "text": "", "calls": cut, "too_long": True}


def _dialect_list(call: RecordedCall) -> list[Any]:
    dialect = call.sent.dialect
    return [dialect.model, dialect.stream, *dialect.omit]
