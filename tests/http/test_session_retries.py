"""Retries of turns over HTTP."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from breadcrumbs.agents.models.base import ModelError, ModelRequest
from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
from breadcrumbs.runtime.settings.settings import DEVELOPER
from tests.http.answering import (
    LONG,
    Gate,
    answering,
    echo,
    has,
    messages,
    patch,
    retry,
    retry_letters,
    say,
    texts,
)
from tests.http.conftest import Site, problem
from tests.support.conversations import CONTEXT, agent, config, eventually, spoken


async def test_P3_a_failed_turn_is_run_again_without_a_second_message(site: Site) -> None:
    model = ScriptedModel([ModelError("out of order", retry=False), "fine", "fine, too"])
    async with answering(site, model) as team:
        failed = await say(site, "s", "hello")
        assert "out of order" in failed["error"]["text"]
        assert len(await team.dead_letters()) == 1
        assert await retry(site, "s") == failed["message"]["id"]
        await has(site, "s", "fine")
        assert await texts(site, "s", "user") == ["hello"]
        assert await team.dead_letters() == []
        (answer,) = [one for one in await messages(site, "s") if one["role"] == "assistant"]
        assert answer["trigger_id"] == failed["message"]["id"]
        problem(await site.client.post("/sessions/s/retry"), 409, "nothing-to-retry")
        named = await site.client.post("/sessions/s/retry", json={"message_id": failed["message"]["id"]})
        assert "answered" in problem(named, 409, "nothing-to-retry")["detail"]
        await team.settled()
        assert model.remaining == 1


@pytest.mark.parametrize("how", ["session", "dead letter"])
async def test_a_replay_does_not_return_a_failure_that_was_retried(site: Site, how: str) -> None:
    go_on = anyio.Event()
    asked = 0

    async def answer(request: ModelRequest) -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ModelError("out of order", retry=False)
        await go_on.wait()
        if asked == 2:
            raise ModelError("still out of order", retry=False)
        return "fine"

    async def again(wait: str = LONG, status: int = 200) -> dict[str, Any]:
        return await say(site, "s", "hello", wait=wait, status=status, headers={"Idempotency-Key": "k"})

    async def once_more() -> None:
        if how == "session":
            await retry(site, "s")
        else:
            await retry_letters(site)

    async with answering(site, FunctionModel(answer)) as team:
        failed = await again()
        assert "out of order" in failed["error"]["text"]
        assert "out of order" in (await again())["error"]["text"]
        await once_more()
        assert "error" not in await again("0.2", status=202)
        go_on.set()
        assert "still out of order" in (await again())["error"]["text"]
        await team.settled()
        await once_more()
        assert (await again())["answer"]["text"] == "fine"


async def test_each_retry_in_a_session_replaces_its_own_failure(site: Site) -> None:
    go_on, words = anyio.Event(), [f"word {number}" for number in range(5)]
    asked: list[str] = []

    async def answer(request: ModelRequest) -> str:
        asked.append(request.messages[-1].content)
        if len(asked) <= len(words):
            raise ModelError("out of order", retry=False)
        await go_on.wait()
        return "fine"

    async def again(word: str, wait: str = LONG, status: int = 200) -> dict[str, Any]:
        return await say(site, "s", word, wait=wait, status=status, headers={"Idempotency-Key": word})

    async with answering(site, FunctionModel(answer)) as team:
        for word in words:
            assert "out of order" in (await again(word))["error"]["text"]
        await team.settled()
        await retry_letters(site)
        for word in words:
            assert "error" not in await again(word, "0.1", status=202)
        go_on.set()
        for word in words:
            assert (await again(word))["answer"]["text"] == "fine"


@pytest.mark.parametrize("schema", ["agent.response.v1", "note.v1"])
async def test_an_answer_that_came_long_after_its_message_is_found(site: Site, schema: str) -> None:
    key = {"Idempotency-Key": "k"}
    first = await site.client.post("/sessions/s/messages", json={"message": "hello"}, headers=key)
    message = first.json()["message"]["id"]
    for number in range(250):
        await site.post(schema_name="step.v1", title=str(number), tags=["session:s"])
    creator = {"type": "agent", "agent_id": "a"}
    context = {"message": "at last", "trigger_id": message, "creator": creator}
    await site.post(schema_name=schema, title="at last", tags=["session:s"], context=context)
    again = await site.client.post(
        "/sessions/s/messages", params={"wait": 5}, json={"message": "hello"}, headers=key
    )
    assert again.status_code == 200, again.text
    assert again.json()["answer"]["text"] == "at last"


async def test_a_turn_can_fail_and_be_retried_repeatedly(site: Site) -> None:
    model = ScriptedModel([ModelError(f"broken {number}", retry=False) for number in range(3)] + ["fine"])
    async with answering(site, model) as team:
        await say(site, "s", "hello")
        for number in (1, 2):
            await retry(site, "s")
            expected = [f"broken {done}" for done in range(number + 1)]
            await eventually(lambda expected=expected: _errors(site, expected), "no error")  # type: ignore[misc]
            await team.settled()
        await retry(site, "s")
        await has(site, "s", "fine")
        assert await texts(site, "s", "user") == ["hello"] and await team.dead_letters() == []


async def _errors(site: Site, expected: list[str]) -> bool:
    return await texts(site, "s", "error") == expected


async def test_the_newest_failed_turn_is_retried_by_default(site: Site) -> None:
    broken = ModelError("broken", retry=False)
    model = ScriptedModel([broken, broken, "to two", "to three", "to one"])
    async with answering(site, model):
        one = (await say(site, "s", "one"))["message"]["id"]
        two = (await say(site, "s", "two"))["message"]["id"]
        assert await retry(site, "s") == two
        await has(site, "s", "to two")
        assert (await say(site, "s", "three"))["answer"]["text"] == "to three"
        assert await retry(site, "s", message_id=one) == one
        await has(site, "s", "to two", "to three", "to one")
        assert [(role, text) for role, text in spoken(model.requests[-1]) if role == "user"][-1] == (
            "user",
            "one",
        )


async def test_a_turn_that_was_stopped_can_be_run_again(site: Site) -> None:
    gate = Gate()
    async with answering(site, FunctionModel(gate)):
        message = (await say(site, "s", "hello", wait=None))["message"]["id"]
        await gate.begun.wait()
        await site.post(schema_name="agent.cancel.v1", tags=["session:s"], context={})
        await eventually(lambda: _errors(site, ["cancelled"]), "it was not stopped")
        gate.open.set()
        assert await retry(site, "s") == message
        await has(site, "s", "you said: hello")


async def test_a_turn_whose_context_has_expired_can_be_run_again(site: Site) -> None:
    model = ScriptedModel([ModelError("broken", retry=False), "fine"])
    async with answering(site, model) as team:
        await say(site, "s", "hello")
        (context,) = await team.all("s", CONTEXT)
        await site.store.delete(DEVELOPER, context.id)
        await retry(site, "s")
        await has(site, "s", "fine")


async def test_one_of_two_agents_that_failed_is_run_again_and_the_other_is_not(site: Site) -> None:
    tries: list[str] = []

    def model(of: Any) -> FunctionModel:
        def reply(request: ModelRequest) -> str:
            tries.append(of.definition.agent_id)
            if of.definition.agent_id == "weak" and tries.count("weak") == 1:
                raise ModelError("broken", retry=False)
            return f"from {of.definition.agent_id}"

        return FunctionModel(reply)

    names = ("strong", "weak")
    async with answering(
        site, model, agents=[agent(name) for name in names], configs=[config(name) for name in names]
    ) as team:
        await say(site, "s", "hello", wait=None)
        await eventually(lambda: _errors(site, ["broken"]), "no error")
        await team.settled()
        await retry(site, "s")
        await has(site, "s", "from strong", "from weak")
        await team.settled()
        assert sorted(tries) == ["strong", "weak", "weak"]


async def test_an_unanswered_message_of_a_fork_can_be_retried(site: Site) -> None:
    async with answering(site, FunctionModel(echo)):
        said = await say(site, "s", "hello")
        fork = await site.client.post("/sessions/s/fork", json={"message_id": said["message"]["id"]})
        session = fork.json()["id"]
        (message,) = await messages(site, session)
        problem(await site.client.post(f"/sessions/{session}/retry"), 409, "nothing-to-retry")
        assert await retry(site, session, message_id=message["id"]) == message["id"]
        await has(site, session, "you said: hello")


async def test_a_turn_that_cannot_be_retried_is_refused_with_the_reason(site: Site) -> None:
    await say(site, "s", "hello", wait=None)
    other = (await say(site, "t", "hello", wait=None))["message"]["id"]
    for body, status, name in (
        ({}, 409, "nothing-to-retry"),
        ({"message_id": other}, 404, "not-found"),
        ({"message_id": "x"}, 422, "invalid-input"),
        ({"id": other}, 422, "invalid-input"),
    ):
        problem(await site.client.post("/sessions/s/retry", json=body), status, name)
    await patch(site, "s", active=False)
    assert "paused" in problem(await site.client.post("/sessions/s/retry"), 409, "nothing-to-retry")["detail"]
