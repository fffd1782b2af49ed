"""`breadcrumb_search` on a real server. It finds only breadcrumbs of its own session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from breadcrumbs.agents.tools import ToolContext, shipped
from breadcrumbs.agents.tools.shipped import EXCERPT_CHARACTERS, MAX_FOUND, breadcrumb_search
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.store.store import Store

AGENT = "default-chat-assistant"


@pytest.fixture
async def store(embedded_server: EmbeddedServer) -> AsyncIterator[Store]:
    opened = await Store.open(embedded_server.url)
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
def owner() -> UUID:
    return uuid4()  # the server is shared, so each test uses a new owner


async def post(
    store: Store,
    owner: UUID,
    session: str | None,
    message: str,
    *,
    schema: str = "user.message.v1",
    tags: tuple[str, ...] = (),
    context: dict[str, Any] | None = None,
    **fields: Any,
) -> str:
    document = {
        "schema_name": schema,
        "tags": [*tags, *([f"session:{session}"] if session else [])],
        "context": {"message": message, **(context or {})},
        **fields,
    }
    return str((await store.create(owner, BreadcrumbCreate.parse(document))).id)


async def search(store: Store, owner: UUID, session: str | None, **arguments: Any) -> list[dict[str, Any]]:
    result = await breadcrumb_search.run(arguments, ToolContext(owner, session, AGENT, "trigger", store))
    assert result.ok, result.error
    found: list[dict[str, Any]] = result.output["found"]
    return found


def excerpts(found: list[dict[str, Any]]) -> list[str]:
    return [item["excerpt"] for item in found]


# --- Isolation -----------------------------------------------------------------------------------------


async def check_isolation(store: Store) -> None:
    """Check that a search never crosses sessions or owners.

    Two owners have a session of the same name. One owner also has a second session and a breadcrumb without one.
    """
    ours, theirs = uuid4(), uuid4()
    await post(store, ours, "one", "Hello session 1", tags=("user:message",))
    await post(store, ours, "two", "Hello session 2", tags=("user:message",))
    await post(store, ours, None, "Hello from no session", tags=("user:message",))
    await post(store, theirs, "one", "Hello from another tenant", tags=("user:message",))
    questions: list[dict[str, Any]] = [
        {},
        {"text": "hello"},
        {"text": "session 2"},
        {"text": "session:two"},
        {"text": "tenant"},
        {"schema_name": "user.message.v1"},
        {"tags": ["user:message"]},
        {"text": "Hello", "schema_name": "user.message.v1", "tags": ["user:message"], "limit": 20},
    ]
    for question in questions:
        assert set(excerpts(await search(store, ours, "one", **question))) <= {"Hello session 1"}, question
        assert set(excerpts(await search(store, ours, "two", **question))) <= {"Hello session 2"}, question
        assert set(excerpts(await search(store, theirs, "one", **question))) <= {"Hello from another tenant"}
        assert await search(store, uuid4(), "one", **question) == []
        assert await search(store, ours, "three", **question) == []
    assert excerpts(await search(store, ours, "one", text="hello")) == ["Hello session 1"]


async def test_a_search_finds_only_its_own_session(store: Store) -> None:
    await check_isolation(store)


async def test_the_isolation_test_fails_when_the_session_filter_is_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_session(**filters: Any) -> Query:
        del filters["session_id"]
        return Query(**filters)

    monkeypatch.setattr(shipped, "Query", without_session)
    with pytest.raises(AssertionError, match="Hello session 2"):
        await check_isolation(store)


async def test_the_isolation_test_fails_when_the_owner_is_not_passed_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners: list[UUID] = []
    create, list_ = store.create, store.list

    async def remember(owner: UUID, *args: Any, **kwargs: Any) -> Any:
        owners.append(owner)
        return await create(owner, *args, **kwargs)

    async def of_the_first_owner(owner: UUID, query: Query) -> Any:
        return await list_(owners[0], query)

    monkeypatch.setattr(store, "create", remember)
    monkeypatch.setattr(store, "list", of_the_first_owner)
    with pytest.raises(AssertionError, match="Hello session 1"):
        await check_isolation(store)


@pytest.mark.parametrize(
    "arguments",
    [
        {"session_id": "two"},
        {"session": "two"},
        {"owner_id": str(UUID(int=1))},
        {"context": {"session_id": "two"}},
        {"store": None},
        {"tags": ["session:two"]},
        {"tags": ["user:message", "session:two"]},
        {"query": {"session_id": "two"}},
        {"cursor": "x"},
    ],
)
async def test_no_argument_can_name_another_session(
    store: Store, owner: UUID, arguments: dict[str, Any]
) -> None:
    await post(store, owner, "two", "Hello session 2", tags=("user:message",))
    result = await breadcrumb_search.run(arguments, ToolContext(owner, "one", AGENT, "trigger", store))
    assert (result.ok, result.output) == (False, None)
    assert result.error is not None
    assert "unknown argument" in result.error or "remove the session: tags" in result.error


def test_the_schema_of_the_search_has_no_session_parameter() -> None:
    assert set(breadcrumb_search.parameters["properties"]) == {"text", "schema_name", "tags", "limit"}
    assert breadcrumb_search.parameters["additionalProperties"] is False


async def test_a_schema_name_that_looks_like_a_session_finds_nothing(store: Store, owner: UUID) -> None:
    await post(store, owner, "two", "Hello session 2")
    for name in ("session:two", "two", "", "*", "user.message.v1\x00two"):
        assert await search(store, owner, "one", schema_name=name) == []


async def test_a_search_without_a_session_or_a_store_is_an_error(store: Store, owner: UUID) -> None:
    await post(store, owner, None, "Hello from no session")
    await post(store, owner, "one", "Hello session 1")
    result = await breadcrumb_search.run({"text": "hello"}, ToolContext(owner, None, AGENT, "trigger", store))
    assert (result.ok, result.output) == (False, None)
    assert result.error is not None
    assert "needs a session" in result.error
    no_store = await breadcrumb_search.run({}, ToolContext(owner, "one", AGENT, "trigger", None))
    assert no_store.error == "breadcrumb_search: the search needs a store, and this turn has none"


# --- Hidden breadcrumbs and fields ---------------------------------------------------------------------


async def test_secrets_private_and_internal_breadcrumbs_are_not_found(store: Store, owner: UUID) -> None:
    await post(store, owner, "one", "the code is 4711", sensitivity="secret")
    await post(store, owner, "one", "the code is 4712", visibility="private")
    for schema in (
        "agent.context.v1",
        "tool.request.v1",
        "context.request.v1",
        "agent.def.v1",
        "system.ping.v1",
    ):
        await post(store, owner, "one", "the code is 4713", schema=schema)
    own_result = {"tool": "breadcrumb_search", "output": "the code is 4714"}
    await post(store, owner, "one", "the code", schema="tool.response.v1", context=own_result)
    other_result = {"tool": "calculator", "output": "the code is 4715"}
    await post(store, owner, "one", "the code", schema="tool.response.v1", context=other_result)
    await post(store, owner, "one", "the code is 4716", sensitivity="pii")
    for question in ({}, {"text": "code"}):
        found = excerpts(await search(store, owner, "one", **question))
        assert found == ["the code is 4716", 'the code {"tool": "calculator", "output": "the code is 4715"}']
    assert await search(store, owner, "one", schema_name="agent.context.v1") == []


async def test_fields_hidden_by_hints_are_neither_shown_nor_searched(store: Store, owner: UUID) -> None:
    await post(
        store,
        owner,
        "one",
        "The offer",
        context={"margin": "forty percent"},
        llm_hints={"exclude": ["margin"]},
    )
    assert await search(store, owner, "one", text="forty") == []
    assert excerpts(await search(store, owner, "one", text="offer")) == ["The offer"]


async def test_fields_hidden_by_hints_in_the_context_stay_hidden(store: Store, owner: UUID) -> None:
    hidden = {"margin": "forty percent", "llm_hints": {"exclude": ["margin"]}}
    await post(store, owner, "one", "The offer", context=hidden)
    assert await search(store, owner, "one", text="forty") == []
    assert excerpts(await search(store, owner, "one", text="offer")) == ["The offer"]


async def test_fields_hidden_by_the_schema_definition_stay_hidden(store: Store, owner: UUID) -> None:
    """A search hides the same fields as a context."""
    shown = {"exclude": ["nothing"]}
    await post(store, owner, None, "old", tags=("defines:offer.v1",), schema="schema.def.v1", llm_hints=shown)
    hides = {"exclude": ["margin"]}
    await post(store, owner, None, "new", tags=("defines:offer.v1",), schema="schema.def.v1", llm_hints=hides)
    # These definitions are limited to a session, a user or their creator, so they have no effect.
    elsewhere: list[tuple[str | None, tuple[str, ...], dict[str, Any]]] = [
        ("one", (), {}),
        (None, ("user:eve",), {}),
        (None, (), {"visibility": "private"}),
    ]
    for session, tags, fields in elsewhere:
        tags = ("defines:offer.v1", *tags)
        await post(store, owner, session, "", tags=tags, schema="schema.def.v1", llm_hints=shown, **fields)
    await post(store, owner, "one", "The offer", schema="offer.v1", context={"margin": "forty percent"})
    assert await search(store, owner, "one", text="forty") == []
    assert await search(store, owner, "one", text="forty", schema_name="offer.v1") == []
    assert excerpts(await search(store, owner, "one", text="offer")) == ["The offer"]


async def test_internal_fields_are_neither_shown_nor_searched(store: Store, owner: UUID) -> None:
    session = "session-with-a-telling-name"
    where = {"trigger_id": "trigger-77", "creator": "somebody", "mood": "good"}
    await post(store, owner, session, "Hi", context=where)
    found = await search(store, owner, session)
    assert excerpts(found) == ['Hi {"mood": "good"}']
    assert session not in str(found)
    for word in ("telling", "trigger-77", "somebody"):
        assert await search(store, owner, session, text=word) == []


# --- Searching -----------------------------------------------------------------------------------------


async def test_every_filter_narrows_and_the_newest_comes_first(store: Store, owner: UUID) -> None:
    first = await post(
        store, owner, "one", "Tea with milk", tags=("user:message", "topic:tea"), title="First"
    )
    second = await post(store, owner, "one", "Coffee with MILK", tags=("user:message",))
    answer = {"content": "Milk it is"}
    third = await post(
        store, owner, "one", "Milk it is", schema="agent.response.v1", tags=("chat:output",), context=answer
    )

    async def ids(**arguments: Any) -> list[str]:
        return [item["id"] for item in await search(store, owner, "one", **arguments)]

    assert await ids() == [third, second, first]
    assert await ids(text="milk") == [third, second, first]
    assert await ids(text="milk WITH") == [second, first]
    assert await ids(text="first") == [first]
    assert await ids(text="milk sugar") == []
    assert await ids(schema_name="agent.response.v1") == [third]
    assert await ids(tags=["user:message"]) == [second, first]
    assert await ids(tags=["user:message", "topic:tea"]) == [first]
    assert await ids(tags=["topic:tea"], text="coffee") == []
    assert await ids(limit=2) == [third, second]
    (found,) = await search(store, owner, "one", text="tea")
    crumb = await store.get(owner, UUID(first))
    assert found == {
        "id": first,
        "schema_name": "user.message.v1",
        "title": "First",
        "excerpt": "Tea with milk",
        "created_at": crumb.created_at,
    }
    assert excerpts(await search(store, owner, "one", schema_name="agent.response.v1")) == ["Milk it is"]


async def test_results_are_limited_to_twenty_and_report_more(store: Store, owner: UUID) -> None:
    for number in range(MAX_FOUND + 3):
        await post(store, owner, "one", f"message {number}")
    context = ToolContext(owner, "one", AGENT, "trigger", store)
    default = (await breadcrumb_search.run("", context)).output
    assert (len(default["found"]), default["more"]) == (10, True)
    most = (await breadcrumb_search.run({"limit": MAX_FOUND}, context)).output
    assert [item["excerpt"] for item in most["found"]] == [f"message {number}" for number in range(22, 2, -1)]
    narrow = (await breadcrumb_search.run({"text": "message 21"}, context)).output
    assert (excerpts(narrow["found"]), narrow["more"]) == (["message 21"], False)
    for limit in (0, -1, 21, 10**9):
        refused = await breadcrumb_search.run({"limit": limit}, context)
        assert refused.error is not None
        assert "'limit'" in refused.error


async def test_the_excerpt_of_a_long_text_contains_the_search_term(store: Store, owner: UUID) -> None:
    text = "before " * 200 + "the needle is here " + "after " * 200
    await post(store, owner, "one", text)
    (excerpt,) = excerpts(await search(store, owner, "one", text="needle"))
    assert "the needle is here" in excerpt
    assert excerpt.startswith("…")
    assert excerpt.endswith("…")
    assert len(excerpt) <= EXCERPT_CHARACTERS + 2
    (beginning,) = excerpts(await search(store, owner, "one"))
    assert beginning.startswith("before before")


async def test_a_breadcrumb_without_schema_and_text_is_found(store: Store, owner: UUID) -> None:
    await store.create(owner, BreadcrumbCreate.parse({"tags": ["session:one"], "title": "Only a title"}))
    (found,) = await search(store, owner, "one")
    assert (found["title"], found["schema_name"], found["excerpt"]) == ("Only a title", "", "")


async def test_the_reasoning_of_a_model_is_never_found(store: Store, owner: UUID) -> None:
    for hints in (
        {},
        {
            "llm_hints": {
                "transform": {"copy": {"type": "template", "template": "{{context.model_reasoning}}"}}
            }
        },
    ):
        await post(
            store,
            owner,
            "s",
            "The answer.",
            schema="agent.response.v1",
            context={"model_reasoning": "zebras", **hints},
        )
    assert await search(store, owner, "s", text="zebras") == []
    found = await search(store, owner, "s", text="answer")
    assert found and "zebras" not in str(found)
