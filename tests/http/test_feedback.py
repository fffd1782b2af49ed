"""Feedback over HTTP: one rating per user and answer, lists, counts, forks, and no way to forge it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import anyio
import pytest

from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.http.auth import DEVELOPER_AGENT
from breadcrumbs.runtime.maintenance.export_import import export_lines, import_lines
from breadcrumbs.runtime.sessions import feedback_lists
from breadcrumbs.runtime.sessions.feedback import FeedbackWriter
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store.store import Store
from tests.http.answering import answering, echo, messages, say
from tests.http.conftest import KEY, OTHER_KEY, OWNER, Site, problem
from tests.support.conversations import opened

FEEDBACK = "feedback.v1"


async def post_answer(
    site: Site, session: str | None = "s", text: str = "Answer", headers: Any = None, **fields: Any
) -> str:
    """Post an answer as an agent writes it, and return its id."""
    creator = {"type": "agent", "agent_id": fields.pop("agent", "helper"), "model": fields.pop("model", "m1")}
    tags = [*fields.pop("tags", []), *([f"session:{session}"] if session is not None else [])]
    context = {"message": text, "creator": creator, **fields.pop("context", {})}
    made = await site.post(headers, schema_name="agent.response.v1", tags=tags, context=context, **fields)
    return str(made["id"])


async def rate(site: Site, answer: str, rating: str, note: str | None = None, headers: Any = None) -> Any:
    body = {"rating": rating} | ({} if note is None else {"note": note})
    reply = await site.client.put(f"/breadcrumbs/{answer}/feedback", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def own(site: Site, answer: str, headers: Any = None) -> Any:
    reply = await site.client.get(f"/breadcrumbs/{answer}/feedback", headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.json().get("feedback")


async def listed(site: Site, headers: Any = None, **query: Any) -> list[dict[str, Any]]:
    reply = await site.client.get("/feedback", params=query, headers=headers)
    assert reply.status_code == 200, reply.text
    found: list[dict[str, Any]] = reply.json()["feedback"]
    return found


async def counts(site: Site, headers: Any = None, **query: Any) -> Any:
    reply = await site.client.get("/feedback/counts", params=query, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def stored(site: Site, owner: UUID = DEVELOPER) -> list[Any]:
    return [crumb async for crumb in site.store.walk(owner, Query(schema_name=FEEDBACK))]


# One answer


async def test_a_rating_has_the_facts_of_the_answer(site: Site) -> None:
    async with answering(site, FunctionModel(echo)):
        turn = await say(site, "s", "hello")
        answer = turn["answer"]
        found = await rate(site, answer["id"], "down", "  Too short.  ")
    context = answer["context"]
    assert found["rating"] == "down" and found["note"] == "Too short."
    assert (found["answer_id"], found["answer_version"], found["session_id"]) == (answer["id"], 1, "s")
    assert (found["agent_id"], found["model"]) == (context["creator"]["agent_id"], "function")
    assert (found["context_id"], found["context_version"]) == (context["context_id"], 1)
    used = await site.store.get(DEVELOPER, UUID(context["context_id"]), count_read=False)
    assert found["config"] == used.context["config"]
    assert (found["user"], found["rater"]) == (str(DEVELOPER_AGENT), "agent")
    assert await own(site, answer["id"]) == found
    (crumb,) = await stored(site)
    assert crumb.session_id == "s" and str(crumb.id) == found["id"]


async def test_a_second_rating_is_the_next_version_of_the_first(site: Site) -> None:
    answer = await post_answer(site)
    first = await rate(site, answer, "up", "Good.")
    again = await rate(site, answer, "up", "Good.")
    assert again == first, "equal feedback is not written again"
    second = await rate(site, answer, "down")
    assert (second["id"], second["version"], second["rating"]) == (first["id"], 2, "down")
    assert "note" not in second and second["created_at"] == first["created_at"]
    history = (await site.client.get(f"/breadcrumbs/{first['id']}/history")).json()
    assert [version["context"]["rating"] for version in history] == ["down", "up"]
    assert len(await stored(site)) == 1
    assert await listed(site, rating="up") == []
    assert [item["id"] for item in await listed(site, rating="down")] == [first["id"]]


async def test_other_ratings_of_a_session_are_not_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [await post_answer(site) for _ in range(5)]
    for answer in answers[1:]:
        await rate(site, answer, "up")
    read: list[Any] = []
    original = Store.list

    async def read_page(self: Store, owner: UUID, query: Query) -> Any:
        page = await original(self, owner, query)
        read.extend(page.items)
        return page

    monkeypatch.setattr(Store, "list", read_page)
    assert await own(site, answers[0]) is None
    await rate(site, answers[0], "down")
    assert (await site.client.delete(f"/breadcrumbs/{answers[0]}")).status_code == 200
    assert {crumb.context["answer_id"] for crumb in read} <= {answers[0]}
    assert len(await stored(site)) == 4


async def test_feedback_on_a_private_answer_is_private(keyed: Site) -> None:
    answer = await post_answer(keyed, headers={"X-API-Key": KEY}, visibility="private")
    found = await rate(keyed, answer, "down", "Hidden.", headers={"X-API-Key": KEY})
    (crumb,) = await stored(keyed, OWNER)
    assert str(crumb.id) == found["id"] and crumb.visibility == "private"


async def test_concurrent_ratings_leave_one_breadcrumb(site: Site) -> None:
    answer = await post_answer(site)
    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(rate, site, answer, "up" if number % 2 else "down", str(number))
    (crumb,) = await stored(site)
    assert crumb.version == 12


async def test_each_user_has_one_rating(keyed: Site) -> None:
    curator = {"X-API-Key": KEY}
    tags = ["user:ann", "user:bob"]
    answer = await post_answer(keyed, None, headers=curator, tags=tags)
    ann = await keyed.token(KEY, user_id="ann", roles=["emitter", "subscriber"])
    bob = await keyed.token(KEY, user_id="bob", roles=["emitter", "subscriber"])
    await rate(keyed, answer, "up", headers=ann)
    await rate(keyed, answer, "down", "No.", headers=bob)
    await rate(keyed, answer, "down", headers=curator)
    assert (await own(keyed, answer, ann))["rating"] == "up"
    assert (await own(keyed, answer, bob))["note"] == "No."
    assert [item["user"] for item in await listed(keyed, ann)] == ["ann"]
    assert {item["user"] for item in await listed(keyed, curator)} >= {"ann", "bob"}
    assert len(await stored(keyed, OWNER)) == 3
    assert await listed(keyed, {"X-API-Key": OTHER_KEY}) == []
    assert (await counts(keyed, ann))["total"] == {"up": 1, "down": 0}
    assert [item["rating"] for item in await listed(keyed, curator, own="true")] == ["down"]


async def test_a_user_whose_id_is_that_of_an_agent_has_another_rating(keyed: Site) -> None:
    curator = {"X-API-Key": KEY}
    answer = await post_answer(keyed, None, headers=curator)
    agent = (await rate(keyed, answer, "up", headers=curator))["user"]
    tagged = await post_answer(keyed, None, headers=curator, tags=[f"user:{agent}"])
    user = await keyed.token(KEY, user_id=agent, roles=["emitter", "subscriber"])
    await rate(keyed, tagged, "up", headers=curator)
    await rate(keyed, tagged, "down", headers=user)
    assert (await own(keyed, tagged, curator))["rating"] == "up"
    assert (await own(keyed, tagged, user))["rating"] == "down"


async def test_withdrawn_feedback_is_gone_and_can_be_given_again(site: Site) -> None:
    answer = await post_answer(site)
    await rate(site, answer, "down")
    for _ in range(2):
        reply = await site.client.delete(f"/breadcrumbs/{answer}/feedback")
        assert reply.status_code == 200, reply.text
    assert await own(site, answer) is None and await stored(site) == []
    assert (await rate(site, answer, "up"))["version"] == 1


async def test_a_rating_does_not_change_the_version_and_order_of_sessions(site: Site) -> None:
    answer = await post_answer(site, "old")
    await post_answer(site, "new")
    before = (await site.client.get("/sessions")).json()["sessions"]
    await rate(site, answer, "up")
    await rate(site, answer, "down", "Changed.")
    after = (await site.client.get("/sessions")).json()["sessions"]
    assert [one["id"] for one in after] == [one["id"] for one in before] == ["new", "old"]
    assert [one["version"] for one in after] == [one["version"] for one in before]
    assert all(message["schema_name"] != FEEDBACK for message in await messages(site, "old"))


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({}, "rating"),
        ({"rating": "sideways"}, "rating"),
        ({"rating": 1}, "rating"),
        ({"rating": "up", "note": "x" * 2_001}, "note"),
        ({"rating": "up", "note": 5}, "note"),
        ({"rating": "up", "user": "ann"}, "user"),
        ({"rating": "up", "model": "gpt"}, "model"),
    ],
)
async def test_an_invalid_rating_is_422_and_writes_nothing(site: Site, body: Any, where: str) -> None:
    answer = await post_answer(site)
    reply = await site.client.put(f"/breadcrumbs/{answer}/feedback", json=body)
    assert problem(reply, 422, "invalid-input")["errors"][0]["where"] == where
    assert await stored(site) == []


@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
@pytest.mark.parametrize(
    "schema", ["user.message.v1", "agent.error.v1", "tool.request.v1", "agent.context.v1", None]
)
async def test_feedback_on_something_that_is_not_an_answer_is_422(
    site: Site, method: str, schema: str | None
) -> None:
    made = await site.post(schema_name=schema, tags=["session:s"], context={"message": "m"})
    body = {"rating": "up"} if method == "PUT" else None
    reply = await site.client.request(method, f"/breadcrumbs/{made['id']}/feedback", json=body)
    assert "not an answer" in problem(reply, 422, "invalid-input")["detail"]
    assert await stored(site) == []


async def test_feedback_on_feedback_and_on_an_unknown_id_is_refused(site: Site) -> None:
    rated = await rate(site, await post_answer(site), "up")
    reply = await site.client.put(f"/breadcrumbs/{rated['id']}/feedback", json={"rating": "up"})
    problem(reply, 422, "invalid-input")
    reply = await site.client.put(f"/breadcrumbs/{DEVELOPER}/feedback", json={"rating": "up"})
    problem(reply, 404, "not-found")


async def test_an_answer_with_another_schema_can_be_rated(site: Site) -> None:
    creator = {"type": "agent", "agent_id": "poet"}
    made = await site.post(
        schema_name="poem.v1",
        tags=["session:s"],
        context={"message": "m", "trigger_id": str(DEVELOPER), "creator": creator},
    )
    found = await rate(site, made["id"], "up")
    assert found["agent_id"] == "poet" and "model" not in found and "config" not in found


@pytest.mark.parametrize(
    "context",
    [
        {"creator": "text"},
        {"creator": {"agent_id": 5, "model": ["x"]}},
        {"creator": {"agent_id": "a" * 10_000, "model": "m" * 10_000}},
        {"context_id": "no uuid", "context_version": 1},
        {"context_id": str(DEVELOPER), "context_version": "1"},
        {"context_id": str(DEVELOPER), "context_version": 10**12},
        {"receipt": "text"},
    ],
)
async def test_an_answer_with_strange_facts_can_be_rated(site: Site, context: Any) -> None:
    found = await rate(site, await post_answer(site, context=context), "up")
    assert "config" not in found and len(str(found)) < 2_000
    assert (await counts(site))["total"] == {"up": 1, "down": 0}


# Forging


async def test_clients_cannot_write_feedback_by_its_fields(site: Site) -> None:
    answer = await post_answer(site)
    forged = {"rating": "up", "answer_id": answer, "user": "ann", "model": "other"}
    body = {"schema_name": FEEDBACK, "tags": ["session:s"], "context": forged}
    reply = await site.client.post("/breadcrumbs", json=body)
    assert "/feedback" in problem(reply, 422, "invalid-input")["detail"]
    note = await site.post(schema_name="note.v1", tags=["session:s"], context=forged)
    reply = await site.client.patch(f"/breadcrumbs/{note['id']}", json={"schema_name": FEEDBACK})
    problem(reply, 422, "invalid-input")
    rated = await rate(site, answer, "down")
    for change in ({"context": forged}, {"title": "x"}, {"schema_name": "note.v1"}):
        reply = await site.client.patch(f"/breadcrumbs/{rated['id']}", json=change)
        problem(reply, 422, "invalid-input")
    assert await own(site, answer) == rated


async def test_a_narrowed_token_deletes_only_its_own_feedback(keyed: Site) -> None:
    curator = {"X-API-Key": KEY}
    answer = await post_answer(keyed, headers=curator)
    narrowed = await keyed.token(KEY, session_id="s", user_id="ann", roles=["emitter", "subscriber"])
    session = await keyed.token(KEY, session_id="s", roles=["emitter", "subscriber"])
    rated = await rate(keyed, answer, "down", headers=session)
    reply = await keyed.client.delete(f"/breadcrumbs/{rated['id']}", headers=session)
    assert "/feedback" in problem(reply, 403, "forbidden")["detail"]
    reply = await keyed.client.delete(f"/breadcrumbs/{rated['id']}", headers=narrowed)
    problem(reply, 404, "not-found")
    assert (await keyed.client.delete(f"/breadcrumbs/{answer}/feedback", headers=session)).status_code == 200
    assert await stored(keyed, OWNER) == []


# Deletion and expiry


async def test_feedback_is_deleted_with_its_answer(site: Site) -> None:
    one, two = await post_answer(site), await post_answer(site)
    free = await post_answer(site, None)
    for answer in (one, two, free):
        await rate(site, answer, "down")
    for answer in (one, free):
        assert (await site.client.delete(f"/breadcrumbs/{answer}")).status_code == 200
    assert [item["answer_id"] for item in await listed(site)] == [two]
    assert len(await stored(site)) == 1


async def test_feedback_is_deleted_with_its_session(site: Site) -> None:
    answer = await post_answer(site)
    await rate(site, answer, "down")
    assert (await site.client.delete("/sessions/s")).status_code == 200
    assert await stored(site) == [] and await listed(site) == []
    assert (await counts(site))["total"] == {"up": 0, "down": 0}


async def test_feedback_expires_with_its_answer(site: Site) -> None:
    answer = await post_answer(site, ttl_type="duration", ttl_config={"duration_seconds": 3600})
    rated = await rate(site, answer, "down")
    full = (await site.client.get(f"/breadcrumbs/{rated['id']}/full")).json()
    expires = (await site.client.get(f"/breadcrumbs/{answer}/full")).json()["expires_at"]
    assert full["expires_at"] == expires


# Lists and counts


async def test_the_list_has_filters_pages_and_excerpts(site: Site) -> None:
    question = await site.post(
        schema_name="user.message.v1", tags=["session:s"], context={"message": "Why?\nSay it."}
    )
    first = await post_answer(site, text="Because.", context={"trigger_id": question["id"]})
    others = [
        await post_answer(site, f"s{number}", agent=f"a{number % 2}", model=f"m{number}")
        for number in range(6)
    ]
    await rate(site, first, "down", "Rude.")
    for answer in others:
        await rate(site, answer, "down" if answer == others[0] else "up")
    (item,) = await listed(site, rating="down", session_id="s")
    assert (item["question"], item["answer"], item["note"]) == ("Why? Say it.", "Because.", "Rude.")
    assert [one["answer_id"] for one in await listed(site)] == [*reversed(others), first]
    assert len(await listed(site, agent="a1")) == 3 and len(await listed(site, model="m2")) == 1
    assert await listed(site, config="unknown") == []
    since = (await listed(site, model="m3"))[0]["created_at"]
    assert len(await listed(site, since=since)) == 3
    assert len(await listed(site, until=since)) == 5
    found, cursor = [], None
    while True:
        query = {"limit": 2} | ({} if cursor is None else {"cursor": cursor})
        page = (await site.client.get("/feedback", params=query)).json()
        found += [one["answer_id"] for one in page["feedback"]]
        cursor = page.get("next_cursor")
        assert page["has_more"] is (cursor is not None)
        if cursor is None:
            break
    assert found == [*reversed(others), first]


@pytest.mark.parametrize(
    "query",
    [
        {"rating": "bad"},
        {"since": "yesterday"},
        {"limit": "0"},
        {"limit": "201"},
        {"agent": ""},
        {"model": "x" * 201},
        {"session_id": ""},
        {"own": "perhaps"},
        {"cursor": "nonsense"},
        {"colour": "red"},
    ],
)
async def test_an_invalid_filter_is_refused(site: Site, query: dict[str, str]) -> None:
    reply = await site.client.get("/feedback", params=query)
    assert reply.status_code in (400, 422), reply.text
    if not query.keys() & {"limit", "cursor"}:
        assert (await site.client.get("/feedback/counts", params=query)).status_code == reply.status_code


async def test_counts_are_per_config_agent_and_model(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(site, FunctionModel(echo)):
        for number, rating in enumerate(["up", "up", "down"]):
            turn = await say(site, f"t{number}", "hello")
            config = (await rate(site, turn["answer"]["id"], rating))["config"]
    await rate(site, await post_answer(site, model="m1", agent="helper"), "down")
    found = await counts(site)
    assert found["total"] == {"up": 2, "down": 2} and found["complete"] is True
    assert len(await listed(site, config=config)) == len(await listed(site, config=config[:8])) == 3
    assert found["configs"] == [{"config": config, "up": 2, "down": 1}, {"up": 0, "down": 1}]
    assert found["models"] == [{"model": "function", "up": 2, "down": 1}, {"model": "m1", "up": 0, "down": 1}]
    assert {row["agent_id"]: row["down"] for row in found["agents"]}["helper"] == 1
    assert (await counts(site, model="m1"))["total"] == {"up": 0, "down": 1}
    assert (await counts(site, since="2100-01-01T00:00:00Z"))["total"] == {"up": 0, "down": 0}
    monkeypatch.setattr(feedback_lists, "MAX_COUNTED", 2)
    monkeypatch.setattr(feedback_lists, "_COUNT_BATCH", 1)
    limited = await counts(site)
    assert limited["complete"] is False and sum(limited["total"].values()) == 2


async def test_old_feedback_is_not_read_for_a_recent_range(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        await rate(site, await post_answer(site), "up")
    last = await rate(site, await post_answer(site), "down")
    seen = []

    def noted(self: Any, crumb: Any) -> None:
        seen.append(crumb)

    monkeypatch.setattr(feedback_lists.RatingCounts, "add", noted)
    examined = 0
    accepts = Query.accepts

    def counted(self: Query, crumb: Any) -> bool:
        nonlocal examined
        examined += 1
        return accepts(self, crumb)

    monkeypatch.setattr(Query, "accepts", counted)
    await counts(site, since=last["created_at"])
    assert len(seen) == 1 and examined == 1


# Forks


async def test_a_fork_keeps_feedback_on_the_copied_answers_without_counting_it_twice(site: Site) -> None:
    async with answering(site, FunctionModel(echo)):
        one = await say(site, "s", "one")
        two = await say(site, "s", "two")
        await rate(site, two["answer"]["id"], "up")
        rated = await rate(site, one["answer"]["id"], "down", "Bad.")  # newer than the last copied message
    body = {"id": "f", "before_id": two["message"]["id"]}
    key = {"Idempotency-Key": "fork"}
    for _ in range(2):
        reply = await site.client.post("/sessions/s/fork", json=body, headers=key)
        assert reply.status_code == 201, reply.text
    (copy,) = await listed(site, session_id="f")
    answer = next(message for message in await messages(site, "f") if message["role"] == "assistant")
    assert (copy["rating"], copy["note"], copy["answer_id"]) == ("down", "Bad.", answer["id"])
    assert copy["config"] == rated["config"] and "context_id" not in copy
    assert await own(site, answer["id"]) == {k: v for k, v in copy.items() if k not in ("question", "answer")}
    assert len(await listed(site)) == 2 and (await counts(site))["total"] == {"up": 1, "down": 1}
    again = await rate(site, answer["id"], "up")
    assert again["id"] == copy["id"] and len(await listed(site, session_id="f")) == 1
    assert (await counts(site))["total"] == {"up": 2, "down": 1}


async def test_imported_feedback_with_another_id_is_updated(site: Site) -> None:
    answer = await post_answer(site)
    rated = await rate(site, answer, "up")
    original = await site.store.get(DEVELOPER, UUID(rated["id"]), count_read=False)
    await site.store.delete(DEVELOPER, original.id)
    fields = {"schema_name": FEEDBACK, "tags": original.tags, "context": original.context}
    moved = await site.store.create(DEVELOPER, BreadcrumbCreate.parse(fields))
    assert (await own(site, answer))["id"] == str(moved.id)
    assert (await rate(site, answer, "down"))["id"] == str(moved.id)
    assert len(await stored(site)) == 1


async def test_exported_feedback_keeps_its_history_and_is_updated_in_a_store_with_other_lanes(
    site: Site,
) -> None:
    answer = await post_answer(site)
    await rate(site, answer, "up", "First.")
    rated = await rate(site, answer, "down", "Second.")
    lines = [line async for line in export_lines(site.store, DEVELOPER, Query())]
    async with opened(site.url, lanes=7) as other:
        async for _ in import_lines(other, lines):
            pass
        who = Principal(DEVELOPER, DEVELOPER_AGENT)
        imported = await FeedbackWriter(other, who, UUID(answer)).read()
        assert imported is not None and str(imported.id) == rated["id"]
        assert [one.context["note"] for one in await other.history(DEVELOPER, imported.id)] == [
            "Second.",
            "First.",
        ]
        changed = await FeedbackWriter(other, who, UUID(answer)).rate("up", None)
        assert (str(changed.id), changed.version) == (rated["id"], 3)
        found = [crumb async for crumb in other.walk(DEVELOPER, Query(schema_name=FEEDBACK))]
        assert len(found) == 1
