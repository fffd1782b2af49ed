"""Usage of turns: every reply that a worker received is recorded, also of attempts that failed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from secrets import token_hex

import pytest

from breadcrumbs import tool
from breadcrumbs.agents.models.base import ModelReply, TokenUsage
from breadcrumbs.agents.models.prices import Price
from breadcrumbs.agents.models.scripted import ScriptedModel
from breadcrumbs.agents.usage import UsageMeter
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.store.spending import Amounts
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.usage import read_days
from breadcrumbs.testing import call_tool
from tests.support.conversations import ALICE, agent, working


@tool
def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


@pytest.fixture
async def store(embedded_server: EmbeddedServer) -> AsyncIterator[Store]:
    store = await Store.open(embedded_server.url, namespace=f"u{token_hex(6)}")
    yield store
    await store.close()


async def today(store: Store) -> Amounts:
    day = datetime.fromtimestamp(store.now() / 1_000_000, UTC).date()
    return (await read_days(store, ALICE, [day])).get(day, Amounts())


def reply(text: str, tokens: int) -> ModelReply:
    return ModelReply(text, usage=TokenUsage(tokens, 1))


async def test_each_model_call_of_a_turn_with_tools_is_counted(store: Store) -> None:
    calling = replace(call_tool("double", number=4), usage=TokenUsage(10, 1))
    model = ScriptedModel([calling, reply("It is 8.", 100)], name="openai:m")
    async with working(store, model, agents=[agent(tools=["double"])], tools=[double]) as chat:
        await chat.answer_to(await chat.say("s", "Twice 4?"))
    counted = await today(store)
    assert (counted.calls, counted.input_tokens, counted.output_tokens) == (2, 110, 2)
    assert counted.unpriced == 2


async def test_a_reply_that_could_not_be_used_is_counted_with_the_next_answer(store: Store) -> None:
    model = ScriptedModel([reply(" ", 10), reply("At last.", 100)], name="openai:m")
    async with working(store, model) as chat:
        await chat.answer_to(await chat.say("s", "Hello"))
    counted = await today(store)
    assert (counted.calls, counted.input_tokens) == (2, 110)


async def test_the_replies_of_a_failed_turn_are_counted_with_its_error(store: Store) -> None:
    calling = [replace(call_tool("double", number=4), usage=TokenUsage(10, 1))] * 3
    model = ScriptedModel(calling, name="openai:m")
    looping = agent(tools=["double"], max_steps=3)
    async with working(store, model, agents=[looping], tools=[double]) as chat:
        error = await chat.error_about(await chat.say("s", "Twice 4?"))
        assert "max_steps" in error.context["error"]
    counted = await today(store)
    assert (counted.calls, counted.input_tokens) == (3, 30)


async def test_a_model_without_usage_is_not_counted(store: Store) -> None:
    async with working(store, ScriptedModel(["Hello"])) as chat:
        await chat.answer_to(await chat.say("s", "Hello"))
    assert await today(store) == Amounts()


def test_costs_follow_the_price_table_and_reports_of_providers_never_lower_a_counter() -> None:
    meter = UsageMeter({"m": Price(0.15, 0.6)})
    assert meter._amounts("openai:m", TokenUsage(1000, 10)).cost == 150_000 + 6_000
    assert meter._amounts("openai:other", TokenUsage(1, 1)).unpriced == 1
    assert meter._amounts("openai:m", TokenUsage(-5, -5)) == Amounts(calls=1)
    assert meter._amounts("openai:m", None) == Amounts(calls=1, unreported=1)
    assert meter.has_price("offline") and not meter.has_price("openai:other")
