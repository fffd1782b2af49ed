"""The session rule: a breadcrumb belongs to at most one session, and stays in it."""

from __future__ import annotations

from typing import Any

import pytest

from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.session_rule import MAX_TAG_LENGTH, MAX_TAGS
from breadcrumbs.runtime.errors import InvalidInput, SessionConflict
from breadcrumbs.runtime.store.options import UpdateOptions
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import ALICE, MESSAGE, Contract, change, crumb, everything
from tests.store.keyspace import keyspace


class Sessions(Contract):
    @pytest.mark.parametrize(
        ("tags", "context"),
        [(("session:abc",), {}), ((), {"session_id": "abc"}), (("session:abc",), {"session_id": "abc"})],
        ids=["tag only", "context only", "both"],
    )
    async def test_tag_and_context_both_name_the_session(
        self, store: Store, tags: tuple[str, ...], context: dict[str, Any]
    ) -> None:
        written = await store.create(ALICE, crumb(tags=("x", *tags), context=context))
        found = await store.get(ALICE, written.id)
        assert found.tags == ["x", "session:abc"]
        assert found.context == {"session_id": "abc"}
        assert found.session_id == "abc"
        assert [item.id for item in await store.recent(ALICE, "abc", MESSAGE)] == [written.id]
        assert [item.id for item in await everything(store, ALICE, Query(session_id="abc"))] == [written.id]

    @pytest.mark.parametrize(
        ("tags", "context"),
        [
            (("session:a", "session:b"), {}),
            (("session:a",), {"session_id": "b"}),
            (("session:a",), {"session_id": "A"}),
            ((), {"session_id": 7}),
            ((), {"session_id": ["a"]}),
            (("session:a",), {"session_id": {"a": 1}}),
        ],
        ids=["two tags", "disagreement", "other case", "a number", "a list", "an object"],
    )
    async def test_two_sessions_in_one_breadcrumb_are_refused_and_nothing_is_written(
        self, store: Store, tags: tuple[str, ...], context: dict[str, Any]
    ) -> None:
        before = await keyspace(store)
        with pytest.raises(SessionConflict):
            await store.create(ALICE, crumb(tags=tags, context=context))
        assert await keyspace(store) == before

    @pytest.mark.parametrize("session", ["", " ", "a\nb", "x" * (MAX_TAG_LENGTH - 7)])
    async def test_a_session_id_that_does_not_fit_into_a_tag_is_refused(
        self, store: Store, session: str
    ) -> None:
        before = await keyspace(store)
        with pytest.raises(InvalidInput):
            await store.create(ALICE, crumb(context={"session_id": session}))
        assert await keyspace(store) == before

    async def test_the_same_session_tag_twice_is_one_session(self, store: Store) -> None:
        written = await store.create(ALICE, crumb(tags=("session:a", "session:a")))
        assert (await store.get(ALICE, written.id)).tags == ["session:a"]

    async def test_a_null_session_id_means_no_session(self, store: Store) -> None:
        written = await store.create(ALICE, crumb(context={"session_id": None}))
        assert (await store.get(ALICE, written.id)).session_id is None
        tagged = await store.create(ALICE, crumb(session="a", context={"session_id": None}))
        assert (await store.get(ALICE, tagged.id)).context == {"session_id": "a"}

    async def test_the_session_counts_among_the_tags(self, store: Store) -> None:
        full = tuple(f"t{number}" for number in range(MAX_TAGS))
        with pytest.raises(InvalidInput):
            await store.create(ALICE, crumb(tags=full, context={"session_id": "a"}))
        written = await store.create(ALICE, crumb(tags=full[1:], context={"session_id": "a"}))
        with pytest.raises(InvalidInput):
            await store.update(ALICE, written.id, change(tags=list(full)))
        assert (await store.get(ALICE, written.id)).version == 1

    @pytest.mark.parametrize(
        "fields",
        [
            {"tags": ["new"]},
            {"tags": None},
            {"tags": []},
            {"context": {"new": 1}},
            {"context": {}},
            {"context": None},
            {"context": {"session_id": None}},
            {"tags": ["session:abc"], "context": {"session_id": "abc"}},
            {"title": "new"},
        ],
    )
    @pytest.mark.parametrize("merge", [False, True])
    async def test_an_update_keeps_the_session_with_or_without_its_tag(
        self, store: Store, fields: dict[str, Any], merge: bool
    ) -> None:
        written = await store.create(ALICE, crumb(session="abc", tags=("old",), context={"old": 1}))
        await store.update(ALICE, written.id, change(**fields), options=UpdateOptions(merge_context=merge))
        found = await store.get(ALICE, written.id)
        assert found.tags.count("session:abc") == 1
        assert found.context["session_id"] == "abc"
        assert [item.version for item in await store.recent(ALICE, "abc", MESSAGE)] == [2]

    @pytest.mark.parametrize(
        "fields",
        [
            {"tags": ["session:other"]},
            {"tags": ["session:abc", "session:other"]},
            {"context": {"session_id": "other"}},
            {"context": {"session_id": 5}},
            {"context": {"session_id": ["abc"]}},
            {"tags": ["session:abc"], "context": {"session_id": "other"}},
        ],
    )
    @pytest.mark.parametrize("merge", [False, True])
    @pytest.mark.parametrize("session", ["abc", None])
    async def test_an_update_cannot_move_a_breadcrumb_to_another_session(
        self, store: Store, fields: dict[str, Any], merge: bool, session: str | None
    ) -> None:
        written = await store.create(ALICE, crumb(session=session))
        before = await keyspace(store)
        with pytest.raises(SessionConflict):
            await store.update(
                ALICE, written.id, change(**fields), options=UpdateOptions(merge_context=merge)
            )
        assert await keyspace(store) == before
