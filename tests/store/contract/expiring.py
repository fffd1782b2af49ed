"""TTL: expired breadcrumbs disappear from reads at once, and from every key after a sweep."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.ids import new_id
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.ttl import Expiry
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.store.expiry import purge_expired
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import (
    AGENT,
    ALICE,
    ANSWER,
    MESSAGE,
    Contract,
    Opener,
    change,
    crumb,
    everything,
    titles,
)
from tests.store.keyspace import events, keys_that_mention, keyspace, kind_of, without

SHORT = 0.25
HOUR = 3_600_000_000


async def exists(store: Store, id: UUID) -> bool:
    try:
        await store.get(ALICE, id, count_read=False)
    except NotFound:
        return False
    return True


async def sweep(store: Store) -> int:
    return sum([await purge_expired(store, lane) for lane in range(store.lanes)])


async def assert_gone_from_every_read(store: Store, id: UUID, session: str) -> None:
    with pytest.raises(NotFound):
        await store.get(ALICE, id)
    with pytest.raises(NotFound):
        await store.get(ALICE, id, count_read=False)
    with pytest.raises(NotFound):
        await store.get_version(ALICE, id, 1)
    with pytest.raises(NotFound):
        await store.history(ALICE, id)
    with pytest.raises(NotFound):
        await store.update(ALICE, id, change(title="x"))
    with pytest.raises(NotFound):
        await store.delete(ALICE, id)
    assert id not in {item.id for item in await store.recent(ALICE, session, MESSAGE)}
    for query in (Query(), Query(session_id=session), Query(schema_name=MESSAGE), Query(sort="-updated_at")):
        assert id not in {item.id for item in await everything(store, ALICE, query)}


def short_lived(kind: str) -> BreadcrumbCreate:
    soon = datetime.now(UTC) + timedelta(seconds=SHORT)
    fields: dict[str, dict[str, Any]] = {
        "datetime": {"ttl": soon},
        "duration": {"ttl_type": "duration", "ttl_config": {"duration": SHORT}},
        "seconds": {"ttl_config": {"duration_seconds": SHORT}},
        "hybrid any": {"ttl_type": "hybrid", "ttl": soon, "ttl_config": {"max_reads": 99}},
        "hybrid any by duration": {"ttl_type": "hybrid", "ttl_config": {"max_reads": 99, "duration": SHORT}},
    }
    return crumb("short", session="s", tags=("t",), **fields[kind])


class Expiring(Contract):
    @pytest.mark.parametrize(
        "kind", ["datetime", "duration", "seconds", "hybrid any", "hybrid any by duration"]
    )
    async def test_an_expired_breadcrumb_is_gone_at_once_and_after_a_sweep_from_every_key(
        self, store: Store, kind: str
    ) -> None:
        kept = await store.create(ALICE, crumb("kept", session="s", tags=("t",)))
        before = without(await keyspace(store), "ecnN")
        written = await store.create(ALICE, short_lived(kind))
        assert await exists(store, written.id)
        assert await sweep(store) == 0, "not its time yet"
        await asyncio.sleep(SHORT + 0.05)
        await assert_gone_from_every_read(store, written.id, "s")
        assert [item.id for item in await store.recent(ALICE, "s", MESSAGE, 1)] == [kept.id]
        assert keys_that_mention(without(await keyspace(store), "e"), written.id), "not swept yet"
        assert await sweep(store) == 1
        assert without(await keyspace(store), "ecnN") == before
        assert [(e.kind, e.id) for e in await events(store)][1:] == [("c", written.id), ("d", written.id)]
        assert await sweep(store) == 0

    async def test_a_sweep_removes_history_and_all_indexes_and_leaves_no_empty_key(
        self, store: Store
    ) -> None:
        for number in range(10):
            new = crumb(schema=f"s{number}", session=("a", None)[number % 2], tags=(f"t{number}", "t"))
            written = await store.create(ALICE, new)
            await store.update(ALICE, written.id, change(tags=["u"], schema_name=f"z{number}"))
            await store.update(ALICE, written.id, change(ttl_config={"duration": 0.01}))
        await asyncio.sleep(0.1)
        assert await sweep(store) == 10
        assert {kind_of(key) for key in await keyspace(store)} == {"e", "c", "meta"}

    async def test_concurrent_sweeps_remove_each_breadcrumb_once(self, store: Store) -> None:
        for number in range(40):
            await store.create(ALICE, crumb(str(number), session="s", ttl_config={"duration": 0.01}))
        await asyncio.sleep(0.1)
        purged = await asyncio.gather(*(sweep(store) for _ in range(4)))
        assert sum(purged) == 40
        assert [event.kind for event in await events(store)].count("d") == 40

    async def test_a_sweep_stops_at_its_limit(self, store: Store) -> None:
        for number in range(5):
            await store.create(ALICE, crumb(str(number), session="s", ttl_config={"duration": 0.01}))
        await asyncio.sleep(0.1)
        [lane] = {event.lane for event in await events(store)}
        assert await purge_expired(store, lane, limit=3) == 3
        assert await purge_expired(store, lane, limit=3) == 2

    async def test_usage_allows_max_reads_by_id_and_no_more(self, store: Store) -> None:
        new = crumb("counted", session="s", ttl_type="usage", ttl_config={"max_reads": 3})
        written = await store.create(ALICE, new)
        assert await titles(store) == ["counted"], "lists do not count"
        assert len(await store.recent(ALICE, "s", MESSAGE)) == 1
        assert len(await store.history(ALICE, written.id)) == 1
        for left in (3, 2, 1):
            assert (await store.get(ALICE, written.id, count_read=False)).max_reads == left
            assert (await store.get(ALICE, written.id)).title == "counted"
        await assert_gone_from_every_read(store, written.id, "s")
        assert await sweep(store) == 1
        assert {kind_of(key) for key in await keyspace(store)} == {"e", "c", "meta"}

    async def test_concurrent_readers_share_the_remaining_reads(self, store: Store) -> None:
        written = await store.create(ALICE, crumb(ttl_config={"max_reads": 5}))

        async def read(_: int) -> bool:
            try:
                await store.get(ALICE, written.id)
            except NotFound:
                return False
            return True

        assert sum(await asyncio.gather(*map(read, range(40)))) == 5

    async def test_a_used_up_breadcrumb_is_gone_even_if_the_estimated_server_clock_lags(
        self, store: Store
    ) -> None:
        written = await store.create(ALICE, crumb(session="s", ttl_config={"max_reads": 1}))
        store.clock.offset -= 2_000_000
        await store.get(ALICE, written.id)
        await assert_gone_from_every_read(store, written.id, "s")

    async def test_reads_are_counted_over_updates_unless_the_update_sets_a_new_limit(
        self, store: Store
    ) -> None:
        written = await store.create(ALICE, crumb(ttl_type="usage", ttl_config={"max_reads": 3}))
        await store.get(ALICE, written.id)
        await store.update(ALICE, written.id, change(title="two"))
        assert (await store.get(ALICE, written.id, count_read=False)).max_reads == 2
        await store.update(ALICE, written.id, change(ttl_config={"max_reads": 1}))
        await store.get(ALICE, written.id)
        assert not await exists(store, written.id)

    async def test_hybrid_any_ends_with_the_last_read(self, store: Store) -> None:
        new = crumb(session="s", ttl_type="hybrid", ttl_config={"max_reads": 1, "duration": "1h"})
        written = await store.create(ALICE, new)
        await store.get(ALICE, written.id)
        await assert_gone_from_every_read(store, written.id, "s")
        assert await sweep(store) == 1
        assert {kind_of(key) for key in await keyspace(store)} == {"e", "c", "meta"}

    async def test_hybrid_all_ends_when_both_limits_are_reached_reads_first(self, store: Store) -> None:
        config = {"max_reads": 2, "duration": SHORT, "hybrid_mode": "all"}
        written = await store.create(ALICE, crumb(session="s", ttl_type="hybrid", ttl_config=config))
        await store.get(ALICE, written.id)
        await store.get(ALICE, written.id)
        assert (await store.get(ALICE, written.id)).version == 1, "the time is not up"
        assert await sweep(store) == 0
        await asyncio.sleep(SHORT + 0.05)
        await assert_gone_from_every_read(store, written.id, "s")
        assert await sweep(store) == 1
        assert {kind_of(key) for key in await keyspace(store)} == {"e", "c", "meta"}

    async def test_hybrid_all_ends_when_both_limits_are_reached_time_first(self, store: Store) -> None:
        config = {"max_reads": 2, "duration": 0.02, "hybrid_mode": "all"}
        written = await store.create(ALICE, crumb(session="s", ttl_type="hybrid", ttl_config=config))
        await asyncio.sleep(0.1)
        assert await sweep(store) == 0
        assert await titles(store, session_id="s") == [""]
        await store.update(ALICE, written.id, change(title="still here"))
        await store.get(ALICE, written.id)
        assert await sweep(store) == 0
        assert (await store.get(ALICE, written.id)).title == "still here"
        await assert_gone_from_every_read(store, written.id, "s")
        assert await sweep(store) == 1
        assert {kind_of(key) for key in await keyspace(store)} == {"e", "c", "meta"}

    async def test_a_breadcrumb_with_reads_left_does_not_delay_the_sweep_of_others(
        self, store: Store
    ) -> None:
        waiting = {"max_reads": 1, "duration": 0.01, "hybrid_mode": "all"}
        for _ in range(5):
            await store.create(ALICE, crumb(session="s", ttl_type="hybrid", ttl_config=waiting))
        await store.create(ALICE, crumb("due", session="s", ttl_config={"duration": 0.02}))
        await asyncio.sleep(0.1)
        [lane] = {event.lane for event in await events(store)}
        purged = [await purge_expired(store, lane, limit=3) for _ in range(3)]
        assert sum(purged) == 1
        assert len(await titles(store)) == 5

    async def test_a_breadcrumb_can_override_the_default_ttl_of_its_schema(self, opener: Opener) -> None:
        store = await opener(ttl_defaults={MESSAGE: Expiry(after=int(SHORT * 1_000_000))})
        by_default = await store.create(ALICE, crumb("by default", session="s"))
        never = await store.create(ALICE, crumb("never", session="s", ttl_type="never"))
        later = await store.create(ALICE, crumb("later", session="s", ttl_config={"duration": "1h"}))
        other = await store.create(ALICE, crumb("other", session="s", schema=ANSWER))
        assert (await store.get(ALICE, by_default.id)).document["ttl_source"] == "schema-default"
        assert (await store.get(ALICE, never.id)).document["ttl_source"] == "explicit"
        assert "ttl_source" not in (await store.get(ALICE, other.id)).document
        await asyncio.sleep(SHORT + 0.05)
        await assert_gone_from_every_read(store, by_default.id, "s")
        assert await sweep(store) == 1
        assert await titles(store) == ["other", "later", "never"]
        assert (await store.get(ALICE, later.id)).expires > store.now()

    async def test_a_write_returns_the_breadcrumb_that_is_read_except_for_its_expiry(
        self, opener: Opener
    ) -> None:
        store = await opener(ttl_defaults={MESSAGE: Expiry(after=HOUR)})
        created = await store.create(ALICE, crumb("one", session="s"), by=AGENT)
        found = await store.get(ALICE, created.id)
        assert found.expires and found.document["ttl_source"] == "schema-default"
        assert created.breadcrumb == replace(found, expires=0)
        updated = await store.update(ALICE, created.id, change(title="two"))
        assert updated.breadcrumb == replace(await store.get(ALICE, created.id), expires=0)
        again = await store.create(ALICE, crumb("one", session="s"), id=created.id)
        assert again.found and again.breadcrumb is None

    async def test_an_update_keeps_the_expiry_unless_it_sets_one(self, opener: Opener) -> None:
        store = await opener(ttl_defaults={MESSAGE: Expiry(after=HOUR)})
        for new in (crumb(), crumb(ttl_config={"duration": "400d"}), crumb(ttl="2200-01-01T00:00:00Z")):
            written = await store.create(ALICE, new)
            before = await store.get(ALICE, written.id)
            assert before.expires
            await store.update(ALICE, written.id, change(title="two"))
            after = await store.get(ALICE, written.id)
            assert after.expires == before.expires
            assert {k: v for k, v in after.document.items() if k.startswith("ttl")} == {
                k: v for k, v in before.document.items() if k.startswith("ttl")
            }

    async def test_an_update_can_set_change_and_remove_an_expiry(self, store: Store) -> None:
        written = await store.create(ALICE, crumb(session="s"))
        await store.update(ALICE, written.id, change(ttl_config={"duration": SHORT}))
        await store.update(ALICE, written.id, change(ttl_config={"duration": "1h"}))
        await asyncio.sleep(SHORT + 0.05)
        assert await exists(store, written.id)
        assert await sweep(store) == 0
        await store.update(ALICE, written.id, change(ttl_type="never"))
        assert (await store.get(ALICE, written.id)).expires == 0
        assert "q" not in {kind_of(key) for key in await keyspace(store)}
        await store.update(ALICE, written.id, change(ttl_config={"duration": 0.01}))
        await asyncio.sleep(0.05)
        await assert_gone_from_every_read(store, written.id, "s")

    async def test_a_new_schema_applies_its_default_ttl_to_a_breadcrumb_without_its_own(
        self, opener: Opener
    ) -> None:
        store = await opener(ttl_defaults={MESSAGE: Expiry(after=HOUR)})
        joins = await store.create(ALICE, crumb(schema=ANSWER))
        await store.update(ALICE, joins.id, change(schema_name=MESSAGE))
        found = await store.get(ALICE, joins.id)
        assert found.document["ttl_source"] == "schema-default" and found.expires
        await store.update(ALICE, joins.id, change(schema_name=ANSWER))
        found = await store.get(ALICE, joins.id)
        assert "ttl_source" not in found.document and not found.expires
        assert "q" not in {kind_of(key) for key in await keyspace(store)}

        explicit = await store.create(ALICE, crumb(schema=ANSWER, ttl_config={"duration": "2h"}))
        before = (await store.get(ALICE, explicit.id)).expires
        await store.update(ALICE, explicit.id, change(schema_name=MESSAGE))
        assert (await store.get(ALICE, explicit.id)).expires == before

    async def test_recent_skips_expired_breadcrumbs(self, store: Store) -> None:
        for number in range(3):
            await store.create(ALICE, crumb(f"kept {number}", session="s"))
        for _ in range(12):
            await store.create(ALICE, crumb("gone", session="s", ttl_config={"duration": 0.01}))
        await asyncio.sleep(0.1)
        assert [item.title for item in await store.recent(ALICE, "s", MESSAGE, 2)] == ["kept 2", "kept 1"]
        assert await titles(store, session_id="s", limit=2) == ["kept 2", "kept 1", "kept 0"]

    async def test_an_idempotency_key_still_returns_an_expired_result(self, store: Store) -> None:
        new = crumb("once", ttl_config={"duration": 0.01})
        first = await store.create(ALICE, new, idempotency_key="k")
        await asyncio.sleep(0.1)
        await sweep(store)
        again = await store.create(ALICE, new, idempotency_key="k")
        assert again.replayed and again.id == first.id

    async def test_a_breadcrumb_that_expired_long_ago_can_be_imported_and_is_never_returned(
        self, store: Store
    ) -> None:
        written = await store.create(ALICE, crumb(session="s", tags=("t",)))
        [old] = await store.history(ALICE, written.id)
        await store.delete(ALICE, written.id)
        await store.restore(replace(old, id=new_id(5), created=1000, updated=1000, expires=2000), [])
        assert await titles(store) == []
        assert await sweep(store) == 1
        assert {kind_of(key) for key in await keyspace(store)} == {"e", "c", "meta"}
