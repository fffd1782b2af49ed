"""Creating, reading, changing, deleting and listing breadcrumbs over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import anyio
import pytest

from breadcrumbs.runtime.settings.settings import DEVELOPER
from tests.http.conftest import (
    AGENT_A,
    AGENT_B,
    KEY,
    OTHER_KEY,
    WEAK_KEY,
    MakeSite,
    Site,
    problem,
    running_site,
)
from tests.support.servers import Server

MERGE = {"Content-Type": "application/merge-patch+json"}
HELLO: dict[str, Any] = {
    "schema_name": "user.message.v1",
    "title": "Hello",
    "tags": ["user:message", "session:abc"],
    "context": {"message": "Hello!"},
}


async def test_a_post_returns_id_version_and_times_of_the_store(site: Site) -> None:
    answer = await site.client.post("/breadcrumbs", json=HELLO)
    assert answer.status_code == 201
    created = answer.json()
    assert set(created) == {"id", "version", "created_at", "updated_at", "session_id"}
    assert (created["version"], created["session_id"]) == (1, "abc")
    assert created["created_at"] == created["updated_at"]
    assert answer.headers["location"] == f"/breadcrumbs/{created['id']}"
    assert answer.headers["etag"] == '"1"'
    assert UUID(created["id"]).version == 7


async def test_a_session_id_in_the_context_sets_the_session(site: Site) -> None:
    created = await site.post(title="x", context={"session_id": "abc"})
    assert created["session_id"] == "abc"
    full = (await site.client.get(f"/breadcrumbs/{created['id']}/full")).json()
    assert full["tags"] == ["session:abc"]


async def test_a_breadcrumb_without_a_session_has_no_session_in_the_reply(site: Site) -> None:
    assert "session_id" not in await site.post(title="x")


async def test_every_field_is_optional(site: Site) -> None:
    created = await site.post()
    view = (await site.client.get(f"/breadcrumbs/{created['id']}")).json()
    assert view["title"] == ""
    assert view["tags"] == []
    assert view["context"] == {}
    assert "schema_name" not in view
    assert "description" not in view


async def test_the_view_shows_the_content_and_no_internals(site: Site) -> None:
    id = (await site.post(**HELLO, description="d", semantic_version="1.0"))["id"]
    view = (await site.client.get(f"/breadcrumbs/{id}")).json()
    assert set(view) == {
        "id", "title", "description", "semantic_version", "schema_name", "tags", "context", "version",
        "created_at", "updated_at",
    }  # fmt: skip
    assert view["context"] == {"message": "Hello!", "session_id": "abc"}


async def test_the_full_view_shows_everything(site: Site) -> None:
    id = (await site.post(**HELLO))["id"]
    full = (await site.client.get(f"/breadcrumbs/{id}/full")).json()
    assert full["owner_id"] == str(DEVELOPER)
    assert (full["visibility"], full["sensitivity"]) == ("team", "low")
    assert full["created_by"] == full["updated_by"] == "00000000-0000-0000-0000-000000000002"
    assert len(full["checksum"]) == 64


async def test_hints_of_the_breadcrumb_shape_its_view_and_not_its_full_form(site: Site) -> None:
    hints = {"include": ["message"]}
    id = (await site.post(title="x", context={"message": "m", "noise": 1}, llm_hints=hints))["id"]
    assert (await site.client.get(f"/breadcrumbs/{id}")).json()["context"] == {"message": "m"}
    assert (await site.client.get(f"/breadcrumbs/{id}/full")).json()["context"] == {
        "message": "m",
        "noise": 1,
    }


async def test_hints_in_the_context_apply_as_in_older_rcrt_data(site: Site) -> None:
    context = {"message": "m", "noise": 1, "llm_hints": {"exclude": ["noise", "llm_hints"]}}
    id = (await site.post(title="x", context=context))["id"]
    assert (await site.client.get(f"/breadcrumbs/{id}")).json()["context"] == {"message": "m"}


@pytest.mark.parametrize("place", ["llm_hints", "context"])
async def test_hints_of_the_newest_schema_definition_shape_the_view(site: Site, place: str) -> None:
    def definition(*paths: str) -> dict[str, Any]:
        hints = {"include": list(paths)}
        return {"llm_hints": hints} if place == "llm_hints" else {"context": {"llm_hints": hints}}

    tags = ["defines:note.v1"]
    await site.post(schema_name="schema.def.v1", title="old", tags=tags, **definition("b"))
    await site.post(schema_name="schema.def.v1", title="new", tags=tags, **definition("a"))
    id = (await site.post(schema_name="note.v1", title="x", context={"a": 1, "b": 2}))["id"]
    answer = await site.client.get(f"/breadcrumbs/{id}")
    assert answer.json()["context"] == {"a": 1}
    # Hints do not change the version, so the ETag also covers the hints. If-Match still accepts it.
    etag = answer.headers["etag"]
    assert etag.startswith('"1.')
    again = await site.client.get(f"/breadcrumbs/{id}", headers={"If-None-Match": etag})
    assert again.status_code == 304
    changed = await site.client.patch(f"/breadcrumbs/{id}", json={"title": "y"}, headers={"If-Match": etag})
    assert changed.status_code == 200


@pytest.mark.parametrize(
    "mark",
    [{"tags": ["session:b"]}, {"tags": ["user:bob"]}, {"visibility": "private"}, {"sensitivity": "secret"}],
)
async def test_a_private_schema_definition_does_not_affect_the_view_of_others(
    site: Site, mark: dict[str, Any]
) -> None:
    literal = {"transform": {"leak": {"type": "literal", "literal": "theirs"}}}
    tags = ["defines:note.v1", *mark.pop("tags", [])]
    await site.post(schema_name="schema.def.v1", title="d", tags=tags, llm_hints=literal, **mark)
    id = (await site.post(schema_name="note.v1", title="x", tags=["session:a"]))["id"]
    assert "leak" not in (await site.client.get(f"/breadcrumbs/{id}")).json()["context"]


async def test_a_new_schema_definition_applies_within_about_a_second(site: Site) -> None:
    id = (await site.post(schema_name="note.v1", title="x", context={"a": 1, "b": 2}))["id"]
    assert (await site.client.get(f"/breadcrumbs/{id}")).json()["context"] == {"a": 1, "b": 2}
    await site.post(
        schema_name="schema.def.v1", title="d", tags=["defines:note.v1"], llm_hints={"include": ["a"]}
    )
    await anyio.sleep(1.1)
    assert (await site.client.get(f"/breadcrumbs/{id}")).json()["context"] == {"a": 1}


async def test_an_unchanged_breadcrumb_is_304(site: Site) -> None:
    id = (await site.post(**HELLO))["id"]
    for path in (f"/breadcrumbs/{id}", f"/breadcrumbs/{id}/full"):
        first = await site.client.get(path)
        for tag in (first.headers["etag"], f"W/{first.headers['etag']}", '"7", "1"', "*"):
            again = await site.client.get(path, headers={"If-None-Match": tag})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", '"1"')
        assert (await site.client.get(path, headers={"If-None-Match": '"2"'})).status_code == 200


async def test_head_answers_as_get_without_a_body(site: Site) -> None:
    id = (await site.post(**HELLO))["id"]
    for path in (
        f"/breadcrumbs/{id}",
        f"/breadcrumbs/{id}/full",
        f"/breadcrumbs/{id}/history",
        "/breadcrumbs",
        "/health",
    ):
        head, get = await site.client.head(path), await site.client.get(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(get.content))
    missing = await site.client.head(f"/breadcrumbs/{uuid4()}")
    assert (missing.status_code, missing.content) == (404, b"")


# Idempotency


async def test_the_same_key_and_body_return_the_first_result_and_write_nothing(site: Site) -> None:
    headers = {"Idempotency-Key": "retry-1"}
    first = await site.client.post("/breadcrumbs", json=HELLO, headers=headers)
    second = await site.client.post("/breadcrumbs", json=HELLO, headers=headers)
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert (second.status_code, second.json()) == (201, first.json())
    assert await site.count() == 1


async def test_the_same_key_with_another_body_is_refused(site: Site) -> None:
    headers = {"Idempotency-Key": "retry-1"}
    await site.client.post("/breadcrumbs", json=HELLO, headers=headers)
    other = await site.client.post("/breadcrumbs", json={**HELLO, "title": "Other"}, headers=headers)
    problem(other, 422, "idempotency-mismatch")
    assert await site.count() == 1


async def test_a_hundred_concurrent_posts_with_one_key_make_one_breadcrumb(site: Site) -> None:
    ids: set[str] = set()

    async def post() -> None:
        answer = await site.client.post("/breadcrumbs", json=HELLO, headers={"Idempotency-Key": "k"})
        assert answer.status_code == 201
        ids.add(answer.json()["id"])

    async with anyio.create_task_group() as group:
        for _ in range(100):
            group.start_soon(post)
    assert len(ids) == 1
    assert await site.count() == 1


async def test_two_users_can_use_the_same_key(keyed: Site) -> None:
    for user in ("ann", "bob"):
        headers = await keyed.token(KEY, user_id=user) | {"Idempotency-Key": "1"}
        answer = await keyed.client.post("/breadcrumbs", json={"title": "x"}, headers=headers)
        assert answer.status_code == 201
        assert "idempotency-replayed" not in answer.headers


# Changing


async def test_a_change_replaces_the_given_fields_and_keeps_the_others(site: Site) -> None:
    id = (await site.post(**HELLO))["id"]
    answer = await site.client.patch(f"/breadcrumbs/{id}", json={"context": {"other": 1}})
    assert answer.status_code == 200
    changed = answer.json()
    assert set(changed) == {"ok", "id", "version", "updated_at"}
    assert (changed["ok"], changed["id"], changed["version"]) == (True, id, 2)
    assert answer.headers["etag"] == '"2"'
    full = (await site.client.get(f"/breadcrumbs/{id}/full")).json()
    assert full["context"] == {"other": 1, "session_id": "abc"}
    assert (full["title"], full["updated_at"]) == ("Hello", changed["updated_at"])


async def test_a_merge_patch_merges_the_context(site: Site) -> None:
    id = (await site.post(title="x", context={"a": {"b": 1, "c": 2}, "d": 3}))["id"]
    raw = b'{"context": {"a": {"b": null, "e": 4}, "d": null}}'
    answer = await site.client.patch(f"/breadcrumbs/{id}", content=raw, headers=MERGE)
    assert answer.status_code == 200
    assert (await site.client.get(f"/breadcrumbs/{id}/full")).json()["context"] == {"a": {"c": 2, "e": 4}}


@pytest.mark.parametrize("form", ["1", '"1"', 'W/"1"', "*", ' "1" '])
async def test_if_match_is_accepted_in_every_form_that_clients_send(site: Site, form: str) -> None:
    id = (await site.post(**HELLO))["id"]
    answer = await site.client.patch(f"/breadcrumbs/{id}", json={"title": "y"}, headers={"If-Match": form})
    assert (answer.status_code, answer.json()["version"]) == (200, 2)


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_a_stale_if_match_is_412_with_the_current_version(site: Site, method: str) -> None:
    id = (await site.post(**HELLO))["id"]
    await site.client.patch(f"/breadcrumbs/{id}", json={"title": "second"})
    body: dict[str, Any] = {"json": {"title": "third"}} if method == "PATCH" else {}
    answer = await site.client.request(method, f"/breadcrumbs/{id}", headers={"If-Match": '"1"'}, **body)
    assert problem(answer, 412, "version-mismatch")["current_version"] == 2
    assert answer.headers["etag"] == '"2"'
    assert (await site.client.get(f"/breadcrumbs/{id}")).json()["title"] == "second"


async def test_delete_returns_ok_and_the_breadcrumb_is_gone(site: Site) -> None:
    id = (await site.post(**HELLO))["id"]
    answer = await site.client.delete(f"/breadcrumbs/{id}", headers={"If-Match": "1"})
    assert (answer.status_code, answer.json()) == (200, {"ok": True})
    for method, path in (("GET", ""), ("GET", "/full"), ("GET", "/history"), ("DELETE", "")):
        problem(await site.client.request(method, f"/breadcrumbs/{id}{path}"), 404, "not-found")
    assert (await site.client.get("/breadcrumbs")).json() == []


async def test_history_has_all_versions_newest_first(site: Site) -> None:
    id = (await site.post(**HELLO))["id"]
    for title in ("second", "third"):
        await site.client.patch(f"/breadcrumbs/{id}", json={"title": title})
    history = (await site.client.get(f"/breadcrumbs/{id}/history")).json()
    assert [(item["version"], item["title"]) for item in history] == [
        (3, "third"),
        (2, "second"),
        (1, "Hello"),
    ]
    assert history[2]["context"] == {"message": "Hello!", "session_id": "abc"}
    assert history[0]["updated_by"] == "00000000-0000-0000-0000-000000000002"


# Reads that count


async def test_reads_by_id_count_and_reads_of_the_history_do_not(site: Site) -> None:
    id = (await site.post(title="x", ttl_type="usage", ttl_config={"max_reads": 2}))["id"]
    assert (await site.client.get(f"/breadcrumbs/{id}/history")).status_code == 200
    assert (await site.client.get(f"/breadcrumbs/{id}")).status_code == 200
    assert (await site.client.get(f"/breadcrumbs/{id}/full")).status_code == 200
    problem(await site.client.get(f"/breadcrumbs/{id}"), 404, "not-found")


async def test_a_principal_that_cannot_see_a_breadcrumb_cannot_use_up_its_reads(keyed: Site) -> None:
    mine, theirs = await keyed.token(KEY, session_id="a"), await keyed.token(KEY, session_id="b")
    created = await keyed.post(mine, title="x", ttl_type="usage", ttl_config={"max_reads": 1})
    for _ in range(3):
        problem(await keyed.client.get(f"/breadcrumbs/{created['id']}", headers=theirs), 404, "not-found")
    assert (await keyed.client.get(f"/breadcrumbs/{created['id']}", headers=mine)).status_code == 200


# Secrets and private breadcrumbs


async def test_a_secret_needs_a_curator_in_every_view(keyed: Site) -> None:
    curator = await keyed.token(KEY)
    reader = await keyed.token(KEY, roles=["emitter", "subscriber"])
    id = (await keyed.post(curator, title="key", context={"value": "hunter2"}, sensitivity="secret"))["id"]
    for path in ("", "/full", "/history"):
        answer = await keyed.client.get(f"/breadcrumbs/{id}{path}", headers=reader)
        problem(answer, 403, "forbidden")
        assert (await keyed.client.get(f"/breadcrumbs/{id}{path}", headers=curator)).status_code == 200
    listed = await keyed.client.get("/breadcrumbs?include_context=true", headers=reader)
    assert "hunter2" not in listed.text
    assert "hunter2" in (await keyed.client.get("/breadcrumbs?include_context=true", headers=curator)).text


@pytest.mark.parametrize("level", ["low", None])
async def test_a_principal_that_cannot_read_a_secret_cannot_make_it_readable(
    keyed: Site, level: str | None
) -> None:
    curator = await keyed.token(KEY)
    writer = await keyed.token(KEY, roles=["emitter", "subscriber"])
    id = (await keyed.post(curator, title="key", context={"value": "hunter2"}, sensitivity="secret"))["id"]
    answer = await keyed.client.patch(f"/breadcrumbs/{id}", json={"sensitivity": level}, headers=writer)
    problem(answer, 403, "forbidden")
    assert (
        await keyed.client.patch(f"/breadcrumbs/{id}", json={"sensitivity": level}, headers=curator)
    ).status_code == 200
    history = await keyed.client.get(f"/breadcrumbs/{id}/history", headers=writer)
    assert [("context" in item) for item in history.json()] == [True, False]


async def test_a_private_breadcrumb_exists_only_for_its_agent_and_curators(keyed: Site) -> None:
    roles = ["emitter", "subscriber"]
    ann = await keyed.token(KEY, agent_id=str(AGENT_A), roles=roles)
    bob = await keyed.token(KEY, agent_id=str(AGENT_B), roles=roles)
    id = (await keyed.post(ann, title="mine", visibility="private"))["id"]
    assert (await keyed.client.get(f"/breadcrumbs/{id}", headers=ann)).status_code == 200
    assert (await keyed.client.get(f"/breadcrumbs/{id}", headers=await keyed.token(KEY))).status_code == 200
    problem(await keyed.client.get(f"/breadcrumbs/{id}", headers=bob), 404, "not-found")
    problem(
        await keyed.client.patch(f"/breadcrumbs/{id}", json={"title": "y"}, headers=bob), 404, "not-found"
    )
    problem(await keyed.client.delete(f"/breadcrumbs/{id}", headers=bob), 404, "not-found")
    assert (await keyed.client.get("/breadcrumbs", headers=bob)).json() == []


# Tokens narrowed to a user


async def test_writes_of_a_user_token_keep_the_tag_of_the_user(keyed: Site) -> None:
    ann = await keyed.token(KEY, user_id="ann")
    id = (await keyed.post(ann, title="x", tags=["a"]))["id"]
    await keyed.client.patch(f"/breadcrumbs/{id}", json={"tags": ["b"]}, headers=ann)
    assert (await keyed.client.get(f"/breadcrumbs/{id}", headers=ann)).json()["tags"] == ["b", "user:ann"]
    answer = await keyed.client.patch(f"/breadcrumbs/{id}", json={"tags": ["user:bob"]}, headers=ann)
    problem(answer, 403, "forbidden")
    await keyed.client.patch(f"/breadcrumbs/{id}", json={"tags": None}, headers=ann)
    assert (await keyed.client.get(f"/breadcrumbs/{id}", headers=ann)).json()["tags"] == ["user:ann"]


async def test_the_history_for_a_user_omits_older_versions_of_another_user(keyed: Site) -> None:
    all_of_it, bob = await keyed.token(KEY), await keyed.token(KEY, user_id="bob")
    id = (await keyed.post(all_of_it, title="for ann", tags=["user:ann"]))["id"]
    await keyed.client.patch(
        f"/breadcrumbs/{id}", json={"title": "for bob", "tags": ["user:bob"]}, headers=all_of_it
    )
    history = (await keyed.client.get(f"/breadcrumbs/{id}/history", headers=bob)).json()
    assert [item["title"] for item in history] == ["for bob"]


# Listing


async def _fill(site: Site) -> None:
    await site.post(schema_name="a.v1", title="1", tags=["x", "y", "session:s"])
    await site.post(schema_name="a.v1", title="2", tags=["x", "a,b", "session:t"])
    await site.post(schema_name="b.v1", title="3", tags=["y", '["x"]', "session:s"], context={"n": 1})
    await site.post(title="4", tags=["*", "session:*"])


async def _titles(site: Site, **query: Any) -> list[str]:
    answer = await site.client.get("/breadcrumbs", params=query)
    assert answer.status_code == 200, answer.text
    return [item["title"] for item in answer.json()]


async def test_a_list_names_the_tags_that_have_no_index(site: Site) -> None:
    tags = ["user:message", "workspace:Büro, 2", "topic:x", "session:s"]
    await site.post(schema_name="user.message.v1", title="hello", tags=tags)

    async def unindexed(**query: Any) -> str | None:
        answer = await site.client.get("/breadcrumbs", params=query)
        assert [item["title"] for item in answer.json()] == ["hello"]
        named: str | None = answer.headers.get("x-unindexed-tags")
        return named

    assert await unindexed(tag="user:message") == "user:message"
    assert await unindexed(tag=tags[:2]) == "user:message, workspace:B%C3%BCro%2C%202"
    assert await unindexed(tag="topic:x") is None
    assert await unindexed(tag="user:message", session_id="s") is None


async def test_a_list_is_newest_first_without_contexts(site: Site) -> None:
    await _fill(site)
    answer = await site.client.get("/breadcrumbs")
    items = answer.json()
    assert [item["title"] for item in items] == ["4", "3", "2", "1"]
    assert set(items[1]) == {"id", "title", "schema_name", "tags", "version", "created_at", "updated_at"}
    assert "schema_name" not in items[0]
    assert answer.headers["x-has-more"] == "false"
    assert "link" not in answer.headers
    with_context = (await site.client.get("/breadcrumbs?include_context=true")).json()
    assert with_context[1]["context"] == {"n": 1, "session_id": "s"}


async def test_filters_are_combined_with_and(site: Site) -> None:
    await _fill(site)
    assert await _titles(site, tag="x") == ["2", "1"]
    assert await _titles(site, tag=["x", "y"]) == ["1"]
    assert await _titles(site, tags=["x", "y"]) == ["1"]
    assert await _titles(site, all_tags=["x", "y"]) == ["1"]
    assert await _titles(site, all_tags='["x", "y"]') == ["1"]
    assert await _titles(site, any_tags=["x", "y"]) == ["3", "2", "1"]
    assert await _titles(site, any_tags='["x", "y"]', schema_name="b.v1") == ["3"]
    assert await _titles(site, schema_name="a.v1") == ["2", "1"]
    assert await _titles(site, session_id="s") == ["3", "1"]
    assert await _titles(site, session_id="s", tag="x") == ["1"]
    assert await _titles(site, session_id="nobody's") == []


async def test_commas_brackets_and_globs_in_tags_are_literal(site: Site) -> None:
    await _fill(site)
    assert await _titles(site, tag="a,b") == ["2"]
    assert await _titles(site, any_tags="a,b") == ["2"]
    assert await _titles(site, any_tags="x,y") == []
    assert await _titles(site, tag='["x"]') == ["3"]
    assert await _titles(site, all_tags='["[\\"x\\"]"]') == ["3"]
    assert await _titles(site, tag="*") == ["4"]
    assert await _titles(site, session_id="*") == ["4"]
    assert await _titles(site, schema_name="*") == []


async def test_a_list_can_be_sorted_and_filtered_by_update_time(site: Site) -> None:
    first = await site.post(title="1")
    second = await site.post(title="2")
    await site.client.patch(f"/breadcrumbs/{first['id']}", json={"title": "1 again"})
    assert await _titles(site, sort="created_at") == ["1 again", "2"]
    assert await _titles(site, sort="-updated_at") == ["1 again", "2"]
    assert await _titles(site, sort="updated_at") == ["2", "1 again"]
    assert await _titles(site, updated_since=second["created_at"]) == ["1 again", "2"]
    assert await _titles(site, updated_since="2200-01-01T00:00:00Z") == []
    # An unescaped plus sign arrives as a space.
    answer = await site.client.get("/breadcrumbs?updated_since=2020-01-01T00:00:00+01:00")
    assert len(answer.json()) == 2


async def test_pages_follow_the_link_header_to_the_end_without_gaps_or_repeats(site: Site) -> None:
    made = [(await site.post(title=f"{n}", tags=["a b&c=d", f"session:{n % 3}"]))["id"] for n in range(25)]
    seen: list[str] = []
    url = "/breadcrumbs?tag=a%20b%26c%3Dd&limit=4"
    for _ in range(20):
        answer = await site.client.get(url)
        assert answer.status_code == 200, answer.text
        seen += [item["id"] for item in answer.json()]
        if answer.headers["x-has-more"] == "false":
            assert "link" not in answer.headers
            break
        assert answer.links["next"]["url"].startswith("/breadcrumbs?")
        url = answer.links["next"]["url"]
    assert seen == made[::-1]


async def test_an_offset_skips_items_and_its_next_page_continues_from_there(site: Site) -> None:
    for n in range(6):
        await site.post(title=f"{n}")
    answer = await site.client.get("/breadcrumbs?offset=1&limit=2")
    assert [item["title"] for item in answer.json()] == ["4", "3"]
    following = await site.client.get(answer.links["next"]["url"])
    assert [item["title"] for item in following.json()] == ["2", "1"]


async def test_the_owner_in_a_query_must_be_the_callers_own(site: Site) -> None:
    await site.post(title="x")
    assert await _titles(site, owner_id=str(DEVELOPER)) == ["x"]
    assert await _titles(site, owner_id=str(uuid4())) == []


async def test_a_narrowed_token_lists_only_its_own_session(keyed: Site) -> None:
    everything, narrow = await keyed.token(KEY), await keyed.token(KEY, session_id="a")
    for session in ("a", "b"):
        await keyed.post(everything, title=session, tags=[f"session:{session}"])
    await keyed.post(everything, title="none")
    for query in ("", "?session_id=a", "?tag=session:a"):
        titles = [
            item["title"] for item in (await keyed.client.get(f"/breadcrumbs{query}", headers=narrow)).json()
        ]
        assert titles == ["a"]
    for query in ("?session_id=b", "?tag=session:b", "?any_tags=session:b"):
        assert (await keyed.client.get(f"/breadcrumbs{query}", headers=narrow)).json() == []


# The store behind it


async def test_a_store_that_is_down_is_503_with_retry_after_and_comes_back(tmp_path: Path) -> None:
    with Server(appendonly_dir=tmp_path) as server:
        async with running_site(server.url) as site:
            await site.post(title="before")
            assert (await site.client.get("/ready")).status_code == 200
            server.kill()
            for method, path in (
                ("POST", "/breadcrumbs"),
                ("GET", "/breadcrumbs"),
                ("GET", "/ready"),
                ("GET", "/agents"),
            ):
                body: dict[str, Any] = {"json": {"title": "x"}} if method == "POST" else {}
                answer = await site.client.request(method, path, **body)
                document = problem(answer, 503, "store-unavailable")
                assert int(answer.headers["retry-after"]) > 0
                assert str(server.port) not in document["detail"]
            assert (await site.client.get("/health")).status_code == 200
            server.start()
            assert (await site.client.get("/ready")).status_code == 200
            assert (await site.client.post("/breadcrumbs", json={"title": "after"})).status_code == 201


async def test_a_store_without_memory_is_503_for_writes_and_still_reads() -> None:
    with Server() as server:
        async with running_site(server.url) as site:
            id = (await site.post(title="before"))["id"]
            server.command("CONFIG", "SET", "maxmemory", "1")
            for answer in (
                await site.client.post("/breadcrumbs", json={"title": "x"}),
                await site.client.patch(f"/breadcrumbs/{id}", json={"title": "x"}),
            ):
                problem(answer, 503, "store-full")
                assert int(answer.headers["retry-after"]) > 0
            assert (await site.client.get(f"/breadcrumbs/{id}")).json()["title"] == "before"
            server.command("CONFIG", "SET", "maxmemory", "0")
            assert await site.count() == 1


async def test_the_routes_work_on_a_cluster(cluster_server: Server) -> None:
    async with running_site(cluster_server.url) as site:
        ids = {(await site.post(title=f"{n}", tags=[f"session:{n}"]))["id"] for n in range(20)}
        assert {item["id"] for item in (await site.client.get("/breadcrumbs")).json()} == ids
        await site.token(owner_id=str(DEVELOPER))
        assert len((await site.client.get("/agents")).json()) == 1
        deleted = await site.client.delete(f"/tenants/{DEVELOPER}")
        assert deleted.json() == {"ok": True, "deleted": 20}


async def test_two_tenants_can_use_the_same_names_separately(keyed: Site) -> None:
    for key in (KEY, OTHER_KEY):
        headers = {"X-API-Key": key, "Idempotency-Key": "same"}
        answer = await keyed.client.post("/breadcrumbs", json={**HELLO, "title": key}, headers=headers)
        assert answer.status_code == 201
    for key in (KEY, OTHER_KEY):
        listed = await keyed.client.get("/breadcrumbs?session_id=abc", headers={"X-API-Key": key})
        assert [item["title"] for item in listed.json()] == [key]


async def test_an_expired_breadcrumb_is_gone_from_every_read(site: Site) -> None:
    created = await site.post(title="x", tags=["t"], ttl_type="duration", ttl_config={"duration": 0.2})
    await anyio.sleep(0.3)
    for path in ("", "/full", "/history"):
        problem(await site.client.get(f"/breadcrumbs/{created['id']}{path}"), 404, "not-found")
    assert (await site.client.get("/breadcrumbs?tag=t")).json() == []


async def test_an_application_can_be_built_twice_on_one_store(
    make_site: MakeSite,
) -> None:
    """Each has its own metrics, because prometheus-client refuses duplicate names in one registry."""
    first, second = await make_site(), await make_site()
    await first.client.get("/health")
    assert 'route="/health"' in (await first.client.get("/metrics")).text
    assert 'route="/health"' not in (await second.client.get("/metrics")).text


async def test_a_key_without_the_role_may_not_read(keyed: Site) -> None:
    weak = {"X-API-Key": WEAK_KEY}
    created = await keyed.client.post("/breadcrumbs", json=HELLO, headers=weak)
    assert created.status_code == 201
    for path in ("/breadcrumbs", f"/breadcrumbs/{created.json()['id']}"):
        problem(await keyed.client.get(path, headers=weak), 403, "forbidden")


async def test_replies_forbid_caching_and_content_sniffing(site: Site) -> None:
    for answer in (await site.client.get("/breadcrumbs"), await site.client.get("/nowhere")):
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
