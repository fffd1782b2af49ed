"""Opening a store: the first process decides the lanes, later ones agree or are refused."""

from __future__ import annotations

import asyncio

import pytest

from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import StartupError, StoreReplaced
from breadcrumbs.runtime.store.opening import DEFAULT_LANES
from tests.store.contract.base import ALICE, Contract, Opener, crumb, everything, titles
from tests.store.keyspace import keyspace


class Opening(Contract):
    async def test_another_number_of_lanes_is_refused_and_changes_nothing(self, opener: Opener) -> None:
        store = await opener(lanes=4)
        await store.create(ALICE, crumb("here"))
        before = await keyspace(store)
        for lanes in (3, 5, 16):
            with pytest.raises(StartupError, match="has 4 lanes"):
                await opener(lanes=lanes)
        assert await keyspace(store) == before

    async def test_opening_without_a_number_of_lanes_uses_the_stored_one(self, opener: Opener) -> None:
        first = await opener(lanes=4)
        for number in range(10):
            await first.create(ALICE, crumb(str(number), session=f"s{number}"))
        second = await opener()
        assert second.lanes == 4
        assert await everything(second, ALICE, Query()) == await everything(first, ALICE, Query())

    @pytest.mark.parametrize("lanes", [0, -1, 4097])
    async def test_an_invalid_number_of_lanes_is_refused(self, opener: Opener, lanes: int) -> None:
        with pytest.raises(StartupError):
            await opener(lanes=lanes)

    async def test_one_lane_is_enough(self, opener: Opener) -> None:
        store = await opener(lanes=1)
        for number in range(5):
            await store.create(ALICE, crumb(str(number), session=f"s{number % 2}"))
        assert await titles(store, limit=2) == ["4", "3", "2", "1", "0"]

    async def test_concurrent_first_opens_agree_on_the_lanes(self, opener: Opener) -> None:
        stores = await asyncio.gather(*(opener() for _ in range(10)))
        assert len({store.secret for store in stores}) == 1
        assert {store.lanes for store in stores} == {DEFAULT_LANES}

    @pytest.mark.parametrize("namespace", ["other", "b", "bc.", "x_y-z"])
    async def test_namespaces_on_one_server_are_separate(self, opener: Opener, namespace: str) -> None:
        here, there = await opener(), await opener(namespace=namespace, lanes=3)
        await here.create(ALICE, crumb("here", session="s", tags=("t",)))
        await there.create(ALICE, crumb("there", session="s", tags=("t",)))
        assert await titles(here) == await titles(here, session_id="s") == ["here"]
        assert await titles(there) == await titles(there, session_id="s") == ["there"]
        assert here.secret != there.secret

    async def test_a_store_of_another_format_is_refused(self, opener: Opener) -> None:
        store = await opener()
        await store.connection.call(0, b"HSET", store.keys.meta, b"format", b"2")
        with pytest.raises(StartupError, match="format 2"):
            await opener()

    async def test_all_processes_agree_on_one_identity(self, opener: Opener) -> None:
        stores = await asyncio.gather(*(opener() for _ in range(10)))
        assert len({store.identity for store in stores}) == 1 and stores[0].identity
        assert (await opener(namespace="other")).identity != stores[0].identity

    async def test_a_store_of_an_earlier_version_gets_an_identity_once(self, opener: Opener) -> None:
        first = await opener()
        await first.create(ALICE, crumb("kept"))
        await first.connection.call(0, b"HDEL", first.keys.meta, b"id", b"marked")
        for lane in range(first.lanes):
            await first.connection.call(lane, b"DEL", first.keys.identity(lane))
        stores = await asyncio.gather(*(opener() for _ in range(10)))
        assert len({store.identity for store in stores}) == 1 and stores[0].identity
        assert stores[0].identity != first.identity and stores[0].secret == first.secret
        assert await titles(stores[0]) == ["kept"]
        await stores[0].ping()

    async def test_another_identity_than_the_expected_one_is_refused_and_changes_nothing(
        self, opener: Opener
    ) -> None:
        with pytest.raises(StoreReplaced, match="is gone"):
            await opener(expected_identity="0123456789abcdef")
        store = await opener()
        before = await keyspace(store)
        with pytest.raises(StoreReplaced, match=f"{store.identity} instead of 0123456789abcdef"):
            await opener(expected_identity="0123456789abcdef")
        assert await keyspace(store) == before
        assert (await opener(expected_identity=store.identity)).identity == store.identity

    async def test_an_emptied_store_is_detected(self, opener: Opener) -> None:
        store = await opener()
        await store.ping()
        for lane in store.connection.node_lanes():
            await store.connection.call(lane, b"FLUSHALL")
        with pytest.raises(StoreReplaced, match="is gone"):
            await store.ping()
