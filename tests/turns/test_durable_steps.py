"""Steps of turns: stored before their tools run, replayed once, and visible only where they belong."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

import anyio

from breadcrumbs.agents.models.base import ModelError, ModelReply, ModelRequest, ToolCall
from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
from breadcrumbs.agents.tools import Tool, ToolContext
from breadcrumbs.proofs.verification import verify_answer
from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.ids import derived_id, home_lane
from breadcrumbs.runtime.breadcrumb.json_input import canonical
from breadcrumbs.runtime.sessions.forks import ForkOptions, fork
from breadcrumbs.runtime.sessions.messages import PageRange, read_page
from breadcrumbs.runtime.sessions.retries import retry
from breadcrumbs.runtime.store.store import Store
from tests.support.conversations import ALICE, ASSISTANT, agent, config, eventually, working
from tests.support.tools import Counting, use
from tests.turns.test_tools_at_work import deltas_of

STEP, STARTED, REQUEST = "agent.step.v1", "tool.started.v1", "tool.request.v1"
CURATOR = Principal(ALICE, ALICE, frozenset(("curator",)))


async def test_a_reply_with_tool_calls_is_stored_as_a_step_before_its_tools_run(store: Store) -> None:
    stored: list[list[str]] = []

    async def look(context: ToolContext) -> str:
        """Look."""
        stored.append([schema for schema in (STEP, REQUEST, STARTED) if await chat.all("s", schema)])
        return str(context.request_id)

    model = ScriptedModel([ModelReply("Let me look.", (ToolCall("a", "look", "{}"),)), "done"])
    async with working(store, model, agents=[agent(tools=["look"])], tools=[Tool(look)]) as chat:
        message = await chat.say("s", "Go")
        answer = await chat.answer_to(message)
        assert stored == [[STEP, REQUEST, STARTED]]
        (step,), (request,) = await chat.all("s", STEP), await chat.all("s", REQUEST)
        lane = home_lane(answer.id, store.lanes)
        assert step.id == derived_id(lane, "step", ASSISTANT, str(message.id), "0", "1", "0")
        assert step.context["text"] == "Let me look." and step.context["step"] == 0
        call = {"id": "a", "name": "look", "arguments": "{}", "request_id": str(request.id)}
        assert step.context["calls"] == [call]
        assert request.context["input_digest"] == sha256(canonical({})).hexdigest()
        (response,) = await chat.all("s", "tool.response.v1")
        assert response.context["output"] == str(request.id)  # the idempotency key of the tool


async def test_a_turn_without_tools_writes_no_step(store: Store) -> None:
    async with working(store, ScriptedModel(["hello"]), agents=[agent(tools=[])]) as chat:
        await chat.answer_to(await chat.say("s", "Hi"))
        assert not await chat.all("s", STEP) and not await chat.all("s", STARTED)


async def test_a_replayed_step_is_written_to_the_answer_once_with_its_reasoning(store: Store) -> None:
    counting, calls = Counting(), use("count_me").tool_calls
    replies: list[Any] = [
        ModelReply("First.", calls),
        ModelReply("Second.", calls),
        ModelError("overloaded", retry=True),
        "Third.",
    ]

    class Thinking(ScriptedModel):
        async def complete(self, request: ModelRequest, on_delta: Any = None) -> ModelReply:
            assert request.observer is not None
            await request.observer.reason(f"<{len(self.requests)}>")
            return await super().complete(request, on_delta)

    model = Thinking(replies)
    agents = [agent(tools=["count_me"])]
    async with (
        working(store, model, agents=agents, tools=[counting.tool]) as chat,
        deltas_of(store) as shown,
    ):
        answer = await chat.answer_to(await chat.say("s", "Go"))
        assert answer.context["message"] == "First.\n\nSecond.\n\nThird."
        assert answer.context["model_reasoning"] == "<0><1><3>"
        assert len(model.requests) == 4 and counting.runs == 2
        assert [len(await chat.all("s", schema)) for schema in (STEP, REQUEST, STARTED)] == [2, 2, 2]

        async def shows_all() -> bool:
            return shown().endswith("First.\n\nSecond.\n\nThird.")

        await eventually(shows_all, "the deltas do not end with the answer")


async def test_a_turn_that_changes_its_model_twice_can_be_verified(store: Store) -> None:
    class Fallback(ScriptedModel):
        """Another model answers from the second call on."""

        async def complete(self, request: ModelRequest, on_delta: Any = None) -> ModelReply:
            reply = await super().complete(request, on_delta)
            return replace(reply, model="other") if len(self.requests) > 1 else reply

    counting = Counting()
    replies: list[Any] = [use("count_me"), use("count_me"), ModelError("overloaded", retry=True), "done"]
    async with working(
        store, Fallback(replies), agents=[agent(tools=["count_me"])], tools=[counting.tool]
    ) as chat:
        answer = await chat.answer_to(await chat.say("s", "Go"))
        calls = answer.context["model_receipt"]["calls"]
        assert [call.get("replayed") for call in calls] == [True, True, None]
        assert answer.context["creator"]["model"] == "other"
        assert (await verify_answer(store, ALICE, answer.id)).outcome == "equal"


async def test_a_requested_retry_starts_with_new_steps_but_repeats_no_finished_call(store: Store) -> None:
    counting = Counting()
    model = ScriptedModel(
        [
            use("count_me"),
            ModelError("no credit", retry=False),
            use("count_me"),
            use("count_me", '{"word": "x"}'),
            "ok",
        ]
    )
    async with working(store, model, agents=[agent(tools=["count_me"])], tools=[counting.tool]) as chat:
        message = await chat.say("s", "Go")
        await chat.error_about(message)
        await retry(store, CURATOR, "s", message.id)
        answer = await chat.answer_to(message)
        assert len(model.requests) == 5 and counting.runs == 2
        assert len(await chat.all("s", STEP)) == 3
        assert not any("replayed" in call for call in answer.context["model_receipt"]["calls"])


async def test_a_call_that_was_started_and_has_no_response_is_not_repeated_after_a_requested_retry(
    store: Store,
) -> None:
    runs = 0

    async def pay() -> str:
        """Pay."""
        nonlocal runs
        runs += 1
        await anyio.sleep(60)
        return "paid"

    model = ScriptedModel([use("pay"), use("pay"), "I do not know whether it was paid."])
    agents = [agent(tools=["pay"], timeout_seconds=0.3)]
    async with working(store, model, agents=agents, tools=[Tool(pay)], attempts=1) as chat:
        message = await chat.say("s", "Pay")
        await chat.error_about(message)
        await retry(store, CURATOR, "s", message.id)
        answer = await chat.answer_to(message)
        assert runs == 1 and answer.context["message"].startswith("I do not know")
        (response,) = await chat.all("s", "tool.response.v1")
        assert response.context["status"] == "unknown"
        assert "is unknown" in model.requests[-1].messages[-1].content


async def test_steps_are_in_no_prompt_no_list_of_messages_and_no_fork(store: Store) -> None:
    counting = Counting()
    everything = config(sources=[{"key": "all", "schema_name": name} for name in (STEP, STARTED, REQUEST)])
    model = FunctionModel(lambda request: "done" if request.messages[-1].role == "tool" else use("count_me"))
    agents = [agent(tools=["count_me"])]
    async with working(store, model, agents=agents, configs=[everything], tools=[counting.tool]) as chat:
        await chat.answer_to(await chat.say("s", "Go"))
        await chat.answer_to(await chat.say("s", "Again"))
        page = await read_page(store, CURATOR, "s", PageRange(100))
        assert {STEP, STARTED}.isdisjoint({crumb.schema_name for crumb in page.messages})
        await fork(store, CURATOR, "s", "copy", ForkOptions())
        assert await chat.all("copy", REQUEST)
        assert not await chat.all("copy", STEP) and not await chat.all("copy", STARTED)
        contexts = await chat.all("s", "agent.context.v1")
        schemas = {item["schema_name"] for part in contexts[-1].context["parts"] for item in part["items"]}
        assert schemas <= {"user.message.v1", REQUEST}


async def test_an_edited_step_is_replayed_as_the_runtime_wrote_it(store: Store) -> None:
    counting = Counting()

    async def edit() -> str:
        """Edit the step."""
        (step,) = await chat.all("s", STEP)
        calls = [{**step.context["calls"][0], "name": "count_me"}]
        change = BreadcrumbUpdate(context={**step.context, "text": "forged", "calls": calls})
        await store.update(ALICE, step.id, change, by=ALICE)
        return "edited"

    replies: list[Any] = [use("edit"), ModelError("overloaded", retry=True), "done"]
    agents = [agent(tools=["edit", "count_me"])]
    tools = [Tool(edit), counting.tool]
    async with working(store, ScriptedModel(replies), agents=agents, tools=tools) as chat:
        answer = await chat.answer_to(await chat.say("s", "Go"))
        assert answer.context["message"] == "done" and counting.runs == 0


async def test_a_reply_that_is_too_long_for_a_step_is_answered_and_a_takeover_says_so(store: Store) -> None:
    counting = Counting()
    long = use("count_me", '{"word": "' + "x" * 500_000 + '"}')
    agents = [agent(tools=["count_me"])]
    async with working(store, ScriptedModel([long, "done"]), agents=agents, tools=[counting.tool]) as chat:
        assert (await chat.answer_to(await chat.say("s", "Go"))).context["message"] == "done"
        (step,) = await chat.all("s", STEP)
        assert step.context["too_long"] and len(step.json) < 10_000
    model = ScriptedModel([long, ModelError("overloaded", retry=True), "done"])
    async with working(store, model, agents=agents, tools=[counting.tool]) as chat:
        error = await chat.error_about(await chat.say("t", "Go"))
        assert "was too long to be stored" in error.context["error"]
