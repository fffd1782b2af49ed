"""Calls a model again with the prompt of a past answer, as it was or with another config, agent or model.

Nothing is written. Tool calls get the results that the original turn stored, and no tool runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal
from uuid import UUID

import anyio
from pydantic import ValidationError

from breadcrumbs.agents.answer import check_text, parse_answer
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.models.base import Model, ModelError, ModelRequest, PromptMessage, ToolCall, ToolSpec
from breadcrumbs.agents.models.offered import public_name
from breadcrumbs.agents.models.prices import Price, price_of
from breadcrumbs.agents.prompt import build_prompt
from breadcrumbs.agents.prompt_cache import prompt_cache_key
from breadcrumbs.agents.prompt_images import load_images
from breadcrumbs.agents.receipts import RecordedCall, TimedCall, decode_digest
from breadcrumbs.agents.setups import parameters_of
from breadcrumbs.agents.structured_output import with_instruction
from breadcrumbs.agents.tool_steps import PARAGRAPH
from breadcrumbs.agents.tool_use import step_messages
from breadcrumbs.agents.tools.base import ToolResult
from breadcrumbs.context_builder.assembly import TriggerWithheld
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.past import load_turn, reassemble_turn
from breadcrumbs.context_builder.referenced import (
    UNRESTRICTED,
    Reader,
    ReferencedBreadcrumbs,
    group_references,
    load_context,
)
from breadcrumbs.context_builder.references import NotAContext
from breadcrumbs.proofs.recorded_tools import RecordedTools, load_recorded_tools
from breadcrumbs.proofs.requests import Missing, NotRebuildable, RebuiltTurn, load_receipt, rebuild_request
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.text import encodable_text, plain_text
from breadcrumbs.runtime.errors import BreadcrumbsError, Forbidden, InvalidInput, NotFound
from breadcrumbs.runtime.retrieval.histories import HistoryReader
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT
from breadcrumbs.runtime.store.archive import Archive
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.errors import TurnFailed

MAX_TIMES: Final = 10
"""Maximum number of times that one replay calls the agent's model."""

_KINDS: Final = {
    "function": "the answer was made by a function of your own code, which is not stored",
    "adk": "the answer was made by an ADK server, which builds its own requests to models",
}
_TOKENS: Final = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")

OnText = Callable[[str], Awaitable[None]]
ToolSpecs = Callable[[Sequence[str]], tuple[ToolSpec, ...]]
"""Returns the schemas of the installed tools with these names. Raises `InvalidInput` for an unknown name."""


class NotReplayable(BreadcrumbsError):
    """An answer cannot be replayed."""

    def __init__(self, reason: str, missing: Sequence[Missing] = ()) -> None:
        super().__init__(reason)
        self.missing = tuple(missing)


@dataclass(frozen=True, slots=True)
class Changes:
    """Parts of a replay that differ from the original turn."""

    configs: tuple[ContextConfig, ...] = ()
    """Context configs. The one of the consumer of the original context is used."""
    definition: AgentDefinition | None = None


@dataclass(frozen=True, slots=True)
class ReplayPrompt:
    """A prompt for a replay, with the facts about the original answer."""

    answer: Breadcrumb
    """The answer that was named. It can be a copy of the answer in the receipt."""
    turn: RebuiltTurn
    definition: AgentDefinition
    """The definition to use: the original one, or the one of the changes."""
    request: ModelRequest
    recorded: RecordedTools
    notes: tuple[str, ...] = ()
    config: str | None = None
    """Digest of the context config that was used."""

    @property
    def model(self) -> str:
        """Public name of the model of the original answer."""
        return str(self.turn.setup.document.get("model", ""))

    @property
    def original_text(self) -> str:
        return plain_text(self.turn.receipt.answer.context)


@dataclass(slots=True)
class Usage:
    """Tokens of all model calls of an answer. None if a call did not report them."""

    counts: dict[str, int | None] = field(default_factory=dict)

    def add(self, counts: Mapping[str, int | None]) -> None:
        for name in _TOKENS:
            count, sum = counts.get(name), self.counts.get(name, 0)
            self.counts[name] = None if count is None or sum is None else sum + count

    def as_dict(self) -> dict[str, int]:
        return {name: count for name, count in self.counts.items() if count is not None}


@dataclass(frozen=True, slots=True)
class ReplayedTool:
    """A tool call of a replay."""

    step: str
    name: str
    arguments: str
    result: Literal["stored", "missing"]
    """`missing`: the original turn has no stored response for this call, so the model got an error."""

    def as_dict(self) -> dict[str, str]:
        return {"step": self.step, "name": self.name, "arguments": self.arguments, "result": self.result}


