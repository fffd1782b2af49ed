"""Models never see feedback, on any path that leads to a prompt. It also starts no turn and interrupts none."""

from __future__ import annotations

from typing import Any

import pytest

from breadcrumbs.agents.functions import Call
from breadcrumbs.agents.models.base import ModelRequest
from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.agents.tools import ToolContext
from breadcrumbs.agents.tools.shipped import breadcrumb_search
from breadcrumbs.context_builder.builder import build_context
from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.retrieval.schema_hints import SchemaHints
from breadcrumbs.runtime.sessions.feedback import FeedbackWriter
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.errors import TurnFailed
from tests.contexts.support import config as parsed_config
from tests.support.conversations import (
    ALICE,
    ASSISTANT,
    BOB,
    CONTEXT,
    ERROR,
    MESSAGE,
    PacedModel,
    Working,
    agent,
    config,
    eventually,
    function_agent,
    recite,
    working,
)

FEEDBACK = "feedback.v1"
NOTE = "the note that no model may read"

CURATOR = Principal(ALICE, BOB)
ANN = Principal(ALICE, BOB, user_id="ann")

SELECTIONS: list[dict[str, Any]] = [
    {"schema_name": FEEDBACK},
    {"any_tags": ["feedback:down", "user:ann"]},
    {"all_tags": ["feedback:down"]},
    {"schema_name": FEEDBACK, "any_tags": ["feedback:down"]},
]
ALL_SOURCES: list[dict[str, Any]] = [
    *(
        {"key": f"{scope}{number}", **selection, "fetch": {"conversation_scope": scope, "limit": 50}}
        for scope in ("current", "user", "all")
        for number, selection in enumerate(SELECTIONS)
    ),
    {"key": "newest", "schema_name": FEEDBACK, "fetch": {"method": "latest"}},
    {"key": "messages", "schema_name": MESSAGE},
]


async def dislike(store: Store, answer: Breadcrumb, who: Principal = CURATOR) -> Breadcrumb:
    return await FeedbackWriter(store, who, answer.id).rate("down", NOTE)


def said(model: FunctionModel | PacedModel) -> str:
    return "\n".join(str(request) for request in model.requests)


async def disliked(chat: Working, session: str = "s", **fields: Any) -> Breadcrumb:
    answer = await chat.answer_to(await chat.say(session, "Hello", **fields))
    return await dislike(chat.store, answer)


async def test_no_context_contains_feedback_whatever_its_config_names(store: Store) -> None:
    model = FunctionModel(recite)
    async with working(store, model, configs=[config(sources=ALL_SOURCES)]) as chat:
        tags = ["user:ann"]
        answer = await chat.answer_to(await chat.say("s", "Hello", tags=tags))
        await dislike(store, answer)
        await dislike(store, answer, ANN)
        await chat.answer_to(await chat.say("s", "What do people think?", tags=tags))
        await chat.answer_to(await chat.say("other", "And elsewhere?", tags=tags))
        assert "What do people think?" in said(model) and NOTE not in said(model)
        contexts = await chat.all("s", CONTEXT) + await chat.all("other", CONTEXT)
        assert contexts and all(NOTE not in str(context.context) for context in contexts)


