"""Tools that other processes run: the agent waits for a response in its session, and continues after a takeover."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import anyio
import pytest

from breadcrumbs.agents.models.base import ModelReply, ToolCall
from breadcrumbs.agents.models.scripted import ScriptedModel
from breadcrumbs.agents.tool_runner import ToolRunner
from breadcrumbs.agents.tools import Tool, ToolContext, tool
from breadcrumbs.proofs.verification import verify_answer
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.tags import DEFAULT_INHERITED
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.retries import TurnLimits
from breadcrumbs.runtime.workers.worker import Worker
from tests.support.conversations import ALICE, BOB, Chat, agent, all_taken, eventually, working
from tests.support.events import reader_of
from tests.support.tools import Counting, use

REQUEST, RESPONSE, STARTED = "tool.request.v1", "tool.response.v1", "tool.started.v1"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def weather(**changes: Any) -> dict[str, Any]:
    return {"name": "weather", "description": "Return the weather.", "parameters": SCHEMA, **changes}


async def requests(chat: Chat, count: int = 1, session: str = "s") -> list[Breadcrumb]:
    found: list[Breadcrumb] = []

    async def look() -> bool:
        nonlocal found
        found = await chat.all(session, REQUEST)
        return len(found) == count

    await eventually(look, "no tool request")
    return found


async def respond(
    chat: Chat, request: Breadcrumb | UUID, session: str = "s", owner: UUID = ALICE, **fields: Any
) -> UUID:
    """Post a response as a client does."""
    id = request if isinstance(request, UUID) else request.id
    new = BreadcrumbCreate.parse(
        {
            "schema_name": RESPONSE,
            "title": "response",
            "tags": ["tool:response", f"session:{session}"],
            "context": {"request_id": str(id), "tool": "weather", "status": "success", **fields},
        }
    )
    return (await chat.store.create(owner, new, by=owner)).id


async def test_a_client_answers_a_request_and_the_turn_goes_on(store: Store) -> None:
    model = ScriptedModel([use("weather", '{"city": "Ulm"}'), "It rains."])
    async with working(store, model, agents=[agent(external_tools=[weather()])]) as chat:
        message = await chat.say("s", "Weather?")
        (request,) = await requests(chat)
        assert request.context["external"] is True and request.context["input"] == {"city": "Ulm"}
        assert request.context["timeout_seconds"] == 300 and "tool:weather" in request.tags
        assert model.requests[0].tools[0].parameters == SCHEMA
        response = await respond(chat, request, output={"sky": "rain"})
        answer = await chat.answer_to(message)
        assert answer.context["message"] == "It rains."
        assert model.requests[1].messages[-1].content == '{"output":{"sky":"rain"}}'
        # The runtime writes no second response, and the receipt names the one that was used.
        assert [crumb.id for crumb in await chat.all("s", RESPONSE)] == [response]
        entry = answer.context["model_receipt"]["calls"][0]
        assert entry["responses"] == {str(request.id): str(response)}
        # A later edit of the response does not change the proof.
        await store.update(ALICE, response, BreadcrumbUpdate(context={"output": "forged"}), by=ALICE)
        result = await verify_answer(store, ALICE, answer.id)
        assert (result.outcome, result.requests) == ("equal", 2), result


async def test_the_first_response_counts_and_all_calls_of_a_reply_are_awaited(store: Store) -> None:
    calls = tuple(ToolCall(f"c{number}", "weather", f'{{"city": "{number}"}}') for number in range(3))
    model = ScriptedModel([ModelReply("", calls), "done"])
    async with working(store, model, agents=[agent(external_tools=[weather()])]) as chat:
        message = await chat.say("s", "Weather?")
        first, second, third = await requests(chat, 3)
        await respond(chat, third, output="third")
        await respond(chat, first, output="first")
        await respond(chat, first, output="too late")
        assert not await chat.answers("s")
        await respond(chat, second, status="error", error="no such city")
        await chat.answer_to(message)
        told = [message.content for message in model.requests[1].messages[-3:]]
        assert told == ['{"output":"first"}', '{"error":"no such city"}', '{"output":"third"}']


async def test_P13_responses_of_other_sessions_and_owners_and_hidden_ones_are_not_accepted(
    store: Store,
) -> None:
    model = ScriptedModel([use("weather", '{"city": "Ulm"}'), "done"])
    agents = [agent(external_tools=[weather(timeout_seconds=1.5)])]
    async with working(store, model, agents=agents) as chat:
        message = await chat.say("s", "Weather?")
        (request,) = await requests(chat)
        await respond(chat, request, session="other", output="another session")
        await respond(chat, request, owner=BOB, output="another owner")
        await respond(chat, UUID(int=7), output="another request")
        secret = BreadcrumbCreate.parse(
            {
                "schema_name": RESPONSE,
                "title": "secret",
                "tags": ["session:s"],
                "sensitivity": "secret",
                "context": {"request_id": str(request.id), "output": "secret"},
            }
        )
        await store.create(ALICE, secret, by=ALICE)
        # A note that becomes a response by an edit is not one.
        note = await chat.post("note.v1", ["session:s"], {"request_id": str(request.id), "output": "note"})
        await store.update(ALICE, note.id, BreadcrumbUpdate(schema_name=RESPONSE), by=ALICE)
        await chat.answer_to(message)
        assert "no response from weather within 1.5 s" in model.requests[1].messages[-1].content


async def test_without_a_response_the_model_is_told_and_a_late_response_changes_nothing(store: Store) -> None:
    model = ScriptedModel([use("weather", '{"city": "Ulm"}'), "Sorry."])
    # The time limit of the agent does not count while it waits for another process.
    agents = [agent(external_tools=[weather(timeout_seconds=0.6)], timeout_seconds=0.3)]
    async with working(store, model, agents=agents, attempts=1) as chat:
        message = await chat.say("s", "Weather?")
        (request,) = await requests(chat)
        answer = await chat.answer_to(message)
        assert answer.context["message"] == "Sorry."
        assert "can still have had its effect" in model.requests[1].messages[-1].content
        await respond(chat, request, output="late")
        assert (await verify_answer(store, ALICE, answer.id)).outcome == "equal"


async def test_a_turn_that_waits_is_taken_over_and_other_sessions_are_answered_meanwhile(
    store: Store,
) -> None:
    model = ScriptedModel([use("weather", '{"city": "Ulm"}'), "other", "It rains."])
    agents = [agent(external_tools=[weather()])]
    async with working(store, model, agents=agents) as chat:
        message = await chat.say("s", "Weather?")
        (request,) = await requests(chat)
        await chat.answer_to(await chat.say("t", "Hello"))
        for worker in chat.workers:  # the lanes are given back while the turn waits
            worker._turns._limits = TurnLimits(drain_seconds=0.05)
    assert not await Chat(store).answers("s")
    async with working(store, model, agents=agents) as chat:
        await respond(chat, request, output="rain")
        assert (await chat.answer_to(message)).context["message"] == "It rains."
        assert len(model.requests) == 3
        assert len(await chat.all("s", REQUEST)) == 1


async def test_a_cancellation_ends_the_wait(store: Store) -> None:
    model = ScriptedModel([use("weather", '{"city": "Ulm"}')])
    async with working(store, model, agents=[agent(external_tools=[weather()])]) as chat:
        message = await chat.say("s", "Weather?")
        await requests(chat)
        await chat.cancel("s")
        assert (await chat.error_about(message)).context["cancelled"]


async def test_invalid_arguments_and_messages_without_a_session_get_an_error_at_once(store: Store) -> None:
    @tool(external=True)
    def lookup(city: str) -> str:
        """Look a city up."""
        raise AssertionError("the agent runner never runs an external tool")

    model = ScriptedModel([use("lookup", '{"town": 1}'), use("lookup", "[]"), "done"])
    async with working(store, model, agents=[agent(tools=["lookup"])], tools=[lookup]) as chat:
        await chat.answer_to(await chat.say("s", "Go"))
        first, second = [request.messages[-1].content for request in model.requests[1:]]
        assert "city" in first and "not a JSON object" in second


def test_an_agent_cannot_declare_a_tool_twice_or_without_a_schema_of_an_object() -> None:
    with pytest.raises(ValueError, match="occurs twice"):
        agent(tools=["weather"], external_tools=[weather()])
    with pytest.raises(ValueError, match="type"):
        agent(external_tools=[weather(parameters={"type": "string"})])


# The tool runner


@asynccontextmanager
async def tool_runner(store: Store, one: Tool) -> AsyncIterator[Worker]:
    handler = ToolRunner(store, one, inherited=DEFAULT_INHERITED)
    worker = Worker(
        store,
        reader_of(store),
        handler,
        lease_seconds=5.0,
        limits=TurnLimits(backoff=lambda attempt: 0.02, drain_seconds=0.05),
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await eventually(lambda: all_taken([worker], store.lanes), "the lanes were not taken")
        try:
            yield worker
        finally:
            worker.stop()


async def test_a_tool_runner_answers_the_requests_of_its_tool_once(store: Store) -> None:
    counting, other = Counting(), Counting()
    other.tool.name = "other"
    declared = {"name": "count_me", "parameters": {"type": "object", "properties": {}}}
    replies: list[Any] = [use("count_me", '{"word": "tea"}', number=2), "done", "again"]
    agents = [agent(external_tools=[declared])]
    async with working(store, ScriptedModel(replies), agents=agents) as chat:
        message = await chat.say("s", "Go", tags=["workspace:w"])
        await requests(chat, 2)  # before the tool runner starts
        async with tool_runner(store, counting.tool), tool_runner(store, other.tool):
            await chat.answer_to(message)
        assert counting.runs == 2 and other.runs == 0
        responses = await chat.all("s", RESPONSE)
        assert sorted(crumb.context["output"] for crumb in responses) == ["run 1 tea", "run 2 tea"]
        assert all("workspace:w" in crumb.tags and crumb.created_by is None for crumb in responses)
        assert len(await chat.all("s", STARTED)) == 2
    async with tool_runner(store, counting.tool):
        await anyio.sleep(0.2)
    assert counting.runs == 2


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_call_of_a_dead_tool_runner_is_repeated_only_if_it_is_idempotent(
    store: Store, idempotent: bool
) -> None:
    keys: list[str | None] = []

    async def pay(context: ToolContext) -> str:
        """Pay."""
        keys.append(context.request_id)
        if len(keys) == 1:
            await anyio.sleep(60)
        return "paid"

    one = Tool(pay, idempotent=idempotent, timeout=120)
    model = ScriptedModel([use("pay"), "done"])
    agents = [agent(external_tools=[{"name": "pay"}])]
    async with working(store, model, agents=agents) as chat:
        message = await chat.say("s", "Go")
        async with tool_runner(store, one):
            await eventually(lambda: _is_true(bool(keys)), "the tool did not run")
        async with tool_runner(store, one):
            await chat.answer_to(message)
        told = model.requests[1].messages[-1].content
        if idempotent:
            assert len(keys) == 2 and len(set(keys)) == 1 and told == '{"output":"paid"}'
        else:
            assert len(keys) == 1 and "is unknown" in told


async def test_a_request_that_a_client_posted_is_not_run(store: Store) -> None:
    counting = Counting()
    chat = Chat(store)
    new = BreadcrumbCreate.parse(
        {
            "schema_name": REQUEST,
            "title": "request",
            "tags": ["tool:request", "tool:count_me", "session:s"],
            "context": {"tool": "count_me", "input": {}, "external": True, "timeout_seconds": 60},
        }
    )
    await store.create(ALICE, new, by=BOB)
    async with tool_runner(store, counting.tool):
        await anyio.sleep(0.3)
    assert counting.runs == 0 and not await chat.all("s", RESPONSE)


async def _is_true(value: bool) -> bool:
    return value