@dataclass(slots=True)
class Replayed:
    """The result of one replay."""

    model: str
    text: str = ""
    error: str | None = None
    """Reason why there is no answer."""
    same: bool = False
    """Whether the text is that of the original answer."""
    same_request: bool = False
    """Whether the first request is byte for byte that of the original answer."""
    usage: Usage = field(default_factory=Usage)
    calls: int = 0
    duration_ms: int = 0
    first_token_ms: int | None = None
    finish_reason: str | None = None
    tools: list[ReplayedTool] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"model": self.model}
        if self.error is None:
            document |= {"text": self.text, "same": self.same}
        else:
            document["error"] = self.error
        if self.calls:
            document["same_request"] = self.same_request
        document |= {"calls": self.calls, "duration_ms": self.duration_ms, **self.usage.as_dict()}
        if self.first_token_ms is not None:
            document["first_token_ms"] = self.first_token_ms
        if self.finish_reason is not None:
            document["finish_reason"] = self.finish_reason
        if self.tools:
            document["tool_calls"] = [tool.as_dict() for tool in self.tools]
        return document


# The prompt


async def prepare(
    store: Store,
    answer: Breadcrumb,
    changes: Changes,
    tool_specs: ToolSpecs,
    reader: Reader = UNRESTRICTED,
) -> ReplayPrompt:
    """Return the prompt of an answer for a replay.

    Raise `NotReplayable` if it cannot be rebuilt, and `Forbidden` if the reader may not see a part of it.
    """
    owner = answer.owner_id
    try:
        turn = await rebuild_request(store, await load_receipt(store, owner, answer.id))
    except NotRebuildable as error:
        raise NotReplayable(error.missing.reason, [error.missing]) from None
    if reason := _KINDS.get(str(turn.setup.document.get("kind"))):
        raise NotReplayable(f"{reason}: it cannot be replayed")
    if not reader.sees(turn.receipt.answer):
        raise NotFound(f"answer {answer.id} was copied by a fork, and this token may not see the original")
    await _check_readable(store, turn, reader)
    # A deleted tool response does not prevent a replay: the model gets an error for it.
    missing = [one for one in turn.missing if one.kind != "tool call"]
    notes: list[str] = []
    parts, config = turn.parts, turn.setup.document.get("config")
    if changes.configs:
        chosen, parts, notes = await _reassemble(store, turn, changes.configs, reader)
        config = chosen.digest
    elif missing:
        raise NotReplayable("the prompt cannot be rebuilt", missing)
    notes += [one.reason for one in turn.missing if one.kind == "tool call"]
    definition, more = await _definition(store, turn, changes)
    if definition.hooks is not None or await _had_hooks(store, turn):
        raise NotReplayable("the agent has hooks, which do not run in a replay: it cannot be replayed")
    request = _request(turn, parts, definition, changes, tool_specs)
    request = replace(request, messages=await load_images(store, owner, request.messages))
    recorded = await load_recorded_tools(store, turn.receipt)
    return ReplayPrompt(answer, turn, definition, request, recorded, (*notes, *more), config)


async def _check_readable(store: Store, turn: RebuiltTurn, reader: Reader) -> None:
    """Refuse a replay whose prompt has items that the reader may not see: the reply could reveal them."""
    if reader is UNRESTRICTED or turn.record is None:
        return
    owner = turn.receipt.answer.owner_id
    for group in group_references(turn.record.items):
        loaded = await ReferencedBreadcrumbs.load(store, owner, turn.record, group, reader)
        if any(loaded.is_hidden(reference) for reference in group):
            raise Forbidden("the prompt of this answer has items that this token may not see")


async def _reassemble(
    store: Store, turn: RebuiltTurn, configs: tuple[ContextConfig, ...], reader: Reader
) -> tuple[ContextConfig, list[dict[str, Any]], list[str]]:
    """Assemble the context of the turn with another config. Also return notes."""
    answer = turn.receipt.answer
    if "items" in turn.receipt.fields:
        raise InvalidInput(
            "the agent of this answer has its own sources and reads no context: leave the config out",
            where="config",
        )
    try:
        id, version = UUID(str(answer.context["context_id"])), int(answer.context["context_version"])
        context, _ = await load_context(store, answer.owner_id, id, version)
        config = _choose_config(configs, context)
        histories = HistoryReader(store, answer.owner_id)
        past = await load_turn(histories, context)
        built = await reassemble_turn(histories, config, past, sees=reader.sees)
    except TriggerWithheld as error:
        raise InvalidInput(error.reason, where="config") from None
    except (NotFound, NotAContext) as error:
        raise NotReplayable(str(error), [Missing("context", str(error))]) from None
    gone = [str(entry) for entry in past.gone_items]
    return config, built.assembled.parts(), [*built.assembled.notes, *built.notes, *gone]


