"""Limits per key: the newest items of all sources with a key, and no answer without its question."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs.context_builder.assembly import Assembled, assemble, find_sources_to_extend, select
from breadcrumbs.context_builder.builder import build_context
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_checks import ConfigError, parse_configs
from breadcrumbs.context_builder.explain import explain
from breadcrumbs.context_builder.preview import PreviewInput, preview
from breadcrumbs.context_builder.rebuild import rebuild
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.retrieval.schema_hints import SchemaHints
from breadcrumbs.runtime.retrieval.sources import SourceItem
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
from tests.contexts.test_cost import Counting


def answer(number: int, question: int, text: str = "one") -> Breadcrumb:
    context = {"message": text, "session_id": "s", "trigger_id": str(crumb(question).id)}
    return crumb(number, text, schema="agent.response.v1", context=context)


def limited(limit: int, **changes: Any) -> dict[str, Any]:
    return {"limits": [{"key": "conversation", "limit": limit}]} | changes


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[Breadcrumb], list[Breadcrumb], Breadcrumb]:
    """Return the messages and answers of a session, and the message to answer.

    Questions can be unanswered, answered several times, answered late, or deleted.
    """
    kinds = ["ask", "answer", "ask", "answer", "ask", "answer", "answer late", "greet", "delete"]
    steps = draw(st.lists(st.sampled_from(kinds), min_size=draw(st.integers(0, 20)), max_size=40))
    messages, answers, asked = list[Breadcrumb](), list[Breadcrumb](), list[int]()
    for number, step in enumerate(steps, 1):
        if step == "ask":
            messages.append(crumb(number))
            asked.append(number)
        elif step == "greet":
            answers.append(crumb(number, schema="agent.response.v1"))
        elif step == "delete" and messages:
            messages.pop(draw(st.integers(0, len(messages) - 1)))
        elif asked:
            question = asked[-1] if step == "answer" else draw(st.sampled_from(asked))
            answers.append(answer(number, question))
    trigger = crumb(100)
    return messages, answers, trigger


def read(one: ContextConfig, *by_source: list[Breadcrumb], full: bool = True) -> list[SourceItem]:
    """Return what the sources of a config find among these breadcrumbs."""
    sources = one.full_sources if full else one.first_sources
    items = []
    for number, (source, crumbs) in enumerate(zip(sources, by_source, strict=True)):
        items += found(*sorted(crumbs, key=lambda one: -one.created)[: source.fetch.limit], source=number)
    return items


def question_of(one: Breadcrumb) -> str | None:
    return one.context.get("trigger_id")


@given(conversations(), st.integers(1, 9))
def test_a_limited_conversation_is_never_longer_than_its_limit(
    conversation: tuple[list[Breadcrumb], list[Breadcrumb], Breadcrumb], limit: int
) -> None:
    messages, answers, trigger = conversation
    one = config(**limited(limit))
    result = made(trigger, read(one, [*messages, trigger], answers), **limited(limit))
    assert len(result.items) <= limit
    assert result.items[-1].crumb.id == trigger.id


@given(conversations(), st.integers(1, 9), st.integers(1, 20))
def test_no_answer_is_kept_if_its_question_was_cut(
    conversation: tuple[list[Breadcrumb], list[Breadcrumb], Breadcrumb], limit: int, tokens: int
) -> None:
    messages, answers, trigger = conversation
    changes = limited(limit, formatting={"max_tokens": tokens})
    result = made(trigger, read(config(**changes), [*messages, trigger], answers), **changes)
    existing = {str(one.id) for one in (*messages, trigger, *answers)}
    shown = {str(item.crumb.id) for item in result.items}
    first = question_of(result.items[0].crumb)
    assert first is None or first in shown or first not in existing
    cut = {str(out.crumb.id) for out in result.left_out}
    assert all(question_of(item.crumb) not in cut for item in result.items)


@given(conversations(), st.integers(1, 9))
def test_only_items_older_than_the_kept_ones_and_answers_without_questions_are_cut(
    conversation: tuple[list[Breadcrumb], list[Breadcrumb], Breadcrumb], limit: int
) -> None:
    messages, answers, trigger = conversation
    one = config(**limited(limit))
    result = made(trigger, read(one, [*messages, trigger], answers), **limited(limit))
    newest = sorted((*messages, *answers), key=lambda one: -one.created)[: limit - 1]
    kept = {item.crumb.id for item in result.items if item.crumb.id != trigger.id}
    orphans = {out.crumb.id for out in result.left_out if out.reason == "without its question"}
    assert kept | orphans == {one.id for one in newest}
    assert all(question_of(one) is not None for one in newest if one.id in orphans)


@given(conversations(), st.integers(1, 9))
def test_reading_a_share_first_gives_the_same_context_as_reading_everything(
    conversation: tuple[list[Breadcrumb], list[Breadcrumb], Breadcrumb], limit: int
) -> None:
    messages, answers, trigger = conversation
    one = config(**limited(limit))
    by_source = [*messages, trigger], answers
    first = read(one, *by_source, full=False)
    further = find_sources_to_extend(one, select(one, trigger, first, one.first_sources))
    everything = read(one, *by_source)
    sources = [further.get(number, source) for number, source in enumerate(one.first_sources)]
    second = [
        entry
        for entry in everything
        if entry.number is not None and entry.rank < sources[entry.number].fetch.limit
    ]
    stepped = assemble(one, trigger, second, counter=Words(), selection=select(one, trigger, second, sources))
    assert order(stepped) == order(made(trigger, everything, **limited(limit)))


def test_one_limit_counts_messages_and_answers_together() -> None:
    pairs = [one for n in range(1, 20, 2) for one in (crumb(n), answer(n + 1, n))]
    trigger = crumb(50)
    result = made(trigger, found(*pairs[::2], trigger), found(*pairs[1::2], source=1), **limited(6))
    # Two questions with their answers, and the trigger. The third answer would stand without its question.
    assert order(result) == [17, 18, 19, 20, 50]
    assert reasons(result)[16] == "without its question" and reasons(result)[15] == "over limit"


def test_an_answer_whose_question_does_not_exist_is_kept() -> None:
    result = made(
        crumb(9), found(crumb(3), crumb(9)), found(answer(2, 1), answer(4, 3), source=1), **limited(9)
    )
    assert order(result) == [2, 3, 4, 9]


def test_an_answer_to_several_messages_stays_with_one_of_them() -> None:
    context = {"message": "both", "session_id": "s", "trigger_id": str(crumb(1).id)}
    both = crumb(
        3, schema="agent.response.v1", context=context | {"answers": [str(crumb(n).id) for n in (1, 2)]}
    )
    result = made(crumb(9), found(crumb(1), crumb(2), crumb(9)), found(both, source=1), **limited(3))
    assert order(result) == [2, 3, 9]


def test_a_question_over_the_budget_takes_its_answer_along_and_frees_its_tokens() -> None:
    trigger, tools = crumb(9), crumb(8, "a b", session=None, schema="tool.catalog.v1")
    changes: dict[str, Any] = {
        "sources": [MESSAGES, ANSWERS, {"key": "tools", "schema_name": "tool.catalog.v1"}],
        "formatting": {"max_tokens": 5},
    }
    finds = found(crumb(1, "a b c d e"), crumb(3), trigger), found(answer(2, 1), answer(4, 3), source=1)
    shared = found(tools, source=2, key="tools")
    result = made(trigger, *finds, shared, **limited(9, **changes))
    assert order(result) == [8, 3, 4, 9] and result.tokens == 5
    assert reasons(result) == {1: "over budget", 2: "without its question"}
    assert order(made(trigger, *finds, shared, **changes)) == [2, 3, 4, 9]


def test_a_config_without_limits_keeps_its_meaning_and_its_hash() -> None:
    result = made(crumb(9), found(crumb(3), crumb(9)), found(answer(2, 1), answer(4, 3), source=1))
    assert order(result) == [2, 3, 4, 9]
    one = config(sources=[{**MESSAGES, "fetch": {"limit": 10}}, ANSWERS])
    assert one.digest == config().digest == "f1a643a6516d85b4"


def test_a_source_without_its_own_limit_takes_the_limit_of_its_key() -> None:
    one = config(sources=[{**MESSAGES, "fetch": {"limit": 4}}, ANSWERS], **limited(20))
    assert [source.fetch.limit for source in one.full_sources] == [4, 20]
    assert [source.fetch.limit for source in one.first_sources] == [4, 11]
    assert one.digest != config(sources=[{**MESSAGES, "fetch": {"limit": 4}}, ANSWERS]).digest
    explicit = config(sources=[MESSAGES, {**ANSWERS, "fetch": {"limit": 10}}], **limited(20))
    assert explicit.digest != config(**limited(20)).digest, "an explicit limit has another meaning than none"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ([{"key": "talk", "limit": 3}], "no source has the key 'talk', expected one of: conversation"),
        ([{"key": "conversation", "limit": 3}] * 2, "limits.1.key: 'conversation' already has a limit"),
        ([{"key": "conversation", "limit": 0}], "limits.0.limit: must be at least 1, not 0"),
        ([{"key": "conversation", "limits": 3}], "limits.0.limits: unknown field: did you mean 'limit'?"),
    ],
)
def test_an_invalid_limit_is_reported_at_its_place(limits: list[dict[str, Any]], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(limits=limits)
    assert expected in str(caught.value)


# In a store


async def converse(store: Store, turns: int, session: str = "s") -> Breadcrumb:
    for number in range(turns):
        question = await post(store, f"question {number}", session=session, tags=("user:message",))
        fields: dict[str, Any] = {"context": {"message": f"answer {number}", "trigger_id": str(question.id)}}
        await post(store, "", session=session, schema="agent.response.v1", **fields)
    return await post(store, "now", session=session, tags=("user:message",))


def said(result: Assembled) -> list[str]:
    return [item.content["message"] for item in result.items]


async def test_the_shipped_config_begins_a_long_context_with_a_question(store: Store) -> None:
    trigger = await converse(store, 30)
    shipped = parse_configs(SHIPPED.read_bytes())[0]
    result = await build_context(store, shipped, trigger, hints=SchemaHints(store))
    expected = [f"{who} {n}" for n in range(14, 30) for who in ("question", "answer")]
    assert said(result) == [*expected, "now"]


async def test_a_limit_per_key_is_read_in_one_round_trip(store: Store) -> None:
    trigger, hints = await converse(store, 30), SchemaHints(store)
    shipped = parse_configs(SHIPPED.read_bytes())[0]
    await build_context(store, shipped, trigger, hints=hints)
    counting = store.connection = Counting(store.connection)
    await build_context(store, shipped, trigger, hints=hints)
    assert counting.waits == 1


async def test_many_unanswered_messages_fill_the_whole_limit(store: Store) -> None:
    for number in range(30):
        await post(store, f"message {number}", session="s")
    trigger = await post(store, "now", session="s")
    result = await build_context(store, config(**limited(20)), trigger, hints=SchemaHints(store))
    assert said(result) == [*(f"message {n}" for n in range(11, 30)), "now"]


async def test_explain_preview_and_rebuild_understand_a_limit_per_key(store: Store) -> None:
    await converse(store, 8)
    changes = limited(6)
    async with building(store, book_of(store, document(**changes))) as builder:
        context = await builder.say("now again", "s")
        await builder.say("and again", "s")
    explained = await explain(store, OWNER, context.id, context.version)
    assert [item.excerpt for item in explained.items] == [
        "question 6", "answer 6", "question 7", "answer 7", "now", "now again",
    ]  # fmt: skip
    assert {out.reason for out in explained.left_out} <= {"over limit", "without its question"}
    assert explained.sources[0] | {"found": 0} == {
        "key": "conversation", "schema_name": "user.message.v1", "method": "recent", "limit": 6, "key_limit": 6,
        "scope": "current", "found": 0, "more": True,
    }  # fmt: skip
    older = "older ones are left out, limit 6 of the key"
    assert explained.gaps() == [
        f"conversation ({one}): {older}" for one in ("user.message.v1", "agent.response.v1")
    ]
    rebuilt = await rebuild(store, OWNER, context.id, context.version)
    assert rebuilt.same
    wanted = PreviewInput(OWNER, "s", config(**changes), UUID(explained.trigger_id))
    previewed = await preview(store, wanted)
    assert [item.id for item in previewed.explanation.items] == [item.id for item in explained.items]
