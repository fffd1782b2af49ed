"""Messages and their answers, through a real server with its context builder and its agents."""

from __future__ import annotations

import time
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest

from breadcrumbs import AgentFailed, Answer, Client, Delta, Event, NoAnswer, NotFound, Written
from tests.client.support import CrumbUp, Line, client_of

pytestmark = pytest.mark.anyio

LONG = " ".join(f"w{number}" for number in range(300))
"""The offline model of these tests needs about six seconds to stream it back."""


async def test_two_sessions_stay_apart(client: Any, name: str) -> None:
    one, two = client.session(f"{name}-1"), client.session(f"{name}-2")
    await one.say("Hello session 1")
    await two.say("Hello session 2")
    answer = await one.say("What did I say?")
    assert "Hello session 1" in answer.text and "session 2" not in answer.text
    assert (answer.session_id, answer.agent_id) == (one.id, "default-chat-assistant")
    assert str(answer) == answer.text == answer.context["message"]
    assert answer.context["trigger_id"] == answer.trigger_id


async def test_a_session_without_a_name_gets_a_unique_one(client: Any) -> None:
    one, two = client.session(), client.session()
    assert one.id != two.id
    assert "nothing before this" in (await one.say("What did I say?")).text


async def test_messages_are_listed_in_order(client: Any, name: str) -> None:
    session = client.session(name)
    assert await session.messages() == ()
    for text in ("one", "two", "three"):
        await session.say(text)
    messages = await session.messages()
    assert [message.role for message in messages] == ["user", "agent"] * 3
    assert [message.text for message in messages[::2]] == ["one", "two", "three"]
    for said, answered in zip(messages[::2], messages[1::2], strict=True):
        assert said.text in answered.text and answered.trigger_id == said.id
        assert said.created_at < answered.created_at
    assert await session.messages(last=3) == messages[-3:]
    assert await session.messages(last=100) == messages


async def test_an_old_answer_is_found_behind_many_later_ones(client: Any, name: str) -> None:
    session = client.session(name)
    first = await session.say("say: first", idempotency_key=f"{name}-k")
    for number in range(120):
        context = {"message": str(number), "trigger_id": str(uuid4())}
        await client.create("agent.response.v1", context, session=name)
    assert (await session.wait(first.trigger_id, timeout=5)).text == "first"
    assert (await session.say("say: first", idempotency_key=f"{name}-k", timeout=5)).id == first.id
    with pytest.raises(NotFound, match=r"message .* not found in session"):
        await session.wait(str(uuid4()))


async def test_an_answer_arrives_in_deltas_and_then_complete(client: Any, name: str) -> None:
    steps = [step async for step in client.session(name).stream("say: alpha beta gamma delta epsilon")]
    *pieces, answer = steps
    assert isinstance(answer, Answer) and all(isinstance(piece, Delta) for piece in pieces)
    assert len(pieces) >= 2
    assert "".join(piece.text for piece in pieces) == answer.text == "alpha beta gamma delta epsilon"
    assert [piece.offset for piece in pieces] == sorted(piece.offset for piece in pieces)
    assert {piece.trigger_id for piece in pieces} == {answer.trigger_id}
    assert {piece.breadcrumb_id for piece in pieces} == {answer.id}


async def test_a_turn_yields_every_event_before_its_answer(client: Any, name: str) -> None:
    steps = [step async for step in client.session(name).turn("What is 6 * 7?")]
    written, *events, answer = steps
    assert isinstance(written, Written) and isinstance(answer, Answer)
    assert "42" in answer.text
    schemas = [event.schema_name for event in events if not isinstance(event, Delta)]
    for schema in ("user.message.v1", "agent.context.v1", "tool.request.v1", "tool.response.v1"):
        assert schema in schemas
    assert schemas[-1] == "agent.response.v1"
    assert all(isinstance(event, Event) and event.session_id == name for event in events)


async def test_an_answer_can_be_awaited_later(client: Any, name: str) -> None:
    session = client.session(name)
    written = await session.say("say: later", wait=False)
    assert isinstance(written, Written)
    assert (await session.wait(written.id)).text == "later"
    assert (await session.wait(written.id)).text == "later"


async def test_a_message_sent_twice_with_one_key_is_answered_once(client: Any, name: str) -> None:
    session = client.session(name)
    first = await session.say("say: once", idempotency_key="k")
    second = await session.say("say: once", idempotency_key="k")
    assert first == second
    assert len(await session.messages()) == 2


