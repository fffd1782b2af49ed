"""Owners of sessions. A token narrowed to a user cannot change them."""

from __future__ import annotations

import base64
from typing import Any
from uuid import uuid4

import anyio
import orjson
import pytest

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store.state import ADK_SESSION, STATE_HOLDER
from tests.http.answering import answering
from tests.http.conftest import KEY, OWNER, WEAK_KEY, Site, problem
from tests.http.sessions import begin, ids, read, say
from tests.support.conversations import eventually

ALL = {"X-API-Key": KEY}


async def tokens(site: Site) -> tuple[dict[str, str], dict[str, str]]:
    return await site.token(KEY, user_id="ann"), await site.token(KEY, user_id="eve")


def note(session: str, schema: str = "note.v1", **fields: Any) -> dict[str, Any]:
    return {"schema_name": schema, "tags": [f"session:{session}"], "context": {"message": "hi"}, **fields}


# Writing into a session of another user


@pytest.mark.parametrize("named", ["tag", "context"])
async def test_a_user_token_cannot_post_into_another_users_session(keyed: Site, named: str) -> None:
    ann, eve = await tokens(keyed)
    await say(keyed, "a", "ann's words", ann)
    tags, context = (["session:a"], {}) if named == "tag" else ([], {"session_id": "a"})
    for schema in ("user.message.v1", "note.v1", "agent.cancel.v1"):
        body = {
            "schema_name": schema,
            "tags": ["user:message", *tags],
            "context": {"message": "hi", **context},
        }
        problem(await keyed.client.post("/breadcrumbs", json=body, headers=eve), 404, "not-found")
    assert (await read(keyed, "a", ann))["version"] == 1
    assert (await keyed.client.get("/breadcrumbs", headers=eve)).json() == []


async def test_a_user_token_posts_into_its_own_sessions_and_begins_new_ones(keyed: Site) -> None:
    ann, _ = await tokens(keyed)
    for _n in range(2):
        await keyed.post(ann, **note("mine"))
    await begin(keyed, ALL, id="given", user_id="ann")
    await keyed.post(ann, **note("given"))
    await keyed.post(ann, schema_name="note.v1")
    assert sorted(await ids(keyed, ann)) == ["given", "mine"]


@pytest.mark.parametrize("session", [STATE_HOLDER + "adk:app:x", ADK_SESSION + "app:ann:s1"])
async def test_a_user_token_cannot_begin_a_session_with_state_or_of_adk(keyed: Site, session: str) -> None:
    _, eve = await tokens(keyed)
    problem(await keyed.client.post("/breadcrumbs", json=note(session), headers=eve), 404, "not-found")
    assert (await keyed.client.post("/sessions", json={"id": session}, headers=eve)).status_code in (403, 422)


async def test_a_user_token_cannot_change_another_users_session(keyed: Site) -> None:
    ann, eve = await tokens(keyed)
    await say(keyed, "a", "ann's words", ann)
    # A backend may post a message of one user into a session of another.
    made = await keyed.post(ALL, **note("a", "user.message.v1", tags=["session:a", "user:eve"]))
    path = f"/breadcrumbs/{made['id']}"
    assert (await keyed.client.get(path, headers=eve)).status_code == 200
    problem(await keyed.client.patch(path, json={"title": "x"}, headers=eve), 403, "forbidden")
    assert (await keyed.client.patch(path, json={"title": "x"}, headers=ALL)).status_code == 200


async def test_one_of_many_users_who_begin_the_same_session_succeeds(keyed: Site) -> None:
    users = {name: await keyed.token(KEY, user_id=name) for name in ("ann", "bob", "eve")}
    for n in range(10):
        got: dict[str, list[int]] = {name: [] for name in users}

        async def post(name: str, n: int = n, got: dict[str, list[int]] = got) -> None:
            answer = await keyed.client.post("/breadcrumbs", json=note(f"s{n}"), headers=users[name])
            got[name].append(answer.status_code)

        async with anyio.create_task_group() as tasks:
            for name in [*users] * 3:
                tasks.start_soon(post, name)
        assert sorted(set(map(tuple, got.values()))) == [(201, 201, 201), (404, 404, 404)], got
        crumbs = (await keyed.store.list(OWNER, Query(session_id=f"s{n}"))).items
        assert len({tag for crumb in crumbs for tag in crumb.tags if tag.startswith("user:")}) == 1


