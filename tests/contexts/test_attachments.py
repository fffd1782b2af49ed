"""Attached pages in contexts: their size limit, their priority, and their place in the conversation."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs.context_builder.assembly import Assembled
from breadcrumbs.context_builder.config_checks import parse_configs
from breadcrumbs.context_builder.explain import explain
from breadcrumbs.context_builder.item_cuts import cut_texts, cut_to_tokens
from breadcrumbs.context_builder.preview import PreviewInput, preview
from breadcrumbs.context_builder.rebuild import rebuild
from breadcrumbs.context_builder.tokens import token_counter
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.schema_names import PAGE_CONTENT
from breadcrumbs.runtime.store.store import Store
from tests.contexts.support import (
    ANSWERS,
    MESSAGES,
    OWNER,
    SHIPPED,
    book_of,
    building,
    config,
    document,
    post,
)
from tests.contexts.test_assembly import Words, crumb, found, made, order, reasons

PAGES: dict[str, Any] = {
    "key": "pages",
    "schema_name": PAGE_CONTENT,
    "max_tokens": 20,
    "fetch": {"method": "recent", "limit": 2, "conversation_scope": "current"},
}
SOURCES = [MESSAGES, ANSWERS, PAGES]


def page(number: int, words: int = 10, **more: Any) -> Breadcrumb:
    text = " ".join(f"p{number}" for _ in range(words))
    context = {"title": "A page", "url": "https://page.example", "text": text, "session_id": "s"}
    return crumb(number, schema=PAGE_CONTENT, context=context, **more)


def with_pages(
    trigger: Breadcrumb, messages: list[Breadcrumb], pages: list[Breadcrumb], **changes: Any
) -> Assembled:
    return made(
        trigger, found(*messages, trigger), found(*pages, source=2, key="pages"), sources=SOURCES, **changes
    )


# Priority and place


def test_a_page_attached_to_the_message_has_priority_over_earlier_messages() -> None:
    earlier = [crumb(number, "five words in this one") for number in (1, 2, 3)]
    result = with_pages(crumb(9, "what now"), earlier, [page(8)], formatting={"max_tokens": 20})
    assert order(result) == [3, 8, 9]
    assert reasons(result) == {1: "over budget", 2: "over budget"}


def test_a_page_attached_to_an_earlier_message_does_not_displace_messages() -> None:
    messages = [crumb(number, "five words in this one") for number in (1, 3, 4)]
    result = with_pages(crumb(9, "what now"), messages, [page(2)], formatting={"max_tokens": 20})
    assert order(result) == [1, 3, 4, 9]
    assert reasons(result) == {2: "over budget"}


def test_a_page_attached_to_an_earlier_message_stays_at_its_position() -> None:
    messages = [crumb(number) for number in (1, 3, 4)]
    result = with_pages(crumb(9), messages, [page(2)])
    assert order(result) == [1, 2, 3, 4, 9]
    assert [item.source for item in result.items if item.crumb.id.int == 2] == ["pages"]


def test_a_page_that_does_not_fit_leaves_out_no_messages() -> None:
    messages = [crumb(number) for number in (1, 2)]
    result = with_pages(crumb(9), messages, [page(8)], formatting={"max_tokens": 5})
    assert (order(result), reasons(result)) == ([1, 2, 9], {8: "over budget"})


def test_a_page_attached_after_the_message_belongs_to_the_next_message() -> None:
    result = with_pages(crumb(5), [crumb(1)], [page(7)])
    assert (order(result), reasons(result)) == ([1, 5], {7: "not yet its turn"})


# Size limit


def test_a_long_page_is_cut_to_the_limit_of_its_source() -> None:
    result = with_pages(crumb(9), [], [page(8, words=500)])
    cut = next(item for item in result.items if item.source == "pages")
    assert 10 < cut.tokens <= 20 and cut.content["text"].endswith("…")
    assert cut.cut is not None and cut.cut.of == 500 * 3 - 1
    assert cut.content == cut_texts(
        {"title": "A page", "url": "https://page.example", "text": " ".join(["p8"] * 500)}, cut.cut.kept
    )
    assert result.sources[2]["max_tokens"] == 20


def test_the_trigger_is_never_cut() -> None:
    limited = [MESSAGES | {"max_tokens": 2}]
    result = made(crumb(9, "a message of six words, all"), found(crumb(9)), sources=limited)
    assert result.items[0].cut is None and result.tokens == 6


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5), st.integers(1, 200))
def test_cutting_again_with_the_same_length_gives_the_same_content(
    content: dict[str, Any], most: int
) -> None:
    result = cut_to_tokens(content, most, Words())
    if result.cut is None:
        assert result.content == content
    else:
        assert result.content == cut_texts(content, result.cut.kept)
    assert result.tokens == Words().count(plain_text(result.content))


@pytest.mark.parametrize(
    "text", ["word " * 100_000, "漢字" * 100_000, "🙂" * 100_000, "a" * 200_000, "\n" * 300_000]
)
def test_any_long_text_is_cut_to_the_limit(text: str) -> None:
    counter = token_counter()
    result = cut_to_tokens({"text": text}, 1500, counter)
    assert counter.count(result.content["text"]) == result.tokens <= 1500


# With a real builder


async def test_a_page_reaches_the_model_with_the_built_in_config_and_is_explained_as_cut(
    store: Store,
) -> None:
    (shipped,) = parse_configs(SHIPPED.read_bytes())
    default = shipped.model_dump(mode="json", exclude_unset=True)
    text = "Crumbs lead home. " + "A long article goes on. " * 2000
    async with building(store, book_of(store, default)) as builder:
        said: dict[str, Any] = {"consumer": "default-chat-assistant", "tags": ("user:message",)}
        fields: dict[str, Any] = {
            "title": "On crumbs",
            "context": {"title": "On crumbs", "url": "https://x.example", "text": text},
        }
        attached = await post(store, session="s", schema=PAGE_CONTENT, **fields)
        elsewhere = await post(store, session="other", schema=PAGE_CONTENT, **fields)
        first = await builder.say("What does it say?", "s", **said)
        explained = await explain(store, OWNER, first.id)
        await builder.say("And now?", "s", **said)
        older = await rebuild(store, OWNER, first.id, 1)
        explained_later = await explain(store, OWNER, first.id, 1)
        previewed = await preview(store, PreviewInput(OWNER, "s", shipped))
    assert b"Crumbs lead home." in orjson.dumps(first.context["parts"])
    item = next(item for item in explained.items if item.id == str(attached.id))
    assert item.cut is not None and item.cut.of == len(text) > item.cut.kept
    assert item.tokens <= 1500 and item.place == "conversation" and item.title == "On crumbs"
    assert item.as_dict()["cut"] == {"kept": item.cut.kept, "of": len(text)}
    assert str(elsewhere.id) not in {one.id for one in explained.items}
    # The older version has only references, and is still rendered byte for byte.
    assert older.same is True
    assert [one.cut for one in explained_later.items] == [one.cut for one in explained.items]
    assert any(one.cut is not None for one in previewed.explanation.items)
    ids = [one.id for one in previewed.explanation.items]
    assert ids.index(str(attached.id)) == 0 and len(ids) == 3


def test_the_limit_of_a_source_is_checked() -> None:
    for wrong in (0, -1, "many", 1.5, 10_000_001):
        with pytest.raises(Exception, match="max_tokens"):
            config(**document(sources=[PAGES | {"max_tokens": wrong}]))
