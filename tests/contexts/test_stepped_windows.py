"""Stepped windows and budgets keep the beginning of a context for many turns, as a pure function of the session."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.context_builder.assembly import (
    Assembled,
    assemble,
    find_sources_to_extend,
    group_parts,
    select,
)
from breadcrumbs.context_builder.builder import build_context
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_checks import ConfigError, parse_configs
from breadcrumbs.context_builder.config_warnings import find_warnings
from breadcrumbs.context_builder.explain import explain
from breadcrumbs.context_builder.rebuild import rebuild
from breadcrumbs.context_builder.stepped_budget import first_kept
from breadcrumbs.context_builder.stepped_windows import SteppedWindow
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbUpdate
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
    texts,
)
from tests.contexts.test_assembly import Words, crumb, found, made, order
from tests.contexts.test_key_limits import answer, conversations, question_of

Conversation = tuple[list[Breadcrumb], list[Breadcrumb], Breadcrumb]


def stepped(limit: int, keep: int, **changes: Any) -> dict[str, Any]:
    return {"limits": [{"key": "conversation", "limit": limit, "keep": keep}]} | changes


def read(trigger: Breadcrumb, by_source: tuple[list[Breadcrumb], ...], limits: list[int]) -> list[SourceItem]:
    """Return what the sources find. Messages that wait do not use up a limit."""
    items = []
    for number, crumbs in enumerate(by_source):
        waiting = [one for one in crumbs if one.created > trigger.created and question_of(one) is None]
        others = sorted((one for one in crumbs if one not in waiting), key=lambda one: -one.created)
        items += found(*waiting, *others[: limits[number]], source=number)
    return items


def turn(one: ContextConfig, trigger: Breadcrumb, *by_source: list[Breadcrumb]) -> Assembled:
    """Assemble a context as the builder does: read a share first, then more if needed."""
    counts = {
        number: sum(entry.created <= trigger.created for entry in crumbs)
        for number, crumbs in enumerate(by_source)
    }
    sources = list(one.first_sources)
    items = read(trigger, by_source, [source.fetch.limit for source in sources])
    selection = select(one, trigger, items, sources, counts)
    if further := find_sources_to_extend(one, selection):
        sources = [further.get(number, source) for number, source in enumerate(sources)]
        items = read(trigger, by_source, [source.fetch.limit for source in sources])
        selection = select(one, trigger, items, sources, counts)
    return assemble(one, trigger, items, counter=Words(), selection=selection)


# The window


@given(st.integers(0, 3000), st.integers(2, 1000), st.data())
def test_a_window_has_more_than_keep_and_at_most_limit_items(
    count: int, limit: int, data: st.DataObject
) -> None:
    window = SteppedWindow(frozenset((0,)), limit, data.draw(st.integers(1, limit - 1)))
    size = window.size(count)
    assert size == count if count <= limit else window.keep < size <= limit
    start, step = count - size, limit - window.keep
    assert start % step == 0
    assert start <= count + 1 - window.size(count + 1) <= start + step


def test_forty_and_twenty_cut_only_when_the_limit_is_exceeded() -> None:
    window = SteppedWindow(frozenset((0,)), 40, 20)
    sizes = {count: window.size(count) for count in (39, 40, 41, 59, 60, 61)}
    assert sizes == {39: 39, 40: 40, 41: 21, 59: 39, 60: 40, 61: 21}


@given(conversations(), st.integers(2, 12), st.data())
def test_a_stepped_conversation_holds_the_newest_items_and_no_answer_without_its_question(
    conversation: Conversation, limit: int, data: st.DataObject
) -> None:
    messages, answers, trigger = conversation
    keep = data.draw(st.integers(1, limit - 1))
    result = turn(config(**stepped(limit, keep)), trigger, [*messages, trigger], answers)
    everything = sorted((*messages, *answers, trigger), key=lambda one: one.created)
    size = SteppedWindow(frozenset((0, 1)), limit, keep).size(len(everything))
    newest = {one.id for one in everything[-size:]}
    kept = {item.crumb.id for item in result.items}
    orphans = {out.crumb.id for out in result.left_out if out.reason == "without its question"}
    assert kept | orphans == newest
    first = question_of(result.items[0].crumb)
    assert (
        first is None or first in {str(id) for id in kept} or first not in {str(one.id) for one in everything}
    )


@given(st.integers(3, 12), st.integers(10, 40), st.data())
def test_a_context_begins_with_the_previous_one_except_at_a_step(
    limit: int, turns: int, data: st.DataObject
) -> None:
    keep = data.draw(st.integers(1, limit - 2))
    one = config(**stepped(limit, keep))
    messages, answers = list[Breadcrumb](), list[Breadcrumb]()
    previous: list[int] = []
    breaks = 0
    for number in range(1, 2 * turns, 2):
        messages.append(crumb(number))
        now = order(turn(one, messages[-1], messages, answers))
        breaks += now[: len(previous)] != previous
        previous = now
        answers.append(answer(number + 1, number))
    assert breaks <= 2 * turns / (limit - keep) + 1


def test_messages_that_wait_do_not_move_the_window_and_late_answers_count() -> None:
    one = config(**stepped(4, 2))
    messages, answers = [crumb(n) for n in (1, 3, 5, 20, 21, 22)], [answer(2, 1), answer(4, 3)]
    assert order(turn(one, crumb(5), messages, answers)) == [3, 4, 5]
    assert order(turn(one, crumb(5), messages[:3], answers)) == [3, 4, 5]
    late = [*answers, answer(23, 5)]  # the answer to 5 came after the messages 20 to 22
    assert order(turn(one, crumb(20), messages, late)) == [5, 23, 20]


def test_excluded_breadcrumbs_count_so_that_the_window_does_not_move_when_they_leave_it() -> None:
    one = config(**stepped(4, 2, exclude={"tags": ["draft"]}))
    messages = [crumb(n, tags=("draft",) if n == 3 else ()) for n in (1, 2, 3, 4, 5)]
    assert order(turn(one, messages[-1], messages, [])) == [4, 5]


def _is_older(until: int, crumb: Breadcrumb) -> bool:
    return crumb.created <= until


async def test_a_past_turn_gets_the_same_window_again(store: Store) -> None:
    wide = document(**stepped(6, 2))
    (one,) = [config(**stepped(6, 2))]
    async with building(store, book_of(store, wide)) as builder:
        contexts = []
        for number in range(12):
            contexts.append(await builder.say(f"q{number}", "s"))
            trigger = contexts[-1].context["trigger_id"]
            await post(
                store,
                f"a{number}",
                session="s",
                schema="agent.response.v1",
                context={"message": f"a{number}", "trigger_id": trigger},
            )
        shown = [texts(context) for context in contexts]
        assert all(2 < len(words) <= 6 and words[0].startswith("q") for words in shown[3:]), shown
        assert len({words[0] for words in shown}) <= 6, "the start moves in steps of two turns"
        sizes = [len(words) for words in shown[3:]]
        assert sorted(set(sizes)) == [3, 5]
        for context, words in zip(contexts, shown, strict=True):
            trigger = await store.get(OWNER, UUID(context.context["trigger_id"]), count_read=False)
            until: int = context.context["as_of"]
            again = await build_context(
                store, one, trigger, hints=SchemaHints(store), keep=partial(_is_older, until)
            )
            assert [item.content["message"] for item in again.items] == words


async def test_an_edited_or_retried_message_keeps_its_window(store: Store) -> None:
    async with building(store, book_of(store, document(**stepped(4, 2)))) as builder:
        for number in range(4):
            context = await builder.say(f"m{number}", "s")
        fifth = await builder.say("m4", "s")
        assert texts(fifth) == ["m2", "m3", "m4"]
        for number in range(5, 9):
            await builder.say(f"m{number}", "s")
        trigger = await store.get(OWNER, UUID(fifth.context["trigger_id"]), count_read=False)
        await store.update(
            OWNER, trigger.id, BreadcrumbUpdate(context={"message": "edited", "session_id": "s"})
        )
        edited = await store.get(OWNER, trigger.id, count_read=False)
        rebuilt = await builder.made_for(edited, context.id)
        while rebuilt.context["trigger_version"] != edited.version:
            rebuilt = await builder.made_for(edited, context.id)
        assert texts(rebuilt) == ["m2", "m3", "edited"]
        counts = [source.get("count") for source in rebuilt.context["explain"]["sources"]]
        assert counts == [5, 0], "later messages do not count"


async def test_a_stepped_source_takes_no_further_round_trip(store: Store) -> None:
    from tests.contexts.test_cost import cost_of, say_all

    await say_all(store, "s", 60)
    trigger = await post(store, "now", session="s", tags=("x", "user:message"))
    steps, _ = await cost_of(store, config(**stepped(40, 20)), trigger)
    slides, _ = await cost_of(store, config(limits=[{"key": "conversation", "limit": 40}]), trigger)
    assert steps == slides


async def test_a_single_source_can_have_a_stepped_window(store: Store) -> None:
    one = {**MESSAGES, "fetch": {"limit": 4, "keep": 2}}
    async with building(store, book_of(store, document(sources=[one]))) as builder:
        sizes = [len(texts(await builder.say(f"m{n}", "s"))) for n in range(1, 10)]
    assert sizes == [1, 2, 3, 4, 3, 4, 3, 4, 3]


# The budget


@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=60),
    st.integers(2, 60),
    st.data(),
)
def test_a_stepped_budget_is_kept_and_depends_only_on_earlier_items(
    sizes: list[tuple[int, bool]], limit: int, data: st.DataObject
) -> None:
    keep = data.draw(st.integers(1, limit - 1))
    start = first_kept(sizes, limit, keep)
    assert start == len(sizes) - 1 or sum(size for size, _ in sizes[start:]) <= limit
    assert first_kept(sizes[:-1], limit, keep) <= start or len(sizes) == 1
    assert first_kept([*sizes, (0, True)], limit, keep) >= start


def test_a_stepped_budget_cuts_rarely_and_never_below_keep_tokens() -> None:
    sizes = [(100, True)] * 200
    starts = [first_kept(sizes[:end], 4000, 2000) for end in range(1, 201)]
    assert len(set(starts)) <= 10
    kept = [100 * (end - start) for end, start in zip(range(1, 201), starts, strict=True)]
    assert min(kept[40:]) == 2000 and max(kept) == 4000


@given(st.lists(st.integers(1, 5), min_size=5, max_size=30), st.integers(6, 30))
def test_a_stepped_budget_holds_at_least_what_a_sliding_budget_of_keep_tokens_holds(
    words: list[int], keep: int
) -> None:
    assume(words[-1] <= keep)
    crumbs = [crumb(number, " ".join("w" * size)) for number, size in enumerate(words, 1)]
    sources = [{**MESSAGES, "fetch": {"limit": 100}}]
    sliding = made(crumbs[-1], found(*crumbs), sources=sources, formatting={"max_tokens": keep})
    formatting = {"max_tokens": 2 * keep, "keep_tokens": keep}
    steps = made(crumbs[-1], found(*crumbs), sources=sources, formatting=formatting)
    assert set(order(sliding)) <= set(order(steps))
    assert steps.tokens <= 2 * keep


def test_shared_items_stay_in_a_stepped_budget_whatever_the_length_of_the_conversation() -> None:
    tools = {"key": "tools", "schema_name": "tool.catalog.v1", "fetch": {"method": "latest"}}
    sources = [{**MESSAGES, "fetch": {"limit": 100}}, tools]
    catalog = crumb(1, "a b c", session=None, schema="tool.catalog.v1")
    for length in range(1, 40):
        talk = [crumb(number, "one two") for number in range(2, 2 + length)]
        result = made(
            talk[-1],
            found(*talk),
            found(catalog, source=1, key="tools"),
            sources=sources,
            formatting={"max_tokens": 20, "keep_tokens": 8},
        )
        assert order(result)[0] == 1 and result.tokens <= 20 and len(result.items) >= min(length, 4) + 1


# The config


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (stepped(4, 4), "limits.0.keep: must be less than limit (4), not 4"),
        (stepped(4, 0), "limits.0.keep: must be at least 1, not 0"),
        (
            stepped(4, 2, sources=[{**MESSAGES, "any_tags": ["x"]}]),
            "sources.0 needs the method recent, a schema_name, no tags and the scope current",
        ),
        (
            stepped(4, 2, sources=[{**MESSAGES, "fetch": {"conversation_scope": "all"}}]),
            "sources.0 needs the method recent",
        ),
        (
            stepped(4, 2, sources=[{**MESSAGES, "fetch": {"limit": 3}}]),
            "sources.0 has its own limit: remove it",
        ),
        (
            {"sources": [{**MESSAGES, "fetch": {"limit": 3, "keep": 3}}]},
            "keep must be less than limit (3), not 3",
        ),
        (
            {"sources": [{**MESSAGES, "fetch": {"method": "latest", "keep": 3}}]},
            "keep needs the method recent",
        ),
        (
            {"sources": [{**MESSAGES, "any_tags": ["x"], "fetch": {"keep": 3}}]},
            "fetch.keep needs a schema_name, no tags and the scope current",
        ),
        (
            {"formatting": {"max_tokens": 10, "keep_tokens": 10}},
            "formatting.keep_tokens: must be less than max_tokens (10), not 10",
        ),
        ({"formatting": {"keep_token": 10}}, "did you mean 'keep_tokens'?"),
    ],
)
def test_an_invalid_window_is_reported_with_advice(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**changes)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        (stepped(9, 4, sources=[{**MESSAGES, "fetch": {"keep": 3}}]), ("sources", 0, "fetch", "keep")),
        (
            {
                "limits": [{"key": "conversation", "limit": 5}],
                "sources": [{**MESSAGES, "fetch": {"keep": 3}}],
            },
            ("sources", 0, "fetch", "keep"),
        ),
        (
            {
                "formatting": {"keep_tokens": 5},
                "sources": [{**MESSAGES, "fetch": {"conversation_scope": "all"}}],
            },
            ("formatting", "keep_tokens"),
        ),
    ],
)
def test_a_window_without_effect_is_a_warning(changes: dict[str, Any], path: tuple[Any, ...]) -> None:
    assert [fault.path for fault in find_warnings(config(**changes))] == [path]


def test_the_shipped_config_is_stepped_and_has_no_warnings() -> None:
    (one,) = parse_configs(SHIPPED.read_bytes())
    assert one.stepped_windows == (SteppedWindow(frozenset((0, 1)), 48, 20),)
    assert (one.formatting.max_tokens, one.formatting.keep_tokens) == (16000, 4000)
    assert list(find_warnings(one)) == []


def test_configs_without_keep_have_the_hash_that_they_had_before() -> None:
    limits = [{"key": "conversation", "limit": 21}]
    assert config(limits=limits).digest == "f250a3fc3c5ce7be"
    assert config(**stepped(21, 20)).digest != "f250a3fc3c5ce7be"
    assert config(formatting={"keep_tokens": 5}).digest != config().digest


def test_an_agent_that_cannot_count_its_source_is_refused() -> None:
    selectors = [
        {"schema_name": "user.message.v1"},
        {"role": "context", "schema_name": "note.v1", "any_tags": ["x"], "fetch": {"keep": 3}},
    ]
    with pytest.raises(ValueError, match=r"fetch\.keep needs a schema_name, no tags"):
        AgentDefinition.model_validate({"agent_id": "a", "subscriptions": {"selectors": selectors}})


# Stored contexts


def test_items_of_contexts_from_before_the_new_order_are_grouped_as_they_were() -> None:
    shown: list[Any] = [
        ("shared", "tools", {"id": 1}), ("elsewhere", "old", {"id": 2}), ("elsewhere", "old", {"id": 3}),
        ("conversation", "conversation", {"id": 4}), ("conversation", "pages", {"id": 5}),
        ("conversation", "trigger", {"id": 6}),
    ]  # fmt: skip
    parts = [(part["place"], part["key"], len(part["items"])) for part in group_parts(shown)]
    assert parts == [("shared", "tools", 1), ("elsewhere", "old", 2), ("conversation", "conversation", 3)]


async def test_a_context_with_a_separate_trigger_is_rendered_again_byte_for_byte(store: Store) -> None:
    other = {
        "key": "old",
        "schema_name": "user.message.v1",
        "fetch": {"limit": 2, "conversation_scope": "all"},
    }
    async with building(store, book_of(store, document(sources=[MESSAGES, ANSWERS, other]))) as builder:
        first = await builder.say("one", "s")
        await post(store, "elsewhere", session="t")
        second = await builder.say("two", "s")
        third = await builder.say("three", "s")
    parts = [(part["place"], len(part["items"])) for part in second.context["parts"]]
    assert parts == [("conversation", 1), ("elsewhere", 1), ("conversation", 1)]
    for context in (first, second, third):
        rebuilt = await rebuild(store, OWNER, context.id, context.version)
        assert rebuilt.same and rebuilt.parts == context.context["parts"]


# The explanation


async def test_an_explanation_reports_the_repeated_part_and_the_item_that_broke_it(store: Store) -> None:
    async with building(
        store, book_of(store, document(sources=[{**MESSAGES, "fetch": {"limit": 3}}]))
    ) as builder:
        contexts = [await builder.say(word, "s") for word in ("aaaa", "bbbb", "cccc", "dddd")]
    first, second, third, fourth = [
        (await explain(store, OWNER, context.id, context.version)).reuse for context in contexts
    ]
    assert first is None
    assert second == {"previous_version": 1, "items": 1, "bytes": 4, "of_bytes": 8, "percent": 50.0}
    assert third == {"previous_version": 2, "items": 2, "bytes": 8, "of_bytes": 12, "percent": 66.7}
    assert fourth is not None and (fourth["bytes"], fourth["of_bytes"], fourth["percent"]) == (0, 12, 0.0)
    assert fourth["broken"]["item"]["title"] == "bbbb" and fourth["broken"]["before"]["title"] == "aaaa"


async def test_an_edited_message_breaks_the_prefix(store: Store) -> None:
    async with building(store, book_of(store)) as builder:
        written = await post(store, "aaaa", session="s", schema="agent.response.v1")
        await builder.say("bbbb", "s")
        await store.update(
            OWNER, written.id, BreadcrumbUpdate(context={"message": "AAAA", "session_id": "s"})
        )
        last = await builder.say("cccc", "s")
    reuse = (await explain(store, OWNER, last.id, last.version)).reuse
    assert reuse is not None and reuse["bytes"] == 0
    assert [reuse["broken"][name]["version"] for name in ("item", "before")] == [2, 1]
