"""The isolation audit passes on a correct store and finds every kind of violation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest

from breadcrumbs.context_builder.audit import audit_isolation
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.ids import home_lane, lane_for, new_id
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.store import breadcrumb_scan, record
from breadcrumbs.runtime.store.store import Store
from tests.contexts.support import (
    ANSWERS,
    MESSAGES,
    OWNER,
    book_of,
    building,
    config,
    context_of,
    document,
    post,
)
from tests.support.servers import Cluster

WIDE = document(
    sources=[
        MESSAGES,
        ANSWERS,
        {"key": "tools", "schema_name": "tool.catalog.v1", "fetch": {"method": "latest"}},
        {"key": "old", "schema_name": "user.message.v1", "fetch": {"conversation_scope": "all", "limit": 30}},
    ]
)


async def fill(store: Store, sessions: int = 3, turns: int = 3, owner: UUID = OWNER) -> None:
    async with building(store, book_of(store, WIDE)) as builder:
        await post(store, "a catalogue", schema="tool.catalog.v1", owner=owner)
        for turn in range(turns):
            for session in range(sessions):
                await builder.say(f"question {turn}", f"s{session}", owner=owner)
                await post(
                    store, f"answer {turn}", session=f"s{session}", schema="agent.response.v1", owner=owner
                )


async def overwrite(store: Store, crumb: Breadcrumb, change: dict[str, Any], lane: int | None = None) -> None:
    """Overwrite a stored breadcrumb without any checks, as no client or worker can."""
    lane = home_lane(crumb.id, store.lanes) if lane is None else lane
    changed = Breadcrumb(
        crumb.id, crumb.owner_id, crumb.version, crumb.created, crumb.updated, crumb.expires, crumb.max_reads,
        None, None, orjson.dumps(crumb.document | change),
    )  # fmt: skip
    await store.connection.call(
        lane, b"SET", store.keys.body(lane, crumb.owner_id, crumb.id.bytes), record.encode(changed)
    )


@pytest.fixture(params=["embedded_server", "cluster_server"])
async def any_store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    server: EmbeddedServer | Cluster = request.getfixturevalue(request.param)
    store = await Store.open(server.url, lanes=6, namespace=f"a{uuid4().hex[:8]}")
    yield store
    await store.close()


async def test_a_correct_store_is_clean_and_checked_completely(any_store: Store) -> None:
    other = uuid4()
    await fill(any_store)
    await fill(any_store, sessions=1, turns=1, owner=other)
    report = await audit_isolation(any_store)
    assert report.is_clean and report.owners == {OWNER, other}
    # catalogue, questions, answers, contexts
    assert report.breadcrumbs == (1 + 9 + 9 + 3) + (1 + 1 + 1 + 1)
    assert (report.contexts, report.versions, report.gone, report.unreadable) == (4, 4, 0, 0)
    whole = await audit_isolation(any_store, history=True)
    assert whole.is_clean and whole.versions == 10 and whole.items > report.items
    mine = await audit_isolation(any_store, other)
    assert mine.owners == {other} and mine.breadcrumbs == 4


async def test_an_empty_store_is_clean(store: Store) -> None:
    report = await audit_isolation(store, history=True)
    assert report.is_clean and report.breadcrumbs == 0


async def test_expired_breadcrumbs_are_not_checked(store: Store) -> None:
    crumb = await post(store, "x", session="a")
    expired = Breadcrumb(
        crumb.id, OWNER, 1, crumb.created, crumb.updated, crumb.created + 1, 0, None, None, crumb.json
    )  # fmt: skip
    lane = home_lane(crumb.id, store.lanes)
    await store.connection.call(
        lane, b"SET", store.keys.body(lane, OWNER, crumb.id.bytes), record.encode(expired)
    )
    assert (await audit_isolation(store)).breadcrumbs == 0


async def test_items_in_another_lane_than_their_id_names_are_found(store: Store) -> None:
    """An imported breadcrumb keeps its id. A signpost names its lane."""
    context, stranger = await _context_and_stranger(store)
    lane = home_lane(stranger.id, store.lanes)
    id = new_id((lane + 1) % store.lanes)
    imported = Breadcrumb(id, OWNER, 1, stranger.created, stranger.updated, 0, 0, None, None, stranger.json)
    await store.restore(imported, [])
    explained = context.context["explain"]
    item = {"id": str(id), "version": 1, "source": "conversation", "number": 0, "place": "conversation",
            "rank": 9, "tokens": 1}  # fmt: skip
    change = context.context | {"explain": explained | {"items": [*explained["items"], item]}}
    await overwrite(store, context, {"context": change})
    report = await audit_isolation(store)
    assert report.gone == 0
    assert [finding.item_id for finding in report.findings] == [id]


async def test_large_breadcrumbs_are_read_in_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breadcrumb_scan, "_READ_BYTES", 3_000)
    for _ in range(10):
        await post(store, "x" * 1_000, session="a")
    report = await audit_isolation(store)
    assert report.is_clean and report.breadcrumbs == 10


async def test_deleted_items_are_counted_and_not_reported(store: Store) -> None:
    await fill(store, sessions=1)
    first, *_ = (await store.list(OWNER, Query(schema_name="user.message.v1", sort="created_at"))).items
    await store.delete(OWNER, first.id)
    report = await audit_isolation(store)
    assert report.is_clean and report.gone == 1


async def test_contexts_of_other_programs_are_counted_and_not_reported(store: Store) -> None:
    await post(store, "by hand", session="s", schema="agent.context.v1")
    report = await audit_isolation(store)
    assert report.is_clean and report.unreadable == 1


async def _context_and_stranger(store: Store) -> tuple[Breadcrumb, Breadcrumb]:
    await fill(store, sessions=2, turns=2)
    context = await store.get(OWNER, context_of(store, "s0"))
    stranger = (await store.list(OWNER, Query(session_id="s1", schema_name="user.message.v1"))).items[0]
    return context, stranger


async def test_a_breadcrumb_of_another_session_in_a_context_is_found(store: Store) -> None:
    context, stranger = await _context_and_stranger(store)
    explained = context.context["explain"]
    item = {"id": str(stranger.id), "version": 1, "source": "conversation", "number": 0, "place": "conversation",
            "rank": 9, "tokens": 1}  # fmt: skip
    change = context.context | {"explain": explained | {"items": [*explained["items"], item]}}
    await overwrite(store, context, {"context": change})
    (finding,) = (await audit_isolation(store)).findings
    assert "scope current, but this item belongs to session 's1'" in finding.what
    assert (finding.breadcrumb_id, finding.item_id) == (context.id, stranger.id)


async def test_an_item_from_elsewhere_in_the_conversation_is_found(store: Store) -> None:
    context, _ = await _context_and_stranger(store)
    explained = context.context["explain"]
    items = [
        item | ({"place": "conversation"} if item["place"] == "elsewhere" else {})
        for item in explained["items"]
    ]
    await overwrite(store, context, {"context": context.context | {"explain": explained | {"items": items}}})
    findings = (await audit_isolation(store)).findings
    assert any("instead of 'elsewhere'" in finding.what for finding in findings)
    assert any("but its explanation does not" in finding.what for finding in findings)


async def test_a_rendered_item_without_a_record_is_found(store: Store) -> None:
    context, stranger = await _context_and_stranger(store)
    parts = deepcopy(context.context["parts"])
    parts[-1]["items"].append({"id": str(stranger.id), "created_at": "", "content": {"message": "smuggled"}})
    await overwrite(store, context, {"context": context.context | {"parts": parts}})
    (finding,) = (await audit_isolation(store)).findings
    assert "but its explanation does not" in finding.what


async def test_a_leak_in_an_older_version_is_found_with_history(store: Store) -> None:
    context, stranger = await _context_and_stranger(store)
    older = await store.get_version(OWNER, context.id, 1)
    row = [str(stranger.id), 1, 1, "c", 0, 1]
    explained = older.context["explain"]
    change = older.context | {"explain": explained | {"items": [*explained["items"], row]}}
    body = record.encode(
        Breadcrumb(older.id, OWNER, 1, older.created, older.updated, older.expires, 0, None, None,
                   orjson.dumps(older.document | {"context": change}))
    )  # fmt: skip
    lane = home_lane(context.id, store.lanes)
    await store.connection.call(lane, b"HSET", store.keys.history(lane, OWNER, context.id.bytes), 1, body)
    assert (await audit_isolation(store)).is_clean
    (finding,) = (await audit_isolation(store, history=True)).findings
    assert finding.version == 1 and finding.item_id == stranger.id


@pytest.mark.parametrize(
    "change",
    [
        {"tags": ["session:a", "session:b"]},
        {"tags": ["session:b"]},
        {"tags": []},
        {"context": {"message": "x"}},
        {"context": {"message": "x", "session_id": ["a"]}},
    ],
)
async def test_a_tag_that_disagrees_with_the_session_id_is_found(
    store: Store, change: dict[str, Any]
) -> None:
    crumb = await post(store, "x", session="a")
    assert (await audit_isolation(store)).is_clean
    await overwrite(store, crumb, change)
    findings = (await audit_isolation(store)).findings
    assert any(
        "session tag and session_id differ" in finding.what and finding.breadcrumb_id == crumb.id
        for finding in findings
    )


async def test_a_breadcrumb_in_the_wrong_lane_is_found(store: Store) -> None:
    crumb = await post(store, "x", session="a")
    right = lane_for(OWNER, "session", "a", store.lanes)
    await overwrite(store, crumb, {}, lane=(right + 1) % store.lanes)
    findings = (await audit_isolation(store)).findings
    assert any(f" in lane {right}, but is stored in lane" in finding.what for finding in findings)


async def test_a_breadcrumb_missing_from_the_index_of_its_session_is_found(store: Store) -> None:
    crumb = await post(store, "x", session="a")
    lane = home_lane(crumb.id, store.lanes)
    await store.connection.call(
        lane, b"ZREM", store.keys.by_session(lane, OWNER, "a", "user.message.v1"), crumb.id.bytes
    )
    (finding,) = (await audit_isolation(store)).findings
    assert finding.what == "the breadcrumb is not in the index of its session"
    assert finding.as_dict() == {
        "what": finding.what, "owner_id": str(OWNER), "breadcrumb_id": str(crumb.id)
    }  # fmt: skip


async def test_a_builder_without_the_session_filter_is_found(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit does not trust the builder. It checks the items that were shown."""
    from breadcrumbs.runtime.retrieval import sources

    def wrong(request: Any, source: Any, session: str) -> Any:
        return sources._Plan(listing=lambda: request.find(request.for_source(source)))

    monkeypatch.setattr(sources, "_plan_session", wrong)
    async with building(store, book_of(store)) as builder:
        await builder.say("one", "a")
        await builder.say("two", "b")
    findings = (await audit_isolation(store)).findings
    assert findings and all("scope current" in finding.what for finding in findings)
    assert {finding.breadcrumb_id for finding in findings} == {context_of(store, "b", config().consumer_id)}
