"""Turns over HTTP: waiting for an answer, forks, retries, pauses, and what a deletion stops."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import anyio
import orjson
import pytest

from breadcrumbs.agents.models.base import ModelError, ModelRequest
from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
from breadcrumbs.runtime.query import Query
from breadcrumbs.runtime.settings import DEVELOPER
from breadcrumbs.runtime.store import Store
from tests.http.conftest import KEY, Site, problem, running_site
from tests.support.turns import (
    CONTEXT,
    MESSAGE,
    RESPONSE,
    Working,
    agent,
    config,
    eventually,
    opened,
    spoken,
    working,
)

LONG = "30"
"""Seconds that no test waits in full."""


def echo(request: ModelRequest) -> str:
    return f"you said: {spoken(request)[-1][1]}"


class Gate:
    """A model that waits until it is let through."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.open = anyio.Event()
        self.stopped = False

    async def __call__(self, request: ModelRequest) -> str:
        self.begun.set()
        try:
            await self.open.wait()
        except BaseException:
            self.stopped = True
            raise
        return echo(request)


def namespace_of(site: Site) -> str:
    return site.store.keys.meta.decode().removesuffix(":meta")


@asynccontextmanager
async def answering(site: Site, model: Any = None, **options: Any) -> AsyncIterator[Working]:
    """Workers with a connection of their own: all that they share with the server is the store."""
    async with (
        opened(site.url, lanes=site.store.lanes, namespace=namespace_of(site)) as store,
        working(store, model or FunctionModel(echo), owner=DEVELOPER, **options) as team,
    ):
        yield team


async def say(
    site: Site,
    session: str,
    text: str,
    *,
    wait: str | None = LONG,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> dict[str, Any]:
    answer = await site.client.post(
        f"/sessions/{session}/messages",
        json={"message": text},
        params={} if wait is None else {"wait": wait},
        headers=headers,
        timeout=60,
    )
    assert answer.status_code == (201 if wait is None else status), answer.text
    said: dict[str, Any] = answer.json()
    return said


async def stream(site: Site, session: str, text: str, **options: Any) -> list[tuple[str, Any]]:
    """The named events of an answer, each with its data."""
    headers = {"Accept": "text/event-stream", **options.pop("headers", {})}
    answer = await site.client.post(
        f"/sessions/{session}/messages", json={"message": text}, headers=headers, timeout=60, **options
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "content-length" not in answer.headers
    found = []
    for frame in answer.text.split("\n\n"):
        if frame and not frame.startswith(":"):
            name, data = frame.split("\n")
            found.append((name.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))))
    return found


async def messages(site: Site, session: str) -> list[dict[str, Any]]:
    answer = await site.client.get(f"/sessions/{session}/messages", params={"limit": 1000})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


async def texts(site: Site, session: str, role: str | None = None) -> list[str]:
    return [one["text"] for one in await messages(site, session) if role in (None, one["role"])]


async def patch(site: Site, session: str, **change: Any) -> dict[str, Any]:
    answer = await site.client.patch(f"/sessions/{session}", json=change)
    assert answer.status_code == 200, answer.text
    changed: dict[str, Any] = answer.json()
    return changed


async def retry(site: Site, session: str, **body: Any) -> str:
    answer = await site.client.post(f"/sessions/{session}/retry", json=body)
    assert answer.status_code == 202, answer.text
    assert answer.json()["ok"] is True
    return str(answer.json()["message_id"])


async def retry_letters(site: Site) -> None:
    for letter in (await site.client.get("/dlq")).json():
        answer = await site.client.post(f"/dlq/{letter['id']}/retry")
        assert answer.status_code == 200, answer.text


async def has(site: Site, session: str, *expected: str) -> None:
    """Wait until exactly these answers are there."""

    async def look() -> bool:
        return await texts(site, session, "assistant") == list(expected)

    await eventually(look, f"expected the answers {expected}")


# Waiting


