"""Update: versions, history, and indexes that follow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import NotFound, VersionMismatch
from breadcrumbs.runtime.store.options import UpdateOptions
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import (
    AGENT,
    ALICE,
    ANSWER,
    BOB,
    MESSAGE,
    OTHER_AGENT,
    Contract,
    change,
    crumb,
    everything,
    titles,
)
from tests.store.keyspace import events, keyspace, kind_of


class Updating(Contract):
    async def test_present_fields_replace_and_absent_fields_stay(self, store: Store) -> None:
        new = crumb("one", tags=("a", "b"), context={"x": 1, "y": 2}, description="kept", sensitivity="pii")
        written = await store.create(ALICE, new, by=AGENT)
        updated = await store.update(
            ALICE, written.id, change(title="two", tags=["c"], context={"z": 3}), by=OTHER_AGENT
        )
        found = await store.get(ALICE, written.id)
        assert found.document == {
            "schema_name": MESSAGE,
            "title": "two",
            "tags": ["c"],
            "context": {"z": 3},
            "description": "kept",
            "sensitivity": "pii",
        }
        assert (found.created_by, found.updated_by) == (AGENT, OTHER_AGENT)
        assert found.created == written.created == updated.created
        assert found.updated == updated.updated > written.updated
        assert found.version == updated.version == 2

    async def test_null_clears_a_field(self, store: Store) -> None:
        new = crumb("t", tags=("a",), context={"x": 1}, description="d", visibility="private")
        written = await store.create(ALICE, new)
        cleared = change(
            title=None, tags=None, context=None, description=None, visibility=None, schema_name=None
        )
        await store.update(ALICE, written.id, cleared)
        assert (await store.get(ALICE, written.id)).document == {"title": "", "tags": [], "context": {}}

    async def test_a_merge_patch_merges_the_context(self, store: Store) -> None:
        written = await store.create(ALICE, crumb(context={"a": {"b": 1, "c": 2}, "d": [1, 2], "e": 1}))
        patch = {"a": {"b": None, "n": {"x": None, "y": 1}}, "d": [3], "e": None, "f": None}
        await store.update(
            ALICE, written.id, change(context=patch), options=UpdateOptions(merge_context=True)
        )
        found = await store.get(ALICE, written.id)
        assert found.context == {"a": {"c": 2, "n": {"y": 1}}, "d": [3]}

    async def test_a_stale_update_is_refused_with_the_version_the_store_has(self, store: Store) -> None:
        written = await store.create(ALICE, crumb("one"))
        await store.update(ALICE, written.id, change(title="two"), expected_version=1)
        await store.update(ALICE, written.id, change(title="three"))
        before = await keyspace(store)
        for stale in (1, 2, 4, 0):
            with pytest.raises(VersionMismatch) as refused:
                await store.update(ALICE, written.id, change(title="lost"), expected_version=stale)
            assert (refused.value.current, refused.value.expected) == (3, stale)
        assert await keyspace(store) == before
        assert (await store.update(ALICE, written.id, change(title="four"), expected_version=3)).version == 4

    async def test_one_of_many_updates_with_the_same_expected_version_wins(self, store: Store) -> None:
        written = await store.create(ALICE, crumb())

        async def attempt(number: int) -> int | None:
            try:
                await store.update(ALICE, written.id, change(title=str(number)), expected_version=1)
            except VersionMismatch as mismatch:
                assert mismatch.current == 2
                return None
            return number

        [winner] = [n for n in await asyncio.gather(*map(attempt, range(30))) if n is not None]
        found = await store.get(ALICE, written.id)
        assert (found.title, found.version) == (str(winner), 2)
        assert [event.kind for event in await events(store)] == ["c", "u"]

    async def test_50_concurrent_updates_all_succeed_with_distinct_versions(self, store: Store) -> None:
        written = await store.create(ALICE, crumb("start", context={"at": {"start": 1}}))

        async def write(number: int) -> int:
            patch = change(title=str(number), context={"at": {str(number): 1}})
            return (
                await store.update(ALICE, written.id, patch, options=UpdateOptions(merge_context=True))
            ).version

        returned = await asyncio.gather(*map(write, range(50)))
        assert sorted(returned) == list(range(2, 52))
        history = await store.history(ALICE, written.id)
        assert [version.version for version in history] == list(range(51, 0, -1))
        assert {version.title for version in history} == {"start", *map(str, range(50))}
        assert {returned[int(v.title)]: v.title for v in history[:-1]} == {
            v.version: v.title for v in history[:-1]
        }
        assert set(history[0].context["at"]) == {"start", *map(str, range(50))}, "merges lose nothing"
        moments = [version.updated for version in history]
        assert moments == sorted(set(moments), reverse=True)
        assert [event.version for event in await events(store)] == list(range(1, 52))

    async def test_updates_with_equal_content_each_add_a_version(self, store: Store) -> None:
        written = await store.create(ALICE, crumb(), by=AGENT)
        same = change(title="the same")
        results = await asyncio.gather(*(store.update(ALICE, written.id, same, by=AGENT) for _ in range(10)))
        assert sorted(result.version for result in results) == list(range(2, 12))
        assert len(await events(store)) == 11

    async def test_the_history_contains_each_version_unchanged(self, store: Store) -> None:
        written = await store.create(ALICE, crumb("1", tags=("a",)), by=AGENT)
        before = [await store.get(ALICE, written.id)]
        for number in range(2, 5):
            await store.update(
                ALICE, written.id, change(title=str(number), tags=[f"t{number}"]), by=OTHER_AGENT
            )
            before.append(await store.get(ALICE, written.id))
        assert await store.history(ALICE, written.id) == before[::-1]
        for number in range(1, 5):
            assert await store.get_version(ALICE, written.id, number) == before[number - 1]
        for missing in (0, 5, -1):
            with pytest.raises(NotFound):
                await store.get_version(ALICE, written.id, missing)

    async def test_an_update_between_the_reads_of_a_history_repeats_no_version(self, store: Store) -> None:
        written = await store.create(ALICE, crumb("1"))
        await store.update(ALICE, written.id, change(title="2"))
        call = store.connection.call

        async def call_with_a_writer_in_between(lane: int, *command: Any) -> Any:
            if command[0] == b"HVALS":
                await store.update(ALICE, written.id, change(title="3"))
            return await call(lane, *command)

        store.connection.call = call_with_a_writer_in_between  # type: ignore[method-assign]
        versions = [version.version for version in await store.history(ALICE, written.id)]
        assert versions == sorted(set(versions), reverse=True)
        assert versions[-2:] == [2, 1]

    async def test_indexes_follow_a_change_of_tags(self, store: Store) -> None:
        written = await store.create(ALICE, crumb("it", session="s", tags=("old", "both")))
        await store.update(ALICE, written.id, change(tags=["new", "both"]))
        assert await titles(store, all_tags=("old",)) == []
        assert await titles(store, any_tags=("old",)) == []
        for tag in ("new", "both", "session:s"):
            assert await titles(store, all_tags=(tag,)) == ["it"]
            assert await titles(store, any_tags=(tag,)) == ["it"]
        indexes = {key for key in await keyspace(store) if kind_of(key) == "t"}
        assert len(indexes) == 2, "an index that nobody is in does not exist"

    async def test_indexes_follow_a_change_of_schema(self, store: Store) -> None:
        moved = await store.create(ALICE, crumb("moved", session="s"))
        await store.create(ALICE, crumb("stays", session="s"))
        await store.update(ALICE, moved.id, change(schema_name=ANSWER))
        assert await titles(store, schema_name=MESSAGE) == ["stays"]
        assert await titles(store, schema_name=ANSWER) == ["moved"]
        assert await titles(store, schema_name=ANSWER, session_id="s") == ["moved"]
        assert [item.title for item in await store.recent(ALICE, "s", MESSAGE)] == ["stays"]
        assert [item.title for item in await store.recent(ALICE, "s", ANSWER)] == ["moved"]
        assert await titles(store) == ["stays", "moved"]
        assert await titles(store, session_id="s") == ["stays", "moved"]

        await store.update(ALICE, moved.id, change(schema_name=None))
        assert await titles(store, schema_name=ANSWER) == []
        assert await titles(store) == ["stays", "moved"]
        [(_, names)] = [value for key, value in (await keyspace(store)).items() if kind_of(key) == "d"]
        assert names == {MESSAGE.encode(), b""}, "a schema that nobody has any more is not listed"

    async def test_an_updated_breadcrumb_keeps_its_position_in_the_order_of_creation(
        self, store: Store
    ) -> None:
        for number in range(3):
            await store.create(ALICE, crumb(str(number), session="s", tags=("t",)))
        first = (await store.recent(ALICE, "s", MESSAGE, 3))[-1]
        await store.update(ALICE, first.id, change(tags=["t", "new"], schema_name=ANSWER))
        await store.update(ALICE, first.id, change(schema_name=MESSAGE))
        assert await titles(store) == ["2", "1", "0"]
        assert await titles(store, session_id="s") == ["2", "1", "0"]
        assert await titles(store, all_tags=("t",)) == ["2", "1", "0"]
        assert await titles(store, sort="-updated_at") == ["0", "2", "1"]

    async def test_a_change_is_checked_against_the_version_that_it_is_made_from(self, store: Store) -> None:
        written = await store.create(ALICE, crumb("mine"))
        asked: list[Breadcrumb] = []

        def refuse(item: Breadcrumb, wanted: BreadcrumbUpdate) -> BreadcrumbUpdate:
            asked.append(item)
            raise NotFound("breadcrumb not found")

        def correct(item: Breadcrumb, wanted: BreadcrumbUpdate) -> BreadcrumbUpdate:
            return wanted.model_copy(update={"title": f"{wanted.title}, once {item.title}"})

        with pytest.raises(NotFound):
            await store.update(ALICE, written.id, change(title="no"), options=UpdateOptions(admit=refuse))
        assert [item.title for item in asked] == ["mine"]
        with pytest.raises(NotFound):
            await store.update(BOB, written.id, change(title="no"))
        assert (await store.get(ALICE, written.id)).version == 1
        await store.update(ALICE, written.id, change(title="yes"), options=UpdateOptions(admit=correct))
        [found] = await everything(store, ALICE, Query())
        assert found.title == "yes, once mine"
