"""Makes a recording of a session: its messages, the prompts and replies of each model call, and the answers.

The test kit repeats a recording with the agents of a project (`breadcrumbs.testing.recordings`), and compares prompts
and answers. A recording is JSON that people review, so prompts are stored as changes: `keeps` is the number of messages
that equal the beginning of the previous prompt of the agent, `adds` are the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import orjson

from breadcrumbs.agents.tool_steps import PARAGRAPH
from breadcrumbs.context_builder.referenced import load_version
from breadcrumbs.proofs.requests import (
    Missing,
    NotRebuildable,
    RebuiltTurn,
    Receipt,
    has_first_receipt,
    load_call,
    load_receipt,
    rebuild_request,
)
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import MAX_LIMIT, Query
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.errors import BreadcrumbsError, Forbidden, NotFound
from breadcrumbs.runtime.schema_names import (
    AGENT_ERROR,
    HIDDEN_KEYS,
    INTERNAL_SCHEMAS,
    SESSION_RECORD,
    STATE_CHANGE,
    TEXT_KEYS,
    USER_MESSAGE,
)
from breadcrumbs.runtime.store.archive import Archive
from breadcrumbs.runtime.store.store import Store

FORMAT: Final = 1
"""Number of the format, in the field `recording`."""
MAX_BYTES: Final = 16 << 20
"""Maximum size of the breadcrumbs of a recorded session."""
MAX_MESSAGES: Final = 200
"""Maximum number of messages of a recorded session."""

MayRead = Callable[[Breadcrumb], bool]
"""Returns whether the reader of the recording may see a breadcrumb."""

_NOT_REPEATED: Final = INTERNAL_SCHEMAS | {SESSION_RECORD, STATE_CHANGE, AGENT_ERROR}
_KINDS: Final = {"adk": "its ADK server builds its own requests"}


class NotRecordable(BreadcrumbsError):
    """A session cannot become a recording."""

    def __init__(self, reason: str, missing: Sequence[Missing] = ()) -> None:
        super().__init__("\n".join([reason, *(f"  {one.reason}" for one in missing)]))


@dataclass(slots=True)
class _Recorded:
    """The recording so far."""

    may_read: MayRead
    turns: list[dict[str, Any]] = field(default_factory=list)
    shared: dict[UUID, dict[str, Any]] = field(default_factory=dict)
    """Breadcrumbs of other sessions, or without a session, that prompts contain."""
    setups: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The last setup of each agent."""
    prompts: dict[str, list[Any]] = field(default_factory=dict)
    """The last prompt of each agent."""
    tools: dict[str, list[Any]] = field(default_factory=dict)
    """Schemas of the tools of each agent, as its last request contains them."""
    notes: list[str] = field(default_factory=list)


async def record_session(
    store: Store,
    owner: UUID,
    session: str,
    *,
    until: UUID | None = None,
    may_read: MayRead = lambda crumb: True,
) -> dict[str, Any]:
    """Return the recording of a session. With `until`, it ends after the message that this answer belongs to.

    Raise `NotFound` for an unknown session, `NotRecordable` if no answer has a receipt or a prompt cannot be rebuilt,
    and `Forbidden` if a prompt contains a breadcrumb that may not be read.
    """
    crumbs = [crumb for crumb in await _read_session(store, owner, session) if may_read(crumb)]
    if not crumbs:
        raise NotFound(f"session {session!r} not found")
    if until is not None:
        crumbs = _until(crumbs, until)
    recorded = _Recorded(may_read)
    messages = [crumb for crumb in crumbs if crumb.schema_name == USER_MESSAGE]
    if len(messages) > MAX_MESSAGES:
        raise NotRecordable(
            f"session {session!r} has {len(messages)} messages, and a recording at most {MAX_MESSAGES}: fork a "
            "shorter one"
        )
    before: list[dict[str, Any]] = []
    for crumb in crumbs:
        if crumb.schema_name == USER_MESSAGE:
            answers = await _outcomes(store, recorded, crumb, crumbs)
            turn: dict[str, Any] = {"before": before, **_message(crumb), "answers": answers}
            recorded.turns.append(turn if before else {k: v for k, v in turn.items() if k != "before"})
            before = []
        elif await _is_repeated(store, crumb):
            before.append(_breadcrumb(crumb))
    if not any(turn["answers"] for turn in recorded.turns):
        raise NotRecordable(f"session {session!r} has {len(messages)} messages and no answer with a receipt")
    for turn in recorded.turns:
        # The definition of an agent that never answered is not known.
        turn["answers"] = [answer for answer in turn["answers"] if answer["agent"] in recorded.setups]
    return await _document(store, owner, session, recorded)


