"""Explanations report breadcrumbs that no source fetched: beyond a limit, by an empty source, or without a source."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from breadcrumbs.context_builder.explain import explain
from breadcrumbs.context_builder.preview import PreviewInput, preview
from breadcrumbs.context_builder.referenced import Reader
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.store.store import Store
from tests.contexts.support import ANSWERS, MESSAGES, OWNER, book_of, building, config, document, post
from tests.contexts.test_explain import TOOLS, conversation


def limited(source: dict[str, Any], limit: int, scope: str = "current") -> dict[str, Any]:
    return {**source, "fetch": {"limit": limit, "conversation_scope": scope}}


def cut(sources: list[dict[str, Any]]) -> list[bool]:
    return [source.get("more", False) for source in sources]


async def test_a_source_reports_that_its_limit_left_out_older_breadcrumbs(store: Store) -> None:
    small = document(sources=[limited(MESSAGES, 3), limited(ANSWERS, 3)])
    async with building(store, book_of(store, small)) as builder:
        contexts = await conversation(builder, 5)
    reports = [await explain(store, OWNER, context.id, context.version) for context in contexts]
    assert [cut(explained.sources) for explained in reports] == [
        *([[False, False]] * 3),  # three questions and two answers are within the limits
        [True, False],
        [True, True],
    ]
    assert all(explained.left_out == [] and explained.unread_schemas == [] for explained in reports)
    assert reports[-1].sources[0]["found"] == reports[-1].sources[0]["limit"] == 3


async def test_breadcrumbs_of_other_sessions_do_not_count(store: Store) -> None:
    sources = [limited(MESSAGES, 2), limited(ANSWERS, 9, "all")]
    async with building(store, book_of(store, document(sources=sources))) as builder:
        await conversation(builder, 4, "other")
        (context,) = await conversation(builder, 1)
        await conversation(builder, 4, "other")  # later breadcrumbs do not count either
        explained = await explain(store, OWNER, context.id)
    assert cut(explained.sources) == [False, False]
    assert explained.sources[1]["found"] == 4


async def test_a_limit_over_all_sessions_is_reported(store: Store) -> None:
    sources = [MESSAGES, limited(ANSWERS, 2, "all")]
    async with building(store, book_of(store, document(sources=sources))) as builder:
        await conversation(builder, 3, "other")
        (context,) = await conversation(builder, 1)
        explained = await explain(store, OWNER, context.id)
    assert cut(explained.sources) == [False, True]


async def test_a_schema_of_the_session_without_a_source_is_reported(store: Store) -> None:
    async with building(store, book_of(store, document(sources=[MESSAGES, TOOLS]))) as builder:
        contexts = await conversation(builder, 2)
        first, second = [await explain(store, OWNER, context.id, context.version) for context in contexts]
    assert first.unread_schemas == [] and "unread_schemas" not in first.as_dict()  # there was no answer yet
    assert second.as_dict()["unread_schemas"] == ["agent.response.v1"]
    assert second.sources[1]["found"] == 0


async def test_an_attached_page_without_a_source_is_reported_but_no_tool_result(store: Store) -> None:
    async with building(store, book_of(store, document(sources=[MESSAGES, ANSWERS]))) as builder:
        await post(store, "a page", session="s", schema="page.content.v1")
        await post(store, "a result", session="s", schema="tool.response.v1")
        (context,) = await conversation(builder, 1)
        explained = await explain(store, OWNER, context.id)
    assert explained.unread_schemas == ["page.content.v1"]


async def test_a_preview_reports_the_same(store: Store) -> None:
    async with building(store, book_of(store)) as builder:
        await conversation(builder, 5)
    edited = config(sources=[limited(MESSAGES, 2)])
    explained = (await preview(store, PreviewInput(OWNER, "s", edited))).explanation
    assert cut(explained.sources) == [True]
    assert explained.unread_schemas == ["agent.response.v1"]


async def test_hidden_breadcrumbs_are_not_reported(store: Store) -> None:
    """A reader must not learn from a report that there are breadcrumbs that it may not see."""
    async with building(store, book_of(store, document(sources=[limited(MESSAGES, 2)]))) as builder:
        (*_, context) = await conversation(builder, 5)

    def may_see(crumb: Breadcrumb) -> bool:
        return crumb.title == "question 4" or crumb.id == context.id

    explained = await explain(store, OWNER, context.id, reader=Reader(may_see))
    assert cut(explained.sources) == [False] and explained.unread_schemas == []


async def test_an_invalid_source_in_a_posted_context_is_ignored(store: Store) -> None:
    """Clients can post breadcrumbs that look like contexts."""
    async with building(store, book_of(store)) as builder:
        (context,) = await conversation(builder, 1)
    strange: list[dict[str, Any]] = [
        {
            "key": "x",
            "method": "recent",
            "found": 10**12,
            "schema_name": "user.message.v1",
            "scope": "current",
        },
        {"key": "x", "method": "recent", "found": "many", "any_tags": [1]},
        {"key": "x", "method": ["recent"], "found": 3, "scope": "everywhere"},
        {"key": "x", "schema_name": ["user.message.v1"], "method": "recent", "found": 1},
        {"key": "x"},
    ]
    forged = {**context.context, "explain": {**context.context["explain"], "sources": strange, "items": []}}
    posted = await post(
        store, "forged", session="s", schema="agent.context.v1", tags=("consumer:tester",), context=forged
    )
    explained = await explain(store, OWNER, posted.id)
    assert cut(explained.sources) == [False] * 5


async def test_the_cost_of_a_report_does_not_grow_with_the_session(store: Store) -> None:
    async with building(store, book_of(store, document(sources=[limited(MESSAGES, 2)]))) as builder:
        (context,) = await conversation(builder, 1)
        costs = []
        for messages in (5, 60):
            for number in range(messages):
                await post(store, f"later {number}", session="s")
            newest = await builder.say("now", "s")
            costs += [
                await _cost_of_explaining(store, context.id, version)
                for version in (context.version, newest.version)
            ]
    assert max(costs[2:]) <= max(costs[:2]) + 2, costs


async def _cost_of_explaining(store: Store, id: UUID, version: int) -> int:
    """Return the number of commands, the smallest of several: the builder sends commands at the same time."""
    costs = []
    for _ in range(3):
        before = await _commands(store)
        await explain(store, OWNER, id, version)
        costs.append(await _commands(store) - before)
    return min(costs)


async def _commands(store: Store) -> int:
    info = (await store.connection.call(0, b"INFO", b"stats")).decode()
    return int(info.split("total_commands_processed:")[1].split()[0])
