"""Posting and reading the messages of a session over HTTP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import anyio
import pytest

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.settings.settings import DEVELOPER
from tests.http.conftest import Site, problem
from tests.http.sessions import answer_to, begin, held, ids, nulls_in, read, say

# Posting


async def test_a_message_is_a_breadcrumb_of_the_session(site: Site) -> None:
    said = await say(site, "s", "Hello!", tags=["extension:chat"], context={"url": "https://example.org"})
    message = said["message"]
    assert said["session_version"] == 1
    full = (await site.client.get(f"/breadcrumbs/{message['id']}/full")).json()
    assert full["schema_name"] == "user.message.v1" and full["title"] == "Hello!"
    assert full["tags"] == message["tags"] == ["user:message", "session:s", "extension:chat"]
    assert full["context"] == message["context"]
    assert full["context"] == {"url": "https://example.org", "message": "Hello!", "session_id": "s"}
    assert message["role"] == "user" and message["text"] == "Hello!"
    assert message["created_at"] == full["created_at"] and not nulls_in(said)


async def test_P3_a_message_that_is_sent_twice_is_stored_once(site: Site) -> None:
    headers = {"Idempotency-Key": "k", "If-Match": "1"}
    await begin(site, id="s")
    first = await site.client.post("/sessions/s/messages", json={"message": "hi"}, headers=headers)
    await say(site, "s", "more")
    again = await site.client.post("/sessions/s/messages", json={"message": "hi"}, headers=headers)
    assert first.status_code == again.status_code == 201
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json()["message"] == first.json()["message"]
    assert (first.json()["session_version"], again.json()["session_version"]) == (2, 3)
    other = await site.client.post("/sessions/s/messages", json={"message": "ho"}, headers=headers)
    problem(other, 422, "idempotency-mismatch")
    assert (await read(site, "s"))["counts"]["messages"] == 2


async def test_a_message_can_require_a_version_of_the_session(site: Site) -> None:
    await begin(site, id="s")

    def post(version: str, session: str = "s") -> Any:
        return site.client.post(
            f"/sessions/{session}/messages", json={"message": "hi"}, headers={"If-Match": version}
        )

    assert (await post("1")).json()["session_version"] == 2
    assert problem(await post("1"), 412, "version-mismatch")["current_version"] == 2
    assert (await post("*")).json()["session_version"] == 3
    for version in ("*", "1"):
        problem(await post(version, "not-there"), 404, "not-found")
    problem(await post("x"), 400, "malformed")
    assert await ids(site) == ["s"]


NO_MESSAGES: list[Any] = [
    {}, {"message": ""}, {"message": None}, {"message": 7}, {"message": "x", "tags": ["session:other"]},
    {"message": "x", "tags": "a"}, {"message": "x", "context": {"session_id": "other"}},
    {"message": "x", "context": {"message": "y"}}, {"message": "x", "more": 1}, [],
]  # fmt: skip


async def test_an_invalid_message_is_refused(site: Site) -> None:
    before = await held(site)
    for body in NO_MESSAGES:
        answer = await site.client.post("/sessions/s/messages", json=body)
        assert answer.status_code == 422, body
    assert await held(site) == before


# Reading


async def pages(site: Site, way: str, limit: int, start: str | None = None) -> list[list[str]]:
    """Return the pages of a session in one direction, as texts."""
    found: list[list[str]] = []
    while True:
        params = {"limit": str(limit), **({way: start} if start is not None else {})}
        page = (await site.client.get("/sessions/s/messages", params=params)).json()
        found.append([message["text"] for message in page["messages"]])
        if not page["has_more"]:
            return found
        assert len(page["messages"]) == limit
        start = page[way]


@pytest.mark.parametrize("limit", [1, 3, 5, 50])
async def test_P7_pages_of_messages_reach_the_end_in_both_directions(site: Site, limit: int) -> None:
    texts = [str(number) for number in range(10)]
    for text in texts:
        await say(site, "s", text)
        await site.post(schema_name="note.v1", tags=["session:s"])  # not a message
    backwards = await pages(site, "before", limit)
    assert [text for page in reversed(backwards) for text in page] == texts
    first = (await site.client.get("/sessions/s/messages", params={"limit": 50})).json()["messages"][0]
    oldest = await site.client.get("/sessions/s/messages", params={"limit": 10})
    assert oldest.json()["has_more"] is False and "before" not in oldest.json()
    middle = (await site.client.get("/sessions/s/messages", params={"limit": 9})).json()
    older = (
        await site.client.get("/sessions/s/messages", params={"limit": 9, "before": middle["before"]})
    ).json()
    assert [message["id"] for message in older["messages"]] == [first["id"]]
    forwards = await pages(site, "after", limit, older["after"])
    assert [text for page in forwards for text in page] == texts[1:]


async def test_the_last_page_has_a_cursor_for_the_next_message(site: Site) -> None:
    """The cursor `after` of a page finds later messages, even from an empty page."""
    await say(site, "s", "one")
    after = (await site.client.get("/sessions/s/messages")).json()["after"]
    for number in range(3):
        empty = (await site.client.get("/sessions/s/messages", params={"after": after})).json()
        assert empty["messages"] == [] and empty["has_more"] is False
        await say(site, "s", f"later {number}")
        page = (await site.client.get("/sessions/s/messages", params={"after": empty["after"]})).json()
        assert [message["text"] for message in page["messages"]] == [f"later {number}"]
        after = page["after"]


async def test_a_session_without_messages_has_an_empty_page(site: Site) -> None:
    await begin(site, id="s")
    page = (await site.client.get("/sessions/s/messages")).json()
    assert page == {"messages": [], "has_more": False}


async def test_bad_parameters_of_messages_are_refused(site: Site) -> None:
    await say(site, "s", "one")
    await say(site, "t", "two")
    after = (await site.client.get("/sessions/s/messages")).json()["after"]
    for params in ({"limit": 0}, {"limit": 1001}, {"before": after, "after": after}, {"cursor": after}):
        problem(await site.client.get("/sessions/s/messages", params=params), 422, "invalid-input")
    for params in ({"after": "x"}, {"before": after[:-1] + "_"}):
        problem(await site.client.get("/sessions/s/messages", params=params), 422, "invalid-cursor")
    problem(await site.client.get("/sessions/t/messages", params={"after": after}), 422, "invalid-cursor")


async def test_each_message_has_its_role_text_and_trigger(site: Site) -> None:
    message = (await say(site, "s", "what time is it?"))["message"]
    request = await site.post(
        schema_name="tool.request.v1",
        tags=["session:s"],
        context={
            "tool": "clock",
            "request_id": "r",
            "trigger_id": message["id"],
            "input": {"zone": None, "x": 1},
        },
    )
    await site.post(
        schema_name="tool.response.v1",
        tags=["session:s"],
        context={"tool": "clock", "request_id": "r", "status": "success", "output": "noon", "error": None},
    )
    answer = await answer_to(site, message, "It is noon.")
    await site.post(
        schema_name="agent.error.v1",
        tags=["session:s"],
        context={"error": "no idea", "creator": "agent-runner", "trigger_id": message["id"]},
    )
    found = (await site.client.get("/sessions/s/messages")).json()["messages"]
    assert [(one["role"], one["text"]) for one in found] == [
        ("user", "what time is it?"),
        ("tool", '{"x":1}'),
        ("tool", "noon"),
        ("assistant", "It is noon."),
        ("error", "no idea"),
    ]
    assert found[1]["id"] == request["id"] and found[3]["id"] == answer["id"]
    assert found[1]["tool"]["step"] == "request" and found[1]["tool"]["name"] == "clock"
    assert found[2]["tool"] == {
        "step": "response", "name": "clock", "request_id": "r", "status": "success", "output": "noon",
    }  # fmt: skip
    assert "trigger_id" not in found[0] and found[3]["trigger_id"] == message["id"]
    assert found[3]["agent_id"] == "a" and found[4]["agent_id"] == "agent-runner"


@pytest.mark.parametrize(
    ("context", "text"),
    [
        ({"message": "hi"}, "hi"),
        ({"content": "hi", "message": None}, "hi"),
        ({"message": None}, ""),
        ({}, ""),
        ({"message": ""}, ""),
        ({"parts": [{"type": "text", "text": "a"}, {"type": "image"}, {"text": None}, "b", None, 7]}, "ab"),
        ({"parts": [None]}, ""),
        ({"message": {"deep": None, "n": 1}}, '{"message":{"n":1}}'),
        ({"trigger_id": "x", "hops": 1}, ""),
    ],
)
async def test_P10_missing_values_never_become_text(site: Site, context: dict[str, Any], text: str) -> None:
    for schema in ("user.message.v1", "agent.response.v1"):
        await site.post(schema_name=schema, tags=["session:s"], context=context)
    for schema in ("agent.error.v1", "tool.request.v1", "tool.response.v1"):
        await site.post(schema_name=schema, tags=["session:s"], context={"error": None, "input": None})
    found = [
        message["text"] for message in (await site.client.get("/sessions/s/messages")).json()["messages"]
    ]
    assert found == [text, text, "", "", ""]
    for word in ("None", "null", "undefined"):
        assert word not in "".join(found)
    assert "summary" not in await read(site, "s") or text


async def test_P8_imported_messages_keep_their_times_and_positions(site: Site) -> None:
    said = [(await say(site, "s", str(number)))["message"] for number in range(3)]
    before = (await site.client.get("/sessions/s/messages")).json()["messages"]
    crumbs = [one async for one in site.store.walk(DEVELOPER, Query(session_id="s"))]
    info = await read(site, "s")
    await site.client.delete("/sessions/s")
    for one in crumbs:
        await site.store.restore(one, [])
    assert (await site.client.get("/sessions/s/messages")).json()["messages"] == before
    assert [one["id"] for one in before] == [one["id"] for one in said]
    back = await read(site, "s")
    assert (back["created_at"], back["last_active_at"]) == (info["created_at"], info["last_active_at"])


async def test_a_page_costs_the_same_in_a_long_session(site: Site) -> None:
    """The number of round trips and of bytes is that of a short session."""
    first = (await say(site, "s", "the first"))["message"]
    crumb = await site.store.get(
        DEVELOPER, (await site.store.recent(DEVELOPER, "s", "user.message.v1"))[0].id
    )
    costs = []
    for length in (30, 1_000):
        while (await read(site, "s"))["counts"]["messages"] < length:
            async with anyio.create_task_group() as tasks:
                for number in range(50):
                    tasks.start_soon(site.store.restore, _another(crumb, number), [])
        asked = _count_commands(site)
        page = await site.client.get("/sessions/s/messages", params={"limit": 10})
        assert page.json()["has_more"] and len(page.json()["messages"]) == 10
        older = await site.client.get(
            "/sessions/s/messages", params={"limit": 10, "before": page.json()["before"]}
        )
        assert older.json()["has_more"] and len(older.json()["messages"]) == 10
        costs.append(len(asked))
        del site.store.connection.call_all
    assert costs[0] == costs[1], costs
    assert first["id"]


def _another(crumb: Breadcrumb, number: int) -> Breadcrumb:
    return replace(crumb, id=uuid4(), created=crumb.created - 1 - number, updated=crumb.updated)


def _count_commands(site: Site) -> list[Any]:
    asked: list[Any] = []
    connection: Any = site.store.connection
    original = connection.call_all

    async def counted(commands: list[Any]) -> list[Any]:
        asked.extend(commands)
        found: list[Any] = await original(commands)
        return found

    connection.call_all = counted
    return asked


async def outcome(site: Site, session: str, message: str, **params: Any) -> dict[str, Any]:
    answer = await site.client.get(f"/sessions/{session}/messages/{message}", params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found.pop("message")["id"] == message
    return found


async def test_a_message_shows_its_outcome_for_each_agent(site: Site) -> None:
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
