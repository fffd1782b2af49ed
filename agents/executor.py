"""One turn of one agent: from a trigger to a breadcrumb in the trigger's session.

The executor carries the session along; models and tools never see it and cannot change it. What a turn
produces has an id derived from the message that started it, so a turn that is run again finds what it
made before instead of making it twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import anyio
import orjson
import structlog

from breadcrumbs.agents.answer import RESPONSE, Answer, parse_answer, product
from breadcrumbs.agents.book import Agent
from breadcrumbs.agents.definition import CONTEXT, AgentDefinition
from breadcrumbs.agents.deltas import DeltaWriter
from breadcrumbs.agents.functions import AgentFunction, Call
from breadcrumbs.agents.models.base import (
    Message,
    Model,
    ModelError,
    ModelRequest,
    OnDelta,
    ToolCall,
)
from breadcrumbs.agents.prompt import build_prompt, problem_in
from breadcrumbs.agents.tools.base import Toolbox, ToolContext, ToolResult, is_being_cancelled
from breadcrumbs.agents.tools.output import in_words
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, Content
from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.tags import inherited_tags
from breadcrumbs.runtime.breadcrumb.text import plain_text, writable
from breadcrumbs.runtime.errors import InvalidInput, NotFound, QuotaExceeded, StateTooLarge
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.retrieval.model_view import withheld
from breadcrumbs.runtime.store.batched_reads import Read, recent_of, version_of
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.worker import AWAY, Turn, TurnCancelled, TurnFailed

CANCEL = "agent.cancel.v1"

_log = structlog.get_logger("breadcrumbs.agents")

_MOST_INPUT = 100_000
LAST_ANSWERS = 5
_MOST_MERGED = 1_000
"""Messages that one answer names as those it is an answer to."""
_BETWEEN = "\n\n"
"""Between what a model says before and after it uses a tool."""

Refresh = Callable[[Turn, Breadcrumb], Awaitable[Breadcrumb]]
"""Makes a context again, for the same message, with what was said meanwhile."""

Gather = Callable[[AgentDefinition, Breadcrumb], Awaitable[list[dict[str, Any]]]]
"""Makes the parts of a prompt for a trigger that is not a ready-made context."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The message that started a turn."""

    id: str
    created: int
    hops: int

    @classmethod
    def of(cls, trigger: Breadcrumb) -> Origin:
        context = trigger.context
        hops = _whole(context.get("hops"))
        if trigger.schema_name == CONTEXT and isinstance(context.get("trigger_id"), str):
            return cls(context["trigger_id"], _whole(context.get("trigger_created")), hops)
        return cls(str(trigger.id), trigger.created, hops)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was said last in a session, the newest first."""

    answers: list[Breadcrumb]
    cancels: list[Breadcrumb]


Remote = Callable[[Turn, Agent, Breadcrumb, Origin, Sequence[dict[str, Any]], OnDelta], Awaitable[Answer]]
"""Lets an agent answer that lives on a server of its own."""


def _said_last(
    store: Store, owner: UUID, session: str
) -> tuple[Read[list[Breadcrumb]], Read[list[Breadcrumb]]]:
    """Read the last answers, and the last cancellation."""
    return (
        recent_of(store, owner, session, RESPONSE, LAST_ANSWERS),
        recent_of(store, owner, session, CANCEL, 1),
    )


class Executor:
    """Runs turns."""

    def __init__(
        self,
        store: Store,
        *,
        model_of: Callable[[Agent], Model],
        toolbox: Toolbox,
        gather: Gather,
        refresh: Refresh,
        inherited: tuple[str, ...],
        remote: Remote | None = None,
        max_answer_bytes: int = 1 << 20,
    ) -> None:
        self._store = store
        self._model_of = model_of
        self._toolbox = toolbox
        self._gather = gather
        self._refresh = refresh
        self._inherited = inherited
        self._remote = remote
        self._max_answer_bytes = max_answer_bytes

    async def look(self, event: Event) -> tuple[Breadcrumb | None, Seen]:
        """What an event speaks of (None: it is gone), and what was said last in its session. One round trip."""
        store, owner, session = self._store, event.owner_id, event.session_id
        trigger = version_of(store, owner, event.id, event.version)
        if session is None:
            (crumb,) = await store.read_batch(trigger)
            return crumb, Seen([], [])
        crumb, answers, cancels = await store.read_batch(trigger, *_said_last(store, owner, session))
        return crumb, Seen(answers, cancels)

    async def _is_answered(
        self,
        turn: Turn,
        definition: AgentDefinition,
        trigger: Breadcrumb,
        answer_id: UUID,
        origin: Origin,
        answers: list[Breadcrumb],
    ) -> bool:
        if any(answer.id == answer_id for answer in answers):
            return True
        # An answer is younger than its message: where the last answers reach back to before it, or are all
        # there are, this one would be among them. Unless it is no such answer: a model may choose its schema.
        among_them = definition.emits.schema_name == RESPONSE and not _may_be_repeated(turn, trigger)
        session = turn.event.session_id is not None
        if among_them and session and (len(answers) < LAST_ANSWERS or answers[-1].created < origin.created):
            return False
        key = self._store.keys.body(turn.event.lane, turn.event.owner_id, answer_id.bytes)
        return bool(await self._store.connection.call(turn.event.lane, b"EXISTS", key))

    async def answer(self, turn: Turn, agent: Agent, trigger: Breadcrumb, seen: Seen, *, last: bool) -> None:
        """Answer a trigger, or find that it is answered, cancelled or out of date."""
        definition, origin = agent.definition, Origin.of(trigger)
        owner = trigger.owner_id
        answer_id = derived_id(turn.event.lane, "answer", definition.agent_id, origin.id)
        if await self._is_answered(turn, definition, trigger, answer_id, origin, seen.answers):
            await _finish(turn, last)
            return
        asked = max(origin.created, _asked_again(turn, trigger))
        if any(cancel.created > asked for cancel in seen.cancels):
            raise TurnCancelled("cancelled")
        if origin.hops > definition.hop_limit:
            # It was said when the limit was reached. Who reacts to errors would hear of it for ever.
            _log.info("beyond the hop limit", agent=definition.agent_id, trigger=origin.id)
            await _finish(turn, last)
            return
        if origin.hops == definition.hop_limit:
            raise TurnFailed(
                f"agents triggered each other {origin.hops} times in a row: stopped at the hop limit of "
                f"{definition.agent_id}"
            )
        try:
            trigger = await self._up_to_date(turn, definition, trigger, seen.answers)
        except NotFound:
            await _finish(turn, last)  # deleted or expired meanwhile: there is nothing to answer
            return
        await self._check_quota(owner)
        new, content = await self._make(turn, agent, trigger, origin, answer_id)
        try:
            await self._commit(turn, owner, answer_id, new, content, acknowledge=last)
        except StateTooLarge as error:
            # The words were shown already, so they are stored. The answer says what became of the state.
            _log.warning("state not stored", agent=definition.agent_id, trigger=origin.id, error=str(error))
            await self._commit(turn, owner, answer_id, _without_state(new, error), acknowledge=last)

    async def _check_quota(self, owner: UUID) -> None:
        """Fail before the model is asked: what it says is stored in any case."""
        if self._store.quotas is not None:
            try:
                await self._store.quotas.check(owner)
            except QuotaExceeded as error:
                raise TurnFailed(str(error)) from error

    async def _commit(
        self,
        turn: Turn,
        owner: UUID,
        id: UUID,
        new: BreadcrumbCreate,
        content: Content | None = None,
        *,
        acknowledge: bool = False,
    ) -> None:
        """Write what was made. It waits for a store that is away or full, so that it need not be made again."""
        pause = 0.1
        while True:
            try:
                # Shielded: whoever is cancelled here would not know whether it was written.
                with anyio.CancelScope(shield=True):
                    fence = turn.fence(acknowledge=acknowledge)
                    written = await self._store.create(
                        owner, new, options=CreateOptions(content=content, fence=fence), id=id
                    )
                    if written.found and acknowledge:
                        await turn.acknowledge()
                return
            except AWAY as error:
                _log.warning("an answer waits for the store", trigger=str(turn.event.id), error=str(error))
            await anyio.sleep(pause)
            pause = min(2.0, 2 * pause)

    async def _up_to_date(
        self, turn: Turn, definition: AgentDefinition, trigger: Breadcrumb, answers: list[Breadcrumb]
    ) -> Breadcrumb:
        """A context made before this agent's last answer does not know it: have it made again."""
        if trigger.schema_name != CONTEXT:
            return trigger
        as_of = trigger.context.get("as_of", 0)
        if not isinstance(as_of, int):
            raise TurnFailed("this context was not made by the context builder: its as_of is no time")
        stale = any(crumb.created > as_of and creator_of(crumb) == definition.agent_id for crumb in answers)
        # An older version keeps references only: what they refer to is fetched again.
        if not stale and "parts" in trigger.context:
            if problem := problem_in(trigger.context["parts"]):
                raise TurnFailed(f"this context was not made by the context builder: {problem}")
            return trigger
        return await self._refresh(turn, trigger)

    async def _make(
        self,
        turn: Turn,
        agent: Agent,
        trigger: Breadcrumb,
        origin: Origin,
        answer_id: UUID,
    ) -> tuple[BreadcrumbCreate, Content]:
        definition = agent.definition
        # Now, and not when the model has spoken: a store that is away must not cost what it said.
        merged = (
            await unanswered(self._store, definition, trigger) if definition.when_busy == "merge" else None
        )
        answer: Answer | None = None
        try:
            with anyio.move_on_after(definition.timeout_seconds):
                answer = await self._speak(turn, agent, trigger, origin, answer_id)
        except ModelError as error:
            raise TurnFailed(error.reason, retry=error.retry, retry_after=error.retry_after) from error
        if answer is None:
            raise TurnFailed(f"no answer within {definition.timeout_seconds:g} s", retry=True)
        glue: dict[str, Any] = {
            "trigger_id": origin.id,
            "creator": _creator(definition),
            "hops": origin.hops + 1,
        }
        if trigger.session_id is not None:
            glue["session_id"] = trigger.session_id
        if trigger.schema_name == CONTEXT:
            glue |= {"context_id": str(trigger.id), "context_version": trigger.version}
        if merged is not None:
            glue["answers"] = merged
        glue |= answer.glue
        problem: InvalidInput | None = None
        # What a model adds to its words may be what cannot be stored: then the words alone.
        for said in (answer, Answer(answer.text)):
            try:
                new = product(said, definition, trigger.tags, glue, self._inherited)
                return new, self._store.content(new)
            except InvalidInput as error:
                problem = error
        raise TurnFailed(f"the answer cannot be stored: {problem}") from problem

    async def _speak(
        self, turn: Turn, agent: Agent, trigger: Breadcrumb, origin: Origin, answer_id: UUID
    ) -> Answer:
        definition = agent.definition
        parts = trigger.context.get("parts") if trigger.schema_name == CONTEXT else None
        if parts is None:
            parts = await self._gather(definition, trigger)
        messages = build_prompt(definition.system_prompt, parts, definition.agent_id)
        async with DeltaWriter(
            self._store, turn.event, definition.agent_id, origin.id, str(answer_id)
        ) as deltas:
            if agent.function is not None:
                call = Call(
                    text=messages[-1].content if messages else plain_text(trigger.context),
                    messages=messages,
                    session_id=trigger.session_id,
                    owner_id=trigger.owner_id,
                    trigger_id=origin.id,
                    say=deltas.write,
                )
                said = await _called(definition.agent_id, agent.function, call)
                return self._function_answer(definition.agent_id, said)
            if definition.kind == "adk":
                if self._remote is None:
                    raise TurnFailed(
                        f"{definition.agent_id} lives on an ADK server: nobody here talks to these"
                    )
                remote = await self._remote(turn, agent, trigger, origin, parts, deltas.write)
                return replace(parse_answer(self._checked(remote.text)), glue=remote.glue)
            *before, last = await self._converse(turn, agent, trigger, origin, messages, deltas.write)
        answer = parse_answer(self._checked(last))
        # What was shown is what is stored.
        return replace(answer, text=self._checked(_BETWEEN.join([*before, answer.text])))

    def _function_answer(self, agent_id: str, reply: object) -> Answer:
        if isinstance(reply, str):
            return Answer(self._checked(reply, agent_id))
        if not isinstance(reply, dict):
            raise TurnFailed(f"{agent_id} returned {type(reply).__name__}, not text")
        try:
            said = parse_answer(orjson.dumps({"action": "create", "breadcrumb": reply}).decode())
        except TypeError as error:
            raise TurnFailed(f"{agent_id} returned what is no JSON: {error}") from error
        return replace(said, text=self._checked(said.text, agent_id))

    def _checked(self, text: str, who: str = "the model") -> str:
        """What somebody said, where somebody can be shown it."""
        if not text.strip():
            raise TurnFailed(f"{who} gave an empty answer", retry=True)
        text = writable(text)
        if (size := len(text.encode())) > self._max_answer_bytes:
            raise TurnFailed(
                f"{who}'s answer has {size:,} bytes, more than the {self._max_answer_bytes:,} allowed"
            )
        return text

    async def _converse(
        self,
        turn: Turn,
        agent: Agent,
        trigger: Breadcrumb,
        origin: Origin,
        messages: tuple[Message, ...],
        on_delta: OnDelta,
    ) -> list[str]:
        """Model, tools, model, … until it says something without asking for a tool. All that it said."""
        definition = agent.definition
        model = self._model_of(agent)
        try:
            toolbox = self._toolbox.allowed(definition.tools)
        except InvalidInput as error:
            raise TurnFailed(f"{definition.agent_id}: {error}") from error
        specs = tuple(tool.spec for tool in toolbox)
        said: list[str] = []
        for step in range(definition.max_steps):
            reply = await model.complete(
                ModelRequest(messages, specs, definition.temperature, definition.max_tokens),
                _after_a_blank_line(on_delta) if said else on_delta,
            )
            calls = tuple(
                ToolCall(writable(call.id), writable(call.name), writable(call.arguments))
                for call in reply.tool_calls
            )
            if not calls:
                return [*said, reply.text]
            results = [
                await self._use_tool(turn, definition, trigger, origin, f"{step}.{number}", call, toolbox)
                for number, call in enumerate(calls)
            ]
            if not any(goes_back for _, goes_back in results):
                return [*said, reply.text or _worded(calls, [result for result, _ in results])]
            if reply.text.strip():
                said.append(reply.text.rstrip())
            messages = (
                *messages,
                Message("assistant", reply.text, tool_calls=calls),
                *(
                    Message("tool", _result_text(result), tool_call_id=call.id, name=call.name)
                    for call, (result, _) in zip(calls, results, strict=True)
                ),
            )
        raise TurnFailed(f"the model asked for tools {definition.max_steps} times in a row and was stopped")

    async def _use_tool(
        self,
        turn: Turn,
        definition: AgentDefinition,
        trigger: Breadcrumb,
        origin: Origin,
        step: str,
        call: ToolCall,
        toolbox: Toolbox,
    ) -> tuple[ToolResult, bool]:
        lane, owner = turn.event.lane, trigger.owner_id
        place = (definition.agent_id, origin.id, step, call.name, call.arguments)
        request_id, response_id = derived_id(lane, "request", *place), derived_id(lane, "response", *place)
        name = _shown(call.name)
        tool = toolbox.get(call.name) if call.name in toolbox else None
        goes_back = tool is None or tool.return_to_llm
        try:
            # A turn that is run again does not run its tools again.
            stored = await self._store.get(owner, response_id, count_read=False)
            context = stored.context
            return (
                ToolResult(context["status"] == "success", context.get("output"), context.get("error"), 0.0),
                goes_back,
            )
        except NotFound:
            pass
        common = {
            "tool": name,
            "request_id": str(request_id),
            "trigger_id": origin.id,
            "hops": origin.hops + 1,
        }
        asked = {**common, "input": _arguments(call.arguments), "requestedBy": definition.agent_id}
        await self._commit(turn, owner, request_id, self._note("tool.request.v1", name, trigger, asked))
        if tool is None:
            allowed = ", ".join(sorted(definition.tools)) or "none"
            result = ToolResult(False, None, f"{name} is not one of your tools ({allowed})", 0.0)
        else:
            context_for_tool = ToolContext(
                owner, trigger.session_id, definition.agent_id, origin.id, self._store
            )
            result = await tool.run(call.arguments, context_for_tool)
        outcome: dict[str, Any] = {
            **common,
            "status": "success" if result.ok else "error",
            "execution_time_ms": round(result.duration_ms, 3),
            "return_to_llm": goes_back,
        }
        outcome |= {"output": result.output} if result.ok else {"error": result.error}
        title = f"{name}: {outcome['status']}"
        await self._commit(turn, owner, response_id, self._note("tool.response.v1", title, trigger, outcome))
        return result, goes_back

    def _note(
        self, schema_name: str, title: str, trigger: Breadcrumb, context: dict[str, Any]
    ) -> BreadcrumbCreate:
        return BreadcrumbCreate.parse(
            {
                "schema_name": schema_name,
                "title": title,
                "tags": [
                    schema_name.removesuffix(".v1").replace(".", ":"),
                    *inherited_tags(trigger.tags, self._inherited),
                ],
                "context": context,
            }
        )


