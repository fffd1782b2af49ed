"""Restore: ids, versions, times and histories from elsewhere, also ids that name another lane."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args
from uuid import UUID, uuid4

import orjson
import pytest

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.ids import home_lane, lane_for, new_id
from breadcrumbs.runtime.breadcrumb.query import Query, Sort
from breadcrumbs.runtime.errors import AlreadyExists, NotFound
from breadcrumbs.runtime.store.batched_reads import newest_of, version_of
from breadcrumbs.runtime.store.expiry import purge_expired
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
from tests.store.keyspace import events, keyspace, kind_of, without

NOON = 1_700_000_000_000_000


def foreign(
    title: str = "foreign",
    *,
    id: UUID | None = None,
    owner: UUID = ALICE,
    version: int = 1,
    created: int = NOON,
    updated: int | None = None,
    session: str | None = None,
    expires: int = 0,
    max_reads: int = 0,
) -> Breadcrumb:
    """A breadcrumb as an import makes it; its id says nothing about lanes."""
    tags, context = ["t"], {"big": 9007199254740993, "empty": []}
    if session is not None:
        tags, context = ["t", f"session:{session}"], context | {"session_id": session}
    document = {"schema_name": MESSAGE, "title": title, "tags": tags, "context": context}
    updated = created if updated is None else updated
    return Breadcrumb(
        id or uuid4(),
        owner,
        version,
        created,
        updated,
        expires,
        max_reads,
        AGENT,
        OTHER_AGENT,
        orjson.dumps(document),
    )


def away_from_home(store: Store, session: str) -> UUID:
    """An id that does not name the lane of the session."""
    lane = lane_for(ALICE, "session", session, store.lanes)
    return new_id((lane + 1) % store.lanes)


class Importing(Contract):
    async def test_an_import_restores_an_export_unchanged(self, store: Store) -> None:
        written = await store.create(
            ALICE, crumb("one", session="s", tags=("a",), context={"e": []}), by=AGENT
        )
        await store.update(ALICE, written.id, change(title="two", tags=["b"]), by=OTHER_AGENT)
        await store.update(ALICE, written.id, change(title="three"))
        newest, *older = exported = await store.history(ALICE, written.id)
        before = without(await keyspace(store), "ec")
        await store.delete(ALICE, written.id)
        await store.restore(newest, older)
        assert await store.history(ALICE, written.id) == exported
        restored = without(await keyspace(store), "ec")
        # The session itself is new. Only this field shows it.
        (facts,) = [value for key, (_, value) in restored.items() if kind_of(key) == "n"]
        assert int(facts.pop(b"entered")) > newest.updated
        assert restored == before
        last = (await events(store))[-1]
        assert (last.kind, last.id, last.version, last.tags) == ("c", written.id, 3, ["b", "session:s"])
        assert (await store.update(ALICE, written.id, change(title="four"), expected_version=3)).version == 4

    @pytest.mark.parametrize("session", ["abc", None])
    async def test_an_imported_id_is_found_in_any_lane(self, store: Store, session: str | None) -> None:
        crumbs = [foreign(str(number), session=session, created=NOON + number) for number in range(20)]
        for item in crumbs:
            await store.restore(item, [])
        for item in crumbs:
            assert await store.get(ALICE, item.id) == item
            assert await store.history(ALICE, item.id) == [item]
            newest, version = newest_of(store, ALICE, item.id), version_of(store, ALICE, item.id, 1)
            assert await store.read_batch(newest, version) == (item, item)
        assert await everything(store, ALICE, Query(), limit=3) == crumbs[::-1]
        assert await everything(store, ALICE, Query(all_tags=("t",)), limit=3) == crumbs[::-1]
        for item in crumbs[:10]:
            assert (await store.update(ALICE, item.id, change(title="new"))).version == 2
            assert (await store.get_version(ALICE, item.id, 1)) == item
        if session is not None:
            assert len(await store.recent(ALICE, session, MESSAGE, 100)) == 20
        for item in crumbs:
            await store.delete(ALICE, item.id)
            with pytest.raises(NotFound):
                await store.get(ALICE, item.id)
        assert {kind_of(key) for key in await keyspace(store)} == {"e", "c", "meta"}, "signposts are gone too"

    async def test_a_sweep_removes_the_signpost(self, store: Store) -> None:
        item = foreign(session="s", id=away_from_home(store, "s"), expires=NOON + 1)
        await store.restore(item, [])
        assert "a" in {kind_of(key) for key in await keyspace(store)}
        assert sum([await purge_expired(store, lane) for lane in range(store.lanes)]) == 1
        assert {kind_of(key) for key in await keyspace(store)} == {"e", "c", "meta"}

    async def test_a_sweep_keeps_the_signpost_of_a_breadcrumb_with_reads_left(self, store: Store) -> None:
        item = foreign(session="s", id=away_from_home(store, "s"), expires=NOON + 1, max_reads=-2)
        await store.restore(item, [])
        for lane in range(store.lanes):
            assert await purge_expired(store, lane) == 0
        assert (await store.get(ALICE, item.id)).title == "foreign"

    async def test_an_id_that_is_taken_is_refused_and_nothing_changes(self, store: Store) -> None:
        written = await store.create(ALICE, crumb("mine", session="s"))
        before = await keyspace(store)
        with pytest.raises(AlreadyExists):
            await store.restore(foreign(id=written.id, session="s"), [])
        assert await keyspace(store) == before
        assert (await store.get(ALICE, written.id)).title == "mine"

    async def test_an_id_is_taken_regardless_of_the_lane_of_its_breadcrumb(self, store: Store) -> None:
        sessions = [f"s{number}" for number in range(3)]
        placed = [None, *sessions]
        for first in placed:
            for second in placed:
                item = foreign("first", session=first)
                await store.restore(item, [])
                before = await keyspace(store)
                with pytest.raises(AlreadyExists):
                    await store.restore(foreign("second", id=item.id, session=second), [])
                assert await keyspace(store) == before
                assert (await store.get(ALICE, item.id)).title == "first"
        created = await store.create(ALICE, crumb("first", session="s0"))
        for session in placed:
            with pytest.raises(AlreadyExists):
                await store.restore(foreign("second", id=created.id, session=session), [])
        assert set(await titles(store)) == {"first"}

    async def test_an_id_is_free_again_after_a_delete_in_another_session_too(self, store: Store) -> None:
        item = foreign("first", session="a", id=away_from_home(store, "a"))
        await store.restore(item, [])
        await store.delete(ALICE, item.id)
        for session in ("b", None, "c"):
            again = foreign("second", id=item.id, session=session)
            await store.restore(again, [])
            assert await store.get(ALICE, item.id) == again
            await store.delete(ALICE, item.id)

    async def test_owners_with_the_same_ids_stay_separate(self, store: Store) -> None:
        id = uuid4()
        await store.restore(foreign("alice's", id=id, session="s"), [])
        await store.restore(foreign("bob's", id=id, session="s", owner=BOB), [])
        assert (await store.get(ALICE, id)).title == "alice's"
        assert (await store.get(BOB, id)).title == "bob's"
        await store.update(BOB, id, change(title="bob's 2", tags=["only bob"]))
        assert (await store.get(ALICE, id)).version == 1
        assert len(await store.history(ALICE, id)) == 1
        assert await titles(store, all_tags=("only bob",)) == []
        await store.delete(BOB, id)
        assert (await store.get(ALICE, id)).title == "alice's"
        assert await titles(store) == ["alice's"]
        assert await titles(store, BOB) == []

    @pytest.mark.parametrize("sort", get_args(Sort))
    @pytest.mark.parametrize("session", ["s", None])
    async def test_ties_are_paged_without_loss_or_repeat(
        self, store: Store, sort: Sort, session: str | None
    ) -> None:
        crumbs = [foreign(str(number), session=session) for number in range(25)]
        crumbs += [foreign(f"before {number}", session=session, created=NOON - 1) for number in range(3)]
        crumbs += [foreign(f"after {number}", session=session, created=NOON + 1) for number in range(3)]
        for item in crumbs:
            await store.restore(item, [])
        for limit in (1, 2, 7, 100):
            found = await everything(store, ALICE, Query(sort=sort, session_id=session), limit=limit)
            assert sorted(item.title for item in found) == sorted(item.title for item in crumbs)
            moments = [item.created for item in found]
            assert moments == sorted(moments, reverse=sort.startswith("-"))

    async def test_an_import_keeps_the_position_of_an_earlier_update(self, store: Store) -> None:
        crumbs = [
            foreign("created last", created=NOON + 50),
            foreign("updated last", created=NOON, updated=NOON + 100, version=7),
            foreign("updated at birth", created=NOON + 20, updated=NOON + 20, version=2),
            foreign("first version with another time", created=NOON + 10, updated=NOON + 60, version=1),
        ]
        for item in crumbs:
            await store.restore(item, [])
        by_update = ["updated last", "first version with another time", "created last", "updated at birth"]
        assert await titles(store, sort="-updated_at") == by_update
        assert await titles(store, sort="-updated_at", limit=1) == by_update
        assert await titles(store, sort="updated_at", limit=1) == by_update[::-1]
        assert await titles(store, updated_since=NOON + 60) == by_update[:2]
        assert await titles(store, updated_since=NOON + 20) == by_update
        assert len(await titles(store, sort="-created_at")) == 4
        for item in crumbs:
            await store.delete(ALICE, item.id)
        assert {kind_of(key) for key in await keyspace(store)} == {"e", "c", "meta"}

    async def test_an_imported_history_is_read_version_by_version(self, store: Store) -> None:
        older = [replace(foreign(f"v{n}", session="s", version=n), updated=NOON + n) for n in (1, 2, 3)]
        newest = replace(foreign("v4", session="s", version=4), updated=NOON + 4, id=older[0].id)
        older = [replace(version, id=newest.id) for version in older]
        await store.restore(newest, older)
        assert await store.history(ALICE, newest.id) == [newest, *older[::-1]]
        assert (await store.get_version(ALICE, newest.id, 2)).title == "v2"

    async def test_imports_and_new_writes_share_one_order(self, store: Store) -> None:
        await store.create(ALICE, crumb("new", session="s"))
        await store.restore(foreign("old", session="s"), [])
        await store.create(ALICE, crumb("newer", session="s"))
        assert await titles(store, session_id="s") == ["newer", "new", "old"]
        assert [item.title for item in await store.recent(ALICE, "s", MESSAGE)] == ["newer", "new", "old"]

    async def test_an_imported_breadcrumb_can_change_its_schema(self, store: Store) -> None:
        item = foreign(session="s", id=away_from_home(store, "s"))
        await store.restore(item, [])
        assert home_lane(item.id, store.lanes) != lane_for(ALICE, "session", "s", store.lanes)
        await store.update(ALICE, item.id, change(schema_name=ANSWER))
        assert [found.id for found in await store.recent(ALICE, "s", ANSWER)] == [item.id]
        assert await store.recent(ALICE, "s", MESSAGE) == []
