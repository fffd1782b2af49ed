"""Forks over HTTP: sessions that begin with a copy of another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

import pytest

from breadcrumbs.agents.models.base import ModelError
from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
from breadcrumbs.runtime.breadcrumb.json_input import canonical
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.http.api.session_schemas import ForkRequest
from breadcrumbs.runtime.http.routes import sessions
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store.store import Store
from tests.http.answering import answering, echo, messages, patch, say, texts
from tests.http.conftest import AGENT_A, AGENT_B, KEY, Site, problem
from tests.support.conversations import MESSAGE, RESPONSE, spoken


def timeless(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without the fields that differ in a copy."""
    left_out = ("id", "trigger_id", "root_id", "tags", "context", "tool")
    return {name: value for name, value in message.items() if name not in left_out}


async def test_P8_a_fork_contains_the_messages_up_to_a_message_with_their_times(site: Site) -> None:
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
        assert copies[1]["trigger_id"] == copies[1]["root_id"] == copies[0]["id"] != one["message"]["id"]
        assert all("session:f" in copy["tags"] and copy["context"]["session_id"] == "f" for copy in copies)
        assert "context_id" not in copies[1]["context"]
        await team.settled()
        assert len(model.requests) == 3, "copied messages must not be answered"
        assert await texts(site, "f") == ["one", "you said: one", "two"]
        assert (await say(site, "f", "four"))["answer"]["text"] == "you said: four"
        assert spoken(model.requests[-1]) == [
            ("user", "one"),
            ("assistant", "you said: one"),
            ("user", "two"),
            ("user", "four"),
        ]
        assert len(await messages(site, "s")) == 6


async def test_a_fork_before_a_message_contains_only_what_was_said_before_it(site: Site) -> None:
    async with answering(site, FunctionModel(echo)):
        await site.client.post("/sessions", json={"id": "s", "state": {"a": 1}})
        first = await say(site, "s", "one")
        await patch(site, "s", state={"a": 2})
        second = await say(site, "s", "two")
        fork = await site.client.post(
            "/sessions/s/fork", json={"before_id": second["message"]["id"], "id": "f"}
        )
        assert fork.status_code == 201 and fork.json()["state"] == {"a": 2}
        assert await texts(site, "f") == ["one", "you said: one"]
        assert (await say(site, "f", "2"))["answer"]["text"] == "you said: 2"
        empty = await site.client.post(
            "/sessions/s/fork", json={"before_id": first["message"]["id"], "id": "e"}
        )
        assert empty.status_code == 201 and empty.json()["state"] == {"a": 1}
        assert empty.json()["counts"]["messages"] == 0
        (record,) = (await site.client.get("/breadcrumbs?session_id=e&include_context=true")).json()
        assert record["context"]["forked_from"]["session_id"] == "s"
        assert len(await messages(site, "s")) == 4


async def test_a_fork_ends_at_one_message(site: Site) -> None:
    id = (await site.client.post("/sessions/s/messages", json={"message": "one"})).json()["message"]["id"]
    refused = await site.client.post("/sessions/s/fork", json={"message_id": id, "before_id": id})
    assert problem(refused, 422, "invalid-input")["errors"][0]["where"] == "before_id"
    problem(await site.client.post("/sessions/s/fork", json={"before_id": "x"}), 422, "invalid-input")
    other = (await site.client.post("/sessions/t/messages", json={"message": "two"})).json()["message"]["id"]
    problem(await site.client.post("/sessions/s/fork", json={"before_id": other}), 404, "not-found")


async def test_a_complete_fork_contains_tools_but_no_errors_and_no_contexts(site: Site) -> None:
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