def _choose_config(configs: tuple[ContextConfig, ...], context: Breadcrumb) -> ContextConfig:
    consumer = context.context.get("consumer_id")
    for config in configs:
        if config.consumer_id == consumer:
            return config
    if len(configs) == 1:
        return configs[0]
    names = ", ".join(config.consumer_id for config in configs)
    raise InvalidInput(f"no config of the consumer {consumer}, but of {names}", where="config")


async def _definition(store: Store, turn: RebuiltTurn, changes: Changes) -> tuple[AgentDefinition, list[str]]:
    """Return the definition to use, and notes about it."""
    document = turn.setup.document
    agent_id = str(document.get("agent_id", ""))
    if (given := changes.definition) is not None:
        if given.kind != "model":
            raise InvalidInput("the definition is for an ADK server, which cannot be replayed", where="agent")
        notes = []
        if given.agent_id != agent_id:
            notes.append(
                f"the answer is of {agent_id}, and the definition of {given.agent_id}: answers of other agents look "
                "different in a prompt"
            )
        if given.sources:
            notes.append("the sources of the definition are not used: the prompt has the items of the answer")
        return given, notes
    found = await Archive(store).get(turn.receipt.answer.owner_id, str(document.get("agent", "")), "agent")
    try:
        return AgentDefinition.model_validate(None if found is None else found.document), []
    except ValidationError:
        note = "the definition of the agent is no longer in the archive: default limits are used"
        selectors = [{"schema_name": AGENT_CONTEXT, "all_tags": [f"consumer:{agent_id}"]}]
        fields = {"agent_id": agent_id, "subscriptions": {"selectors": selectors}}
        return AgentDefinition.model_validate(fields), [note]


async def _had_hooks(store: Store, turn: RebuiltTurn) -> bool:
    """Return whether hooks checked the original turn. Without them, a replay would show what they hide."""
    if "answer_hooks" in turn.receipt.fields or any("hooks" in call for call in turn.receipt.calls):
        return True
    digest = str(turn.setup.document.get("agent", ""))
    found = await Archive(store).get(turn.receipt.answer.owner_id, digest, "agent")
    return found is not None and isinstance(found.document, dict) and "hooks" in found.document


def _request(
    turn: RebuiltTurn,
    parts: list[dict[str, Any]],
    definition: AgentDefinition,
    changes: Changes,
    tool_specs: ToolSpecs,
) -> ModelRequest:
    setup = turn.setup
    system_prompt, agent_id = setup.system_prompt, str(setup.document["agent_id"])
    tools, parameters = setup.tools, setup.document.get("parameters", {})
    if changes.definition is not None:
        system_prompt, agent_id = definition.system_prompt, definition.agent_id
        tools, parameters = _tools_of(definition, tools, tool_specs), parameters_of(definition)
    schema = setup.output_schema if changes.definition is None else definition.output_schema
    messages = with_instruction(build_prompt(system_prompt, parts, agent_id), schema)
    answer = turn.receipt.answer
    cache_key = prompt_cache_key(answer.owner_id, answer.session_id, agent_id)
    temperature, max_tokens = parameters.get("temperature"), parameters.get("max_tokens")
    return ModelRequest(
        messages,
        tools,
        temperature,
        max_tokens,
        cache_key=cache_key,
        parallel_tool_calls=parameters.get("parallel_tool_calls"),
        output_schema=schema,
    )


def _tools_of(
    definition: AgentDefinition, recorded: tuple[ToolSpec, ...], tool_specs: ToolSpecs
) -> tuple[ToolSpec, ...]:
    """Return the tools of a definition: as they were recorded, and the installed ones that were not."""
    by_name = {tool.name: tool for tool in recorded}
    names = list(dict.fromkeys(definition.tools))
    if new := [name for name in names if name not in by_name]:
        by_name |= {tool.name: tool for tool in tool_specs(new)}
    return tuple(by_name[name] for name in names)


# The model calls


async def replay_once(
    prompt: ReplayPrompt, model: Model, *, seconds: float, on_text: OnText | None = None
) -> Replayed:
    """Call the model until it answers without a tool call, at most for some seconds. Errors are in the result."""
    result = Replayed(public_name(model.name))
    limit = min(seconds, prompt.definition.timeout_seconds)
    try:
        with anyio.move_on_after(limit) as scope:
            await _run(prompt, model, result, on_text)
        if scope.cancelled_caught:
            result.error = f"no answer within {limit:g} s"
    except ModelError as error:
        result.error = error.reason
    except TurnFailed as error:
        result.error = str(error)
    result.same = result.error is None and result.text == prompt.original_text
    return result


