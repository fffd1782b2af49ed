"""Quotas of an owner: bytes, breadcrumbs and sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from uuid import UUID

import pytest

from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import QuotaExceeded
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.expiry import purge_expired
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.quotas import Quota, Quotas, Usage
from breadcrumbs.runtime.store.scan import owners
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import ALICE, BOB, Contract, Opener, change, crumb
from tests.store.keyspace import keyspace, kind_of


async def usage(store: Store, owner: UUID = ALICE) -> Usage:
    assert store.quotas is not None
    return await store.quotas.usage(owner)


async def real_usage(store: Store) -> Usage:
    """From the data, without touching the counters."""
    space = await keyspace(store)
    bytes = sum(len(value) for key, (_, value) in space.items() if kind_of(key) == "b")
    bytes += sum(
        len(version)
        for key, (_, versions) in space.items()
        if kind_of(key) == "h"
        for version in versions.values()
    )
    breadcrumbs = sum(kind_of(key) == "b" for key in space)
    sessions = sum(len(value) for key, (_, value) in space.items() if kind_of(key) == "N")
    return Usage(bytes, breadcrumbs, sessions)


async def outcomes(*writes: Awaitable[object]) -> tuple[int, list[QuotaExceeded]]:
    """Return the number of successful writes and the refusals."""
    done = await asyncio.gather(*writes, return_exceptions=True)
    refused = [one for one in done if isinstance(one, QuotaExceeded)]
    assert not [one for one in done if isinstance(one, BaseException) and one not in refused]
    return len(done) - len(refused), refused


class WithQuotas(Contract):
    async def test_without_quotas_nothing_is_counted(self, store: Store) -> None:
        await store.create(ALICE, crumb(session="s"))
        assert store.quotas is None
        assert "Q" not in {kind_of(key) for key in await keyspace(store)}

    async def test_writes_beyond_the_number_of_breadcrumbs_are_refused_with_the_numbers(
        self, opener: Opener
    ) -> None:
        store = await opener(quotas=Quotas(breadcrumbs=3))
        for number in range(3):
            written = await store.create(ALICE, crumb(str(number)))
        before = await keyspace(store)
        with pytest.raises(QuotaExceeded) as refused:
            await store.create(ALICE, crumb("one too many"))
        assert (refused.value.quota, refused.value.used, refused.value.limit) == ("breadcrumbs", 3, 3)
        assert await keyspace(store) == before
        await store.update(ALICE, written.id, change(title="new"))  # not a new breadcrumb
        await store.delete(ALICE, written.id)
        await store.create(ALICE, crumb("there is room again"))

    async def test_concurrent_writers_do_not_exceed_a_quota(self, opener: Opener) -> None:
        store = await opener(quotas=Quotas(breadcrumbs=25, sessions=100))
        written, refused = await outcomes(
            *(store.create(ALICE, crumb(str(number), session=str(number % 30))) for number in range(60))
        )
        assert (written, len(refused)) == (25, 35)
        assert (await real_usage(store)).breadcrumbs == 25

    async def test_writers_in_two_processes_exceed_a_quota_by_one_write_at_most(self, opener: Opener) -> None:
        stores = [await opener(quotas=Quotas(breadcrumbs=40)) for _ in range(2)]

        async def write(store: Store) -> int:
            return (await outcomes(*(store.create(ALICE, crumb()) for _ in range(40))))[0]

        counts = await asyncio.gather(*map(write, stores))
        assert 40 <= sum(counts) <= 41
        assert (await real_usage(stores[0])).breadcrumbs == sum(counts)

    async def test_bytes_count_all_versions(self, opener: Opener) -> None:
        store = await opener(quotas=Quotas(bytes=50_000))
        written = await store.create(ALICE, crumb(context={"text": "x" * 10_000}))
        for number in range(2, 5):
            await store.update(ALICE, written.id, change(title=str(number)))
        with pytest.raises(QuotaExceeded) as refused:
            await store.update(ALICE, written.id, change(title="5"))
        assert refused.value.quota == "bytes"
        assert 40_000 < refused.value.used < refused.value.limit == 50_000
        with pytest.raises(QuotaExceeded):
            await store.create(ALICE, crumb(context={"text": "x" * 10_000}))
        await store.create(ALICE, crumb(context={"text": "x" * 5_000}))
        await store.delete(ALICE, written.id)
        for _ in range(4):
            await store.create(ALICE, crumb(context={"text": "x" * 10_000}))

    async def test_the_quota_limits_new_sessions_but_not_writes_into_existing_ones(
        self, opener: Opener
    ) -> None:
        store = await opener(quotas=Quotas(sessions=5))
        written, refused = await outcomes(
            *(store.create(ALICE, crumb(session=f"s{number}")) for number in range(20))
        )
        assert (written, len(refused)) == (5, 15)
        assert refused[0].quota == "sessions"
        there = (await store.list(ALICE, Query())).items[0].session_id
        assert there is not None
        await store.create(ALICE, crumb(session=there))
        await store.create(ALICE, crumb())  # in no session
        await Sessions(store).delete(ALICE, there)
        await store.create(ALICE, crumb(session="another"))

    async def test_a_repeated_request_returns_its_first_result_above_the_quota(self, opener: Opener) -> None:
        store = await opener(quotas=Quotas(breadcrumbs=2))
        first = await store.create(ALICE, crumb("a", session="s"), idempotency_key="k")
        id = derived_id(store.keys.session_lane(ALICE, "s"), "x")
        await store.create(ALICE, crumb("b", session="s"), id=id)
        again = await store.create(ALICE, crumb("a", session="s"), idempotency_key="k")
        assert (again.id, again.replayed) == (first.id, True)
        assert (await store.create(ALICE, crumb("b", session="s"), id=id)).found
        with pytest.raises(QuotaExceeded):
            await store.create(ALICE, crumb("c", session="s"), idempotency_key="other")

    @pytest.mark.parametrize("how", ["session deleted"])
    async def test_the_idempotency_keys_of_an_ended_session_do_not_bypass_a_quota(
        self, opener: Opener, how: str
    ) -> None:
        store = await opener(quotas=Quotas(breadcrumbs=2))
        first = await store.create(ALICE, crumb("a", session="s"), idempotency_key="k")
        if how == "session deleted":
            await Sessions(store).delete(ALICE, "s")
        else:
            await store.delete(ALICE, first.id)
        for title in ("b", "c"):
            await store.create(ALICE, crumb(title, session="s"))
        before = await keyspace(store)
        for title in ("a", "another body"):
            with pytest.raises(QuotaExceeded):
                await store.create(ALICE, crumb(title, session="s"), idempotency_key="k")
        assert await keyspace(store) == before

    async def test_the_parts_of_a_new_session_do_not_bypass_a_quota_with_an_old_idempotency_key(
        self, opener: Opener
    ) -> None:
        store = await opener(quotas=Quotas(breadcrumbs=2))
        await store.create(ALICE, crumb("a", session="s"), idempotency_key="k")
        await Sessions(store).delete(ALICE, "s")
        for _ in range(2):
            await store.create(ALICE, crumb())
        beside = (derived_id(store.keys.session_lane(ALICE, "s"), "y"), crumb("beside", session="s"))
        with pytest.raises(QuotaExceeded):
            await store.create(
                ALICE,
                crumb("a", session="s"),
                idempotency_key="k",
                options=CreateOptions(session_version=0, along=[beside]),
            )
        assert (await real_usage(store)).breadcrumbs == 2

    async def test_each_owner_has_its_own_quota(self, opener: Opener) -> None:
        quotas = Quotas(breadcrumbs=1, owners={BOB: Quota(breadcrumbs=3, bytes=None)})
        store = await opener(quotas=quotas)
        assert (await outcomes(*(store.create(ALICE, crumb()) for _ in range(5))))[0] == 1
        assert (await outcomes(*(store.create(BOB, crumb()) for _ in range(5))))[0] == 3
        only_bob = await opener(quotas=Quotas(owners={BOB: Quota(breadcrumbs=3)}))
        assert (await outcomes(*(only_bob.create(ALICE, crumb()) for _ in range(5))))[0] == 5

    async def test_every_kind_of_write_is_counted(self, opener: Opener) -> None:
        store = await opener(quotas=Quotas(bytes=1 << 40))
        await store.create(ALICE, crumb("first", session="a"))  # from here on it is counted
        ids = [
            (await store.create(ALICE, crumb(str(number), session="a", context={"n": "x" * number}))).id
            for number in range(20)
        ]
        await store.create(
            ALICE,
            crumb("with others", schema="session.v1", session="b"),
            options=CreateOptions(
                session_version=0,
                along=[(derived_id(store.keys.session_lane(ALICE, "b"), "y"), crumb("beside", session="b"))],
            ),
        )
        for id in ids[:10]:
            for _ in range(3):
                await store.update(ALICE, id, change(title="longer than before"))
        newest, *older = await store.history(ALICE, ids[0])
        await store.delete(ALICE, ids[0])
        await store.restore(newest, older[1:])
        assert await store.extend_history(newest, older)
        await store.delete(ALICE, ids[1])
        await store.create(ALICE, crumb("short-lived", ttl="2000-01-01T00:00:00Z"))
        for lane in range(store.lanes):
            await purge_expired(store, lane)
        assert await usage(store) == await real_usage(store)
        await Sessions(store).delete(ALICE, "a")
        assert await usage(store) == await real_usage(store) == (await usage(store))._replace(breadcrumbs=2)

    async def test_data_from_before_the_quotas_is_counted(self, opener: Opener) -> None:
        plain = await opener()
        for number in range(10):
            await plain.create(ALICE, crumb(str(number)))
        store = await opener(quotas=Quotas(breadcrumbs=11))
        await store.create(ALICE, crumb())
        with pytest.raises(QuotaExceeded):
            await store.create(ALICE, crumb())
        for number in range(5):  # by a process that does not know of quotas
            await plain.create(ALICE, crumb(str(number)))
        later = await opener(quotas=Quotas(breadcrumbs=17))
        await later.create(ALICE, crumb())
        with pytest.raises(QuotaExceeded):
            await later.create(ALICE, crumb())
        assert await usage(later) == await real_usage(later)
        await later.forget_usage(ALICE)
        assert "Q" not in {kind_of(key) for key in await keyspace(later)}
        assert await usage(later) == await real_usage(later)
        assert await owners(later) == [ALICE]
