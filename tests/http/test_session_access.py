"""Access to sessions by tenants, roles, and tokens for one session or one user."""

from __future__ import annotations

from typing import Any

import orjson

from tests.http.conftest import AGENT_A, KEY, OTHER_KEY, OWNER, WEAK_KEY, Site, problem
from tests.http.sessions import begin, ids, read, say

EVERYTHING: list[tuple[str, str, Any]] = [
    ("GET", "", None),
    ("GET", "/messages", None),
    ("PATCH", "", {"title": "T"}),
    ("DELETE", "", None),
    ("POST", "/messages", {"message": "hi"}),
    ("POST", "/fork", {}),
    ("POST", "/retry", {}),
]
"""Requests below the path of a session."""


async def test_R8_no_tenant_can_see_or_change_sessions_of_another(keyed: Site) -> None:
    mine, theirs = {"X-API-Key": KEY}, {"X-API-Key": OTHER_KEY}
    await begin(keyed, mine, id="s", title="mine")
    await say(keyed, "s", "secret", mine)
    assert await ids(keyed, theirs) == []
    for method, path, body in (
        ("GET", "", None),
        ("GET", "/messages", None),
        ("PATCH", "", {"title": "T"}),
        ("DELETE", "", None),
        ("POST", "/fork", {}),
        ("POST", "/retry", {}),
    ):
        problem(
            await keyed.client.request(method, f"/sessions/s{path}", json=body, headers=theirs),
            404,
            "not-found",
        )
    await begin(keyed, theirs, id="s", title="theirs")
    assert (await read(keyed, "s", mine))["title"] == "mine"
    assert (await read(keyed, "s", theirs))["counts"]["messages"] == 0


async def test_reading_needs_a_subscriber_and_writing_an_emitter(keyed: Site) -> None:
    writer = {"X-API-Key": WEAK_KEY}
    reader = await keyed.token(KEY, roles=["subscriber"])
    await begin(keyed, writer, id="s")
    await say(keyed, "s", "hi", writer)
    for path in ("/sessions", "/sessions/s", "/sessions/s/messages"):
        problem(await keyed.client.get(path, headers=writer), 403, "forbidden")
        assert (await keyed.client.get(path, headers=reader)).status_code == 200
    for method, path, body in (
        ("POST", "/sessions", {}),
        ("PATCH", "/sessions/s", {"title": "T"}),
        ("DELETE", "/sessions/s", None),
        ("POST", "/sessions/s/messages", {"message": "hi"}),
        ("POST", "/sessions/s/fork", {}),
        ("POST", "/sessions/s/retry", {}),
    ):
        problem(await keyed.client.request(method, path, json=body, headers=reader), 403, "forbidden")


async def test_a_token_for_a_session_sees_no_other_session(keyed: Site) -> None:
    everything = {"X-API-Key": KEY}
    for name in ("mine", "other"):
        await begin(keyed, everything, id=name, user_id="u")
        await say(keyed, name, f"in {name}", everything)
    narrow = await keyed.token(KEY, session_id="mine")
    assert await ids(keyed, narrow) == ["mine"] == await ids(keyed, narrow, user_id="u")
    assert await ids(keyed, narrow, user_id="v") == []
    assert (await read(keyed, "mine", narrow))["counts"]["messages"] == 1
    for method, path, body in EVERYTHING:
        refused = await keyed.client.request(method, f"/sessions/other{path}", json=body, headers=narrow)
        problem(refused, 404, "not-found")
    problem(await keyed.client.post("/sessions", json={"id": "third"}, headers=narrow), 403, "forbidden")
    problem(await keyed.client.post("/sessions/mine/fork", json={}, headers=narrow), 403, "forbidden")
    assert (
        await keyed.client.patch("/sessions/mine", json={"title": "T"}, headers=narrow)
    ).status_code == 200
    assert (await keyed.client.delete("/sessions/mine", headers=narrow)).status_code == 200
    problem(await keyed.client.get("/sessions", headers=narrow), 401, "unauthenticated")
    problem(await keyed.client.post("/sessions", json={}, headers=narrow), 401, "unauthenticated")
    renewed = await keyed.token(KEY, session_id="mine")
    assert (await begin(keyed, renewed))["id"] == "mine"
    assert await ids(keyed, everything) == ["mine", "other"]


