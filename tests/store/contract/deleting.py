"""Delete: gone means gone, from every key."""

from __future__ import annotations

import asyncio

import pytest

from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import NotFound, VersionMismatch
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import ALICE, ANSWER, BOB, MESSAGE, Contract, change, crumb, everything
from tests.store.keyspace import events, keys_that_mention, keyspace, kind_of, without


class Deleting(Contract):
    async def test_a_deleted_breadcrumb_is_gone_from_every_read(self, store: Store) -> None:
        written = await store.create(ALICE, crumb(session="s", tags=("t",)))
        await store.update(ALICE, written.id, change(title="two"))
        await store.delete(ALICE, written.id)
        with pytest.raises(NotFound):
            await store.get(ALICE, written.id)
        with pytest.raises(NotFound):
            await store.get_version(ALICE, written.id, 1)
        with pytest.raises(NotFound):
            await store.history(ALICE, written.id)
        with pytest.raises(NotFound):
            await store.update(ALICE, written.id, change(title="three"))
        with pytest.raises(NotFound):
            await store.delete(ALICE, written.id)
        assert await store.recent(ALICE, "s", MESSAGE) == []
        for query in (Query(), Query(session_id="s"), Query(all_tags=("t",)), Query(schema_name=MESSAGE)):
            assert await everything(store, ALICE, query) == []

    async def test_deleting_everything_leaves_only_events_and_clocks(self, store: Store) -> None:
        ids = []
        for number in range(12):
            new = crumb(
                str(number),
                schema=(MESSAGE, ANSWER, None)[number % 3],
                session=("a", "b", None)[number % 4 % 3],
                tags=("t", f"t{number}"),
                ttl_type="duration",
                ttl_config={"duration": "1h", "max_reads": 5} if number % 2 else {"duration": 60},
            )
            written = await store.create(ALICE if number % 2 else BOB, new)
            ids.append((ALICE if number % 2 else BOB, written.id))
        for owner, id in ids[::2]:
            await store.update(owner, id, change(tags=["other"], schema_name="third.v1"))
            await store.update(owner, id, change(title="again"))
        for owner, id in ids:
            await store.delete(owner, id)
        left = await keyspace(store)
        assert {kind_of(key) for key in left} == {"e", "c", "meta"}
        assert all(keys_that_mention(without(left, "e"), id) == [] for _, id in ids)

    async def test_deleting_one_breadcrumb_does_not_affect_others(self, store: Store) -> None:
        kept = await store.create(ALICE, crumb("kept", session="s", tags=("t",)))
        before = without(await keyspace(store), "ecnN")
        gone = await store.create(
            ALICE, crumb("gone", session="s", tags=("t", "u"), ttl_config={"duration": 60})
        )
        await store.update(ALICE, gone.id, change(schema_name=ANSWER))
        await store.delete(ALICE, gone.id)
        assert without(await keyspace(store), "ecnN") == before
        assert (await store.get(ALICE, kept.id)).title == "kept"

    async def test_a_stale_delete_is_refused(self, store: Store) -> None:
        written = await store.create(ALICE, crumb())
        await store.update(ALICE, written.id, change(title="two"))
        before = await keyspace(store)
        with pytest.raises(VersionMismatch) as refused:
            await store.delete(ALICE, written.id, expected_version=1)
        assert refused.value.current == 2
        with pytest.raises(NotFound):
            await store.delete(ALICE, written.id, allowed=lambda _: False)
        with pytest.raises(NotFound):
            await store.delete(BOB, written.id)
        assert await keyspace(store) == before
        await store.delete(ALICE, written.id, expected_version=2)

    async def test_concurrent_writes_and_deletes_leave_no_keys(self, store: Store) -> None:
        written = await store.create(ALICE, crumb(session="s", tags=("t",)))

        async def write(number: int) -> None:
            try:
                await store.update(ALICE, written.id, change(tags=[f"t{number}"], schema_name=f"s{number}"))
            except NotFound:
                pass

        async def delete() -> None:
            try:
                await store.delete(ALICE, written.id)
            except NotFound:
                pass

        await asyncio.gather(*map(write, range(10)), delete(), *map(write, range(10, 20)), delete(), delete())
        assert {kind_of(key) for key in await keyspace(store)} == {"e", "c", "meta"}
        kinds = [event.kind for event in await events(store)]
        assert kinds.count("d") == 1 and kinds[-1] == "d"