async def test_a_write_for_a_replaced_session_does_not_reach_the_new_one(
    keyed: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, eve = await tokens(keyed)
    made = await keyed.post(eve, **note("s"))
    real = Sessions.belonging

    async def slow(self: Sessions, owner: Any, session: str) -> Any:
        found = await real(self, owner, session)
        monkeypatch.setattr(Sessions, "belonging", real)
        await keyed.store.delete(OWNER, (await keyed.store.list(OWNER, Query())).items[0].id)
        await keyed.post(ann, **note("s"))
        return found

    monkeypatch.setattr(Sessions, "belonging", slow)
    assert made["session_id"] == "s"
    problem(await keyed.client.post("/breadcrumbs", json=note("s"), headers=eve), 404, "not-found")
    assert (await read(keyed, "s", ann))["version"] == 1


async def test_messages_of_a_session_are_in_no_context_that_another_user_can_read(site: Site) -> None:
    ann, eve = await site.token(user_id="ann"), await site.token(user_id="eve")

    async def said(text: str) -> None:
        answer = await site.client.post(
            "/sessions/a/messages", json={"message": text}, params={"wait": "30"}, headers=ann, timeout=60
        )
        assert answer.status_code == 200, answer.text

    async with answering(site):
        await said("ann's words")
        tags = ["user:message", "extension:chat", "session:a"]
        body = {"schema_name": "user.message.v1", "tags": tags, "context": {"message": "what did ann say?"}}
        await site.client.post("/breadcrumbs", json=body, headers=eve)
        await said("more words")  # events of a session are handled in order
    seen = await site.client.get("/breadcrumbs", params={"include_context": "true"}, headers=eve)
    assert seen.json() == []


# Owners


async def test_a_session_that_began_without_a_user_belongs_to_no_user(keyed: Site) -> None:
    ann, _ = await tokens(keyed)
    await begin(keyed, ALL, id="made")
    await say(keyed, "said", "hello", ALL)
    # This holds even if the first remaining message has a user.
    for session in ("made", "said"):
        await keyed.post(ALL, **note(session, "user.message.v1", tags=[f"session:{session}", "user:ann"]))
        problem(await keyed.client.post(f"/sessions/{session}/messages", json={"message": "x"}, headers=ann),
                404, "not-found")  # fmt: skip
        problem(await keyed.client.delete(f"/sessions/{session}", headers=ann), 404, "not-found")
        assert "user_id" not in await read(keyed, session, ALL)
    assert await ids(keyed, ann) == []


async def test_a_session_keeps_its_user_when_its_breadcrumbs_change(keyed: Site) -> None:
    ann, eve = await tokens(keyed)
    await keyed.post(ann, **note("noted"))
    said = await say(keyed, "said", "hello", ann)
    await keyed.post(ALL, **note("said", "agent.response.v1", tags=["session:said", "user:ann"]))
    assert (
        await keyed.client.delete(f"/breadcrumbs/{said['message']['id']}", headers=ann)
    ).status_code == 200
    for session in ("noted", "said"):
        await keyed.post(ALL, **note(session, "user.message.v1", tags=[f"session:{session}", "user:eve"]))
        for method, path, body in (
            ("POST", "/messages", {"message": "x"}), ("GET", f"/messages/{said['message']['id']}", None),
            ("GET", "", None), ("DELETE", "", None),
        ):  # fmt: skip
            refused = await keyed.client.request(method, f"/sessions/{session}{path}", json=body, headers=eve)
            problem(refused, 404, "not-found")
        assert (await read(keyed, session, ann))["user_id"] == "ann"
    assert await ids(keyed, ann) == ["said", "noted"]


async def test_a_reused_session_name_belongs_to_its_new_user(keyed: Site) -> None:
    ann, eve = await tokens(keyed)
    said = await say(keyed, "s", "hello", ann)
    await keyed.client.delete(f"/breadcrumbs/{said['message']['id']}", headers=ann)
    await say(keyed, "s", "mine now", eve)
    assert (await read(keyed, "s", eve))["user_id"] == "eve"
    await keyed.client.delete("/sessions/s", headers=eve)
    await say(keyed, "s", "nobody's", ALL)
    assert "user_id" not in await read(keyed, "s", ALL)


async def test_a_backend_can_assign_a_session_to_another_user_or_to_none(keyed: Site) -> None:
    ann, eve = await tokens(keyed)
    await say(keyed, "s", "hello", ann)
    await keyed.post(ALL, **note("s", "session.v1", context={"user_id": "eve"}))
    assert await ids(keyed, ann) == [] and await ids(keyed, eve) == ["s"]
    await keyed.post(ALL, **note("s", "session.v1", context={"user_id": None}))
    assert await ids(keyed, ann) == [] == await ids(keyed, eve)


async def test_sessions_from_before_users_were_stored_keep_working(keyed: Site) -> None:
    ann, eve = await tokens(keyed)
    first = await say(keyed, "old", "hello", ann)
    await say(keyed, "old", "and more", ALL, tags=["user:eve"])
    store = keyed.store
    lane = store.keys.session_lane(OWNER, "old")
    await store.connection.call(lane, b"DEL", store.keys.state(lane, OWNER, "old"))
    assert await ids(keyed, ann) == ["old"] and await ids(keyed, eve) == []
    await say(keyed, "old", "still mine", ann)
    await store.delete(OWNER, (await store.list(OWNER, Query(sort="created_at"))).items[0].id)
    assert first["session_version"] == 1
    assert await ids(keyed, ann) == [] == await ids(keyed, eve)


@pytest.mark.parametrize("order", ["old first", "new first"])
@pytest.mark.parametrize("began_by", ["ann", None])
async def test_an_import_restores_the_user_of_a_session(
    keyed: Site, order: str, began_by: str | None
) -> None:
    ann, eve = await tokens(keyed)
    await keyed.post(ann if began_by else ALL, **note("s"))
    for user in ("eve", "bob"):
        await keyed.post(ALL, **note("s", "user.message.v1", tags=["session:s", f"user:{user}"]))
    crumbs = (await keyed.store.list(OWNER, Query(session_id="s"))).items
    await Sessions(keyed.store).delete(OWNER, "s")
    for crumb in crumbs if order == "new first" else crumbs[::-1]:
        await keyed.store.restore(crumb, [])
    assert (await read(keyed, "s", ALL)).get("user_id") == began_by
    assert await ids(keyed, ann) == (["s"] if began_by else []) and await ids(keyed, eve) == []


async def test_an_import_does_not_change_the_user_of_an_existing_session(keyed: Site) -> None:
    ann, _ = await tokens(keyed)
    made = await keyed.post(ALL, **note("s", tags=["session:s", "user:eve"]))
    (older,) = (await keyed.store.list(OWNER, Query(session_id="s"))).items
    await keyed.client.delete(f"/breadcrumbs/{made['id']}", headers=ALL)
    await keyed.post(ann, **note("s"))
    await keyed.store.restore(older, [])
    assert (await read(keyed, "s", ALL))["user_id"] == "ann"


async def test_a_fork_of_a_session_without_a_user_has_no_user(keyed: Site) -> None:
    ann, _ = await tokens(keyed)
    await begin(keyed, ALL, id="s")
    await say(keyed, "s", "hello", ALL, tags=["user:ann"])
    fork = await keyed.client.post("/sessions/s/fork", json={"id": "f"}, headers=ALL)
    assert fork.status_code == 201 and "user_id" not in fork.json()
    problem(await keyed.client.get("/sessions/f", headers=ann), 404, "not-found")


# `message` is not a user


async def test_the_user_id_message_is_refused(site: Site) -> None:
    refused = problem(
        await site.client.post("/auth/token", json={"user_id": "message"}), 422, "invalid-input"
    )
    assert "user:message" in refused["detail"]
    problem(await site.client.post("/sessions", json={"user_id": "message"}), 422, "invalid-input")
    await site.post(**note("s", "session.v1", context={"user_id": "message"}))
    assert "user_id" not in await read(site, "s")
    await say(site, "s", "hi")
    # A token of an older version or of another issuer.
    token, _ = site.app.auth.issue(Principal(DEVELOPER, uuid4(), user_id="message"), 60)
    answer = await site.client.get("/breadcrumbs", headers={"Authorization": f"Bearer {token}"})
    problem(answer, 401, "unauthenticated")


# Messages


@pytest.mark.parametrize("tags", [[], ["extension:chat"]])
async def test_P3_a_repeated_first_message_is_stored_once(keyed: Site, tags: list[str]) -> None:
    for who in (*(await tokens(keyed))[:1], ALL):
        headers = {**who, "Idempotency-Key": "k"}
        session = "of-ann" if who is not ALL else "of-nobody"
        body = {"message": "hi", "tags": tags}
        first, again = [
            await keyed.client.post(f"/sessions/{session}/messages", json=body, headers=headers)
            for _ in range(2)
        ]
        assert (first.status_code, again.status_code) == (201, 201), again.text
        assert again.headers["idempotency-replayed"] == "true" and first.json() == again.json()


async def test_concurrent_first_messages_are_all_accepted(keyed: Site) -> None:
    ann, eve = await tokens(keyed)
    got: list[tuple[str, int]] = []

    async def post(who: dict[str, str], session: str) -> None:
        answer = await keyed.client.post(f"/sessions/{session}/messages", json={"message": "x"}, headers=who)
        got.append((session, answer.status_code))

    async with anyio.create_task_group() as tasks:
        for n in range(5):
            for _ in range(3):
                tasks.start_soon(post, ann, f"n{n}")
    assert {status for _, status in got} == {201}, got
    problem(
        await keyed.client.post("/sessions/n1/messages", json={"message": "x"}, headers=eve), 404, "not-found"
    )


async def test_a_replay_of_a_deleted_message_returns_the_first_result(keyed: Site) -> None:
    ann, _ = await tokens(keyed)
    for session, more in (("ended", False), ("going-on", True)):
        headers = {**ann, "Idempotency-Key": "k"}
        first = await keyed.client.post(
            f"/sessions/{session}/messages", json={"message": "hi"}, headers=headers
        )
        if more:
            await say(keyed, session, "more", ann)
        await keyed.client.delete(f"/breadcrumbs/{first.json()['message']['id']}", headers=ann)
        again = await keyed.client.post(
            f"/sessions/{session}/messages", json={"message": "hi"}, headers=headers
        )
        assert again.status_code == 201 and again.headers["idempotency-replayed"] == "true"
        assert again.json() == {"message": first.json()["message"]}


async def test_if_match_with_a_star_does_not_recreate_a_session(
    keyed: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is deleted between the check and the write."""
    said = await say(keyed, "s", "hi", ALL)
    real = Sessions.belonging

    async def slow(self: Sessions, owner: Any, session: str) -> Any:
        found = await real(self, owner, session)
        await keyed.client.delete(f"/breadcrumbs/{said['message']['id']}", headers=ALL)
        return found

    monkeypatch.setattr(Sessions, "belonging", slow)
    headers = {**ALL, "If-Match": "*"}
    problem(
        await keyed.client.post("/sessions/s/messages", json={"message": "x"}, headers=headers),
        404,
        "not-found",
    )
    assert await ids(keyed, ALL) == []


# Write-only tokens


async def test_a_token_that_can_only_write_learns_nothing_about_existing_data(keyed: Site) -> None:
    writer = {"X-API-Key": WEAK_KEY}
    await begin(keyed, ALL, id="s", title="Title-8421", state={"secret": "state-8421"})
    await say(keyed, "s", "words-8421", ALL)
    for method, path, body in (
        ("PATCH", "", {"state": {"more": 1}}), ("PATCH", "", {"active": True}), ("POST", "/fork", {"id": "f"}),
    ):  # fmt: skip
        answer = await keyed.client.request(method, f"/sessions/s{path}", json=body, headers=writer)
        assert answer.status_code in (200, 201) and "8421" not in answer.text, answer.text
        assert not answer.json().keys() & {"title", "summary", "user_id", "state"}
        assert answer.headers["etag"] == f'"{answer.json()["version"]}"'
    made = await keyed.client.post("/sessions", json={"id": "new"}, headers=writer)
    assert made.status_code == 201 and "state" not in made.json()
    for wait, accept in (("?wait=1", "*/*"), ("", "text/event-stream")):
        before = (await read(keyed, "s", ALL))["version"]
        answer = await keyed.client.post(
            f"/sessions/s/messages{wait}", json={"message": "x"}, headers={**writer, "Accept": accept}
        )
        assert "subscriber" in problem(answer, 403, "forbidden")["detail"]
        assert (await read(keyed, "s", ALL))["version"] == before
    said = await keyed.client.post(
        "/sessions/s/messages", json={"message": "mine"}, headers={**writer, "Idempotency-Key": "k"}
    )
    path = f"/breadcrumbs/{said.json()['message']['id']}"
    await keyed.client.patch(path, json={"context": {"message": "changed-8421"}}, headers=ALL)
    again = await keyed.client.post(
        "/sessions/s/messages", json={"message": "mine"}, headers={**writer, "Idempotency-Key": "k"}
    )
    assert again.status_code == 201 and "8421" not in again.text


# Cursors


async def test_a_cursor_reveals_nothing(keyed: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("breadcrumbs.runtime.sessions.sessions._MAX_EXAMINED", 2)
    monkeypatch.setattr("breadcrumbs.runtime.sessions.sessions._BATCH_SIZE", 1)
    # As long as the list of a user is not complete, all sessions are examined.
    monkeypatch.setattr("breadcrumbs.runtime.store.session_users._MAX_STEPS", 0)
    ann, eve = await tokens(keyed)
    for n in range(3):
        await say(keyed, f"anns-{n}", "hi", ann)
    await say(keyed, "eves", "hi", eve)
    for n in range(3, 6):
        await say(keyed, f"anns-{n}", "hi", ann)
    page = (await keyed.client.get("/sessions", params={"limit": 1}, headers=eve)).json()
    raw = b"".join(base64.urlsafe_b64decode(part + "===") for part in page["next_cursor"].split("."))
    assert b"anns" not in raw
    active = (await keyed.store.list(OWNER, Query(session_id="anns-4"))).items[0].created
    assert active.to_bytes(8)[:5] not in raw
    assert await ids(keyed, eve, limit=1) == ["eves"]
    problem(
        await keyed.client.get("/sessions", params={"cursor": page["next_cursor"][:-2]}, headers=eve),
        422, "invalid-cursor",
    )  # fmt: skip


# Reports of a deletion


async def test_a_waiting_request_of_a_user_token_reports_the_deletion_of_the_session(keyed: Site) -> None:
    ann, _ = await tokens(keyed)
    await say(keyed, "s", "hi", ann)

    async def posted() -> bool:
        return bool((await read(keyed, "s", ALL))["version"] == 2)

    async def delete() -> None:
        await eventually(posted, "nothing was posted")
        assert (await keyed.client.delete("/sessions/s", headers=ALL)).status_code == 200

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(delete)
        with anyio.fail_after(20):
            answer = await keyed.client.post(
                "/sessions/s/messages", json={"message": "x"}, params={"wait": "30"}, headers=ann, timeout=60
            )
    problem(answer, 409, "session-gone")


async def test_the_end_of_a_session_carries_its_users_tag(keyed: Site) -> None:
    ann, _ = await tokens(keyed)
    await say(keyed, "s", "hi", ann)
    await Sessions(keyed.store).delete(OWNER, "s")
    lane = keyed.store.keys.session_lane(OWNER, "s")
    entries = await keyed.store.connection.call(lane, b"XRANGE", keyed.store.keys.events(lane), b"-", b"+")
    (end,) = [entry[1][1] for entry in entries if entry[1][1].startswith(b"s")]
    assert orjson.loads(end[33:].partition(b" ")[2])[1] == ["session:s", "user:ann"]


# Users and titles that fit into no tag


@pytest.mark.parametrize("user", ["x" * 300, "two\nlines"])
async def test_a_session_whose_user_does_not_fit_into_a_tag_works(site: Site, user: str) -> None:
    record = BreadcrumbCreate(
        schema_name="session.v1", tags=["session:s"], context={"user_id": user, "title": "a\n" + "b" * 600}
    )
    await site.store.create(DEVELOPER, record)
    assert (await read(site, "s"))["user_id"] == user
    await say(site, "s", "hi")
    changed = await site.client.patch("/sessions/s", json={"state": {"x": 1}})
    assert changed.status_code == 200, changed.text
    fork = await site.client.post("/sessions/s/fork", json={"id": "f"})
    assert fork.status_code == 201, fork.text
    assert fork.json()["user_id"] == user and fork.json()["title"].startswith("a bbb")
    assert (await site.client.delete("/sessions/s")).status_code == 200
