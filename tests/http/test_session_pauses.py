"""Paused sessions, in which no agent answers."""

from __future__ import annotations

import random

import anyio
import pytest

from breadcrumbs.agents.models.base import ModelError
from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
from tests.http.answering import Gate, answering, echo, has, more, patch, say
from tests.http.conftest import Site
from tests.support.conversations import CONTEXT, RESPONSE, Working, agent, config, eventually


async def consumers(team: Working, session: str) -> list[list[str]]:
    return [
        [tag for tag in context.tags if tag.startswith("consumer:")]
        for context in await team.all(session, CONTEXT)
    ]


async def test_a_paused_session_is_not_answered_until_it_is_resumed(site: Site) -> None:
    model = FunctionModel(echo)
    async with answering(site, model) as team:
        await say(site, "s", "one")
        assert await consumers(team, "s") == [["consumer:default-chat-assistant"]]
        assert (await patch(site, "s", active=False))["active"] is False
        await eventually(lambda: _consumed(team, "s", [[]]), "the consumer is still there")
        for text in ("two", "three"):
            said = await say(site, "s", text, wait="0.1", status=202)
            assert said.keys() == {"message", "session_version"}
        await team.settled()
        assert await consumers(team, "s") == [[]] and len(model.requests) == 1
        assert (await say(site, "elsewhere", "hi"))["answer"]
        assert (await patch(site, "s", active=True))["active"] is True
        await has(site, "s", "you said: one", "you said: two", "you said: three")
        await team.settled()
        assert await consumers(team, "s") == [["consumer:default-chat-assistant"]]
        assert len(model.requests) == 4
        assert (await say(site, "s", "four"))["answer"]["text"] == "you said: four"


async def _consumed(team: Working, session: str, expected: list[list[str]]) -> bool:
    return await consumers(team, session) == expected


async def test_pausing_and_resuming_start_no_turn(site: Site) -> None:
    model = ScriptedModel(["fine", ModelError("broken", retry=False), "not asked for"])
    async with answering(site, model) as team:
        await say(site, "s", "one")
        assert "error" in await say(site, "s", "two")
        for active in (False, True, False, True, True):
            await patch(site, "s", active=active)
            await team.settled()
            expected = ["consumer:default-chat-assistant"] if active else []
            await eventually(lambda expected=expected: _consumed(team, "s", [expected]), str(expected))  # type: ignore[misc]
        assert model.remaining == 1
        assert (await site.client.get("/sessions/s")).json()["version"] == 8, (
            "what changes nothing is no change"
        )


async def test_waiting_messages_survive_two_concurrent_pauses(site: Site) -> None:
    async with answering(site, FunctionModel(echo)) as team:
        await say(site, "s", "one")
        await patch(site, "s", active=False)
        await say(site, "s", "two", wait=None)
        await team.settled()
        # A second PATCH that was sent before the first one was visible.
        await team.post("session.state.v1", ["session:s", "session-paused"], {"active": False})
        await say(site, "s", "three", wait=None)
        await team.settled()
        assert await team.texts("s") == ["you said: one"]
        await patch(site, "s", active=True)
        await has(site, "s", "you said: one", "you said: two", "you said: three")


async def test_waiting_messages_are_answered_after_a_pause_without_the_tag(
    site: Site,
) -> None:
    async with answering(site, FunctionModel(echo)) as team:
        await say(site, "s", "one")
        await team.post("session.state.v1", ["session:s"], {"active": False})
        await say(site, "s", "two", wait=None)
        await patch(site, "s", state={"a": 1})
        await team.settled()
        assert await team.texts("s") == ["you said: one"]
        await patch(site, "s", active=True)
        await has(site, "s", "you said: one", "you said: two")


async def test_a_pause_before_the_first_message_holds(site: Site) -> None:
    model = FunctionModel(echo)
    async with answering(site, model) as team:
        await site.client.post("/sessions", json={"id": "s"})
        await patch(site, "s", active=False)
        await say(site, "s", "one", wait=None)
        await team.settled()
        assert model.requests == [] and await consumers(team, "s") == [[]]
        await patch(site, "s", active=True)
        await has(site, "s", "you said: one")


async def test_a_running_turn_completes_when_its_session_is_paused(site: Site) -> None:
    gate = Gate()
    async with answering(site, FunctionModel(gate)) as team:
        await say(site, "s", "one", wait=None)
        await gate.begun.wait()
        await say(site, "s", "two", wait=None)  # queued behind the first message
        await eventually(lambda: team.handled("contexts"), "no context")
        await patch(site, "s", active=False)
        await say(site, "s", "three", wait=None)
        gate.open.set()
        await has(site, "s", "you said: one", "you said: two")
        await team.settled()
        assert await consumers(team, "s") == [[]]
        await patch(site, "s", active=True)
        await has(site, "s", "you said: one", "you said: two", "you said: three")


async def test_each_consumer_is_paused(site: Site) -> None:
    names = ("one", "two")
    async with answering(
        site,
        lambda of: FunctionModel(lambda request: f"from {of.definition.agent_id}"),
        agents=[agent(name) for name in names],
        configs=[config(name) for name in names],
    ) as team:
        await say(site, "s", "hello", wait=None)
        await has(site, "s", "from one", "from two")
        await patch(site, "s", active=False)
        await eventually(lambda: _consumed(team, "s", [[], []]), "not paused")
        await say(site, "s", "again", wait=None)
        await team.settled()
        assert len(await team.answers("s")) == 2
        await patch(site, "s", active=True)
        await eventually(lambda: more(team, "s", RESPONSE, 3), "not answered")
        assert sorted(await team.texts("s")) == ["from one", "from one", "from two", "from two"]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_random_pauses_and_messages_give_one_answer_per_message(site: Site, seed: int) -> None:
    chance = random.Random(seed)
    said: list[str] = []

    async def talk(number: int) -> None:
        for turn in range(6):
            said.append(f"{number}.{turn}")
            await say(site, "s", said[-1], wait=None)
            await anyio.sleep(chance.random() / 20)

    async def pause() -> None:
        for _ in range(6):
            await patch(site, "s", active=False)
            await anyio.sleep(chance.random() / 20)
            await patch(site, "s", active=True)
            await anyio.sleep(chance.random() / 20)

    async with answering(site, FunctionModel(echo)) as team:
        await site.client.post("/sessions", json={"id": "s"})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pause)
            for number in range(3):
                tasks.start_soon(talk, number)

        async def all_answered() -> bool:
            return len(await team.answers("s")) >= len(said)

        await eventually(all_answered, "some were not answered", 30)
        await team.settled()
        triggers = [answer.context["trigger_id"] for answer in await team.answers("s")]
        assert len(triggers) == len(set(triggers)) == len(said) == 18