async def test_nested_ids_in_keys_of_the_runtime_are_those_of_the_copies(site: Site) -> None:
    first = await site.post(schema_name=MESSAGE, tags=["session:s"], context={"message": "one"})
    context = {"answers": [[first["id"]], {"id": first["id"]}], "data": {"id": first["id"]}}
    await site.post(schema_name="note.v1", tags=["session:s"], context=context)
    fork = (await site.client.post("/sessions/s/fork")).json()
    crumbs = [crumb async for crumb in site.store.walk(DEVELOPER, Query(session_id=fork["id"]))]
    (note,) = [crumb for crumb in crumbs if crumb.schema_name == "note.v1"]
    (copy,) = [crumb for crumb in crumbs if crumb.schema_name == MESSAGE]
    assert note.context["answers"] == [[copy.id_text], {"id": copy.id_text}]
    assert note.context["data"] == {"id": first["id"]}, "nested data of the author is not changed"


async def test_a_fork_keeps_state_changes_of_adk_events(site: Site) -> None:
    for delta in ({"a": None, "b": 1}, {"c": 2}):
        await site.post(schema_name="adk.event.v1", tags=["session:s"], context={"state_delta": delta})
    await patch(site, "s", state={"b": None})
    fork = (await site.client.post("/sessions/s/fork", json={})).json()
    assert fork["state"] == {"a": None, "c": 2}
    assert fork["counts"]["breadcrumbs"] == 3


async def test_a_fork_keeps_null_values_of_adk_and_removes_removed_names(site: Site) -> None:
    """This also holds if the breadcrumb with the null is not copied and the one with the other name is."""
    adk = {"state_delta": {"kept": None, "over": None}, "null_is_a_value": True}
    await site.post(schema_name="session.v1", tags=["session:s"], context=adk)
    await site.post(schema_name="adk.event.v1", tags=["session:s"], context={"state_delta": {"out": 1}})
    await patch(site, "s", state={"out": None, "over": None})
    fork = (await site.client.post("/sessions/s/fork", json={})).json()
    assert fork["state"] == {"kept": None} == (await site.client.get("/sessions/s")).json()["state"]


async def test_a_fork_does_not_publish_protected_data(keyed: Site) -> None:
    curator, roles = await keyed.token(KEY), ["emitter", "subscriber"]
    one, two = [await keyed.token(KEY, agent_id=str(agent), roles=roles) for agent in (AGENT_A, AGENT_B)]
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


async def test_a_fork_contains_corrections_and_omits_messages_that_became_secret(keyed: Site) -> None:
    curator = await keyed.token(KEY)
    plain = await keyed.token(KEY, agent_id=str(AGENT_A), roles=["emitter", "subscriber"])
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
    # The state is that of the first versions, as in the original session.
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


async def test_an_impossible_fork_is_refused_with_the_reason(site: Site) -> None:
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
async def test_P3_the_same_key_returns_the_same_fork_after_newer_messages(site: Site, body: Any) -> None:
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


async def test_P3_the_same_key_returns_the_same_fork_before_a_message(site: Site) -> None:
    headers = {"Idempotency-Key": "k"}
    ids = [(await say(site, "s", text, wait=None))["message"]["id"] for text in ("one", "two", "three")]
    first, again = [
        await site.client.post("/sessions/s/fork", json={"before_id": ids[2]}, headers=headers)
        for _ in range(2)
    ]
    assert first.json() == again.json() and again.headers["idempotency-replayed"] == "true"
    assert await texts(site, first.json()["id"]) == ["one", "two"]
    for other in ({"before_id": ids[1]}, {"message_id": ids[2]}, {}):
        refused = await site.client.post("/sessions/s/fork", json=other, headers=headers)
        problem(refused, 409, "already-exists")


def test_a_fork_that_an_earlier_version_began_can_be_repeated() -> None:
    fields = {"message_id": "m", "id": None, "title": "T"}
    digest = sha256(canonical(["k", "s", fields])).hexdigest()
    assert sessions._fork_digest("k", "s", ForkRequest(message_id="m", title="T")) == digest
    assert sessions._fork_digest("k", "s", ForkRequest(before_id="m", title="T")) != digest


async def test_an_interrupted_fork_is_continued(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
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
