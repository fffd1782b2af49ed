"""`crumb context explain` shows the complete prompt of the answer that a context was made for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from breadcrumbs.agents.functions import Call
from breadcrumbs.agents.models.base import ModelError, ModelRequest
from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.cli.receipts import server_receipt, stored_receipt
from breadcrumbs.context_builder.explain import explain
from breadcrumbs.context_builder.explanation import Explanation
from breadcrumbs.proofs.receipt_view import ViewOptions, view_receipt
from breadcrumbs.proofs.requests import load_receipt
from breadcrumbs.proofs.verification import Summary, verify_all
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.store import Store
from tests.support.adk_agents import chatting
from tests.support.adk_backend import fake_adk
from tests.support.conversations import (
    ALICE,
    CONTEXT,
    PacedModel,
    Working,
    agent,
    config,
    eventually,
    working,
)
from tests.turns.test_busy import until_the_runner_knows


async def explained(chat: Working, answer: Breadcrumb) -> tuple[Explanation, dict[str, Any] | None]:
    (context,) = await chat.all("s", CONTEXT)
    found = await explain(chat.store, ALICE, context.id, int(answer.context["context_version"]))
    return found, await stored_receipt(chat.store, ALICE, found, Settings())


async def is_verified(store: Store) -> bool:
    results = [result.outcome async for result in verify_all(store, ALICE, None, Summary())]
    return bool(results) and set(results) == {"equal"}


async def test_the_agent_can_have_another_name_than_its_consumer(store: Store) -> None:
    selectors = {"selectors": [{"schema_name": CONTEXT, "all_tags": ["consumer:desk"]}]}
    agents = [agent("ada", subscriptions=selectors)]
    async with working(store, agents=agents, configs=[config("desk")]) as chat:
        for text in ("one", "two"):
            answer = await chat.answer_to(await chat.say("s", text))
        found, receipt = await explained(chat, answer)
        assert found.consumer_id == "desk" and receipt is not None
        assert receipt["answer_id"] == str(answer.id) and receipt["agent_id"] == "ada"
        assert receipt["prompt"]["system_prompt"] == "You are a test."
        assert await is_verified(store)
        assert server_receipt(_Listing([answer]), found) == {"of": str(answer.id)}  # type: ignore[arg-type]


class _Listing:
    """A client whose server has these answers."""

    def __init__(self, answers: list[Breadcrumb]) -> None:
        self._answers = answers

    def list(self, **_: Any) -> list[Any]:
        return [_Listed(str(answer.id), {"context": answer.context}) for answer in self._answers]

    def request(self, _: str, path: str) -> Any:
        for answer in self._answers:
            if str(answer.id) in path:
                return _Reply({"of": str(answer.id)})
        raise NotFound("no such answer")


class _Listed:
    def __init__(self, id: str, document: dict[str, Any]) -> None:
        self.id, self.document = id, document


class _Reply:
    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def json(self) -> dict[str, Any]:
        return self._document


async def test_a_merged_answer_has_the_prompt_with_all_merged_messages(store: Store) -> None:
    model = PacedModel()
    async with working(store, model, agents=[agent(when_busy="merge")]) as chat:
        first = await chat.say("s", "one")
        await model.begun("one")
        others = [await chat.say("s", text) for text in ("two", "three")]
        await until_the_runner_knows(chat, others[-1])
        model.allow("one", "three")
        await chat.answer_to(first)
        merged = await chat.answer_to(others[-1])
        assert len(merged.context["answers"]) == 2
        _, receipt = await explained(chat, merged)
        assert receipt is not None and receipt["answer_id"] == str(merged.id)
        texts = [item["content"]["message"] for item in receipt["prompt"]["items"]]
        assert {"one", "two", "three"} <= set(texts)
        assert await is_verified(store)


async def test_functions_have_a_prompt_without_tools(store: Store) -> None:
    async def count(call: Call) -> str:
        return f"{len(call.messages)} messages"

    async with working(store, agents=[replace(agent(), function=count)]) as chat:
        answer = await chat.answer_to(await chat.say("s", "one"))
        _, receipt = await explained(chat, answer)
        assert receipt is not None and receipt["kind"] == "function" and receipt["calls"]
        assert [item["content"]["message"] for item in receipt["prompt"]["items"]] == ["one"]


async def test_an_agent_on_an_ADK_server_has_the_items_that_it_was_sent(store: Store) -> None:
    with fake_adk() as backend:
        async with chatting(store, backend.url) as chat:
            answer = await chat.answer_to(await chat.say("s", "one"))
            loaded = await load_receipt(store, ALICE, answer.id)
            receipt = await view_receipt(store, answer, loaded, ViewOptions())
            assert receipt["kind"] == "adk"
            assert [item["content"]["message"] for item in receipt["prompt"]["items"]] == ["one"]


@pytest.mark.parametrize("retry", [True, False])
async def test_a_failed_turn_has_no_receipt_and_its_context_is_explained(store: Store, retry: bool) -> None:
    def fail(request: ModelRequest) -> str:
        raise ModelError("overloaded", retry=retry)

    async with working(store, FunctionModel(fail), attempts=2) as chat:
        await chat.say("s", "one")
        await eventually(lambda: _has_errors(chat), "no error")
        (context,) = await chat.all("s", CONTEXT)
        found = await explain(store, ALICE, context.id)
        assert len(found.items) == 1
        assert await stored_receipt(store, ALICE, found, Settings()) is None


async def _has_errors(chat: Working) -> bool:
    return bool(await chat.errors("s"))