async def test_P3_a_retry_after_a_killed_connection_leaves_one_message_and_one_answer(
    up: CrumbUp, kind: str, name: str
) -> None:
    with Line(up.url) as line:
        client = client_of(kind, line.url)
        session = client.session(name)
        line.answers_to_lose = 3
        answer = await session.say("say: only once")
        assert len(line.lost) == 3
        assert [message.text for message in await session.messages()] == ["say: only once", "only once"]
        assert answer.text == "only once"
        await client.close()


async def test_a_connection_cut_during_an_answer_does_not_lose_it(up: CrumbUp, kind: str, name: str) -> None:
    states: list[str] = []
    with Line(up.url) as line:
        client = client_of(kind, line.url)
        pieces = 0
        text = "say: " + " ".join(f"w{number}" for number in range(60))
        async for step in client.session(name).stream(
            text, on_connection=lambda state, _: states.append(state)
        ):
            pieces += isinstance(step, Delta)
            if pieces in (2, 6):
                line.cut()
        assert isinstance(step, Answer) and f"say: {step.text}" == text
        assert "lost" in states and states[-1] == "back"
        await client.close()


async def test_cancelling_an_answer_raises_an_error_in_its_waiter(client: Any, name: str) -> None:
    session = client.session(name)

    async def stop() -> None:
        await anyio.sleep(0.7)
        await session.cancel("enough")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop)
        began = time.monotonic()
        with pytest.raises(AgentFailed, match="cancelled") as raised:
            await session.say(LONG)
    assert raised.value.cancelled
    assert time.monotonic() - began < 5
    assert [message.role for message in await session.messages()] == ["user"]
    assert (await session.say("say: still there")).text == "still there"


async def test_a_timeout_ends_the_wait_but_not_the_answer(client: Any, name: str) -> None:
    session = client.session(name)
    began = time.monotonic()
    with pytest.raises(NoAnswer, match="within 1 s") as raised:
        await session.say(LONG, timeout=1)
    assert 1 <= time.monotonic() - began < 3
    assert isinstance(raised.value, TimeoutError)
    answer = await session.wait(raised.value.trigger_id, timeout=60)
    assert LONG in answer.text


async def test_the_failure_of_an_agent_is_raised_with_its_reason(client: Any, name: str, kind: str) -> None:
    """The assistant of this owner uses a model without a key."""
    token = await client.token(owner_id="cccccccc-0000-4000-8000-00000000000c")
    tenant = client_of(kind, client.url, token=token.token)
    await tenant.create(
        "agent.def.v1",
        {
            "agent_id": "default-chat-assistant",
            "model": "openai:gpt-of-nobody",
            "subscriptions": {
                "selectors": [
                    {"schema_name": "agent.context.v1", "all_tags": ["consumer:default-chat-assistant"]}
                ]
            },
        },
        idempotency_key="definition",
    )
    await anyio.sleep(1)
    with pytest.raises(AgentFailed, match="OPENAI_API_KEY") as raised:
        await tenant.session(name).say("Hello", timeout=60)
    assert not raised.value.cancelled
    assert (await tenant.get(raised.value.breadcrumb_id)).schema_name == "agent.error.v1"
    with pytest.raises(AgentFailed):
        await tenant.session(name).wait(raised.value.trigger_id)
    await tenant.close()


async def test_a_stream_that_is_left_early_releases_its_connection(client: Any, name: str) -> None:
    session = client.session(name)
    for _ in range(12):
        async with aclosing(session.stream("say: a b c")) as steps:
            async for _ in steps:
                break
    assert (await session.say("say: fine")).text == "fine"


async def test_an_open_stream_misses_no_event_when_the_server_restarts(
    tmp_path: Path, kind: str, name: str
) -> None:
    with CrumbUp(tmp_path) as server:
        client = client_of(kind, server.url)
        poster = Client(server.url)
        seen: list[int] = []
        states: list[str] = []

        def write(numbers: range) -> None:
            for number in numbers:
                poster.create("note.v1", {"n": number}, session=name)

        async with anyio.create_task_group() as tasks:

            async def restart() -> None:
                while not seen:  # a stream that is still connecting receives nothing
                    await anyio.to_thread.run_sync(write, range(1))
                    await anyio.sleep(0.1)
                await anyio.to_thread.run_sync(write, range(1, 10))
                await anyio.to_thread.run_sync(server.stop)
                await anyio.to_thread.run_sync(server.start)
                await anyio.to_thread.run_sync(write, range(10, 20))

            tasks.start_soon(restart)
            events = client.events(
                session=name, schema_name="note.v1", on_connection=lambda state, _: states.append(state)
            )
            async with aclosing(events):
                with anyio.fail_after(60):
                    async for event in events:
                        seen.append(event.context["n"])
                        if seen[-1] == 19:
                            break
        assert [number for number in seen if number] == list(range(1, 20))
        assert states[-1] == "back"
        poster.close()
        await client.close()