async def _called(agent_id: str, function: AgentFunction, call: Call) -> object:
    """What a function says. It must not be able to end the worker, nor its turn without a word."""
    try:
        return await function(call)
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        raise TurnFailed(f"{agent_id} was cancelled from within", retry=True) from None
    except SystemExit as error:
        raise TurnFailed(f"{agent_id} failed: {in_words(error)}", retry=True) from error


def _without_state(answer: BreadcrumbCreate, error: StateTooLarge) -> BreadcrumbCreate:
    """An answer without the change of its session's state, which was refused."""
    context = {name: value for name, value in answer.context.items() if name != "state_delta"}
    return answer.model_copy(update={"context": {**context, "state_refused": str(error)}})


def creator_of(crumb: Breadcrumb) -> str | None:
    creator = crumb.context.get("creator")
    name = creator.get("agent_id") if isinstance(creator, dict) else creator
    return name if isinstance(name, str) else None


def _creator(definition: AgentDefinition) -> dict[str, str]:
    return {"type": "agent", "agent_id": definition.agent_id}


async def unanswered(store: Store, definition: AgentDefinition, trigger: Breadcrumb) -> list[str]:
    """The messages since the last one that an agent has answered: a merged answer is an answer to each of them.

    Messages are answered in their order, but they may be older than the answer to the one before them. They are
    read from the session, for a prompt may hold fewer of them than have piled up.
    """
    owner, session, origin = trigger.owner_id, trigger.session_id, Origin.of(trigger)
    if session is None:
        return [origin.id]
    last = await store.list(
        owner,
        Query(
            session_id=session,
            schema_name=definition.emits.schema_name,
            limit=LAST_ANSWERS,
            keep=lambda crumb: creator_of(crumb) == definition.agent_id,
        ),
    )
    # Anybody can write an answer; the runtime's own name their message by its id.
    answered = {id for crumb in last.items if isinstance(id := crumb.context.get("trigger_id"), str)}
    found: list[str] = []
    schema = "user.message.v1" if trigger.schema_name == CONTEXT else trigger.schema_name
    query = Query(
        session_id=session, schema_name=schema, created_until=origin.created, limit=2 * LAST_ANSWERS
    )
    async for message in store.walk(owner, query):
        if message.id_text in answered or len(found) == _MOST_MERGED:
            break
        if withheld(message) in ("secret", "private"):
            continue  # shown to no model, and its writer was told so
        if trigger.schema_name == CONTEXT or any(own.matches(message) for own in definition.triggers):
            found.append(message.id_text)
    return found[::-1]


