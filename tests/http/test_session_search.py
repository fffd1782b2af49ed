"""Search over the messages of all sessions: `GET /sessions?q=`."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from breadcrumbs.runtime.http.routes import sessions
from breadcrumbs.runtime.sessions import search
from tests.http.conftest import KEY, Site, problem
from tests.http.sessions import answer_to, begin, say

CURATOR = {"Authorization": f"Bearer {KEY}"}


async def find(site: Site, q: str, headers: dict[str, str] | None = None, **params: Any) -> dict[str, Any]:
    """Return the sessions and matches of all pages, each page with at most `limit` of them."""
    sessions: list[str] = []
    matches: list[dict[str, Any]] = []
    pages = 0
    while True:
        answer = await site.client.get("/sessions", params={"q": q, **params}, headers=headers)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        limit = params.get("limit", 50)
        assert len(page["sessions"]) <= limit and len(page["matches"]) <= limit
        assert page["has_more"] == ("next_cursor" in page)
        sessions += [session["id"] for session in page["sessions"]]
        matches += page["matches"]
        pages += 1
        if not page["has_more"]:
            return {"sessions": sessions, "matches": matches, "pages": pages}
        params["cursor"] = page["next_cursor"]


async def test_a_search_finds_messages_answers_and_titles(site: Site) -> None:
    asked = (await say(site, "trip", "Where is the LIGHTHOUSE of Elba?"))["message"]
    answer = await answer_to(site, asked, "The lighthouse stands in\nPortoferraio. " + "x" * 300)
    await say(site, "other", "What is 2 + 2?")
    await begin(site, id="named", title="Lighthouse plans")

    found = await find(site, "lighthouse")
    assert found["sessions"] == ["named", "trip"]
    assert [(one["session_id"], one["message_id"], one["role"]) for one in found["matches"]] == [
        ("trip", answer["id"], "assistant"),
        ("trip", asked["id"], "user"),
    ]
    first, second = (one["excerpt"] for one in found["matches"])
    assert first.startswith("The lighthouse stands in Portoferraio.") and first.endswith("…")
    assert len(first) < 200 and second == "Where is the LIGHTHOUSE of Elba?"
    assert found["matches"][1]["created_at"] == asked["created_at"]


async def test_all_words_of_a_search_have_to_occur(site: Site) -> None:
    await say(site, "a", "red apples and green pears")
    await say(site, "b", "red wine")
    assert (await find(site, "  GREEN   red "))["sessions"] == ["a"]
    assert (await find(site, "red"))["sessions"] == ["b", "a"]
    assert await find(site, "blue") == {"sessions": [], "matches": [], "pages": 1}


async def test_special_characters_of_a_search_are_plain_text(site: Site) -> None:
    await say(site, "a", "100% of a.*b (c) and ÄRGER")
    for q in ("100%", ".*", "(c)", "ärger"):
        assert (await find(site, q))["sessions"] == ["a"], q
    assert (await find(site, "axxb"))["sessions"] == []


async def test_every_match_is_found_once_whatever_the_limit_is(site: Site) -> None:
    expected: list[str] = []
    for number in range(5):
        for turn in range(4):
            said = await say(site, f"s{number}", f"needle {turn}" if turn % 2 else f"hay {turn}")
            if turn % 2:
                expected.append(said["message"]["id"])
    for limit in (1, 2, 3, 50):
        found = await find(site, "needle", limit=limit)
        assert sorted(one["message_id"] for one in found["matches"]) == sorted(expected)
        assert sorted(set(found["sessions"])) == [f"s{number}" for number in range(5)]


async def test_a_search_that_reads_too_much_continues_with_a_cursor(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_MAX_MESSAGES", 3)
    monkeypatch.setattr(search, "_MESSAGES_PER_PAGE", 2)
    monkeypatch.setattr(search, "_MAX_SESSION_PAGES", 1)
    monkeypatch.setattr(search, "_SESSIONS_PER_PAGE", 2)
    await say(site, "oldest", "the needle")
    for number in range(5):
        await say(site, f"s{number}", "hay")
    for _ in range(9):
        await say(site, "long", "hay")
    found = await find(site, "needle")
    assert found["sessions"] == ["oldest"] and len(found["matches"]) == 1
    assert found["pages"] > 4


async def test_a_search_of_long_messages_continues_with_a_cursor(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_MAX_BYTES", 20_000)
    monkeypatch.setattr(search, "_PAGE_BYTES", 10_000)
    for number in range(12):
        await say(site, f"s{number % 2}", f"needle {number} " + "hay " * 2_000)
    found = await find(site, "needle")
    assert len({one["message_id"] for one in found["matches"]}) == len(found["matches"]) == 12
    assert 4 <= found["pages"] <= 8


async def test_a_token_runs_few_searches_at_the_same_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await say(site, "a", "needle")
    running, most = 0, 0
    real = search.search

    async def slow(*args: Any) -> search.SearchPage:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await anyio.sleep(0.02)
        running -= 1
        return await real(*args)

    monkeypatch.setattr(sessions, "search", slow)
    replies: list[int] = []

    async def look() -> None:
        replies.append((await site.client.get("/sessions", params={"q": "needle"})).status_code)

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(look)
    assert replies == [200] * 10 and most == 2


async def test_a_search_sees_only_what_its_token_may_read(site: Site) -> None:
    await begin(site, id="ann's", user_id="ann", title="shared word")
    await begin(site, id="bob's", user_id="bob", title="shared word")
    await say(site, "ann's", "shared word")
    await say(site, "bob's", "shared word")
    await site.post(
        schema_name="user.message.v1",
        tags=["session:ann's", "user:ann"],
        sensitivity="secret",
        context={"message": "hidden word"},
    )

    async def token(**narrowed: str) -> dict[str, str]:
        body = {"roles": ["subscriber"], **narrowed}
        issued = (await site.client.post("/auth/token", json=body, headers=CURATOR)).json()
        return {"Authorization": f"Bearer {issued['token']}"}

    assert sorted((await find(site, "shared"))["sessions"]) == ["ann's", "bob's"]
    assert (await find(site, "shared", user_id="bob"))["sessions"] == ["bob's"]
    for narrowed in ({"user_id": "ann"}, {"session_id": "ann's"}):
        headers = await token(**narrowed)
        for limit in (1, 50):
            found = await find(site, "word", headers=headers, limit=limit)
            assert set(found["sessions"]) == {"ann's"}
            assert [one["excerpt"] for one in found["matches"]] == ["shared word"]
        assert (await find(site, "hidden", headers=headers))["matches"] == []


async def test_a_cursor_belongs_to_one_search(site: Site) -> None:
    await say(site, "a", "needle")
    await say(site, "b", "needle")
    page = (await site.client.get("/sessions", params={"q": "needle", "limit": 1})).json()
    cursor = page["next_cursor"]
    for params in ({"q": "hay"}, {"q": "needle", "user_id": "ann"}, {}):
        refused = await site.client.get("/sessions", params={**params, "cursor": cursor})
        problem(refused, 422, "invalid-cursor")
    listed = (await site.client.get("/sessions", params={"limit": 1})).json()["next_cursor"]
    for wrong in (listed, "x", cursor[:-2]):
        problem(
            await site.client.get("/sessions", params={"q": "needle", "cursor": wrong}), 422, "invalid-cursor"
        )


@pytest.mark.parametrize("q", ["", "   ", "\n", "x" * 201])
async def test_an_invalid_search_is_refused(site: Site, q: str) -> None:
    refused = problem(await site.client.get("/sessions", params={"q": q}), 422, "invalid-input")
    assert refused["errors"][0]["where"] == "q"


async def test_a_search_continues_after_the_session_that_it_stopped_in_was_deleted(site: Site) -> None:
    await say(site, "first", "needle")
    for _ in range(2):
        await say(site, "second", "needle")
    params = {"q": "needle", "limit": "1"}
    page = (await site.client.get("/sessions", params=params)).json()
    assert [one["session_id"] for one in page["matches"]] == ["second"]
    await site.client.delete("/sessions/second")
    found = await find(site, "needle", limit=1, cursor=page["next_cursor"])
    assert found["sessions"] == ["first"]