async def test_who_waits_gets_the_answer_to_what_they_said(site: Site) -> None:
    async with answering(site):
        said = await say(site, "s", "hello")
        assert said["answer"]["text"] == "you said: hello" and said["answer"]["role"] == "assistant"
        assert said["answer"]["trigger_id"] == said["message"]["id"] and "error" not in said
        assert said["session_version"] == 1
        assert await messages(site, "s") == [said["message"], said["answer"]]


async def test_who_waits_for_a_turn_that_fails_gets_the_error(site: Site) -> None:
    async with answering(site, ScriptedModel([ModelError("no such model", retry=False)])):
        said = await say(site, "s", "hello")
        assert said["error"]["role"] == "error" and "no such model" in said["error"]["text"]
        assert said["error"]["trigger_id"] == said["message"]["id"] and "answer" not in said


async def test_when_nobody_answers_in_time_it_is_202_and_the_message_is_stored(site: Site) -> None:
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


async def test_an_answer_to_somebody_elses_message_is_not_mine(site: Site) -> None:
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


async def test_the_use_of_a_tool_is_no_answer_and_an_answer_of_any_schema_is_one(site: Site) -> None:
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
async def test_a_wait_that_is_none_is_refused_and_nothing_is_posted(site: Site, wait: str) -> None:
    answer = await site.client.post("/sessions/s/messages", json={"message": "x"}, params={"wait": wait})
    problem(answer, 422, "invalid-input")
    assert await site.count() == 0


async def test_a_bad_message_is_refused_before_anybody_waits(site: Site) -> None:
    for accept in ("application/json", "text/event-stream"):
        answer = await site.client.post(
            "/sessions/s/messages", json={"message": ""}, params={"wait": LONG}, headers={"Accept": accept}
        )
        problem(answer, 422, "invalid-input")
    assert site.app.hub.clients == 0


async def test_the_answer_comes_in_pieces_to_who_wants_a_stream(site: Site) -> None:
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
async def test_P3_who_asks_again_with_the_same_key_gets_the_answer_that_is_there(
    site: Site, form: str
) -> None:
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
    """The first one dies in the middle; the client asks again, somewhere else, and misses nothing."""
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
            await eventually(lambda: _listening(replica), "nobody listens")
            gate.open.set()
        assert answers[0]["answer"]["text"] == "you said: hello"
    assert await texts(site, "s") == ["hello", "you said: hello"]


LONG_ENOUGH = 20.0


async def _listening(site: Site) -> bool:
    return site.app.hub.clients > 0


async def test_a_client_that_goes_away_does_not_stop_the_turn(site: Site) -> None:
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
            await eventually(lambda before=before: _more(team, "s", MESSAGE, before), "not posted")  # type: ignore[misc]
        await eventually(lambda: team.read_all("agents"), "the runner has not read it")
        gate.open.set()
    assert said["one"]["answer"]["text"] == "you said: one"
    assert said["two"]["answer"] == said["three"]["answer"]


async def _more(team: Working, session: str, schema: str, than: int) -> bool:
    return len(await team.all(session, schema)) > than


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


