"""Idempotency keys: however often a create is sent, it happens once."""

from __future__ import annotations

import asyncio

import pytest

from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import IdempotencyMismatch, InvalidInput
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import AGENT, ALICE, BOB, Contract, Opener, change, crumb, everything
from tests.store.keyspace import events, keyspace


class Idempotency(Contract):
    @pytest.mark.parametrize("session", ["abc", None])
    async def test_the_same_key_and_body_return_the_first_result(
        self, store: Store, session: str | None
    ) -> None:
        new = crumb("hi", session=session, tags=("t",))
        first = await store.create(ALICE, new, by=AGENT, idempotency_key="k")
        before = await keyspace(store)
        again = await store.create(ALICE, new, by=AGENT, idempotency_key="k")
        assert not first.replayed and again.replayed
        assert (again.id, again.version, again.created, again.updated) == (
            first.id, first.version, first.created, first.updated,
        )  # fmt: skip
        assert await keyspace(store) == before

    async def test_the_order_of_json_keys_does_not_change_the_body(self, store: Store) -> None:
        first = await store.create(ALICE, crumb(context={"a": 1, "b": {"c": 1, "d": 2}}), idempotency_key="k")
        again = await store.create(ALICE, crumb(context={"b": {"d": 2, "c": 1}, "a": 1}), idempotency_key="k")
        assert again.id == first.id

    @pytest.mark.parametrize("session", ["abc", None])
    async def test_the_same_key_with_another_body_is_refused_and_nothing_is_written(
        self, store: Store, session: str | None
    ) -> None:
        await store.create(ALICE, crumb("hi", session=session), idempotency_key="k")
        before = await keyspace(store)
        for other in (crumb("ho", session=session), crumb("hi", session=session, tags=("t",))):
            with pytest.raises(IdempotencyMismatch):
                await store.create(ALICE, other, idempotency_key="k")
        assert await keyspace(store) == before

    async def test_a_key_belongs_to_one_owner_and_one_session(self, store: Store) -> None:
        ids = set()
        for owner in (ALICE, BOB):
            for session in ("a", "b", None):
                written = await store.create(owner, crumb("hi", session=session), idempotency_key="k")
                assert not written.replayed
                ids.add(written.id)
        assert len(ids) == 6

    async def test_keys_and_sessions_with_the_same_concatenation_are_different(self, store: Store) -> None:
        first = await store.create(ALICE, crumb(session="ab"), idempotency_key="c")
        second = await store.create(ALICE, crumb(session="a"), idempotency_key="bc")
        third = await store.create(ALICE, crumb(), idempotency_key="abc")
        assert not second.replayed and not third.replayed
        assert len({first.id, second.id, third.id}) == 3

    async def test_a_replay_returns_the_first_result_after_an_update(self, store: Store) -> None:
        new = crumb("hi", session="s")
        first = await store.create(ALICE, new, idempotency_key="k")
        await store.update(ALICE, first.id, change(title="changed"))
        again = await store.create(ALICE, new, idempotency_key="k")
        assert (again.id, again.version, again.updated) == (first.id, 1, first.updated)
        assert (await store.get(ALICE, first.id)).title == "changed"

    @pytest.mark.parametrize("session", ["abc", None])
    async def test_1000_concurrent_creates_with_one_key_make_one_breadcrumb_and_one_event(
        self, store: Store, session: str | None
    ) -> None:
        new = crumb("hi", session=session, tags=("t",))
        written = await asyncio.gather(
            *(store.create(ALICE, new, idempotency_key="the key") for _ in range(1000))
        )
        assert len({result.id for result in written}) == 1
        assert sum(not result.replayed for result in written) == 1
        assert len(await everything(store, ALICE, Query())) == 1
        assert [event.kind for event in await events(store)] == ["c"]

    async def test_a_key_expires(self, opener: Opener) -> None:
        store = await opener(idempotency_seconds=1)
        first = await store.create(ALICE, crumb("hi"), idempotency_key="k")
        await asyncio.sleep(1.1)
        second = await store.create(ALICE, crumb("other"), idempotency_key="k")
        assert not second.replayed and second.id != first.id

    @pytest.mark.parametrize("key", ["", " ", "a\nb", "x" * 256])
    async def test_a_key_that_is_not_a_valid_name_is_refused(self, store: Store, key: str) -> None:
        with pytest.raises(InvalidInput):
            await store.create(ALICE, crumb(), idempotency_key=key)
        assert await events(store) == []
