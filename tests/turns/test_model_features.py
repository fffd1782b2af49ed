"""Fallback lists, parallel tool calls and images in turns, with their receipts."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from breadcrumbs.agents.models.base import ModelError, ModelReply, ToolCall
from breadcrumbs.agents.models.circuits import Circuits
from breadcrumbs.agents.models.fallback import FallbackModel
from breadcrumbs.agents.models.registry import ModelPool
from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
from breadcrumbs.agents.parallel_calls import MAX_AT_ONCE
from breadcrumbs.agents.tools import tool
from breadcrumbs.proofs.receipt_view import ViewOptions, view_receipt
from breadcrumbs.proofs.requests import load_receipt
from breadcrumbs.proofs.verification import verify_answer
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.images import check_images
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry import metrics
from tests.support.conversations import CONTEXT, Working, agent, recite, working
from tests.support.model_server import ModelServer


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


async def ask(chat: Working, text: str = "Hello", **fields: Any) -> Breadcrumb:
    answer = await chat.answer_to(await chat.say("s", text, **fields))
    assert (await verify_answer(chat.store, chat.owner, answer.id)).outcome == "equal"
    return answer


# Fallback lists


async def test_the_answer_names_the_model_that_answered_and_those_that_failed(
    store: Store, server: ModelServer
) -> None:
    down, up = server.scenario("failing"), server.scenario("normal")
    endpoints = {"down": {"url": down.url}, "up": {"url": up.url}}
    async with ModelPool({"endpoints": endpoints, "retries": 0}) as pool:
        agents = [agent(model=["down:first", "up:second"])]

        def model_of(one: Any) -> Any:
            return pool.resolve_list(one.definition.models, trusted=True)

        with capture_logs() as lines:
            async with working(store, model_of, agents=agents) as chat:
                answer = await ask(chat)
                view = await view_receipt(
                    store, answer, await load_receipt(store, chat.owner, answer.id), ViewOptions()
                )
                await chat.settled()
        assert answer.context["creator"]["model"] == "up:second"
        (call,) = answer.context["model_receipt"]["calls"]
        assert call["failed"] == [["down:first", "server"]]
        assert view["model"] == "up:second"
        assert view["calls"][0]["failed_models"] == [{"model": "down:first", "error_class": "server"}]
        (failed,) = [line for line in lines if line["event"] == "model failed, trying the next one"]
        assert (failed["model"], failed["error_class"], failed["session"]) == ("down:first", "server", "s")
        (answered,) = [
            line for line in lines if line["event"] == "turn answered" and line["kind"] == "agents"
        ]
        assert answered["model"] == "up:second"
        counted = metrics.REGISTRY.get_sample_value(
            "breadcrumbs_model_fallbacks_total", {"model": "down:first", "error_class": "server"}
        )
        assert counted == 1
        calls = metrics.REGISTRY.get_sample_value(
            "breadcrumbs_model_calls_total", {"agent": "default-chat-assistant", "model": "up:second"}
        )
        assert calls == 1


async def test_a_model_that_fails_between_two_calls_of_a_turn_is_replaced(store: Store) -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    first = ScriptedModel(
        [ModelReply("", (ToolCall("1", "look", "{}"),)), ModelError("down", retry=True)], name="first"
    )
    second = ScriptedModel(["done"], name="second")
    circuits = Circuits()
    agents = [agent(tools=["look"])]
    async with working(
        store, lambda _: FallbackModel([first, second], circuits), agents=agents, tools=[look]
    ) as chat:
        answer = await ask(chat)
        one, two = answer.context["model_receipt"]["calls"]
        assert "by" not in one and two["by"] == ["second", "second"]
        assert answer.context["creator"]["model"] == "second"


# Parallel tool calls


@pytest.mark.parametrize(("parallel", "at_once"), [(None, MAX_AT_ONCE), (False, 1)])
async def test_the_tool_calls_of_a_reply_run_at_the_same_time_up_to_a_limit(
    store: Store, parallel: bool | None, at_once: int
) -> None:
    running = most = 0

    @tool
    async def work(number: int) -> int:
        """Work for a moment."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.03 + 0.01 * (number % 3))
        running -= 1
        return number

    calls = tuple(ToolCall(f"c{n}", "work", f'{{"number": {n}}}') for n in range(MAX_AT_ONCE + 2))
    model = ScriptedModel([ModelReply("", calls), "done"])
    agents = [agent(tools=["work"], parallel_tool_calls=parallel)]
    async with working(store, model, agents=agents, tools=[work]) as chat:
        await ask(chat)
        assert most == at_once
        results = [one for one in model.requests[1].messages if one.role == "tool"]
        assert [one.content for one in results] == [f'{{"output":{n}}}' for n in range(MAX_AT_ONCE + 2)]