def _asked_again(turn: Turn, trigger: Breadcrumb) -> int:
    """When somebody wanted this turn to be run once more: what was cancelled before that is not cancelled now."""
    return max(
        turn.event.at if turn.event.operation == "retried" else 0, _whole(trigger.context.get("retried_at"))
    )


def _may_be_repeated(turn: Turn, trigger: Breadcrumb) -> bool:
    """Whether somebody may have answered already: it was begun before, asked for again, or its message edited."""
    edits = trigger.context.get("trigger_version") if trigger.schema_name == CONTEXT else trigger.version
    return not turn.is_first or bool(_asked_again(turn, trigger)) or _whole(edits) > 1


async def _finish(turn: Turn, last: bool) -> None:
    if last:
        await turn.acknowledge()


def _after_a_blank_line(on_delta: OnDelta) -> OnDelta:
    """Sets the pieces of one reply apart from those of the reply before, where there are any words in it."""
    held: str | None = _BETWEEN

    async def write(text: str) -> None:
        nonlocal held
        if held is not None:
            text = held + text
            if not text.strip():
                held = text
                return
            held = None
        await on_delta(text)

    return write


def _whole(value: Any) -> int:
    """A count that somebody else wrote."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _shown(name: str) -> str:
    """The name of a tool as a model wrote it, fit for one line."""
    return "".join(c if c.isprintable() else " " for c in name[:100])


def _arguments(raw: str) -> Any:
    if len(raw) > _MOST_INPUT:
        return {"unreadable": raw[:10_000]}
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {"unreadable": raw[:10_000]}


def _result_text(result: ToolResult) -> str:
    return orjson.dumps({"output": result.output} if result.ok else {"error": result.error}).decode()


def _worded(calls: tuple[ToolCall, ...], results: list[ToolResult]) -> str:
    return "\n".join(
        f"{call.name}: {_result_text(result)}" for call, result in zip(calls, results, strict=True)
    )