async def test_a_token_for_a_user_sees_only_sessions_of_that_user(keyed: Site) -> None:
    everything = {"X-API-Key": KEY}
    ann, eve = await keyed.token(KEY, user_id="ann"), await keyed.token(KEY, user_id="eve")
    await begin(keyed, ann, id="made", title="T")
    assert (await read(keyed, "made", everything))["user_id"] == "ann"
    await say(keyed, "spoken", "hello", ann)
    await say(keyed, "nobodys", "hello", everything)
    assert await ids(keyed, ann) == ["spoken", "made"] == await ids(keyed, ann, user_id="ann")
    assert (
        await ids(keyed, eve)
        == await ids(keyed, ann, user_id="eve")
        == await ids(keyed, eve, user_id="ann")
        == []
    )
    for session in ("made", "spoken", "nobodys"):
        for method, path, body in EVERYTHING:
            refused = await keyed.client.request(method, f"/sessions/{session}{path}", json=body, headers=eve)
            problem(refused, 404, "not-found")
    problem(await keyed.client.post("/sessions", json={"user_id": "ann"}, headers=eve), 403, "forbidden")
    problem(await keyed.client.post("/sessions", json={"id": "made"}, headers=eve), 409, "already-exists")
    fork = (await keyed.client.post("/sessions/spoken/fork", json={}, headers=ann)).json()
    assert fork["user_id"] == "ann" and fork["counts"]["messages"] == 1
    assert (await keyed.client.delete("/sessions/made", headers=ann)).status_code == 200


async def test_a_breadcrumb_cannot_take_over_another_users_session(keyed: Site) -> None:
    ann, eve = await keyed.token(KEY, user_id="ann"), await keyed.token(KEY, user_id="eve")
    await begin(keyed, ann, id="s", title="ann's")
    for schema in ("session.v1", "session.state.v1", "adk.event.v1", "agent.response.v1"):
        crumb = {
            "schema_name": schema,
            "tags": ["session:s"],
            "context": {"user_id": "eve", "title": "eve's", "state_delta": {"x": 1}},
        }
        problem(await keyed.client.post("/breadcrumbs", json=crumb, headers=eve), 403, "forbidden")
    found = await read(keyed, "s", ann)
    assert (found["user_id"], found["title"], found["state"]) == ("ann", "ann's", {})


async def test_secret_and_private_breadcrumbs_stay_protected(keyed: Site) -> None:
    curator, other = {"X-API-Key": KEY}, await keyed.token(KEY, agent_id=str(AGENT_A), roles=["subscriber"])
    await keyed.post(
        curator,
        schema_name="user.message.v1",
        tags=["session:s"],
        context={"message": "psst"},
        sensitivity="secret",
    )
    await keyed.post(
        curator,
        schema_name="user.message.v1",
        tags=["session:s"],
        context={"message": "mine"},
        visibility="private",
    )
    path = "/sessions/s/messages"
    assert [m["text"] for m in (await keyed.client.get(path, headers=curator)).json()["messages"]] == [
        "psst",
        "mine",
    ]
    (message,) = (await keyed.client.get(path, headers=other)).json()["messages"]
    assert "text" not in message and "context" not in message and "psst" not in orjson.dumps(message).decode()
    assert "summary" not in await read(keyed, "s", other)
    assert (await read(keyed, "s", curator))["summary"] == "psst"


async def test_the_owner_of_a_session_comes_from_the_token(keyed: Site) -> None:
    said = await say(keyed, "s", "hi", {"X-API-Key": KEY})
    full = (
        await keyed.client.get(f"/breadcrumbs/{said['message']['id']}/full", headers={"X-API-Key": KEY})
    ).json()
    assert full["owner_id"] == str(OWNER)
