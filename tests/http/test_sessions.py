"""Sessions over HTTP: made, read, changed, listed, deleted, and what is said in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import anyio
import httpx
import orjson
import pytest

from breadcrumbs.runtime import transfer
from breadcrumbs.runtime.breadcrumb import Breadcrumb
from breadcrumbs.runtime.query import Query
from breadcrumbs.runtime.sessions import STATE_HOLDER, Sessions
from breadcrumbs.runtime.settings import DEVELOPER
from tests.http.conftest import KEY, OTHER_KEY, OWNER, WEAK_KEY, Site, problem

STRANGE = ["a/b", "a b", "a:b", "ü/🙂", "%2F", "a?b#c", "{L01}", "'\"\\", "+", "a" * 248]


async def held(site: Site) -> dict[bytes, bytes]:
    """Everything that this site's store holds, and nothing of the other tests'."""
    store = site.store
    prefix = store.keys.meta.removesuffix(b"meta")
    keys = sorted(await store.connection.call(0, b"KEYS", prefix + b"*"))
    return dict(
        zip(keys, await store.connection.call_all([(0, (b"DUMP", key)) for key in keys]), strict=True)
    )


async def begin(site: Site, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    answer = await site.client.post("/sessions", json=fields, headers=headers)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def say(
    site: Site, session: str, text: str, headers: dict[str, str] | None = None, **fields: Any
) -> dict[str, Any]:
    answer = await site.client.post(
        f"/sessions/{quote(session, safe='')}/messages", json={"message": text, **fields}, headers=headers
    )
    assert answer.status_code == 201, answer.text
    said: dict[str, Any] = answer.json()
    return said


async def read(site: Site, session: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    answer = await site.client.get(f"/sessions/{quote(session, safe='')}", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["etag"] == f'"{answer.json()["version"]}"'
    found: dict[str, Any] = answer.json()
    return found


async def answer_to(site: Site, message: dict[str, Any], text: str = "yes", **fields: Any) -> dict[str, Any]:
    return await site.post(
        schema_name="agent.response.v1",
        tags=[tag for tag in message["tags"] if tag != "user:message"],
        context={
            "message": text,
            "trigger_id": message["id"],
            "creator": {"type": "agent", "agent_id": "a"},
            **fields,
        },
    )


async def ids(site: Site, headers: dict[str, str] | None = None, **params: Any) -> list[str]:
    """All pages of the list."""
    found: list[str] = []
    while True:
        page = (await site.client.get("/sessions", params=params, headers=headers)).json()
        found += [session["id"] for session in page["sessions"]]
        assert page["has_more"] == ("next_cursor" in page)
        if not page["has_more"]:
            return found
        params["cursor"] = page["next_cursor"]


def nulls_in(value: Any) -> bool:
    if isinstance(value, dict):
        return any(nulls_in(part) for part in value.values())
    return any(nulls_in(part) for part in value) if isinstance(value, list) else value is None


# Beginning one


async def test_a_session_is_there_as_soon_as_something_is_posted_in_it(site: Site) -> None:
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


async def test_without_an_id_one_is_made_up(site: Site) -> None:
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


async def test_P4_of_twenty_who_make_the_same_session_at_once_one_does(site: Site) -> None:
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
async def test_P3_the_same_key_gives_the_same_session_again(site: Site, body: dict[str, Any]) -> None:
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


async def test_what_cannot_be_is_said_and_nothing_is_written(site: Site) -> None:
    before = await held(site)
    for body, where in WRONG:
        refused = problem(await site.client.post("/sessions", json=body), 422, "invalid-input")
        assert where in [error["where"] for error in refused["errors"]], body
    assert await held(site) == before


async def test_any_name_works_and_none_is_another(site: Site) -> None:
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
    assert (await begin(site, id=".."))["id"] == ".."  # in a path this is the folder above


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


async def test_the_last_active_session_is_first_and_shared_state_is_none(site: Site) -> None:
    for name in ("one", "two", "three", "one"):
        await say(site, name, f"in {name}")
    await site.post(schema_name="session.state.v1", tags=[f"session:{STATE_HOLDER}app"], context={})
    listed = (await site.client.get("/sessions")).json()
    assert [session["id"] for session in listed["sessions"]] == ["one", "three", "two"]
    assert listed["has_more"] is False and "state" not in listed["sessions"][0]
    problem(await site.client.get(f"/sessions/{STATE_HOLDER.replace('/', '%2F')}app"), 404, "not-found")


@pytest.mark.parametrize("limit", [1, 4, 7])
async def test_P7_the_list_goes_to_the_end(site: Site, limit: int) -> None:
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


async def test_a_value_of_the_state_is_as_secret_and_as_private_as_what_set_it(keyed: Site) -> None:
    curator, roles = await keyed.token(KEY), ["emitter", "subscriber"]
    one, two = [await keyed.token(KEY, agent_id=str(uuid4()), roles=roles) for _ in range(2)]
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
    # The same after an export.
    lines = [transfer.decode(transfer.encode(crumb, [])) async for crumb in keyed.store.walk(OWNER, Query())]
    await keyed.client.delete("/sessions/s", headers=curator)
    for crumb, history in lines:
        await keyed.store.restore(crumb, history)
    assert (await read(keyed, "s", one))["state"] == {"open": 1, "opens": 3, **mine}
    assert (await read(keyed, "s", two))["state"] == {"open": 1, "opens": 3}


async def test_who_may_read_a_value_of_the_state_follows_the_breadcrumb_that_set_it(keyed: Site) -> None:
    curator, roles = await keyed.token(KEY), ["emitter", "subscriber"]
    one, two = [await keyed.token(KEY, agent_id=str(uuid4()), roles=roles) for _ in range(2)]

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
    # Whatever else was changed of it before, and what it is now.
    await change(hidden, schema_name="note.v1", context={"state_delta": {"b": "corrected"}})
    await change(hidden, sensitivity="secret")
    await change(mine, visibility="private")
    await change(opened, sensitivity="secret")
    assert await shown() == [{"a": 1, "c": 3}, {"a": 1}, everything]
    # Not by the back door either.
    problem(
        await keyed.client.patch(
            opened, json={"context": {"only_credentials_are_secret": True}}, headers=one
        ),
        403,
        "forbidden",
    )
    await change(opened, curator, sensitivity="low")
    await change(early, sensitivity="secret")  # of what it has set, only `a` is its own still
    expected = [{"c": 3, "d": 4}, {"d": 4}, everything]
    assert await shown() == expected
    assert (await read(keyed, "s", two))["title"] == "T"
    # The same in a fork, and after an export.
    for headers, state in zip((one, two, curator), expected, strict=True):
        forked = await keyed.client.post("/sessions/s/fork", headers=headers)
        assert forked.json()["state"] == state
    lines = [line async for line in transfer.export_lines(keyed.store, OWNER, Query(session_id="s"))]
    await keyed.client.delete("/sessions/s", headers=curator)
    async for _ in transfer.import_lines(keyed.store, lines):
        pass
    assert await shown() == expected


async def test_a_credential_in_the_state_is_for_curators_wherever_it_is_looked_for(keyed: Site) -> None:
    curator, plain = await keyed.token(KEY), await keyed.token(KEY, roles=["emitter", "subscriber"])
    credential = {"authType": "apiKey", "apiKey": "hush"}
    await begin(keyed, plain, id="s", state={"first": credential, "step": 1})
    change = {"state": {"second": credential}, "active": False}
    assert (await keyed.client.patch("/sessions/s", json=change, headers=plain)).status_code == 200
    for headers, shown in ((plain, {"authType": "apiKey"}), (curator, credential)):
        found = await read(keyed, "s", headers)
        assert found["state"] == {"first": shown, "second": shown, "step": 1}
        assert found["active"] is False
    # As with any other secret breadcrumb.
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
    # What holds none is secret to nobody.
    await keyed.client.patch("/sessions/s", json={"state": {"step": 2}}, headers=plain)
    newest, *_ = (await keyed.client.get("/breadcrumbs", params=asked, headers=plain)).json()
    assert newest["context"]["state_delta"] == {"step": 2}


async def test_a_session_that_nobody_made_can_get_a_title(site: Site) -> None:
    await say(site, "s", "hi")
    assert (await site.client.patch("/sessions/s", json={"title": "T"})).json()["title"] == "T"


@pytest.mark.parametrize("given", ["1", '"1"', 'W/"1"', "3"])
async def test_P1_a_change_of_another_version_changes_nothing_not_even_half_of_it(
    site: Site, given: str
) -> None:
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


async def test_of_many_changes_based_on_one_version_one_is_made(site: Site) -> None:
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


async def test_many_changes_without_a_version_all_count(site: Site) -> None:
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


async def test_a_change_that_is_none_is_refused(site: Site) -> None:
    await begin(site, id="s")
    before = await held(site)
    for body in NO_CHANGES:
        problem(await site.client.patch("/sessions/s", json=body), 422, "invalid-input")
    assert await held(site) == before


@pytest.mark.parametrize("headers", [{}, {"If-Match": "*"}, {"If-Match": "1"}])
async def test_what_is_not_there_cannot_be_changed(site: Site, headers: dict[str, str]) -> None:
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


async def test_P6_a_deletion_that_was_killed_is_finished_by_the_housekeeping(
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


async def test_a_deletion_can_ask_for_a_version(site: Site) -> None:
    await begin(site, id="s")
    await say(site, "s", "hi")
    problem(await site.client.delete("/sessions/s", headers={"If-Match": "1"}), 412, "version-mismatch")
    assert (await read(site, "s"))["version"] == 2
    assert (await site.client.delete("/sessions/s", headers={"If-Match": '"2"'})).status_code == 200


# Saying something


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


async def test_a_message_may_ask_for_the_version_it_answers_to(site: Site) -> None:
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


async def test_a_message_that_is_none_is_refused(site: Site) -> None:
    before = await held(site)
    for body in NO_MESSAGES:
        answer = await site.client.post("/sessions/s/messages", json=body)
        assert answer.status_code == 422, body
    assert await held(site) == before


# What was said


async def pages(site: Site, way: str, limit: int, start: str | None = None) -> list[list[str]]:
    """The pages of a session in one direction, as texts."""
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
async def test_P7_messages_go_to_the_end_in_both_directions(site: Site, limit: int) -> None:
    texts = [str(number) for number in range(10)]
    for text in texts:
        await say(site, "s", text)
        await site.post(schema_name="note.v1", tags=["session:s"])  # not something that was said
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


async def test_the_last_page_says_where_the_next_message_will_be(site: Site) -> None:
    """What a page gives as `after` finds what comes later, also when there is nothing yet."""
    await say(site, "s", "one")
    after = (await site.client.get("/sessions/s/messages")).json()["after"]
    for number in range(3):
        empty = (await site.client.get("/sessions/s/messages", params={"after": after})).json()
        assert empty["messages"] == [] and empty["has_more"] is False
        await say(site, "s", f"later {number}")
        page = (await site.client.get("/sessions/s/messages", params={"after": empty["after"]})).json()
        assert [message["text"] for message in page["messages"]] == [f"later {number}"]
        after = page["after"]


async def test_a_session_in_which_nobody_spoke_has_an_empty_page(site: Site) -> None:
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


async def test_each_message_has_its_role_its_words_and_what_it_answers(site: Site) -> None:
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
async def test_P10_nothing_that_was_not_said_becomes_a_word(
    site: Site, context: dict[str, Any], text: str
) -> None:
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


async def test_P8_imported_messages_keep_their_times_and_their_places(site: Site) -> None:
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
    """As many round trips, and as many bytes, as in a short one."""
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


# Whose they are


async def test_R8_no_tenant_sees_or_touches_another_ones_sessions(keyed: Site) -> None:
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


async def test_a_token_for_a_session_knows_no_other(keyed: Site) -> None:
    everything = {"X-API-Key": KEY}
    for name in ("mine", "other"):
        await begin(keyed, everything, id=name, user_id="u")
        await say(keyed, name, f"in {name}", everything)
    narrow = await keyed.token(KEY, session_id="mine")
    assert await ids(keyed, narrow) == ["mine"] == await ids(keyed, narrow, user_id="u")
    assert await ids(keyed, narrow, user_id="v") == []
    assert (await read(keyed, "mine", narrow))["counts"]["messages"] == 1
    for method, path, body in (
        ("GET", "", None),
        ("GET", "/messages", None),
        ("PATCH", "", {"title": "T"}),
        ("DELETE", "", None),
        ("POST", "/messages", {"message": "hi"}),
        ("POST", "/fork", {}),
        ("POST", "/retry", {}),
    ):
        refused = await keyed.client.request(method, f"/sessions/other{path}", json=body, headers=narrow)
        problem(refused, 404, "not-found")
    problem(await keyed.client.post("/sessions", json={"id": "third"}, headers=narrow), 403, "forbidden")
    problem(await keyed.client.post("/sessions/mine/fork", json={}, headers=narrow), 403, "forbidden")
    assert (
        await keyed.client.patch("/sessions/mine", json={"title": "T"}, headers=narrow)
    ).status_code == 200
    assert (await keyed.client.delete("/sessions/mine", headers=narrow)).status_code == 200
    assert await ids(keyed, narrow) == []
    assert (await begin(keyed, narrow))["id"] == "mine"
    assert await ids(keyed, everything) == ["mine", "other"]


async def test_a_token_for_a_user_knows_that_users_sessions_only(keyed: Site) -> None:
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
        for method, path, body in (
            ("GET", "", None),
            ("GET", "/messages", None),
            ("PATCH", "", {"title": "T"}),
            ("DELETE", "", None),
            ("POST", "/messages", {"message": "hi"}),
            ("POST", "/fork", {}),
            ("POST", "/retry", {}),
        ):
            refused = await keyed.client.request(method, f"/sessions/{session}{path}", json=body, headers=eve)
            problem(refused, 404, "not-found")
    problem(await keyed.client.post("/sessions", json={"user_id": "ann"}, headers=eve), 403, "forbidden")
    problem(await keyed.client.post("/sessions", json={"id": "made"}, headers=eve), 409, "already-exists")
    fork = (await keyed.client.post("/sessions/spoken/fork", json={}, headers=ann)).json()
    assert fork["user_id"] == "ann" and fork["counts"]["messages"] == 1
    assert (await keyed.client.delete("/sessions/made", headers=ann)).status_code == 200


async def test_nobody_takes_over_another_users_session_with_a_breadcrumb(keyed: Site) -> None:
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


async def test_what_is_secret_or_private_stays_so(keyed: Site) -> None:
    curator, other = {"X-API-Key": KEY}, await keyed.token(KEY, agent_id=str(uuid4()), roles=["subscriber"])
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


async def test_the_owner_is_the_tokens(keyed: Site) -> None:
    said = await say(keyed, "s", "hi", {"X-API-Key": KEY})
    full = (
        await keyed.client.get(f"/breadcrumbs/{said['message']['id']}/full", headers={"X-API-Key": KEY})
    ).json()
    assert full["owner_id"] == str(OWNER)


async def test_a_server_without_a_store_says_503(site: Site) -> None:
    await say(site, "s", "hi")
    await site.store.close()
    for method, path, body in (
        ("GET", "/sessions", None),
        ("GET", "/sessions/s", None),
        ("POST", "/sessions/s/messages", {"message": "x"}),
    ):
        answer: httpx.Response = await site.client.request(method, path, json=body)
        problem(answer, 503, "store-unavailable")
