"""Selection of the items of a context, without a store."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs.context_builder.assembly import Assembled, TriggerWithheld, assemble
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.retrieval.model_view import model_content
from breadcrumbs.runtime.retrieval.sources import SourceItem
from tests.contexts.support import ANSWERS, MESSAGES, OWNER, config


class Words:
    """Token counter for which a word is a token."""

    method = "words"

    def count(self, text: str) -> int:
        return len(text.split())


def crumb(
    number: int,
    text: str = "one",
    *,
    session: str | None = "s",
    schema: str = "user.message.v1",
    tags: tuple[str, ...] = (),
    **fields: Any,
) -> Breadcrumb:
    """Return a breadcrumb. The number is its id and its creation time."""
    document = {
        "title": text,
        "schema_name": schema,
        "tags": [*tags, *([f"session:{session}"] if session else [])],
        "context": {"message": text} | ({"session_id": session} if session else {}),
    } | fields
    return Breadcrumb(UUID(int=number), OWNER, 1, number, number, 0, 0, None, None, orjson.dumps(document))


def found(*crumbs: Breadcrumb, source: int = 0, key: str = "conversation") -> list[SourceItem]:
    newest_first = sorted(crumbs, key=lambda crumb: -crumb.created)
    return [SourceItem(key, rank, crumb, source) for rank, crumb in enumerate(newest_first)]


def made(trigger: Breadcrumb, *finds: list[SourceItem], **changes: Any) -> Assembled:
    entries = [entry for find in finds for entry in find]
    return assemble(config(**changes), trigger, entries, counter=Words())


def order(result: Assembled) -> list[int]:
    return [item.crumb.id.int for item in result.items]


def reasons(result: Assembled) -> dict[int, str]:
    return {out.crumb.id.int: out.reason for out in result.left_out}


# Order and parts


def test_the_trigger_is_included_even_if_no_source_finds_it() -> None:
    result = made(crumb(5), [])
    assert order(result) == [5]
    assert result.items[0].source == "trigger" and result.items[0].number is None


def test_the_trigger_is_included_once_with_the_source_that_found_it() -> None:
    trigger = crumb(5)
    result = made(trigger, found(crumb(1), crumb(5)))
    assert order(result) == [1, 5]
    assert (result.items[1].source, result.items[1].number, result.items[1].rank) == ("conversation", 0, 0)


def test_the_trigger_is_shown_in_the_version_of_its_event() -> None:
    trigger = crumb(5, "as it was")
    newer = Breadcrumb(trigger.id, OWNER, 2, 5, 9, 0, 0, None, None, crumb(5, "edited since").json)
    result = made(trigger, found(newer))
    assert result.items[0].crumb.version == 1 and result.items[0].content == {"message": "as it was"}


def test_a_conversation_is_ordered_from_oldest_to_newest_for_any_sources() -> None:
    questions, answers = [crumb(n) for n in (1, 3, 5)], [crumb(n, schema="agent.response.v1") for n in (2, 4)]
    result = made(questions[-1], found(*questions), found(*answers, source=1))
    assert order(result) == [1, 2, 3, 4, 5]
    (part,) = result.parts()
    assert (part["place"], part["key"]) == ("conversation", "conversation")


def test_the_trigger_comes_last_even_if_later_messages_exist() -> None:
    later = crumb(7, schema="agent.response.v1")
    assert order(made(crumb(5), found(crumb(1), crumb(5)), found(later, source=1))) == [1, 7, 5]


def test_shared_conversation_elsewhere_and_trigger_are_separate_parts_in_this_order() -> None:
    sources = [MESSAGES, {"key": "old", "schema_name": "user.message.v1", "fetch": {"conversation_scope": "all"}},
               {"key": "tools", "schema_name": "tool.catalog.v1"}]  # fmt: skip
    result = made(
        crumb(5),
        found(crumb(4), crumb(5)),
        found(crumb(1, session="other"), crumb(2, session="third"), key="old", source=1),
        found(crumb(3, session=None, schema="tool.catalog.v1"), key="tools", source=2),
        sources=sources,
    )
    parts = [
        (part["place"], part["key"], [item["id"][-1] for item in part["items"]]) for part in result.parts()
    ]
    assert parts == [("shared", "tools", ["3"]), ("conversation", "conversation", ["4"]),
                     ("elsewhere", "old", ["1", "2"]), ("conversation", "conversation", ["5"])]  # fmt: skip
    elsewhere = result.parts()[2]["items"]
    assert [item["session_id"] for item in elsewhere] == ["other", "third"]
    assert all("session_id" not in item for part in (1, 3) for item in result.parts()[part]["items"])


def test_two_sources_with_one_key_make_one_part_and_keep_their_numbers() -> None:
    notes = [{"key": "notes", "schema_name": "a.v1"}, {"key": "notes", "schema_name": "b.v1"}]
    result = made(
        crumb(5),
        found(crumb(2, session=None, schema="a.v1"), key="notes", source=0),
        found(crumb(1, session=None, schema="b.v1"), key="notes", source=1),
        sources=notes,
    )
    assert [part["key"] for part in result.parts()] == ["notes", "conversation"]
    assert [(item.crumb.id.int, item.number) for item in result.items] == [(1, 1), (2, 0), (5, None)]


def test_a_trigger_without_a_session_is_the_whole_conversation() -> None:
    shared = crumb(1, session=None)
    result = made(crumb(5, session=None), found(shared))
    assert [(item.crumb.id.int, item.place) for item in result.items] == [(1, "shared"), (5, "conversation")]


# Omitted items


@pytest.mark.parametrize(
    ("fields", "changes", "reason"),
    [
        ({"sensitivity": "secret"}, {}, "secret"),
        ({"visibility": "private"}, {}, "private"),
        ({"schema": "agent.context.v1"}, {}, "internal"),
        ({"schema": "agent.def.v1"}, {}, "internal"),
        ({"schema": "context.config.v1"}, {}, "internal"),
        ({"schema": "schema.def.v1"}, {}, "internal"),
        ({"schema": "system.hygiene.v1"}, {}, "internal"),
        ({"schema": "my.context.v1"}, {"output": {"schema_name": "my.context.v1"}}, "internal"),
        ({"schema": "draft.v1"}, {"exclude": {"schema_names": ["draft.v1"]}}, "excluded"),
        ({"tags": ("draft",)}, {"exclude": {"tags": ["x", "draft"]}}, "excluded"),
        ({"sensitivity": "secret", "tags": ("draft",)}, {"exclude": {"tags": ["draft"]}}, "secret"),
    ],
)
def test_excluded_schemas_are_left_out_with_their_reason(
    fields: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    result = made(crumb(5), found(crumb(1, **fields), crumb(2)), **changes)
    assert order(result) == [2, 5] and reasons(result) == {1: reason}


def test_personal_data_is_included() -> None:
    assert order(made(crumb(5), found(crumb(1, sensitivity="pii")))) == [1, 5]


def test_an_item_found_by_two_sources_is_included_once_and_recorded() -> None:
    result = made(crumb(5), found(crumb(1)), found(crumb(1), source=1))
    assert order(result) == [1, 5]
    assert [(out.crumb.id.int, out.reason, out.number) for out in result.left_out] == [(1, "duplicate", 1)]


def test_a_later_message_is_left_out_but_a_later_answer_is_included() -> None:
    result = made(crumb(5), found(crumb(6), crumb(5)), found(crumb(7, schema="agent.response.v1"), source=1))
    assert order(result) == [7, 5] and reasons(result) == {6: "not yet its turn"}


@pytest.mark.parametrize("fields", [{"sensitivity": "secret"}, {"visibility": "private"}])
def test_a_secret_or_private_trigger_makes_no_context(fields: dict[str, Any]) -> None:
    with pytest.raises(TriggerWithheld, match="must not be shown to a model"):
        made(crumb(5, **fields), found(crumb(1)))


def test_an_excluded_trigger_is_included_and_recorded() -> None:
    result = made(crumb(5, tags=("draft",)), [], exclude={"tags": ["draft"]})
    assert order(result) == [5] and any("matches exclude" in note for note in result.notes)


# The budget


def test_the_newest_items_are_kept_first() -> None:
    crumbs = [crumb(n, "a b c") for n in range(1, 6)]
    result = made(crumbs[-1], found(*crumbs), formatting={"max_tokens": 9})
    assert order(result) == [3, 4, 5] and result.tokens == 9
    assert reasons(result) == {1: "over budget", 2: "over budget"}
    assert {out.tokens for out in result.left_out} == {3}


def test_a_conversation_has_no_gaps() -> None:
    """The long message does not fit. Shorter ones before it would fit, but make no sense without it."""
    crumbs = [crumb(1, "a"), crumb(2, "a"), crumb(3, "a " * 50), crumb(4, "a"), crumb(5, "a")]
    result = made(crumbs[-1], found(*crumbs), formatting={"max_tokens": 10})
    assert order(result) == [4, 5] and set(reasons(result)) == {1, 2, 3}


def test_the_trigger_is_kept_even_if_it_exceeds_the_budget() -> None:
    result = made(crumb(5, "a " * 50), found(crumb(1)), formatting={"max_tokens": 10})
    assert order(result) == [5] and result.tokens == 50
    assert result.notes == ["the trigger alone exceeds the budget"]


def test_the_conversation_has_priority_and_small_items_fill_the_remaining_budget() -> None:
    tools = [crumb(8, "a " * 6, session=None, schema="t.v1"), crumb(7, "a a", session=None, schema="t.v1")]
    result = made(
        crumb(5, "a a"),
        found(crumb(4, "a a a")),
        found(*tools, key="tools", source=1),
        sources=[MESSAGES, {"key": "tools", "schema_name": "t.v1"}],
        formatting={"max_tokens": 8},
    )
    assert order(result) == [7, 4, 5] and reasons(result) == {8: "over budget"}


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=20),
    st.integers(1, 60),
    st.lists(st.integers(0, 30), max_size=5),
)
def test_any_conversation_is_cut_at_one_point_and_within_its_budget(
    lengths: list[int], budget: int, others: list[int]
) -> None:
    crumbs = [crumb(n, "a " * length) for n, length in enumerate(lengths, 1)]
    shared = [crumb(100 + n, "a " * size, session=None) for n, size in enumerate(others)]
    result = made(crumbs[-1], found(*crumbs), found(*shared, source=1), formatting={"max_tokens": budget})
    spoken = [number for number in order(result) if number < 100]
    assert spoken == list(range(len(crumbs) - len(spoken) + 1, len(crumbs) + 1))
    assert result.tokens <= max(budget, lengths[-1])
    assert sorted([*order(result), *reasons(result)]) == sorted(c.id.int for c in [*crumbs, *shared])


# Rendering


def test_internal_fields_of_the_runtime_are_not_shown() -> None:
    glue = {
        "session_id": "s",
        "trigger_id": "t",
        "creator": "x",
        "hops": 1,
        "context_id": "c",
        "context_version": 2,
    }
    assert model_content(crumb(1, context={"message": "hello", **glue}), None) == {"message": "hello"}


def test_hints_of_the_breadcrumb_win_over_those_of_its_schema() -> None:
    own = crumb(1, context={"a": 1, "b": 2}, llm_hints={"include": ["a"]})
    plain = crumb(2, context={"a": 1, "b": 2})
    definition = crumb(9, session=None, schema="schema.def.v1", llm_hints={"include": ["b"]})
    result = assemble(
        config(),
        crumb(5, schema="other.v1"),
        found(own, plain),
        counter=Words(),
        definitions={"user.message.v1": definition},
    )
    assert [item.content for item in result.items[:2]] == [{"a": 1}, {"b": 2}]
    assert result.definitions == {"user.message.v1": definition}


def test_the_speaker_is_shown_next_to_the_content() -> None:
    answer = crumb(4, schema="agent.response.v1", context={"message": "hi", "creator": {"agent_id": "bot"}})
    (part,) = made(crumb(5), found(answer, source=1)).parts()
    assert part["items"][0]["creator"] == "bot" and part["items"][0]["content"] == {"message": "hi"}


# Explanation


def test_every_item_has_its_source_and_tags() -> None:
    source = {"key": "notes", "any_tags": ["red", "blue"], "all_tags": ["note"], "fetch": {"limit": 3}}
    trigger = crumb(5)
    result = made(trigger, found(crumb(1, tags=("blue", "note", "x")), key="notes"), sources=[source])
    explained = result.explain(result.parts())
    assert explained["items"][0] == {
        "id": str(UUID(int=1)), "version": 1, "source": "notes", "number": 0, "place": "conversation",
        "rank": 0, "tokens": 1, "matched": ["note", "blue"],
    }  # fmt: skip
    assert explained["sources"] == [
        {"key": "notes", "any_tags": ["red", "blue"], "all_tags": ["note"], "method": "recent", "limit": 3,
         "scope": "current", "found": 1}
    ]  # fmt: skip
    assert explained["items"][1]["source"] == "trigger" and "number" not in explained["items"][1]
    assert (explained["tokens"], explained["budget"], explained["counted_by"]) == (2, 4000, "words")


def test_a_long_list_of_omitted_items_is_shortened_and_counted() -> None:
    secrets = [crumb(n, sensitivity="secret") for n in range(1, 251)]
    explained = made(crumb(999), found(*secrets), sources=[MESSAGES, ANSWERS]).explain([])
    assert len(explained["left_out"]) == 100 and explained["left_out_besides"] == 150
