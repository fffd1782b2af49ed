"""Creating, reading, changing, listing and deleting sessions over HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import anyio
import httpx
import pytest

from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.maintenance import export_import
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.state import STATE_HOLDER
from tests.http.conftest import AGENT_A, AGENT_B, KEY, OWNER, Site, problem
from tests.http.sessions import answer_to, begin, held, ids, nulls_in, read, say

STRANGE = ["a/b", "a b", "a:b", "ü/🙂", "%2F", "a?b#c", "{L01}", "'\"\\", "+", "a" * 248]


# Creating


async def test_a_session_exists_as_soon_as_a_breadcrumb_is_posted_into_it(site: Site) -> None:
    problem(await site.client.get("/sessions/abc"), 404, "not-found")
    await site.post(schema_name="user.message.v1", tags=["session:abc"], context={"message": "Hello, all!"})
    found = await read(site, "abc")
    assert found["version"] == 1 and found["summary"] == "Hello, all!" and found["active"] is True
    assert found["counts"] == {"messages": 1, "answers": 0, "errors": 0, "breadcrumbs": 1}
    assert found["created_at"] == found["last_active_at"] and found["state"] == {}
    assert await ids(site) == ["abc"]


async def test_a_session_can_begin_with_a_title_a_user_and_a_state(site: Site) -> None:
    answer = await site.client.post(
        "/sessions", json={"id": "a b", "title": "T", "user_id": "ann", "state": {"n": 1, "nothing": None}}
    )
    assert answer.status_code == 201 and answer.headers["location"] == "/sessions/a%20b"
    assert answer.json() == await read(site, "a b")
    assert answer.json() | {"title": "T", "user_id": "ann", "state": {"n": 1}, "version": 1} == answer.json()
    said = await say(site, "a b", "hi")
    assert said["message"]["tags"] == ["user:message", "session:a b", "user:ann"]
    assert said["session_version"] == 2


async def test_without_an_id_one_is_generated(site: Site) -> None:
    one, two = await begin(site), await begin(site)
    assert one["id"] != two["id"] and one == await read(site, one["id"])


async def test_A2_a_taken_id_is_409_however_it_was_taken(site: Site) -> None:
    await begin(site, id="made")
    await say(site, "spoken in", "hi")
    for name in ("made", "spoken in"):
        before = await held(site)
        detail = problem(await site.client.post("/sessions", json={"id": name}), 409, "already-exists")[
            "detail"
        ]
        assert name in detail
        assert await held(site) == before


async def test_P4_one_of_twenty_concurrent_creations_of_a_session_succeeds(site: Site) -> None:
    statuses: list[int] = []

    async def make(number: int) -> None:
        answer = await site.client.post("/sessions", json={"id": "one", "state": {"by": number}})
        statuses.append(answer.status_code)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(make, number)
    assert sorted(statuses) == [201] + [409] * 19
    assert (await read(site, "one"))["version"] == 1


@pytest.mark.parametrize("body", [{}, {"id": "mine"}], ids=["no id", "an id"])
async def test_P3_the_same_key_returns_the_same_session(site: Site, body: dict[str, Any]) -> None:
    headers = {"Idempotency-Key": "k"}
    first = await site.client.post("/sessions", json={**body, "title": "T"}, headers=headers)
    again = await site.client.post("/sessions", json={**body, "title": "T"}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201) and first.json() == again.json()
    assert "idempotency-replayed" not in first.headers and again.headers["idempotency-replayed"] == "true"
    assert len(await ids(site)) == 1
    other = await site.client.post("/sessions", json={**body, "title": "U"}, headers=headers)
    problem(other, 422, "idempotency-mismatch")


WRONG: list[tuple[Any, str]] = [
    ({"id": ""}, "id"),
    ({"id": "a\nb"}, "session_id"),
    ({"id": "x" * 249}, "id"),
    ({"id": 7}, "id"),
    ({"id": STATE_HOLDER + "x"}, "id"),
    ({"title": "a\nb"}, "title"),
    ({"title": "x" * 501}, "title"),
    ({"user_id": ""}, "user_id"),
    ({"user_id": "a\0"}, "user_id"),
    ({"state": []}, "state"),
    ({"state": {"\0title": 1}}, "context.state_delta"),
    ({"active": False}, "active"),
    ([], ""),
]


async def test_an_invalid_session_is_refused_and_nothing_is_written(site: Site) -> None:
    before = await held(site)
    for body, where in WRONG:
        refused = problem(await site.client.post("/sessions", json=body), 422, "invalid-input")
        assert where in [error["where"] for error in refused["errors"]], body
    assert await held(site) == before


async def test_any_session_name_works_and_names_are_distinct(site: Site) -> None:
    for name in STRANGE:
        await say(site, name, f"in {name}")
    for place, name in enumerate(STRANGE):
        assert (await read(site, name))["counts"]["messages"] == 1
        path = f"/sessions/{quote(name, safe='')}"
        page = (await site.client.get(f"{path}/messages")).json()
        assert [message["text"] for message in page["messages"]] == [f"in {name}"]
        assert (await site.client.patch(path, json={"title": "mine"})).json()["title"] == "mine"
        assert (await site.client.delete(path)).json() == {"ok": True, "deleted": 2}
        assert sorted(await ids(site)) == sorted(STRANGE[place + 1 :])
    assert (await begin(site, id=".."))["id"] == ".."  # in a path this is the parent folder


# Reading


async def test_P12_a_field_is_real_or_absent(site: Site) -> None:
    for session in (await begin(site), await begin(site, title="T", user_id="u", state={"a": None})):
        assert not nulls_in(session)
        await say(site, session["id"], "hi")
    assert not nulls_in((await site.client.get("/sessions")).json())


async def test_counts_and_times_follow_what_happens(site: Site) -> None:
    made = await begin(site, id="s")
    message = (await say(site, "s", "hi"))["message"]
    assert (await read(site, "s"))["returning"] is False
    answered = await answer_to(site, message)
    await site.post(schema_name="agent.error.v1", tags=["session:s"], context={"error": "no"})
    await site.post(schema_name="note.v1", tags=["session:s"])
    found = await read(site, "s")
    assert found["counts"] == {"messages": 1, "answers": 1, "errors": 1, "breadcrumbs": 5}
    assert found["returning"] is True and found["version"] == 5
    assert found["created_at"] == made["created_at"] < answered["created_at"] < found["last_active_at"]
    await site.client.delete(f"/breadcrumbs/{message['id']}")
    assert (await read(site, "s"))["version"] == 6


async def test_the_last_active_session_is_first_and_shared_state_is_not_listed(site: Site) -> None:
    for name in ("one", "two", "three", "one"):
        await say(site, name, f"in {name}")
    await site.post(schema_name="session.state.v1", tags=[f"session:{STATE_HOLDER}app"], context={})
    listed = (await site.client.get("/sessions")).json()
    assert [session["id"] for session in listed["sessions"]] == ["one", "three", "two"]
    assert listed["has_more"] is False and "state" not in listed["sessions"][0]
    problem(await site.client.get(f"/sessions/{STATE_HOLDER.replace('/', '%2F')}app"), 404, "not-found")


@pytest.mark.parametrize("limit", [1, 4, 7])
async def test_P7_the_list_of_sessions_reaches_the_end(site: Site, limit: int) -> None:
    names = [f"s{number}" for number in range(9)]
    for number, name in enumerate(names):
        await begin(site, id=name, user_id=f"u{number % 2}")
    assert await ids(site, limit=limit) == names[::-1]
    assert await ids(site, limit=limit, user_id="u1") == names[1::2][::-1]
    assert await ids(site, limit=limit, user_id="nobody") == []


async def test_bad_parameters_of_the_list_are_refused(site: Site) -> None:
    for params in ({"limit": 0}, {"limit": 501}, {"limit": "x"}, {"user_id": ""}, {"users": "a"}):
        problem(await site.client.get("/sessions", params=params), 422, "invalid-input")
    problem(await site.client.get("/sessions", params={"cursor": "x"}), 422, "invalid-cursor")


# Changing


async def test_a_change_merges_the_state_and_replaces_the_title(site: Site) -> None:
    await begin(site, id="s", title="old", state={"keep": 1, "drop": 2, "deep": {"a": 1}})
    answer = await site.client.patch(
        "/sessions/s", json={"title": "new", "state": {"drop": None, "deep": {"b": 2}, "more": [None]}}
    )
    assert answer.status_code == 200 and answer.headers["etag"] == '"2"'
    assert answer.json() == await read(site, "s")
    assert answer.json()["state"] == {"keep": 1, "deep": {"b": 2}, "more": [None]}
    assert answer.json()["title"] == "new"
    assert (await site.client.patch("/sessions/s", json={"state": {"x": 1}})).json()["title"] == "new"
    assert "title" not in (await site.client.patch("/sessions/s", json={"title": None})).json()


async def test_a_state_value_has_the_protection_of_the_breadcrumb_that_set_it(keyed: Site) -> None:
    curator, roles = await keyed.token(KEY), ["emitter", "subscriber"]
    one, two = [await keyed.token(KEY, agent_id=str(agent), roles=roles) for agent in (AGENT_A, AGENT_B)]
    fields: dict[str, Any] = {"schema_name": "session.state.v1", "tags": ["session:s"]}

    async def set_state(headers: dict[str, str], delta: dict[str, Any], **more: Any) -> None:
        await keyed.post(headers, **fields, context={"state_delta": delta}, **more)

    await set_state(one, {"open": 1, "turns secret": 1, "opens": 1})
    await set_state(one, {"mine": {"a": 1}}, visibility="private")
    await set_state(one, {"turns secret": 2, "secret": "!", "gone": 1}, sensitivity="secret")
    await set_state(one, {"both": 1}, sensitivity="secret", visibility="private")
    await set_state(one, {"opens": 2}, sensitivity="secret")
    await set_state(one, {"opens": 3, "gone": None})
    mine, everything = {"mine": {"a": 1}}, {"turns secret": 2, "secret": "!", "both": 1}
    for headers, more in ((one, mine), (two, {}), (curator, {**mine, **everything})):
        expected = {"open": 1, "opens": 3, **more}
        assert (await read(keyed, "s", headers))["state"] == expected
        changed = await keyed.client.patch("/sessions/s", json={"state": {}}, headers=headers)
        assert changed.json()["state"] == expected
    # The result is the same after an export and an import.
    lines = [
        export_import.decode(export_import.encode(crumb, []))
        async for crumb in keyed.store.walk(OWNER, Query())
    ]
    await keyed.client.delete("/sessions/s", headers=curator)
    for crumb, history in lines:
        await keyed.store.restore(crumb, history)
    assert (await read(keyed, "s", one))["state"] == {"open": 1, "opens": 3, **mine}
    assert (await read(keyed, "s", two))["state"] == {"open": 1, "opens": 3}


async def test_the_readers_of_a_state_value_follow_changes_of_its_breadcrumb(keyed: Site) -> None:
    curator, roles = await keyed.token(KEY), ["emitter", "subscriber"]
    one, two = [await keyed.token(KEY, agent_id=str(agent), roles=roles) for agent in (AGENT_A, AGENT_B)]

    async def set_state(**delta: Any) -> str:
        fields: dict[str, Any] = {"schema_name": "session.state.v1", "tags": ["session:s"]}
        made = await keyed.post(one, **fields, context={"state_delta": delta, "title": "T"})
        return f"/breadcrumbs/{made['id']}"

    async def change(path: str, headers: dict[str, str] = one, **fields: Any) -> None:
        merging = {"Content-Type": "application/merge-patch+json"}
        changed = await keyed.client.patch(path, json=fields, headers={**headers, **merging})
        assert changed.status_code == 200, changed.text

    async def shown() -> list[dict[str, Any]]:
        return [(await read(keyed, "s", headers))["state"] for headers in (one, two, curator)]

    early, hidden, mine, opened = [
        await set_state(**delta) for delta in ({"a": 1, "b": 1}, {"b": 2}, {"c": 3}, {"d": 4})
    ]
    everything = {"a": 1, "b": 2, "c": 3, "d": 4}
    assert await shown() == [everything] * 3
    # Earlier changes and the current schema of the breadcrumb make no difference.
    await change(hidden, schema_name="note.v1", context={"state_delta": {"b": "corrected"}})
    await change(hidden, sensitivity="secret")
    await change(mine, visibility="private")
    await change(opened, sensitivity="secret")
    assert await shown() == [{"a": 1, "c": 3}, {"a": 1}, everything]
    # A change of the context cannot make it visible either.
    problem(
        await keyed.client.patch(
            opened, json={"context": {"only_credentials_are_secret": True}}, headers=one
        ),
        403,
        "forbidden",
    )
    await change(opened, curator, sensitivity="low")
    await change(early, sensitivity="secret")  # later breadcrumbs overwrote its values except `a`
    expected = [{"c": 3, "d": 4}, {"d": 4}, everything]
    assert await shown() == expected
    assert (await read(keyed, "s", two))["title"] == "T"
    # The result is the same in a fork, and after an export.
    for headers, state in zip((one, two, curator), expected, strict=True):
        forked = await keyed.client.post("/sessions/s/fork", headers=headers)
        assert forked.json()["state"] == state
    lines = [line async for line in export_import.export_lines(keyed.store, OWNER, Query(session_id="s"))]
    await keyed.client.delete("/sessions/s", headers=curator)
    async for _ in export_import.import_lines(keyed.store, lines):
        pass
    assert await shown() == expected


async def test_only_curators_can_read_a_credential_in_the_state(keyed: Site) -> None:
    curator, plain = await keyed.token(KEY), await keyed.token(KEY, roles=["emitter", "subscriber"])
    credential = {"authType": "apiKey", "apiKey": "hush"}
    await begin(keyed, plain, id="s", state={"first": credential, "step": 1})
    change = {"state": {"second": credential}, "active": False}
    assert (await keyed.client.patch("/sessions/s", json=change, headers=plain)).status_code == 200
    for headers, shown in ((plain, {"authType": "apiKey"}), (curator, credential)):
        found = await read(keyed, "s", headers)
        assert found["state"] == {"first": shown, "second": shown, "step": 1}
        assert found["active"] is False
    # The routes of breadcrumbs treat it like any other secret breadcrumb.
    asked = {"session_id": "s", "include_context": "true"}
    listed = await keyed.client.get("/breadcrumbs", params=asked, headers=plain)
    assert [crumb["schema_name"] for crumb in listed.json()] == ["session.state.v1", "session.v1"]
    assert "hush" not in listed.text
    for crumb in listed.json():
        for view in ("", "/full", "/history"):
            path = f"/breadcrumbs/{crumb['id']}{view}"
            problem(await keyed.client.get(path, headers=plain), 403, "forbidden")
            assert "hush" in (await keyed.client.get(path, headers=curator)).text
    assert "hush" in (await keyed.client.get("/breadcrumbs", params=asked, headers=curator)).text
    # A change without credentials is not secret.
    await keyed.client.patch("/sessions/s", json={"state": {"step": 2}}, headers=plain)
    newest, *_ = (await keyed.client.get("/breadcrumbs", params=asked, headers=plain)).json()
    assert newest["context"]["state_delta"] == {"step": 2}


async def test_a_session_without_a_record_can_get_a_title(site: Site) -> None:
    await say(site, "s", "hi")
    assert (await site.client.patch("/sessions/s", json={"title": "T"})).json()["title"] == "T"


@pytest.mark.parametrize("given", ["1", '"1"', 'W/"1"', "3"])
async def test_P1_a_change_with_a_wrong_version_changes_nothing(site: Site, given: str) -> None:
    await begin(site, id="s", title="old", state={"a": 1})
    await say(site, "s", "hi")
    before = await held(site)
    change = {"title": "new", "state": {"a": 2}, "active": False}
    refused = await site.client.patch("/sessions/s", json=change, headers={"If-Match": given})
    assert problem(refused, 412, "version-mismatch")["current_version"] == 2
    assert refused.headers["etag"] == '"2"'
    assert await held(site) == before
    done = await site.client.patch("/sessions/s", json=change, headers={"If-Match": '"2"'})
    assert done.json() | {"title": "new", "state": {"a": 2}, "active": False, "version": 3} == done.json()


async def test_one_of_many_changes_from_the_same_version_succeeds(site: Site) -> None:
    await begin(site, id="s")
    statuses: list[int] = []

    async def change(number: int) -> None:
        answer = await site.client.patch(
            "/sessions/s", json={"title": str(number), "state": {"n": number}}, headers={"If-Match": "1"}
        )
        statuses.append(answer.status_code)

    async with anyio.create_task_group() as tasks:
        for number in range(15):
            tasks.start_soon(change, number)
    assert sorted(statuses) == [200] + [412] * 14
    found = await read(site, "s")
    assert found["version"] == 2 and found["state"] == {"n": int(found["title"])}


async def test_changes_without_a_version_all_succeed(site: Site) -> None:
    await begin(site, id="s")

    async def change(number: int) -> None:
        assert (
            await site.client.patch("/sessions/s", json={"state": {f"k{number}": number}})
        ).status_code == 200

    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(change, number)
    assert (await read(site, "s"))["state"] == {f"k{number}": number for number in range(30)}


NO_CHANGES: list[Any] = [
    {}, {"state": None}, {"active": None}, {"title": 7}, {"active": "no"}, {"active": 0}, {"state": "x"},
    {"user_id": "eve"}, {"id": "other"}, [],
]  # fmt: skip


async def test_an_invalid_change_of_a_session_is_refused(site: Site) -> None:
    await begin(site, id="s")
    before = await held(site)
    for body in NO_CHANGES:
        problem(await site.client.patch("/sessions/s", json=body), 422, "invalid-input")
    assert await held(site) == before


@pytest.mark.parametrize("headers", [{}, {"If-Match": "*"}, {"If-Match": "1"}])
async def test_a_missing_session_cannot_be_changed(site: Site, headers: dict[str, str]) -> None:
    before = await held(site)
    problem(await site.client.patch("/sessions/s", json={"title": "T"}, headers=headers), 404, "not-found")
    problem(await site.client.delete("/sessions/s", headers=headers), 404, "not-found")
    for path in ("fork", "retry"):
        problem(await site.client.post(f"/sessions/s/{path}", json={}, headers=headers), 404, "not-found")
    assert await held(site) == before


# Deleting


async def test_P6_a_deleted_session_is_gone_and_its_name_is_free(site: Site) -> None:
    await begin(site, id="s", title="T", state={"a": 1})
    messages = [(await say(site, "s", str(number)))["message"] for number in range(3)]
    await say(site, "other", "stays")
    assert (await site.client.delete("/sessions/s")).json() == {"ok": True, "deleted": 4}
    for path in ("", "/messages"):
        problem(await site.client.get(f"/sessions/s{path}"), 404, "not-found")
    problem(await site.client.delete("/sessions/s"), 404, "not-found")
    problem(await site.client.get(f"/breadcrumbs/{messages[0]['id']}"), 404, "not-found")
    assert (await site.client.get("/breadcrumbs", params={"session_id": "s"})).json() == []
    assert await ids(site) == ["other"]
    said = await say(site, "s", "again")
    assert said["session_version"] == 1
    again = await read(site, "s")
    assert again["state"] == {} and "title" not in again and again["counts"]["breadcrumbs"] == 1


async def test_P6_hygiene_completes_an_interrupted_deletion(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        await say(site, "s", str(number))

    async def killed(*_: Any) -> int:
        raise OSError("the process died")

    monkeypatch.setattr(Sessions, "_clear", killed)
    assert (await site.client.delete("/sessions/s")).status_code == 500
    monkeypatch.undo()
    for path in ("/sessions/s", "/sessions/s/messages"):
        problem(await site.client.get(path), 404, "not-found")
    problem(await site.client.post("/sessions/s/messages", json={"message": "x"}), 409, "session-gone")
    problem(await site.client.post("/sessions", json={"id": "s"}), 409, "session-gone")
    assert await site.count() == 5 and await ids(site) == []
    assert (await site.client.post("/hygiene/run")).json()["ok"] is True
    assert await site.count() == 0
    assert (await say(site, "s", "again"))["session_version"] == 1


async def test_a_deletion_can_require_a_version(site: Site) -> None:
    await begin(site, id="s")
    await say(site, "s", "hi")
    problem(await site.client.delete("/sessions/s", headers={"If-Match": "1"}), 412, "version-mismatch")
    assert (await read(site, "s"))["version"] == 2
    assert (await site.client.delete("/sessions/s", headers={"If-Match": '"2"'})).status_code == 200


async def test_a_server_without_a_store_returns_503(site: Site) -> None:
    await say(site, "s", "hi")
    await site.store.close()
    for method, path, body in (
        ("GET", "/sessions", None),
        ("GET", "/sessions/s", None),
        ("POST", "/sessions/s/messages", {"message": "x"}),
    ):
        answer: httpx.Response = await site.client.request(method, path, json=body)
        problem(answer, 503, "store-unavailable")