def _until(crumbs: list[Breadcrumb], answer: UUID) -> list[Breadcrumb]:
    """Return the breadcrumbs without the messages after the one that an answer belongs to."""
    trigger = next((crumb.context.get("trigger_id") for crumb in crumbs if crumb.id == answer), None)
    last = next((crumb.created for crumb in crumbs if str(crumb.id) == trigger), None)
    if last is None:
        raise NotFound(f"answer {answer} or its message is not in the session")
    return [crumb for crumb in crumbs if crumb.schema_name != USER_MESSAGE or crumb.created <= last]


async def _document(store: Store, owner: UUID, session: str, recorded: _Recorded) -> dict[str, Any]:
    archive = Archive(store)
    agents, configs = {}, {}
    for agent_id, setup in recorded.setups.items():
        found = await archive.get(owner, str(setup.get("agent", "")), "agent")
        agents[agent_id] = None if found is None else found.document
        if isinstance(digest := setup.get("config"), str):
            config = await archive.get(owner, digest, "config")
            if config is not None and isinstance(config.document, dict):
                configs[str(config.document["consumer_id"])] = config.document
    document: dict[str, Any] = {"recording": FORMAT, "session": session, "agents": agents, "configs": configs}
    document["tools"] = {agent: tools for agent, tools in recorded.tools.items() if tools}
    if recorded.notes:
        document["notes"] = recorded.notes
    if recorded.shared:
        document["shared"] = list(recorded.shared.values())
    return {**document, "turns": recorded.turns}


async def _read_session(store: Store, owner: UUID, session: str) -> list[Breadcrumb]:
    found: list[Breadcrumb] = []
    cursor: str | None = None
    size = 0
    while True:
        query = Query(
            session_id=session, sort="created_at", limit=MAX_LIMIT, cursor=cursor, max_bytes=MAX_BYTES
        )
        page = await store.list(owner, query)
        found += page.items
        size += sum(len(crumb.json) for crumb in page.items)
        cursor = page.next_cursor
        if size > MAX_BYTES:
            raise NotRecordable(f"session {session!r} has more than {MAX_BYTES >> 20} MB: fork a shorter one")
        if cursor is None:
            return found


async def _is_repeated(store: Store, crumb: Breadcrumb) -> bool:
    """Return whether a replay must post a breadcrumb. It posts those that the runtime does not write itself."""
    if crumb.schema_name in _NOT_REPEATED or crumb.context.get("trigger_id") is not None:
        return False
    return not await has_first_receipt(store, crumb)


def _message(crumb: Breadcrumb) -> dict[str, Any]:
    extra = {
        name: value
        for name, value in crumb.context.items()
        if name not in HIDDEN_KEYS and name not in TEXT_KEYS
    }
    tags = [tag for tag in _own_tags(crumb) if tag != "user:message"]
    message: dict[str, Any] = {"message": plain_text(crumb.context)}
    if tags:
        message["tags"] = tags
    return {**message, "context": extra} if extra else message


def _breadcrumb(crumb: Breadcrumb) -> dict[str, Any]:
    hidden = HIDDEN_KEYS - {"llm_hints"}
    context = {name: value for name, value in crumb.context.items() if name not in hidden}
    return {
        "schema_name": crumb.schema_name,
        "title": crumb.title,
        "tags": _own_tags(crumb),
        "context": context,
    }


def _own_tags(crumb: Breadcrumb) -> list[str]:
    return [tag for tag in crumb.tags if not tag.startswith("session:")]


# Answers


async def _outcomes(
    store: Store, recorded: _Recorded, message: Breadcrumb, crumbs: Sequence[Breadcrumb]
) -> list[dict[str, Any]]:
    """Return the answers of agents to a message, and the errors of those that failed."""
    id = str(message.id)
    outcomes = []
    replies = [crumb for crumb in crumbs if crumb.context.get("trigger_id") == id]
    answered = set()
    for crumb in replies:
        if await has_first_receipt(store, crumb):
            answer = await _answer(store, recorded, crumb)
            answered.add(answer["agent"])
            outcomes.append(answer)
    for crumb in replies:
        agent = crumb.context.get("agent_id")
        if crumb.schema_name == AGENT_ERROR and isinstance(agent, str) and agent not in answered:
            outcomes.append({"agent": agent, "error": str(crumb.context.get("error", crumb.title))})
    if not outcomes:
        recorded.notes.append(f"message {len(recorded.turns) + 1} has no answer")
    return outcomes