async def _run(prompt: ReplayPrompt, model: Model, result: Replayed, on_text: OnText | None) -> None:
    request, texts = prompt.request, list[str]()
    messages = request.messages
    for step in range(prompt.definition.max_steps):
        timed = TimedCall(on_text or _ignore, None)
        sent = replace(request, messages=messages, observer=timed)
        reply = await model.complete(sent, timed.write)
        _count(prompt, result, RecordedCall.of(model.name, sent, reply, timed))
        if not reply.tool_calls:
            _finish(result, [*texts, reply.text])
            return
        calls = [_clean(call) for call in reply.tool_calls]
        answered = [_answer_tool(prompt, result, f"{step}.{place}", call) for place, call in enumerate(calls)]
        added = step_messages(reply.text, calls, [entry[0] for entry in answered])
        if all(ends for _, ends in answered):
            # The original turn ended with these calls: their results are the answer instead of a further reply.
            _finish(result, [*texts, reply.text or _results_text(added[1:])])
            return
        if reply.text.strip():
            texts.append(reply.text.rstrip())
        messages = (*messages, *added)
    raise TurnFailed(f"the model still called tools after max_steps ({prompt.definition.max_steps}) calls")


async def _ignore(text: str) -> None:
    return None


def _results_text(results: Sequence[PromptMessage]) -> str:
    return "\n".join(f"{message.name}: {message.content}" for message in results)


def _clean(call: ToolCall) -> ToolCall:
    return ToolCall(encodable_text(call.id), encodable_text(call.name), encodable_text(call.arguments))


def _answer_tool(
    prompt: ReplayPrompt, result: Replayed, step: str, call: ToolCall
) -> tuple[ToolResult, bool]:
    """Return the stored result of a tool call, and whether the original turn ended with it."""
    found = prompt.recorded.find(step, call.name, call.arguments)
    outcome: Literal["stored", "missing"] = "missing" if found is None else "stored"
    result.tools.append(ReplayedTool(step, call.name, call.arguments, outcome))
    if found is None:
        error = (
            f"tool {call.name[:100]} was not run: this is a replay, and the original turn has no stored response for "
            "this call"
        )
        return ToolResult(False, None, error, 0.0), False
    return found.result, found.ends_turn


def _count(prompt: ReplayPrompt, result: Replayed, call: RecordedCall) -> None:
    """Add the facts about a model call to the result."""
    if result.calls == 0:
        result.first_token_ms = call.first_ms
        result.same_request = call.sent.digest == _first_digest(prompt)
    result.calls += 1
    result.duration_ms += call.duration_ms
    result.finish_reason = call.reply.finish_reason
    usage = call.reply.usage
    counts: tuple[int | None, ...] = (
        ()
        if usage is None
        else (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens)
    )
    result.usage.add(dict(zip(_TOKENS, counts, strict=False)))


def _first_digest(prompt: ReplayPrompt) -> bytes | None:
    try:
        return decode_digest(str(prompt.turn.receipt.calls[0]["request"]))
    except (IndexError, KeyError, ValueError):
        return None


def _finish(result: Replayed, texts: list[str]) -> None:
    *before, last = texts
    result.text = check_text(PARAGRAPH.join([*before, parse_answer(check_text(last)).text]))


# The document


def original_document(prompt: ReplayPrompt) -> dict[str, Any]:
    """Return the facts about the original answer."""
    usage, calls = Usage(), prompt.turn.receipt.calls
    for call in calls:
        tokens = call.get("tokens", [])
        usage.add(dict(zip(_TOKENS, tokens if isinstance(tokens, list) else [], strict=False)))
    duration = sum(ms for call in calls if isinstance(ms := call.get("ms", 0), int))
    document = {
        "model": prompt.model,
        "text": prompt.original_text,
        "calls": len(calls),
        "duration_ms": duration,
    }
    if calls and isinstance(first := calls[0].get("first"), int):
        document["first_token_ms"] = first
    if calls and isinstance(finish := calls[-1].get("finish"), str):
        document["finish_reason"] = finish
    if prompt.recorded.calls:
        document["tool_calls"] = [
            {"step": call.step, "name": call.name, "arguments": call.arguments}
            for call in prompt.recorded.calls
        ]
    return document | usage.as_dict()


def replay_document(
    prompt: ReplayPrompt, replays: Sequence[Replayed], prices: Mapping[str, Price]
) -> dict[str, Any]:
    """Return both answers as one document. Models with a price also get a cost."""
    answer = prompt.answer
    document: dict[str, Any] = {"answer_id": str(answer.id), "agent_id": prompt.definition.agent_id}
    if answer.session_id is not None:
        document["session_id"] = answer.session_id
    if prompt.config is not None:
        document["config"] = prompt.config
    document["original"] = _with_cost(original_document(prompt), prices)
    document["replays"] = [_with_cost(replay.as_dict(), prices) for replay in replays]
    document["notes"] = list(prompt.notes)
    return document


def _with_cost(figures: dict[str, Any], prices: Mapping[str, Price]) -> dict[str, Any]:
    price = price_of(figures["model"], prices)
    cost = None if price is None else price.cost(figures)
    return figures if cost is None else {**figures, "cost": cost}