async def test_the_test_of_contexts_finds_a_schema_that_is_not_internal(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("breadcrumbs.runtime.retrieval.model_view.INTERNAL_SCHEMAS", frozenset())
    model = FunctionModel(recite)
    async with working(store, model, configs=[config(sources=ALL_SOURCES)]) as chat:
        await disliked(chat)
        await chat.answer_to(await chat.say("s", "Again"))
        assert NOTE in said(model)


async def test_an_agent_without_a_context_does_not_see_feedback_that_it_selects(store: Store) -> None:
    selectors: list[dict[str, Any]] = [
        {"schema_name": MESSAGE, "any_tags": ["user:message"]},
        {"role": "context", "key": "ratings", "schema_name": FEEDBACK},
        {"role": "context", "key": "all", "schema_name": FEEDBACK, "fetch": {"conversation_scope": "all"}},
        {"role": "context", "key": "tagged", "any_tags": ["feedback:down"]},
    ]
    model = FunctionModel(recite)
    plain = agent(subscriptions={"selectors": selectors})
    async with working(store, model, agents=[plain], configs=()) as chat:
        await disliked(chat)
        await chat.answer_to(await chat.say("s", "Again"))
        assert "Again" in said(model) and NOTE not in said(model)


async def test_a_function_agent_does_not_see_feedback(store: Store) -> None:
    seen: list[str] = []

    async def function(call: Call) -> str:
        seen.append(str(call))
        return "yes"

    async with working(
        store, agents=[function_agent(function)], configs=[config(sources=ALL_SOURCES)]
    ) as chat:
        await disliked(chat)
        await chat.answer_to(await chat.say("s", "Again"))
        assert len(seen) == 2 and NOTE not in str(seen)


async def test_the_search_tool_does_not_find_feedback(store: Store) -> None:
    async with working(store) as chat:
        await disliked(chat)
        context = ToolContext(ALICE, "s", ASSISTANT, "trigger", store)
        questions: list[dict[str, Any]] = [
            {},
            {"text": "note"},
            {"schema_name": FEEDBACK},
            {"tags": ["feedback:down"]},
        ]
        for question in questions:
            result = await breadcrumb_search.run(question, context)
            assert result.ok and FEEDBACK not in str(result.output) and NOTE not in str(result.output)


async def test_feedback_starts_no_turn_of_a_config_or_an_agent_that_names_it(store: Store) -> None:
    triggers = [{"schema_name": MESSAGE}, {"schema_name": FEEDBACK}, {"any_tags": ["feedback:down"]}]
    model = FunctionModel(recite)
    direct = agent("direct", subscriptions={"selectors": [{"schema_name": FEEDBACK}]})
    tagged = agent("tagged", subscriptions={"selectors": [{"any_tags": ["feedback:down"]}]})
    async with working(
        store, model, agents=[agent(), direct, tagged], configs=[config(update_triggers=triggers)]
    ) as chat:
        feedback = await disliked(chat)
        await chat.settled()
        assert len(model.requests) == 1
        assert await chat.errors("s") == [] and await chat.all("s", ERROR) == []
        (context,) = await chat.all("s", CONTEXT)
        assert context.version == 1
        assert [crumb.id for crumb in await chat.all("s", FEEDBACK)] == [feedback.id]


async def test_feedback_does_not_interrupt_a_running_answer(store: Store) -> None:
    selectors = [{"schema_name": CONTEXT, "all_tags": [f"consumer:{ASSISTANT}"]}, {"schema_name": FEEDBACK}]
    model = PacedModel()
    busy = agent(when_busy="interrupt", subscriptions={"selectors": selectors})
    async with working(store, model, agents=[busy]) as chat:
        model.allow("one")
        answer = await chat.answer_to(await chat.say("s", "one"))
        second = await chat.say("s", "two")
        await model.begun("two")
        feedback = await dislike(store, answer)

        async def is_read() -> bool:
            return chat.has_read("agents", feedback)

        await eventually(is_read, "the runner did not read the event")
        model.allow("two")
        assert (await chat.answer_to(second)).context["message"] == "re: two"
        assert await chat.errors("s") == []


async def test_an_agent_cannot_answer_with_feedback(store: Store) -> None:
    def forge(request: ModelRequest) -> str:
        return (
            '{"action": "create", "breadcrumb": {"schema_name": "feedback.v1", "context": {"message": "up"}}}'
        )

    for definition in (agent(), agent(emits={"schema_name": FEEDBACK})):
        async with working(store, FunctionModel(forge), agents=[definition]) as chat:
            answer = await chat.answer_to(await chat.say("s", "Hello"))
            assert answer.context["dropped_schema_name"] == FEEDBACK
            assert await chat.all("s", FEEDBACK) == []


async def test_a_preview_of_a_context_about_feedback_is_refused(store: Store) -> None:
    async with working(store) as chat:
        feedback = await disliked(chat)
        with pytest.raises(TurnFailed, match="feedback"):
            await build_context(store, parsed_config(), feedback, hints=SchemaHints(store))