async def _answer(store: Store, recorded: _Recorded, crumb: Breadcrumb) -> dict[str, Any]:
    turn = await _rebuild(store, crumb)
    setup = turn.setup.document
    agent = str(setup["agent_id"])
    await _add_shared(store, recorded, turn, crumb)
    earlier = recorded.setups.get(agent)
    if earlier is not None and _compared(earlier) != _compared(setup):
        # The test runs the last definition. Prompts of an earlier one would differ at once.
        _forget_prompts(recorded, agent)
    recorded.setups[agent] = setup
    calls = await _calls(store, recorded, turn, agent)
    if setup.get("kind") == "function":
        calls = [{"prompt": call["prompt"]} for call in calls]
    return {"agent": agent, "calls": calls, "answer": plain_text(turn.receipt.answer.context)}


def _compared(setup: Mapping[str, Any]) -> list[Any]:
    return [setup.get(name) for name in ("agent", "config", "system_prompt")]


def _forget_prompts(recorded: _Recorded, agent: str) -> None:
    note = f"{agent} was changed during the session: prompts before the change are not compared"
    if note not in recorded.notes:
        recorded.notes.append(note)
    recorded.prompts.pop(agent, None)
    for turn in recorded.turns:
        for answer in turn["answers"]:
            for call in answer.get("calls", ()) if answer["agent"] == agent else ():
                call.pop("prompt", None)


async def _rebuild(store: Store, crumb: Breadcrumb) -> RebuiltTurn:
    try:
        turn = await rebuild_request(store, await load_receipt(store, crumb.owner_id, crumb.id))
    except NotRebuildable as error:
        raise NotRecordable(f"the prompt of answer {crumb.id} cannot be rebuilt", [error.missing]) from None
    if turn.missing:
        raise NotRecordable(f"the prompt of answer {crumb.id} cannot be rebuilt", turn.missing)
    if reason := _KINDS.get(str(turn.setup.document.get("kind"))):
        raise NotRecordable(f"the prompt of answer {crumb.id} is not known: {reason}")
    return turn


async def _add_shared(store: Store, recorded: _Recorded, turn: RebuiltTurn, crumb: Breadcrumb) -> None:
    for reference in turn.record.items if turn.record is not None else ():
        found = await load_version(store, crumb.owner_id, reference.id, reference.version)
        if found is None:
            continue
        if not recorded.may_read(found.then):
            raise Forbidden(
                f"the prompt of answer {crumb.id} contains a breadcrumb that this token may not see"
            )
        if found.then.session_id == crumb.session_id:
            continue
        shared = _breadcrumb(found.then)
        if found.then.session_id is not None:
            shared["session"] = "elsewhere"
        recorded.shared[reference.id] = shared


async def _calls(store: Store, recorded: _Recorded, turn: RebuiltTurn, agent: str) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    texts: list[str] = []
    for number, (call, body) in enumerate(zip(turn.receipt.calls, turn.bodies, strict=True)):
        request = orjson.loads(body)
        messages = list(request["messages"])
        recorded.tools[agent] = request.get("tools", [])
        prompt = _prompt_change(recorded.prompts.get(agent, []), messages)
        recorded.prompts[agent] = messages
        reply = await _reply(store, turn.receipt, call, number)
        if not reply.get("tools"):
            reply["text"] = _last_text(turn.receipt.answer, texts)
        elif reply["text"].strip():
            texts.append(reply["text"].rstrip())
        calls.append({"prompt": prompt, "reply": reply})
    return calls


def _prompt_change(before: list[Any], now: list[Any]) -> dict[str, Any]:
    keeps = 0
    while keeps < min(len(before), len(now)) and before[keeps] == now[keeps]:
        keeps += 1
    return {"keeps": keeps, "adds": now[keeps:]}


def _last_text(answer: Breadcrumb, texts: Sequence[str]) -> str:
    """Return the last reply. The answer begins with the texts of the earlier ones."""
    return plain_text(answer.context).removeprefix(PARAGRAPH.join([*texts, ""]))


async def _reply(store: Store, receipt: Receipt, call: Mapping[str, Any], number: int) -> dict[str, Any]:
    text, tools = call.get("text"), []
    for place, entry in enumerate(call.get("tools", [])):
        id = entry if isinstance(entry, str) else entry[0]
        found = await load_call(store, receipt, UUID(id), f"{number}.{place}")
        if isinstance(found, Missing):
            raise NotRecordable(f"a tool call of answer {receipt.answer.id} is gone", [found])
        text = found.text if text is None else text
        result = {"output": found.result.output} if found.result.ok else {"error": found.result.error}
        call_id = found.call.id if isinstance(entry, str) else entry[1]
        tools.append(
            {"id": call_id, "name": found.call.name, "arguments": found.call.arguments, "result": result}
        )
    return {"text": text or "", **({"tools": tools} if tools else {})}