async def test_a_server_gets_parallel_tool_calls_and_may_refuse_it(store: Store, server: ModelServer) -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    agents = [agent(tools=["look"], parallel_tool_calls=False)]
    for behaviour, options in (("normal", {}), ("picky", {"refuses": ("parallel_tool_calls",)})):
        scenario = server.scenario(behaviour, **options)
        async with ModelPool() as pool:
            model = pool.resolve(f"{scenario.url}#m", trusted=True)
            async with working(store, model, agents=agents, tools=[look]) as chat:
                await ask(chat)
        assert scenario.requests[0].body["parallel_tool_calls"] is False
        assert ("parallel_tool_calls" in scenario.requests[-1].body) == (behaviour == "normal")


# Images

PNG = b64encode(b"\x89PNG the image").decode()
IMAGE = {"media_type": "image/png", "data": PNG}


async def test_an_attached_image_reaches_a_model_that_accepts_images(
    store: Store, server: ModelServer
) -> None:
    scenario = server.scenario("normal")
    async with ModelPool({"endpoints": {"local": {"url": scenario.url}}}) as pool:
        for name, accepts in (("gpt-4o", True), ("plain", False)):
            model = pool.resolve(f"local:{name}")
            async with working(store, model) as chat:
                await ask(chat, "What is this?", attached_images=[IMAGE])
                before, message = scenario.requests[-1].body["messages"][-2:]
                assert message["content"] == "What is this?"
                if accepts:
                    text, image = before["content"]
                    assert "image/png, 14 bytes" in text["text"]
                    assert image == {
                        "type": "image_url",
                        "image_url": {"url": f"data:image/png;base64,{PNG}"},
                    }
                else:
                    assert PNG not in str(scenario.requests[-1].body)
                    assert "You cannot see it" in before["content"]
                (context, *_) = await chat.all("s", CONTEXT)
                assert PNG not in str(context.context)


async def test_the_offline_model_and_later_turns_see_the_note_of_an_image(store: Store) -> None:
    model = FunctionModel(recite)
    async with working(store, model) as chat:
        await ask(chat, "What is this?", attached_images=[IMAGE, {"media_type": "text/html", "data": "x"}])
        await ask(chat, "And now?")
        messages = model.requests[-1].messages
        noted = [one for one in messages if one.name == "attachment"]
        assert "image/png" in noted[0].content and noted[0].images[0].data == PNG
        assert noted[1].content == "The user attached an image that cannot be read."


async def test_a_prompt_has_at_most_eight_images_the_newest_ones(store: Store) -> None:
    model = FunctionModel(recite)
    images = [{"media_type": "image/gif", "data": b64encode(bytes([n])).decode()} for n in range(1, 9)]
    async with working(store, model) as chat:
        await ask(chat, "One", attached_images=[IMAGE])
        await ask(chat, "Eight", attached_images=images)
        noted = [one for one in model.requests[-1].messages if one.name == "attachment"]
        assert [bool(one.images) for one in noted] == [False] + [True] * 8
        assert "too many images" in noted[0].content


@pytest.mark.parametrize(
    ("images", "where"),
    [
        ("x", "context.attached_images"),
        ([IMAGE] * 9, "context.attached_images"),
        ([IMAGE, {"media_type": "image/png", "data": "not base64!"}], "context.attached_images[1]"),
        ([{"media_type": "image/svg+xml", "data": PNG}], "context.attached_images[0]"),
        ([{"data": PNG}], "context.attached_images[0]"),
        ([{"media_type": "image/png", "data": ""}], "context.attached_images[0]"),
    ],
)
def test_images_that_cannot_be_used_are_refused(images: Any, where: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_images(images)
    assert caught.value.complaints[0].where == where
