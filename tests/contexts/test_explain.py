"""Explain, rebuild, preview and diff, with contexts of a real builder on a real server."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from breadcrumbs.context_builder.assembly import ItemPlace
from breadcrumbs.context_builder.diff import diff
from breadcrumbs.context_builder.explain import contexts_of, explain
from breadcrumbs.context_builder.explanation import ExplainedItem, Explanation
from breadcrumbs.context_builder.preview import PreviewInput, preview
from breadcrumbs.context_builder.rebuild import rebuild
from breadcrumbs.context_builder.references import read_record
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import InvalidInput, NotFound
from breadcrumbs.runtime.store.archive import delete_archive
from breadcrumbs.runtime.store.store import Store
from tests.contexts.support import (
    ANSWERS,
    MESSAGES,
    OWNER,
    Builder,
    book_of,
    building,
    config,
    context_of,
    document,
    post,
    texts,
)

TOOLS = {"key": "tools", "schema_name": "tool.catalog.v1", "fetch": {"method": "latest"}}
OLD = {"key": "old", "any_tags": ["pinned", "starred"], "fetch": {"conversation_scope": "all", "limit": 5}}


async def conversation(builder: Builder, turns: int, session: str = "s") -> list[Breadcrumb]:
    """Post messages and answers. Return the context of each message."""
    contexts = []
    for number in range(turns):
        contexts.append(await builder.say(f"question {number}", session))
        await post(builder.store, f"answer {number}", session=session, schema="agent.response.v1")
    return contexts


# Explain


async def test_included_and_omitted_items_are_explained(store: Store) -> None:
    wide = document(sources=[MESSAGES, ANSWERS, TOOLS, OLD], formatting={"max_tokens": 50})
    async with building(store, book_of(store, wide)) as builder:
        pinned = await post(store, "pinned elsewhere", session="t", tags=("pinned",))
        tools = await post(store, "a catalogue", schema="tool.catalog.v1")
        hidden = await post(store, "hush", session="s", sensitivity="secret")
        long = await post(store, "word " * 59 + "word", session="s")
        answer = await post(store, "hello there", session="s", schema="agent.response.v1")
        context = await builder.say("now", "s")
        explained = await explain(store, OWNER, context.id)
    assert (explained.consumer_id, explained.session_id) == ("tester", "s")
    assert (explained.context_id, explained.version) == (str(context.id), context.version)
    assert explained.config == config(**wide).digest
    assert (explained.budget, explained.counted_by) == (50, "estimate")
    shown = [
        (item.id, item.source, item.number, item.place, item.rank, item.title) for item in explained.items
    ]
    assert shown == [
        (str(tools.id), "tools", 2, "shared", 0, "a catalogue"),
        (str(answer.id), "conversation", 1, "conversation", 0, "hello there"),
        (str(pinned.id), "old", 3, "elsewhere", 0, "pinned elsewhere"),
        (context.context["trigger_id"], "conversation", 0, "conversation", 0, "now"),
    ]
    by_title = {item.title: item for item in explained.items}
    assert by_title["pinned elsewhere"].matched == ("pinned",)
    assert by_title["pinned elsewhere"].session_id == "t"
    assert by_title["hello there"].excerpt == "hello there"
    assert [item.is_trigger for item in explained.items] == [False, False, False, True]
    assert sum(item.tokens for item in explained.items) == explained.tokens
    left = {out.id: out for out in explained.left_out}
    assert left[str(hidden.id)].reason == "secret" and left[str(hidden.id)].title == "hush"
    assert left[str(long.id)].reason == "over budget" and left[str(long.id)].tokens == 60
    assert [source["found"] for source in explained.sources] == [3, 1, 1, 1]
    assert "hush" not in orjson.dumps(context.context["parts"]).decode()
    # missing values are omitted, not null
    assert b"null" not in orjson.dumps(explained.as_dict())


async def test_an_older_version_is_explained_unchanged(store: Store) -> None:
    async with building(store, book_of(store)) as builder:
        contexts = await conversation(builder, 4)
    newest = [await explain(store, OWNER, contexts[0].id, context.version) for context in contexts]
    assert [len(explained.items) for explained in newest] == [1, 3, 5, 7]
    assert [explained.items[-1].excerpt for explained in newest] == [f"question {n}" for n in range(4)]
    assert [explained.tokens for explained in newest] == [
        context.context["explain"]["tokens"] for context in contexts
    ]


async def test_a_breadcrumb_that_is_not_a_context_is_not_explained(store: Store) -> None:
    message = await post(store, "hello", session="s")
    fake = await post(
        store, schema="agent.context.v1", session="s", context={"explain": {"items": 7}, "consumer_id": "x"}
    )
    for id in (message.id, fake.id):
        with pytest.raises(NotFound, match="is not a context"):
            await explain(store, OWNER, id)
    with pytest.raises(NotFound):
        await explain(store, OWNER, context_of(store, "never"))


async def test_an_unknown_version_is_not_found(store: Store) -> None:
    async with building(store, book_of(store)) as builder:
        (context,) = await conversation(builder, 1)
    with pytest.raises(NotFound, match="no version 7"):
        await explain(store, OWNER, context.id, 7)


async def test_the_contexts_of_a_session_are_found(store: Store) -> None:
    second = document(consumer_id="second", output={"schema_name": "my.context.v1"})
    async with building(store, book_of(store, document(), second)) as builder:
        await builder.say("hello", "s")
        message = await post(store, "again", session="s")
        await builder.made_for(message, context_of(store, "s", "second"))
    assert [context.context["consumer_id"] for context in await contexts_of(store, OWNER, "s")] == ["tester"]
    assert await contexts_of(store, OWNER, "t") == []


# Rebuild


async def test_an_older_version_is_rendered_again_byte_for_byte(store: Store) -> None:
    """This holds after later messages, and after edits of the shown items and of their hints."""
    hints = {"include": ["message"]}
    definition = {
        "schema_name": "schema.def.v1",
        "tags": ["defines:tool.catalog.v1"],
        "llm_hints": {"transform": {"tools": {"type": "extract", "value": "$.tools[*].name"}}},
    }
    wide = document(sources=[MESSAGES, ANSWERS, TOOLS, OLD])
    async with building(store, book_of(store, wide)) as builder:
        defined = await store.create(OWNER, BreadcrumbCreate.parse(definition))
        tools = await post(
            store,
            schema="tool.catalog.v1",
            context={"tools": [{"name": "clock"}], "n": 1.10, "ü": [True, None]},
        )
        await post(store, "pinned elsewhere 🚀", session="t", tags=("starred",))
        context = await builder.say("first", "s", llm_hints=hints)
        trigger = await store.get(OWNER, read_record(context).trigger_id)
        shown = orjson.dumps(context.context["parts"])
        assert b'"tools":"clock"' in shown and "🚀".encode() in shown

        await store.update(OWNER, trigger.id, BreadcrumbUpdate(context={"message": "edited"}, llm_hints=None))
        await store.update(OWNER, tools.id, BreadcrumbUpdate(context={"tools": []}))
        await store.update(
            OWNER,
            defined.id,
            BreadcrumbUpdate(llm_hints={"transform": {"x": {"type": "literal", "literal": 1}}}),
        )
        await conversation(builder, 3)
    older = await store.get_version(OWNER, context.id, context.version)
    assert "parts" not in older.context
    rebuilt = await rebuild(store, OWNER, context.id, context.version)
    assert rebuilt.json == shown
    assert rebuilt.same and rebuilt.gone == ()


async def test_every_version_of_a_long_conversation_is_rendered_again(store: Store) -> None:
    async with building(store, book_of(store)) as builder:
        contexts = await conversation(builder, 15)
    for context in contexts:
        rebuilt = await rebuild(store, OWNER, context.id, context.version)
        assert rebuilt.json == orjson.dumps(context.context["parts"]) and rebuilt.same


async def test_items_deleted_since_are_listed(store: Store) -> None:
    async with building(store, book_of(store)) as builder:
        contexts = await conversation(builder, 3)
    first, *_ = (await store.list(OWNER, Query(session_id="s", sort="created_at"))).items
    await store.delete(OWNER, first.id)
    rebuilt = await rebuild(store, OWNER, contexts[1].id, contexts[1].version)
    assert not rebuilt.same and [reference.id for reference in rebuilt.gone] == [first.id]
    assert [item["content"]["message"] for part in rebuilt.parts for item in part["items"]] == [
        "answer 0",
        "question 1",
    ]
    explained = await explain(store, OWNER, contexts[1].id, contexts[1].version)
    assert [item.gone for item in explained.items] == [True, False, False]
    assert explained.items[0].id == str(first.id) and explained.items[0].title == ""


async def test_content_hidden_by_removed_hints_stays_hidden(store: Store) -> None:
    """The definition was deleted. The archive has its hints. Without them, the context would show more than before."""
    definition = {"schema_name": "schema.def.v1", "tags": ["defines:tool.catalog.v1"],
                  "llm_hints": {"exclude": ["key"]}}  # fmt: skip
    async with building(store, book_of(store, document(sources=[MESSAGES, TOOLS]))) as builder:
        defined = await store.create(OWNER, BreadcrumbCreate.parse(definition))
        tools = await post(store, schema="tool.catalog.v1", context={"name": "clock", "key": "hush"})
        context = await builder.say("first", "s")
        await store.delete(OWNER, defined.id)
        await builder.say("second", "s")
    rebuilt = await rebuild(store, OWNER, context.id, context.version)
    assert rebuilt.same and rebuilt.gone == () and b"clock" in rebuilt.json and b"hush" not in rebuilt.json
    await delete_archive(store, OWNER)
    rebuilt = await rebuild(store, OWNER, context.id, context.version)
    assert [reference.id for reference in rebuilt.gone] == [tools.id] and b"hush" not in rebuilt.json
    explained = await explain(store, OWNER, context.id, context.version)
    assert not any("hush" in item.excerpt for item in explained.items)


# Contexts do not grow the store


async def test_older_versions_keep_references_only(store: Store) -> None:
    """The size of an older version does not depend on the length of the messages."""
    words = "a long message about nothing in particular " * 100
    async with building(store, book_of(store, document(formatting={"max_tokens": 1_000_000}))) as builder:
        for number in range(15):
            context = await builder.say(f"{number} {words}", "s")
            await post(store, words, session="s", schema="agent.response.v1")
    versions = await store.history(OWNER, context.id)
    newest, *older = versions
    assert len(newest.json) > 20 * len(words)
    for version in older:
        references = len(version.context["explain"]["items"])
        assert len(version.json) < 900 + 70 * references
        assert b"nothing in particular" not in version.json
    assert len(older[0].context["explain"]["items"]) == 20
    bytes_each = sum(len(version.json) for version in older) / len(older)
    assert bytes_each < 2_500


# Preview


async def test_a_preview_with_the_same_config_equals_the_context(store: Store) -> None:
    """This also holds after the answer: the preview uses the data at the time of the context."""
    async with building(store, book_of(store)) as builder:
        contexts = await conversation(builder, 5)
    made = await preview(store, PreviewInput(OWNER, "s", config()))
    assert orjson.dumps(made.parts) == orjson.dumps(contexts[-1].context["parts"])
    assert diff(await explain(store, OWNER, contexts[-1].id), made.explanation).is_empty


async def test_a_preview_of_an_older_message_contains_only_items_of_that_time(store: Store) -> None:
    async with building(store, book_of(store)) as builder:
        contexts = await conversation(builder, 8)
    for context in contexts[1:4]:
        made = await preview(store, PreviewInput(OWNER, "s", config(), read_record(context).trigger_id))
        assert made.parts == context.context["parts"]


async def test_a_preview_writes_nothing(store: Store) -> None:
    async with building(store, book_of(store)) as builder:
        await conversation(builder, 2)
    before = [(c.id, c.version) async for c in store.walk(OWNER, Query())]
    events = [
        await store.connection.call(lane, b"XLEN", store.keys.events(lane)) for lane in range(store.lanes)
    ]
    await preview(store, PreviewInput(OWNER, "s", config(formatting={"max_tokens": 5})))
    assert [(c.id, c.version) async for c in store.walk(OWNER, Query())] == before
    assert events == [
        await store.connection.call(lane, b"XLEN", store.keys.events(lane)) for lane in range(store.lanes)
    ]


async def test_a_preview_shows_what_an_edit_would_change(store: Store) -> None:
    async with building(store, book_of(store)) as builder:
        contexts = await conversation(builder, 4)
    before = await explain(store, OWNER, contexts[-1].id)
    edited = config(sources=[{**MESSAGES, "fetch": {"limit": 2}}, ANSWERS], formatting={"max_tokens": 6})
    difference = diff(before, (await preview(store, PreviewInput(OWNER, "s", edited))).explanation)
    assert difference.tokens[1] <= 6 < difference.tokens[0] and difference.budget == (4000, 6)
    assert [(item.excerpt, reason) for item, reason in difference.removed] == [
        ("question 0", None),
        ("answer 0", "over budget"),
        ("question 1", None),
        ("answer 1", "over budget"),
        ("question 2", "over budget"),
    ]
    assert difference.unchanged == 2 and not difference.added and not difference.moved


async def test_a_preview_works_before_the_first_context(store: Store) -> None:
    await post(store, "one", session="s")
    await post(store, "two", session="s")
    made = await preview(store, PreviewInput(OWNER, "s", config()))
    assert [item.excerpt for item in made.explanation.items] == ["one", "two"]
    assert made.explanation.context_id is None


async def test_a_preview_of_a_message_without_a_trigger_is_refused(store: Store) -> None:
    note = await post(store, "a note", session="s", schema="note.v1")
    made = await preview(store, PreviewInput(OWNER, "s", config(), note.id))
    assert any("do not match this breadcrumb" in note for note in made.explanation.notes)


async def test_an_impossible_preview_is_refused_with_the_reason(store: Store) -> None:
    elsewhere = await post(store, "one", session="t")
    secret = await post(store, "hush", session="u", sensitivity="secret")
    with pytest.raises(NotFound, match="no breadcrumb that matches the update_triggers"):
        await preview(store, PreviewInput(OWNER, "s", config()))
    with pytest.raises(NotFound, match="in session 's'"):
        await preview(store, PreviewInput(OWNER, "s", config(), elsewhere.id))
    with pytest.raises(InvalidInput, match="must not be shown to a model"):
        await preview(store, PreviewInput(OWNER, "u", config(), secret.id))


async def test_a_preview_of_a_message_without_a_context_uses_its_own_time(store: Store) -> None:
    early = await post(store, "too early", session="s")
    async with building(store, book_of(store)) as builder:
        await builder.made_for(early, context_of(store, "s"))
        note = await post(store, "no trigger", session="s", schema="note.v1")
        await builder.say("late", "s")
    made = await preview(store, PreviewInput(OWNER, "s", config(), note.id))
    assert made.explanation.as_of == note.created_at
    assert [item.title for item in made.explanation.items] == ["too early", "no trigger"]


@pytest.mark.parametrize("as_of", [10**18, -1, "x", None, [], 2**53])
async def test_a_context_with_an_impossible_time_is_ignored(store: Store, as_of: object) -> None:
    async with building(store, book_of(store)) as builder:
        made = await builder.say("hello", "s")
    forged = made.context | {"as_of": as_of}
    await store.update(OWNER, made.id, BreadcrumbUpdate(context=forged))
    with pytest.raises(NotFound, match="is not a context"):
        await explain(store, OWNER, made.id)
    assert (await preview(store, PreviewInput(OWNER, "s", config()))).explanation.items


@pytest.mark.parametrize(
    "fields",
    [
        {"schema": "note.v1", "tags": ("defines:user.message.v1",)},
        {"schema": "schema.def.v1"},
        {"schema": "schema.def.v1", "tags": ("defines:user.message.v1",), "session": "another"},
        {"schema": "schema.def.v1", "tags": ("defines:user.message.v1", "user:bob")},
        {"schema": "schema.def.v1", "tags": ("defines:user.message.v1",), "visibility": "private"},
        {"schema": "schema.def.v1", "tags": ("defines:user.message.v1",), "sensitivity": "secret"},
    ],
)
async def test_a_forged_context_cannot_reveal_hints_of_other_breadcrumbs(
    store: Store, fields: dict[str, Any]
) -> None:
    literal = {"transform": {"message": {"type": "literal", "literal": "of another session"}}}
    async with building(store, book_of(store)) as builder:
        made = await builder.say("hello", "s")
    private = await post(store, "mine", **fields, llm_hints=literal)
    hints = {"user.message.v1": {"id": str(private.id), "version": 1}}
    forged = made.context | {"explain": made.context["explain"] | {"hints": hints}}
    await store.update(OWNER, made.id, BreadcrumbUpdate(context=forged))
    (item,) = (await explain(store, OWNER, made.id)).items
    assert "of another session" not in item.excerpt


# Diff


def explanation(
    *ids: str, tokens: int = 1, place: ItemPlace = "conversation", version: int = 1
) -> Explanation:
    items = [
        ExplainedItem(source="a", number=0, place=place, rank=0, tokens=tokens, id=id, version=version)
        for id in ids
    ]
    return Explanation(
        consumer_id="c", session_id="s", trigger_id="t", trigger_version=1, as_of="", config="",
        tokens=tokens * len(ids), budget=100, counted_by="", sources=[], items=items, left_out=[],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "came", "went", "moved", "stayed"),
    [
        ("", "", "", "", "", 0),
        ("abc", "abc", "", "", "", 3),
        ("abc", "bcd", "d", "a", "", 2),
        ("abc", "cab", "", "", "c", 2),
        ("abcdef", "bcdefa", "", "", "a", 5),
        ("abc", "xyz", "xyz", "abc", "", 0),
        ("abcd", "xdab", "x", "c", "d", 2),
    ],
)
def test_a_difference_lists_added_removed_and_moved_items(
    old: str, new: str, came: str, went: str, moved: str, stayed: int
) -> None:
    difference = diff(explanation(*old), explanation(*new))
    assert "".join(item.id or "" for item in difference.added) == came
    assert "".join(item.id or "" for item, _ in difference.removed) == went
    assert "".join(item.id or "" for item, _, _ in difference.moved) == moved
    assert difference.unchanged == stayed
    assert difference.tokens == (len(old), len(new))


def test_items_with_another_place_or_version_are_differences() -> None:
    moved = diff(explanation("a"), explanation("a", place="elsewhere"))
    assert [item.id for item, *_ in moved.moved] == ["a"]
    changed = diff(explanation("a"), explanation("a", version=2, tokens=5))
    assert [(old.version, new.version) for old, new in changed.changed] == [(1, 2)]
    assert changed.as_dict()["changed"][0]["was"] == {"version": 1, "tokens": 1}


async def test_the_difference_between_two_turns_is_one_answer_and_one_question(store: Store) -> None:
    async with building(store, book_of(store)) as builder:
        contexts = await conversation(builder, 3)
    old, new = [await explain(store, OWNER, contexts[0].id, context.version) for context in contexts[1:]]
    difference = diff(old, new)
    assert [item.excerpt for item in difference.added] == ["answer 1", "question 2"]
    assert not difference.removed and difference.unchanged == 3
    assert texts(contexts[2])[-2:] == ["answer 1", "question 2"]