async def test_P6_a_turn_in_another_process_stops_too(site: Site) -> None:
    process = subprocess.Popen(  # noqa: ASYNC220 - starting it takes no time
        [sys.executable, "-m", "tests.http.thinking", site.url, namespace_of(site)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    heard: list[str] = []

    def until(word: str) -> None:
        """The next line that is one of ours; workers also log."""
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


async def test_P6_a_tool_that_is_running_writes_nothing_into_a_session_that_is_gone(site: Site) -> None:
    """A turn that cannot be stopped in time: its commits are refused, and it leaves neither error nor letter."""
    stuck = anyio.Event()
    begun = anyio.Event()

    async def model(request: ModelRequest) -> str:
        begun.set()
        with anyio.CancelScope(shield=True):  # as a thread would be
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


# Forks


def timeless(message: dict[str, Any]) -> dict[str, Any]:
    """Without what a copy has of its own."""
    left_out = ("id", "trigger_id", "tags", "context", "tool")
    return {name: value for name, value in message.items() if name not in left_out}


async def test_P8_a_fork_has_what_was_said_up_to_a_message_with_its_times(site: Site) -> None:
    model = FunctionModel(echo)
    async with answering(site, model) as team:
        await site.client.post("/sessions", json={"id": "s", "title": "T", "user_id": "u", "state": {"a": 1}})
        one = await say(site, "s", "one")
        await patch(site, "s", state={"a": None, "b": 2})
        two = await say(site, "s", "two")
        await patch(site, "s", state={"b": 3}, title="later")
        await say(site, "s", "three")
        answer = await site.client.post(
            "/sessions/s/fork", json={"message_id": two["message"]["id"], "id": "f"}
        )
        assert answer.status_code == 201 and answer.headers["location"] == "/sessions/f"
        fork = answer.json()
        assert fork["state"] == {"b": 2} and fork["title"] == "later" and fork["user_id"] == "u"
        assert fork["counts"] == {"messages": 2, "answers": 1, "errors": 0, "breadcrumbs": 4}
        copies, originals = await messages(site, "f"), (await messages(site, "s"))[:3]
        assert [timeless(copy) for copy in copies] == [timeless(original) for original in originals]
        assert not {copy["id"] for copy in copies} & {original["id"] for original in originals}
        assert copies[1]["trigger_id"] == copies[0]["id"] != one["message"]["id"]
        assert all("session:f" in copy["tags"] and copy["context"]["session_id"] == "f" for copy in copies)
        assert "context_id" not in copies[1]["context"]
        await team.settled()
        assert len(model.requests) == 3, "nobody answers what is history"
        assert await texts(site, "f") == ["one", "you said: one", "two"]
        assert (await say(site, "f", "four"))["answer"]["text"] == "you said: four"
        assert spoken(model.requests[-1]) == [
            ("user", "one"),
            ("assistant", "you said: one"),
            ("user", "two"),
            ("user", "four"),
        ]
        assert len(await messages(site, "s")) == 6


async def test_a_fork_of_everything_has_tools_but_no_errors_and_no_contexts(site: Site) -> None:
    async with answering(site, ScriptedModel([ModelError("broken", retry=False), "fine"])) as team:
        failed = await say(site, "s", "one")
        assert "error" in failed
        two = await say(site, "s", "two")
        request = await site.post(
            schema_name="tool.request.v1",
            tags=["session:s"],
            context={"tool": "t", "trigger_id": two["message"]["id"], "input": {}},
        )
        await site.post(
            schema_name="tool.response.v1",
            tags=["session:s"],
            context={"tool": "t", "request_id": request["id"], "output": "x"},
        )
        await site.post(schema_name="note.v1", tags=["session:s"], context={"about": [two["answer"]["id"]]})
        await team.settled()
        fork = (await site.client.post("/sessions/s/fork")).json()
        copies = await messages(site, fork["id"])
        assert [copy["role"] for copy in copies] == ["user", "user", "assistant", "tool", "tool"]
        assert copies[4]["tool"]["request_id"] == copies[3]["id"]
        crumbs = [crumb async for crumb in site.store.walk(DEVELOPER, Query(session_id=fork["id"]))]
        assert sorted(crumb.schema_name or "" for crumb in crumbs if "." in (crumb.schema_name or "")) == [
            RESPONSE, "note.v1", "session.v1", "tool.request.v1", "tool.response.v1", MESSAGE, MESSAGE,
        ]  # fmt: skip
        (note,) = [crumb for crumb in crumbs if crumb.schema_name == "note.v1"]
        assert note.context["about"] == [copies[2]["id"]]


async def test_a_fork_keeps_what_adk_events_did_to_the_state(site: Site) -> None:
    for delta in ({"a": None, "b": 1}, {"c": 2}):
        await site.post(schema_name="adk.event.v1", tags=["session:s"], context={"state_delta": delta})
    await patch(site, "s", state={"b": None})
    fork = (await site.client.post("/sessions/s/fork", json={})).json()
    assert fork["state"] == {"a": None, "c": 2}
    assert fork["counts"]["breadcrumbs"] == 3


async def test_a_fork_keeps_the_nulls_that_adk_kept_and_takes_out_what_was_taken_out(site: Site) -> None:
    """Also where the breadcrumb that set a null stays behind, and the one that set the other name is copied."""
    adk = {"state_delta": {"kept": None, "over": None}, "null_is_a_value": True}
    await site.post(schema_name="session.v1", tags=["session:s"], context=adk)
    await site.post(schema_name="adk.event.v1", tags=["session:s"], context={"state_delta": {"out": 1}})
    await patch(site, "s", state={"out": None, "over": None})
    fork = (await site.client.post("/sessions/s/fork", json={})).json()
    assert fork["state"] == {"kept": None} == (await site.client.get("/sessions/s")).json()["state"]


async def test_a_fork_publishes_nothing_that_was_kept_from_others(keyed: Site) -> None:
    curator, roles = await keyed.token(KEY), ["emitter", "subscriber"]
    one, two = [await keyed.token(KEY, agent_id=str(uuid4()), roles=roles) for _ in range(2)]
    fields: dict[str, Any] = {"schema_name": "session.state.v1", "tags": ["session:s"]}
    await keyed.post(one, **fields, context={"state_delta": {"open": 1, "pin": "was open"}})
    secret = {"pin": 1234, "key": {"authType": "apiKey", "apiKey": "hush"}}
    await keyed.post(one, **fields, context={"state_delta": secret}, sensitivity="secret")
    await keyed.post(one, **fields, context={"state_delta": {"mine": 1}}, visibility="private")

    async def forked(headers: dict[str, str]) -> str:
        answer = await keyed.client.post("/sessions/s/fork", json={}, headers=headers)
        assert answer.status_code == 201, answer.text
        name: str = answer.json()["id"]
        return name

    async def seen(session: str, headers: dict[str, str]) -> tuple[Any, str]:
        found = await keyed.client.get(f"/sessions/{session}", headers=headers)
        asked: dict[str, str] = {"session_id": session, "include_context": "true"}
        return found.json()["state"], (
            await keyed.client.get("/breadcrumbs", params=asked, headers=headers)
        ).text

    by_two = await forked(two)
    for headers in (one, two, curator):
        state, crumbs = await seen(by_two, headers)
        assert state == {"open": 1} and "1234" not in crumbs and "mine" not in crumbs
    by_one = await forked(one)
    assert (await seen(by_one, one))[0] == {"open": 1, "mine": 1}
    state, crumbs = await seen(by_one, two)
    assert "mine" not in state and "mine" not in crumbs
    by_curator = await forked(curator)
    assert (await seen(by_curator, curator))[0] == {"open": 1, "mine": 1, **secret}
    for headers in (one, two):
        state, crumbs = await seen(by_curator, headers)
        assert not state.keys() & {"pin", "key", "mine"} and "hush" not in crumbs and "1234" not in crumbs


async def test_a_fork_has_corrections_and_not_what_became_secret(keyed: Site) -> None:
    curator = await keyed.token(KEY)
    plain = await keyed.token(KEY, agent_id=str(uuid4()), roles=["emitter", "subscriber"])
    answers = [
        await keyed.post(
            curator,
            schema_name=RESPONSE,
            tags=["session:s"],
            context={"message": f"wrong {number}", "state_delta": {f"n{number}": number}},
        )
        for number in range(3)
    ]
    broken = {"context": {"message": "broken", "session_id": "s", "state_delta": 5}}
    corrected = {"context": {"message": "right", "session_id": "s", "state_delta": {"n0": 9, "late": 1}}}
    for answer, change in zip(answers, (corrected, {"sensitivity": "secret"}, broken), strict=True):
        changed = await keyed.client.patch(f"/breadcrumbs/{answer['id']}", json=change, headers=curator)
        assert changed.status_code == 200, changed.text
    fork = (await keyed.client.post("/sessions/s/fork", json={}, headers=plain)).json()
    found = await keyed.client.get(f"/sessions/{fork['id']}/messages", headers=plain)
    assert [message["text"] for message in found.json()["messages"]] == ["right", "broken"]
    # State is what the first version said, as it is in the session that this comes from.
    assert fork["state"] == {"n0": 0, "n2": 2}
    whole = (await keyed.client.post("/sessions/s/fork", json={}, headers=curator)).json()
    assert whole["state"] == {"n0": 0, "n1": 1, "n2": 2}
    found = await keyed.client.get(f"/sessions/{whole['id']}/messages", headers=plain)
    assert [message.get("text") for message in found.json()["messages"]] == ["right", None, "broken"]


async def test_a_fork_of_a_fork_and_a_fork_of_nothing(site: Site) -> None:
    await site.client.post("/sessions", json={"id": "empty", "title": "T"})
    empty = (await site.client.post("/sessions/empty/fork", json={"title": "U"})).json()
    assert empty["title"] == "U" and empty["counts"]["breadcrumbs"] == 1
    await say(site, "s", "one", wait=None)
    first = (await site.client.post("/sessions/s/fork")).json()["id"]
    second = (await site.client.post(f"/sessions/{first}/fork")).json()["id"]
    assert await texts(site, second) == ["one"] and len({"s", first, second}) == 3


async def test_a_fork_that_cannot_be_is_said(site: Site) -> None:
    message = (await say(site, "s", "one", wait=None))["message"]["id"]
    await say(site, "taken", "two", wait=None)
    before = await site.count()
    for body, status, name in (
        ({"message_id": "x"}, 422, "invalid-input"),
        ({"message_id": str(DEVELOPER)}, 404, "not-found"),
        ({"id": "taken"}, 409, "already-exists"),
        ({"id": "s"}, 409, "already-exists"),
        ({"id": "state/x"}, 422, "invalid-input"),
        ({"more": 1}, 422, "invalid-input"),
    ):
        problem(await site.client.post("/sessions/s/fork", json=body), status, name)
    answer = await site.client.post("/sessions/taken/fork", json={"message_id": message})
    problem(answer, 404, "not-found")
    assert await site.count() == before


@pytest.mark.parametrize("body", [{}, {"id": "f"}], ids=["no id", "an id"])
async def test_P3_the_same_key_gives_the_same_fork_also_after_more_was_said(site: Site, body: Any) -> None:
    headers = {"Idempotency-Key": "k"}
    await say(site, "s", "one", wait=None)
    first = await site.client.post("/sessions/s/fork", json=body, headers=headers)
    await say(site, "s", "two", wait=None)
    await patch(site, "s", title="another", state={"x": 1})
    again = await site.client.post("/sessions/s/fork", json=body, headers=headers)
    assert first.status_code == again.status_code == 201 and first.json() == again.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert await texts(site, first.json()["id"]) == ["one"]
    other = await site.client.post("/sessions/s/fork", json={**body, "title": "U"}, headers=headers)
    problem(other, 409, "already-exists")


async def test_a_fork_that_was_broken_off_is_gone_on_with(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        await say(site, "s", str(number), wait=None)
    restore: Callable[..., Awaitable[None]] = Store.restore
    copied = 0

    async def broken(*args: Any) -> None:
        nonlocal copied
        copied += 1
        if copied > 4:
            raise OSError("the process died")
        await restore(*args)

    headers = {"Idempotency-Key": "k"}
    monkeypatch.setattr(Store, "restore", broken)
    assert (await site.client.post("/sessions/s/fork", json={"id": "f"}, headers=headers)).status_code == 500
    monkeypatch.undo()
    assert len(await messages(site, "f")) < 10
    assert (await site.client.post("/sessions/s/fork", json={"id": "f"}, headers=headers)).status_code == 201
    assert await texts(site, "f") == [str(number) for number in range(10)]


# Retries


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
async def test_a_replay_does_not_tell_of_the_failure_that_a_retry_makes_up_for(site: Site, how: str) -> None:
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


async def test_each_of_several_retries_in_a_session_makes_up_for_its_own_failure(site: Site) -> None:
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


async def outcome(site: Site, session: str, message: str, **params: Any) -> dict[str, Any]:
    answer = await site.client.get(f"/sessions/{session}/messages/{message}", params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found.pop("message")["id"] == message
    return found


async def test_a_message_tells_what_came_of_it_and_with_whom(site: Site) -> None:
    said = (await site.client.post("/sessions/s/messages", json={"message": "hello"})).json()["message"]["id"]

    async def reply(schema: str, agent: str | None, **context: Any) -> str:
        creator = {"creator": {"type": "agent", "agent_id": agent}} if schema != "agent.error.v1" else {}
        named = {"agent_id": agent} if not creator and agent is not None else {}
        about = {"trigger_id": said, **creator, **named, **context}
        return str((await site.post(schema_name=schema, tags=["session:s"], context=about))["id"])

    assert await outcome(site, "s", said) == {}
    failed = await reply("agent.error.v1", "a", error="broken")
    assert (await outcome(site, "s", said))["error"]["id"] == failed
    assert await outcome(site, "s", said, agent_id="b") == {}
    everybodys = await reply("agent.error.v1", None, error="no context")
    assert (await outcome(site, "s", said, agent_id="b"))["error"]["id"] == everybodys
    mine = await reply("report.v1", "a", message="mine")
    assert (await outcome(site, "s", said))["answer"]["id"] == mine
    assert (await outcome(site, "s", said, agent_id="a"))["answer"]["id"] == mine
    assert (await outcome(site, "s", said, agent_id="b"))["error"]["id"] == everybodys
    await site.client.post("/sessions/t/messages", json={"message": "elsewhere"})
    for session, message, status in (("s", str(UUID(int=7)), 404), ("t", said, 404), ("s", "7", 422)):
        wrong = await site.client.get(f"/sessions/{session}/messages/{message}")
        assert wrong.status_code == status


async def test_a_turn_may_fail_again_and_be_run_again(site: Site) -> None:
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


async def test_the_newest_failed_turn_is_run_again_unless_another_is_named(site: Site) -> None:
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


async def test_what_nobody_answered_in_a_fork_can_be_asked_again(site: Site) -> None:
    async with answering(site, FunctionModel(echo)):
        said = await say(site, "s", "hello")
        fork = await site.client.post("/sessions/s/fork", json={"message_id": said["message"]["id"]})
        session = fork.json()["id"]
        (message,) = await messages(site, session)
        problem(await site.client.post(f"/sessions/{session}/retry"), 409, "nothing-to-retry")
        assert await retry(site, session, message_id=message["id"]) == message["id"]
        await has(site, session, "you said: hello")


async def test_what_cannot_be_run_again_is_said(site: Site) -> None:
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


# Pauses


async def consumers(team: Working, session: str) -> list[list[str]]:
    return [
        [tag for tag in context.tags if tag.startswith("consumer:")]
        for context in await team.all(session, CONTEXT)
    ]


async def test_in_a_paused_session_nobody_answers_until_it_goes_on(site: Site) -> None:
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


async def test_pausing_and_going_on_starts_no_turn_by_itself(site: Site) -> None:
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


async def test_what_waits_is_not_forgotten_when_a_session_is_paused_twice_at_once(site: Site) -> None:
    async with answering(site, FunctionModel(echo)) as team:
        await say(site, "s", "one")
        await patch(site, "s", active=False)
        await say(site, "s", "two", wait=None)
        await team.settled()
        # A second PATCH that had not seen the first one yet.
        await team.post("session.state.v1", ["session:s", "session-paused"], {"active": False})
        await say(site, "s", "three", wait=None)
        await team.settled()
        assert await team.texts("s") == ["you said: one"]
        await patch(site, "s", active=True)
        await has(site, "s", "you said: one", "you said: two", "you said: three")


async def test_what_waits_is_answered_also_where_a_breadcrumb_without_the_tag_paused_the_session(
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


async def test_what_is_being_answered_when_a_session_is_paused_is_still_answered(site: Site) -> None:
    gate = Gate()
    async with answering(site, FunctionModel(gate)) as team:
        await say(site, "s", "one", wait=None)
        await gate.begun.wait()
        await say(site, "s", "two", wait=None)  # waits for its turn
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
        await eventually(lambda: _more(team, "s", RESPONSE, 3), "not answered")
        assert sorted(await team.texts("s")) == ["from one", "from one", "from two", "from two"]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_whatever_is_paused_and_said_at_once_each_message_is_answered_once(
    site: Site, seed: int
) -> None:
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
