"""Turns over HTTP: waiting for an answer, and turns that a deletion stops."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from breadcrumbs.agents.models.base import ModelError, ModelRequest
from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.settings.settings import DEVELOPER
from tests.http.answering import (
    LONG,
    Gate,
    answering,
    echo,
    has,
    messages,
    more,
    namespace_of,
    say,
    stream,
    texts,
)
from tests.http.conftest import Site, problem, running_site
from tests.support.conversations import MESSAGE, agent, eventually

# Waiting


async def test_a_waiting_request_returns_the_answer_to_its_message(site: Site) -> None:
    async with answering(site):
        said = await say(site, "s", "hello")
        assert said["answer"]["text"] == "you said: hello" and said["answer"]["role"] == "assistant"
        assert said["answer"]["trigger_id"] == said["message"]["id"] and "error" not in said
        assert said["session_version"] == 1
        assert await messages(site, "s") == [said["message"], said["answer"]]


async def test_a_waiting_request_returns_the_error_of_a_failed_turn(site: Site) -> None:
    async with answering(site, ScriptedModel([ModelError("no such model", retry=False)])):
        said = await say(site, "s", "hello")
        assert said["error"]["role"] == "error" and "no such model" in said["error"]["text"]
        assert said["error"]["trigger_id"] == said["message"]["id"] and "answer" not in said


async def test_without_an_answer_in_time_the_reply_is_202_and_the_message_is_stored(site: Site) -> None:
    said = await say(site, "s", "hello", wait="0.2", status=202)
    assert said.keys() == {"message", "session_version"}
    assert await texts(site, "s") == ["hello"]


async def test_waiting_ends_with_the_token(site: Site) -> None:
    for accept in ("application/json", "text/event-stream"):
        with anyio.fail_after(10):
            answer = await site.client.post(
                "/sessions/s/messages",
                params={"wait": LONG},
                json={"message": "hello"},
                headers=(await site.token(ttl_sec=2)) | {"accept": accept},
            )
        assert answer.status_code == (202 if accept == "application/json" else 200), answer.text


async def test_a_waiting_request_ignores_answers_to_other_messages(site: Site) -> None:
    gate = Gate()
    async with answering(site, FunctionModel(gate)), anyio.create_task_group() as tasks:
        answers: dict[str, str] = {}

        async def ask(text: str) -> None:
            answers[text] = (await say(site, "s", text))["answer"]["text"]

        tasks.start_soon(ask, "one")
        await gate.begun.wait()
        tasks.start_soon(ask, "two")
        gate.open.set()
    assert answers == {"one": "you said: one", "two": "you said: two"}


async def test_a_tool_call_is_not_an_answer_and_an_answer_can_have_any_schema(site: Site) -> None:
    async def answer_by_hand() -> None:
        await eventually(lambda: _posted(site), "not posted")
        (message,) = await messages(site, "s")
        common = {"trigger_id": message["id"]}
        for schema, context in (
            ("tool.request.v1", {"tool": "t", "requestedBy": "a"}),
            ("tool.response.v1", {"tool": "t"}),
            ("note.v1", {"creator": "somebody"}),
            ("weather.v1", {"creator": {"type": "agent", "agent_id": "a"}, "message": "sunny"}),
        ):
            await site.post(schema_name=schema, tags=["session:s"], context={**context, **common})

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer_by_hand)
        said = await say(site, "s", "hello", headers={"Idempotency-Key": "k"})
    assert said["answer"]["text"] == "sunny" and said["answer"]["schema_name"] == "weather.v1"
    again = await say(site, "s", "hello", headers={"Idempotency-Key": "k"})
    assert again["answer"] == said["answer"]


async def _posted(site: Site) -> bool:
    return await site.count() > 0


@pytest.mark.parametrize("wait", ["-1", "x", "601", "nan", "inf", "1e9", "", "٣"])
async def test_an_invalid_wait_is_refused_and_nothing_is_posted(site: Site, wait: str) -> None:
    answer = await site.client.post("/sessions/s/messages", json={"message": "x"}, params={"wait": wait})
    problem(answer, 422, "invalid-input")
    assert await site.count() == 0


async def test_an_invalid_message_is_refused_before_waiting(site: Site) -> None:
    for accept in ("application/json", "text/event-stream"):
        answer = await site.client.post(
            "/sessions/s/messages", json={"message": ""}, params={"wait": LONG}, headers={"Accept": accept}
        )
        problem(answer, 422, "invalid-input")
    assert site.app.hub.clients == 0


async def test_a_streaming_request_receives_the_answer_in_pieces(site: Site) -> None:
    words = " ".join(f"word{number}" for number in range(30))
    async with answering(site, FunctionModel(lambda request: words)):
        events = await stream(site, "s", "hello")
    names = [name for name, _ in events]
    assert names[0] == "message" and names[-1] == "answer" and set(names[1:-1]) == {"delta"}
    assert events[0][1]["message"]["text"] == "hello" and events[0][1]["session_version"] == 1
    assert "".join(data["text"] for name, data in events if name == "delta") == words
    assert events[-1][1]["text"] == words
    assert events[-1][1]["trigger_id"] == events[0][1]["message"]["id"]
    assert site.app.hub.clients == 0


async def test_a_stream_ends_with_the_error_or_when_its_time_is_up(site: Site) -> None:
    events = await stream(site, "s", "hello", params={"wait": "0.2"})
    assert [name for name, _ in events] == ["message", "timeout"]
    assert events[1][1] == {"message_id": events[0][1]["message"]["id"], "seconds": 0.2}
    async with answering(site, ScriptedModel([ModelError("broken", retry=False)] * 2)):
        events = await stream(site, "t", "hello")
        assert [name for name, _ in events] == ["message", "error"]
        assert "broken" in events[1][1]["text"]


@pytest.mark.parametrize("form", ["json", "stream"])
async def test_P3_a_retry_with_the_same_key_returns_the_existing_answer(site: Site, form: str) -> None:
    model = FunctionModel(echo)
    async with answering(site, model):
        first = await say(site, "s", "hello", headers={"Idempotency-Key": "k"})
        async with running_site(site.url, namespace=namespace_of(site)) as replica:
            if form == "json":
                again = await say(replica, "s", "hello", headers={"Idempotency-Key": "k"})
                assert again["answer"] == first["answer"] and again["message"] == first["message"]
            else:
                events = await stream(replica, "s", "hello", headers={"Idempotency-Key": "k"})
                assert [name for name, _ in events] == ["message", "answer"]
                assert events[-1][1] == first["answer"]
    assert len(model.requests) == 1
    assert len(await messages(site, "s")) == 2


async def test_P13_any_replica_can_wait_for_an_answer_that_is_being_made(site: Site) -> None:
    """The first replica dies during the wait. The client repeats its request to another replica and misses nothing."""
    gate = Gate()
    async with (
        answering(site, FunctionModel(gate)),
        running_site(site.url, namespace=namespace_of(site)) as replica,
    ):
        with anyio.move_on_after(LONG_ENOUGH) as given_up:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(say, site, "s", "hello", headers={"Idempotency-Key": "k"}))
                await gate.begun.wait()
                tasks.cancel_scope.cancel()
        assert not given_up.cancelled_caught
        assert site.app.hub.clients == 0
        async with anyio.create_task_group() as tasks:
            answers: list[Any] = []

            async def ask_again() -> None:
                answers.append(await say(replica, "s", "hello", headers={"Idempotency-Key": "k"}))

            tasks.start_soon(ask_again)
            await eventually(lambda: _listening(replica), "no client is subscribed")
            gate.open.set()
        assert answers[0]["answer"]["text"] == "you said: hello"
    assert await texts(site, "s") == ["hello", "you said: hello"]


LONG_ENOUGH = 20.0


async def _listening(site: Site) -> bool:
    return site.app.hub.clients > 0


async def test_a_disconnected_client_does_not_stop_the_turn(site: Site) -> None:
    gate = Gate()
    async with answering(site, FunctionModel(gate)) as team:
        forms: tuple[Any, ...] = (say, stream)
        for number, form in enumerate(forms):
            session = f"s{number}"
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(form, site, session, "hello")
                await gate.begun.wait()
                tasks.cancel_scope.cancel()
            gate.open.set()
            await has(site, session, "you said: hello")
            gate.begun, gate.open = anyio.Event(), anyio.Event()
        await team.settled()
    assert not gate.stopped and site.app.hub.clients == 0


async def test_a_merged_answer_is_an_answer_to_each_of_its_messages(site: Site) -> None:
    gate = Gate()
    async with (
        answering(site, FunctionModel(gate), agents=[agent(when_busy="merge")]) as team,
        anyio.create_task_group() as tasks,
    ):
        said: dict[str, Any] = {}

        async def ask(text: str) -> None:
            said[text] = await say(site, "s", text)

        tasks.start_soon(ask, "one")
        await gate.begun.wait()
        for text in ("two", "three"):
            before = len(await team.all("s", MESSAGE))
            tasks.start_soon(ask, text)
            await eventually(lambda before=before: more(team, "s", MESSAGE, before), "not posted")  # type: ignore[misc]
        await eventually(lambda: team.read_all("agents"), "the runner has not read it")
        gate.open.set()
    assert said["one"]["answer"]["text"] == "you said: one"
    assert said["two"]["answer"] == said["three"]["answer"]


# Deleting


async def _never_written(site: Site, session: str) -> None:
    problem(await site.client.get(f"/sessions/{session}"), 404, "not-found")
    assert (await site.store.list(DEVELOPER, Query(session_id=session))).items == []


@pytest.mark.parametrize("form", ["json", "stream"])
async def test_P6_a_turn_in_the_model_stops_and_writes_nothing_when_its_session_is_deleted(
    site: Site, form: str
) -> None:
    gate = Gate()
    async with answering(site, FunctionModel(gate)) as team, anyio.create_task_group() as tasks:
        heard: list[Any] = []

        async def wait() -> None:
            if form == "stream":
                heard.append(await stream(site, "s", "hello"))
            else:
                answer = await site.client.post(
                    "/sessions/s/messages", json={"message": "hello"}, params={"wait": LONG}, timeout=60
                )
                heard.append(problem(answer, 409, "session-gone"))

        tasks.start_soon(wait)
        await gate.begun.wait()
        await say(site, "s", "this one waits behind it", wait=None)
        assert (await site.client.delete("/sessions/s")).status_code == 200
        await eventually(lambda: _is(lambda: gate.stopped), "the model goes on")
        gate.open.set()
        await team.settled()
        await _never_written(site, "s")
        assert await team.dead_letters() == [] and await team.dead_letters("contexts") == []
        again = await say(site, "s", "hello again")
        assert again["answer"]["text"] == "you said: hello again" and again["session_version"] == 1
    if form == "stream":
        assert heard[0][0][0] == "message"
        assert heard[0][-1][0] == "problem" and heard[0][-1][1]["type"] == "/docs#problem-session-gone"


async def _is(condition: Callable[[], bool]) -> bool:
    return condition()


async def test_P6_a_turn_in_another_process_stops_when_its_session_is_deleted(site: Site) -> None:
    process = subprocess.Popen(  # noqa: ASYNC220 - starting it takes no time
        [sys.executable, "-m", "tests.http.thinking", site.url, namespace_of(site)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    heard: list[str] = []

    def until(word: str) -> None:
        """Read lines until this word. Workers also write log lines."""
        assert process.stdout is not None
        while word not in heard:
            line = process.stdout.readline()
            assert line, heard
            heard.append(line.strip())

    try:
        with anyio.fail_after(60):
            await anyio.to_thread.run_sync(until, "ready", abandon_on_cancel=True)
            await say(site, "s", "hello", wait=None)
            await anyio.to_thread.run_sync(until, "begins", abandon_on_cancel=True)
            assert (await site.client.delete("/sessions/s")).status_code == 200
            await anyio.to_thread.run_sync(until, "stopped", abandon_on_cancel=True)
        await _never_written(site, "s")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_P6_a_running_tool_writes_nothing_into_a_deleted_session(site: Site) -> None:
    """The turn cannot be stopped in time. Its commits are refused, and it leaves no error and no dead letter."""
    stuck = anyio.Event()
    begun = anyio.Event()

    async def model(request: ModelRequest) -> str:
        begun.set()
        with anyio.CancelScope(shield=True):  # not cancellable, like a thread
            await stuck.wait()
        return "too late"

    async with answering(site, FunctionModel(model)) as team:
        await say(site, "s", "hello", wait=None)
        await begun.wait()
        await site.client.delete("/sessions/s")
        fresh = await say(site, "s", "somebody else", wait=None)
        stuck.set()
        await has(site, "s", "too late")
        (answer,) = [one for one in await messages(site, "s") if one["role"] == "assistant"]
        assert answer["trigger_id"] == fresh["message"]["id"]
        await team.settled()
        assert await team.dead_letters() == [] and await texts(site, "s", "error") == []
