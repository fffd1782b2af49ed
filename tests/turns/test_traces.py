"""Spans of turns: their shape, their attributes, links and content. The workers are real and run in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest

from breadcrumbs.agents.functions import Call
from breadcrumbs.agents.models.base import Dialect, ModelError, ModelReply, SentRequest, TokenUsage, ToolCall
from breadcrumbs.agents.models.registry import resolve_model
from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
from breadcrumbs.agents.tools import tool
from breadcrumbs.runtime.sessions.retries import retry_letter
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry.tracing import carried
from breadcrumbs.runtime.workers.dead_letters import DeadLetters
from tests.support.conversations import (
    ALICE,
    ASSISTANT,
    CONTEXT,
    Chat,
    agent,
    events_of,
    function_agent,
    working,
)
from tests.support.model_server import ModelServer
from tests.support.traces import CLIENT_SPAN, TRACE_ID, TRACEPARENT, ExportedSpan, finished, one, recorded

SECRET = "the cat is called Minka"


@contextmanager
def carrying(trace: str = TRACEPARENT) -> Iterator[None]:
    """Write as a request with this trace does."""
    token = carried.set(trace)
    try:
        yield
    finally:
        carried.reset(token)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def fail(text: str) -> str:
    """Fail."""
    raise ValueError(f"cannot handle {text}")


CALL_ADD = ModelReply(
    "",
    (ToolCall("call-1", "add", '{"a": 2, "b": 40}'),),
    TokenUsage(10, 5, cached_tokens=4),
    "tool_calls",
    SentRequest(Dialect("scripted"), bytes(32), response_id="r-1", model="scripted-2026"),
)
ANSWER = ModelReply("42", usage=TokenUsage(20, 7, reasoning_tokens=3), finish_reason="stop")


async def a_turn_with_a_tool(store: Store) -> None:
    model = ScriptedModel([CALL_ADD, ANSWER])
    chosen = agent(tools=["add"], temperature=0.5, max_tokens=99, description="It adds.")
    async with working(store, model, agents=[chosen], tools=[add]) as chat:
        with carrying():
            message = await chat.say("s", SECRET)
        await chat.answer_to(message)
        await chat.settled()


async def test_a_turn_is_one_trace_with_the_spans_of_the_conventions(store: Store) -> None:
    with recorded() as exporter:
        await a_turn_with_a_tool(store)
    spans = finished(exporter)
    assert sorted(span.name for span in spans) == [
        "chat scripted",
        "chat scripted",
        "execute_tool add",
        f"invoke_agent {ASSISTANT}",
        f"retrieval {ASSISTANT}",
    ]
    assert {span.trace_id for span in spans} == {TRACE_ID}
    retrieval, invoked, executed = one(spans, "retrieval"), one(spans, "invoke"), one(spans, "execute")
    chats = [span for span in spans if span.name.startswith("chat")]
    assert retrieval.parent_id == CLIENT_SPAN
    assert invoked.parent_id == retrieval.span_id
    assert {span.parent_id for span in (*chats, executed)} == {invoked.span_id}
    assert all(not span.error and not span.links for span in spans)


async def test_the_attributes_are_those_of_the_conventions(store: Store) -> None:
    with recorded() as exporter:
        await a_turn_with_a_tool(store)
    spans = finished(exporter)
    retrieval, invoked, executed = one(spans, "retrieval"), one(spans, "invoke"), one(spans, "execute")
    first, second = (span.attributes for span in spans if span.name.startswith("chat"))
    message = invoked.attributes["breadcrumbs.message.id"]
    about = {"gen_ai.conversation.id": "s", "gen_ai.provider.name": "breadcrumbs"}
    ours = {"breadcrumbs.owner.id": str(ALICE), "breadcrumbs.message.id": message}
    assert retrieval.attributes == {
        **about,
        **ours,
        "gen_ai.operation.name": "retrieval",
        "gen_ai.data_source.id": ASSISTANT,
        "breadcrumbs.context.items": 1,
        "breadcrumbs.context.left_out": 0,
        "breadcrumbs.context.tokens": retrieval.attributes["breadcrumbs.context.tokens"],
    }
    assert invoked.attributes == {
        **about,
        **ours,
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.id": ASSISTANT,
        "gen_ai.agent.name": ASSISTANT,
        "gen_ai.agent.description": "It adds.",
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 12,
        "gen_ai.response.finish_reasons": ("stop",),
    }
    request = {
        **about,
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 99,
    }
    assert first == {
        **request,
        "gen_ai.response.id": "r-1",
        "gen_ai.response.model": "scripted-2026",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
    }
    assert second["gen_ai.response.time_to_first_chunk"] >= 0
    assert second["gen_ai.usage.reasoning.output_tokens"] == 3
    assert executed.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.call.id": "call-1",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Add two numbers.",
    }
    assert {span.kind for span in spans} == {"internal"}


def everything(spans: list[ExportedSpan], exporter: Any) -> str:
    statuses = [span.status.description for span in exporter.get_finished_spans()]
    events = [event for span in exporter.get_finished_spans() for event in span.events]
    return repr((spans, statuses, events))


async def test_content_is_absent_by_default(store: Store) -> None:
    with recorded() as exporter:
        await a_turn_with_a_tool(store)
        failing = ScriptedModel(
            [
                ModelReply("", (ToolCall("c", "fail", orjson.dumps({"text": SECRET}).decode()),)),
                ModelError(f"the server said: {SECRET}", retry=False),
            ]
        )
        async with working(store, failing, agents=[agent(tools=["fail"])], tools=[fail]) as chat:
            await chat.error_about(await chat.say("t", SECRET))
            await chat.settled()
    spans = finished(exporter)
    shown = everything(spans, exporter)
    assert "Minka" not in shown and "You are a test" not in shown
    assert "40" not in repr(one(spans, "execute_tool add").attributes)
    names = {name for span in spans for name in span.attributes}
    assert not {name for name in names if "message" in name and name != "breadcrumbs.message.id"}
    assert one(spans, "execute_tool fail").error
    assert [span.error for span in spans if span.name.startswith("invoke_agent")] == [False, True]


async def test_content_is_present_if_it_is_asked_for(store: Store) -> None:
    with recorded(content=True) as exporter:
        await a_turn_with_a_tool(store)
    spans = finished(exporter)
    retrieval, executed = one(spans, "retrieval").attributes, one(spans, "execute").attributes
    assert retrieval["gen_ai.retrieval.query.text"] == SECRET
    assert len(orjson.loads(retrieval["gen_ai.retrieval.documents"])) == 1
    assert executed["gen_ai.tool.call.arguments"] == '{"a": 2, "b": 40}'
    assert executed["gen_ai.tool.call.result"] == "42"
    _, second = (span.attributes for span in spans if span.name.startswith("chat"))
    assert orjson.loads(second["gen_ai.system_instructions"])[0]["content"].startswith("You are a test.")
    said, called, answered = orjson.loads(second["gen_ai.input.messages"])
    assert said == {"role": "user", "parts": [{"type": "text", "content": SECRET}]}
    assert called["parts"][0]["type"] == "tool_call" and answered["parts"][0]["type"] == "tool_call_response"
    assert orjson.loads(second["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "42"}], "finish_reason": "stop"}
    ]
    assert orjson.loads(second["gen_ai.tool.definitions"])[0]["name"] == "add"


async def test_text_that_is_not_unicode_does_not_fail_the_turn(store: Store) -> None:
    odd = ModelReply("fine \ud800", finish_reason="stop\ud800", usage=TokenUsage(1, 1))
    with recorded(content=True) as exporter:
        async with working(store, ScriptedModel([odd])) as chat:
            await chat.answer_to(await chat.say("s", "hello"))
    for span in finished(exporter):
        for value in span.attributes.values():
            for text in value if isinstance(value, tuple) else [value]:
                str(text).encode()


# Retries


async def test_a_repeated_attempt_links_to_the_failed_one_and_is_not_its_child(store: Store) -> None:
    model = ScriptedModel([ModelError("busy", retry=True), "fine"])
    with recorded() as exporter:
        async with working(store, model) as chat:
            with carrying():
                message = await chat.say("s", "hello")
            await chat.answer_to(message)
            await chat.settled()
    spans = finished(exporter)
    failed, repeated = (span for span in spans if span.name.startswith("invoke_agent"))
    assert failed.error and not repeated.error and failed.links == []
    assert repeated.links == [(TRACE_ID, failed.span_id)]
    assert repeated.parent_id == failed.parent_id == one(spans, "retrieval").span_id
    assert repeated.attributes["breadcrumbs.turn.attempt"] == 2
    assert failed.attributes["error.type"] == "TurnFailed"
    assert [span.error for span in spans if span.name.startswith("chat")] == [True, False]


async def test_a_retried_dead_letter_links_to_the_trace_of_its_message(store: Store) -> None:
    model = ScriptedModel([ModelError("broken", retry=False), "fine"])
    later = "00-11111111111111111111111111111111-2222222222222222-01"
    with recorded() as exporter:
        async with working(store, model) as chat:
            with carrying():
                message = await chat.say("s", "hello")
            await chat.error_about(message)
            (letter,) = await DeadLetters(store).all(ALICE)
            with carrying(later):
                await retry_letter(store, letter)
            await chat.answer_to(message)
            await chat.settled()
    spans = finished(exporter)
    first, again = (span for span in spans if span.name.startswith("invoke_agent"))
    assert (first.trace_id, again.trace_id) == (TRACE_ID, later[3:35])
    assert again.parent_id == later[36:52]
    assert again.links == [(TRACE_ID, one(spans, "retrieval").span_id)]


# Which process traces


async def test_a_trace_is_carried_through_processes_that_do_not_trace(store: Store) -> None:
    async with working(store, FunctionModel(lambda request: "fine")) as chat:
        with carrying(f"{TRACEPARENT} vendor=1"):
            message = await chat.say("s", "hello")
        await chat.answer_to(message)
        await chat.answer_to(await chat.say("t", "hello"))
        await chat.settled()
    by_session = {
        session: {event.trace for event in await events_of(store, ALICE) if event.session_id == session}
        for session in ("s", "t")
    }
    assert by_session == {"s": {f"{TRACEPARENT} vendor=1"}, "t": {None}}
    (context,) = await Chat(store).all("s", CONTEXT)
    assert TRACE_ID not in context.json.decode()


async def test_a_sampling_decision_of_the_client_is_respected(store: Store) -> None:
    with recorded() as exporter:
        async with working(store, FunctionModel(lambda request: "fine")) as chat:
            with carrying(f"00-{TRACE_ID}-{CLIENT_SPAN}-00"):
                message = await chat.say("s", "hello")
            await chat.answer_to(message)
            await chat.settled()
    assert finished(exporter) == []
    traces = [event.trace or "" for event in await events_of(store, ALICE)]
    assert all(trace.startswith(f"00-{TRACE_ID}") and trace.endswith("-00") for trace in traces)


async def test_a_message_without_a_trace_begins_one(store: Store) -> None:
    with recorded() as exporter:
        async with working(store, FunctionModel(lambda request: "fine")) as chat:
            await chat.answer_to(await chat.say("s", "one"))
            await chat.answer_to(await chat.say("s", "two"))
            await chat.settled()
    roots = [span for span in finished(exporter) if not span.parent_id]
    assert [span.name for span in roots] == [f"retrieval {ASSISTANT}"] * 2
    assert len({span.trace_id for span in finished(exporter)}) == 2


# Other agents


async def test_a_function_agent_runs_inside_its_span(store: Store) -> None:
    seen: list[str | None] = []

    async def answer(call: Call) -> str:
        from opentelemetry import trace

        seen.append(f"{trace.get_current_span().get_span_context().span_id:016x}")
        return "fine"

    with recorded() as exporter:
        async with working(store, agents=[function_agent(answer)]) as chat:
            await chat.answer_to(await chat.say("s", "hello"))
            await chat.settled()
    spans = finished(exporter)
    assert seen == [one(spans, "invoke_agent").span_id]
    assert not [span for span in spans if span.name.startswith("chat")]


@pytest.mark.parametrize("propagates", [False, True])
async def test_the_trace_is_sent_to_a_model_server_only_if_configured(store: Store, propagates: bool) -> None:
    with ModelServer() as server, recorded(propagates=propagates) as exporter:
        scenario = server.scenario("normal")
        model = resolve_model(f"{scenario.url}#test")
        async with working(store, model) as chat:
            await chat.answer_to(await chat.say("s", "hello"))
            await chat.settled()
        await model.close()
    chatted = one(finished(exporter), "chat test")
    assert chatted.kind == "client"
    assert chatted.attributes["server.address"] == "127.0.0.1"
    assert chatted.attributes["gen_ai.provider.name"] == "openai"
    assert chatted.attributes["gen_ai.request.stream"] is True
    sent = scenario.requests[0].headers.get("traceparent", "")
    assert sent.startswith(f"00-{chatted.trace_id}-{chatted.span_id}-") if propagates else not sent
