"""Reduction: at the end of its TTL a context is reduced to its references."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import anyio

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.expiry import purge_expired
from breadcrumbs.runtime.store.fence import Fence, Lease
from breadcrumbs.runtime.store.quotas import Quotas
from breadcrumbs.runtime.store.reduction import is_reduced, references_only
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import AGENT, ALICE, BOB, Contract, Opener, change, crumb
from tests.store.contract.quotas import real_usage, usage

LONG = "a long text " * 100


class Reducing(Contract):
    async def test_a_context_is_reduced_at_the_end_of_its_ttl_and_stays_readable(self, store: Store) -> None:
        await store.create(ALICE, crumb("Hello", session="s"))
        written = await put_context(store, ttl=0.05)
        other = await put_context(store, consumer="other", ttl=60)
        await anyio.sleep(0.06)
        found = await store.get(ALICE, written.id, count_read=False)
        assert found.context["parts"], "the parts stay until the purge, and no read is refused meanwhile"
        assert await _purge(store) == 1
        found = await store.get(ALICE, written.id, count_read=False)
        assert "parts" not in found.context and is_reduced(found)
        assert found.context["explain"]["items"] == [["AAAAAAAAAAAAAAAAAAAABw", 0, 0, 3]]
        assert (found.version, found.created, found.updated) == (1, written.created, written.updated)
        assert len(found.json) < len(written.json) / 2
        assert "parts" in (await store.get(ALICE, other.id, count_read=False)).context
        assert await _purge(store) == 0
        listed = (await store.list(ALICE, Query(session_id="s"))).items
        assert {one.id for one in listed} > {written.id, other.id}

    async def test_a_reduced_context_gets_its_next_version(self, store: Store) -> None:
        await store.create(ALICE, crumb("Hello", session="s"))
        await put_context(store, ttl=0.05)
        await anyio.sleep(0.06)
        await _purge(store)
        reduced = await store.get(ALICE, _id(store), count_read=False)
        newer = await put_context(store, ttl=60, after=reduced)
        assert newer.version == 2 and "parts" in newer.context
        first = await store.get_version(ALICE, newer.id, 1)
        assert first.json == reduced.json
        assert await _purge(store) == 0

    async def test_each_version_has_a_ttl_of_its_own(self, store: Store) -> None:
        await store.create(ALICE, crumb("Hello", session="s"))
        first = await put_context(store, ttl=0.05)
        await put_context(store, ttl=60, after=first)
        await anyio.sleep(0.06)
        assert await _purge(store) == 0
        assert "parts" in (await store.get(ALICE, first.id, count_read=False)).context

    async def test_a_context_that_a_client_wrote_expires_as_asked_for(self, store: Store) -> None:
        ttl: dict[str, Any] = {"ttl_type": "duration", "ttl_config": {"duration_seconds": 0.05}}
        new = crumb("imitation", session="s", context=_context("x"), **ttl)
        written = await store.create(ALICE, new, by=AGENT)
        await anyio.sleep(0.06)
        assert await _purge(store) == 1
        assert (await store.look_up(ALICE, written.id))[1] is None

    async def test_a_context_without_a_session_is_deleted_at_the_end_of_its_ttl(self, store: Store) -> None:
        written = await put_context(store, session=None, ttl=0.05)
        await anyio.sleep(0.06)
        assert await _purge(store) == 1
        assert (await store.look_up(ALICE, written.id))[1] is None

    async def test_a_context_of_an_older_store_is_reduced_too(self, store: Store) -> None:
        """Earlier versions of Breadcrumbs stored the time of expiry in the header of a context."""
        await store.create(ALICE, crumb("Hello", session="s"))
        written = await put_context(store, ttl=60)
        lane, past = store.keys.session_lane(ALICE, "s"), 1_000_000
        key = store.keys.body(lane, ALICE, written.id.bytes)
        header, _, tail = (await store.connection.call(lane, b"GET", key)).partition(b"\n")
        old = b" ".join([*header.split(b" ")[:3], b"%d" % past, b"0"]) + b"\n" + tail
        await store.connection.call(lane, b"SET", key, old)
        member = ALICE.bytes + written.id.bytes
        await store.connection.call(lane, b"ZADD", store.keys.expiries(lane), past, member)
        assert await _purge(store) == 1
        assert is_reduced(await store.get(ALICE, written.id, count_read=False))

    async def test_a_session_with_nothing_but_reduced_contexts_ends(self, store: Store) -> None:
        for session in ("s", "sixteen bytes ok"):
            message = await store.create(ALICE, crumb("Hello", session=session))
            for consumer in ("one", "two"):
                await put_context(store, session=session, consumer=consumer, ttl=0.05)
            await anyio.sleep(0.06)
            assert await _purge(store) == 2
            assert len((await store.list(ALICE, Query(session_id=session))).items) == 3
            await store.delete(ALICE, message.id)
            assert await _purge(store) == 2
            assert (await store.list(ALICE, Query(session_id=session))).items == []
            assert await Sessions(store).belonging(ALICE, session) is None
            assert await _purge(store) == 0

    async def test_a_session_whose_message_was_deleted_first_ends_when_its_context_is_reduced(
        self, store: Store
    ) -> None:
        message = await store.create(ALICE, crumb("Hello", session="s"))
        await put_context(store, ttl=0.05)
        await store.delete(ALICE, message.id)
        await anyio.sleep(0.06)
        assert await _purge(store) >= 1
        await _purge(store)
        assert (await store.list(ALICE, Query(session_id="s"))).items == []
        assert await Sessions(store).belonging(ALICE, "s") is None

    async def test_a_session_with_a_message_keeps_its_reduced_contexts(self, store: Store) -> None:
        first, _ = [await store.create(ALICE, crumb(text, session="s")) for text in ("one", "two")]
        context = await put_context(store, ttl=0.05)
        await anyio.sleep(0.06)
        await _purge(store)
        await store.delete(ALICE, first.id)
        assert await _purge(store) == 0
        assert is_reduced(await store.get(ALICE, context.id, count_read=False))

    async def test_a_new_message_keeps_the_contexts_of_a_session_that_was_about_to_end(
        self, store: Store
    ) -> None:
        message = await store.create(ALICE, crumb("Hello", session="s"))
        context = await put_context(store, ttl=0.05)
        await anyio.sleep(0.06)
        await _purge(store)
        await store.delete(ALICE, message.id)
        reduced = await store.get(ALICE, context.id, count_read=False)
        await store.create(ALICE, crumb("Hello again", session="s"))
        lane = store.keys.session_lane(ALICE, "s")
        assert not await store.delete_leftover(lane, reduced, "1"), "the session has another version"
        assert await _purge(store) == 0
        assert is_reduced(await store.get(ALICE, context.id, count_read=False))

    async def test_deleting_a_session_deletes_its_reduced_contexts(self, store: Store) -> None:
        await store.create(ALICE, crumb("Hello", session="s"))
        context = await put_context(store, ttl=0.05)
        await anyio.sleep(0.06)
        await _purge(store)
        await Sessions(store).delete(ALICE, "s")
        try:
            await store.get(ALICE, context.id, count_read=False)
        except NotFound:
            pass
        else:
            raise AssertionError("the context must be deleted")
        assert await _purge(store) == 0

    async def test_an_imported_context_is_reduced_like_the_original(self, store: Store) -> None:
        await store.create(ALICE, crumb("Hello", session="s"))
        full = await put_context(store, ttl=0.05)
        await anyio.sleep(0.06)
        await _purge(store)
        reduced = await store.get(ALICE, full.id, count_read=False)
        await Sessions(store).delete(ALICE, "s")
        for version in (full, reduced):
            message = await store.create(ALICE, crumb("Hello", session="s"))
            await store.restore(version, [])
            await _purge(store)
            assert is_reduced(await store.get(ALICE, full.id, count_read=False))
            await store.delete(ALICE, message.id)
            await _purge(store)
            assert await Sessions(store).belonging(ALICE, "s") is None, "the session ends there, too"

    async def test_a_reduction_counts_for_the_quota(self, opener: Opener) -> None:
        store = await opener(quotas=Quotas(bytes=10_000_000))
        await store.create(ALICE, crumb("Hello", session="s"))
        context = await put_context(store, ttl=0.05)
        before = await usage(store)
        await anyio.sleep(0.06)
        await _purge(store)
        after = await usage(store)
        assert after == await real_usage(store)
        reduced = await store.get(ALICE, context.id, count_read=False)
        assert before.bytes - after.bytes == len(context.json) - len(reduced.json)
        assert before.breadcrumbs == after.breadcrumbs

    async def test_a_reduced_context_belongs_to_its_owner_only(self, store: Store) -> None:
        for owner in (ALICE, BOB):
            await store.create(owner, crumb("Hello", session="s"))
        mine, theirs = await put_context(store, ttl=0.05), await put_context(store, owner=BOB, ttl=60)
        await anyio.sleep(0.06)
        await _purge(store)
        assert is_reduced(await store.get(ALICE, mine.id, count_read=False))
        assert not is_reduced(await store.get(BOB, theirs.id, count_read=False))

    async def test_a_change_by_a_client_is_not_lost_by_the_reduction(self, store: Store) -> None:
        await store.create(ALICE, crumb("Hello", session="s"))
        context = await put_context(store, ttl=0.05)
        stale = await store.get(ALICE, context.id, count_read=False)
        await store.update(ALICE, context.id, change(title="changed"))
        await anyio.sleep(0.06)
        assert not await store.reduce(store.keys.session_lane(ALICE, "s"), stale)
        assert (await store.get(ALICE, context.id, count_read=False)).title == "changed"


async def _purge(store: Store) -> int:
    return sum([await purge_expired(store, lane) for lane in range(store.lanes)])


def _context(consumer: str) -> dict[str, Any]:
    item = {
        "id": str(UUID(int=7)),
        "version": 1,
        "number": 0,
        "place": "conversation",
        "rank": 0,
        "tokens": 3,
    }
    return {
        "consumer_id": consumer,
        "trigger_id": str(UUID(int=7)),
        "trigger_version": 1,
        "as_of": 1,
        "as_of_time": "1970-01-01T00:00:00.000001Z",
        "config": "0" * 16,
        "parts": [{"place": "conversation", "items": [{"id": str(UUID(int=7)), "content": LONG}]}],
        "explain": {"items": [item], "left_out": [], "sources": [{"key": "k"}], "notes": []},
    }


def _id(store: Store, session: str | None = "s", consumer: str = "one", owner: UUID = ALICE) -> UUID:
    lane = 0 if session is None else store.keys.session_lane(owner, session)
    return derived_id(lane, "context", str(owner), consumer, session or "")


async def put_context(
    store: Store,
    *,
    session: str | None = "s",
    consumer: str = "one",
    owner: UUID = ALICE,
    ttl: float,
    after: Breadcrumb | None = None,
) -> Breadcrumb:
    """Write a context as the context builder does."""
    new: BreadcrumbCreate = crumb(
        f"Context for {consumer}",
        schema="agent.context.v1",
        session=session,
        tags=(f"consumer:{consumer}",),
        context=_context(consumer),
        ttl_type="duration",
        ttl_config={"duration_seconds": ttl},
    )
    lane = 0 if session is None else store.keys.session_lane(owner, session)
    lease = Lease(lane, "contexts", b"1 0 worker")
    await store.connection.call(lane, b"SET", store.keys.lease(lane, "contexts"), lease.value)
    id = _id(store, session, consumer, owner)
    return await store.put(owner, id, new, after=after, slim=references_only, fence=Fence(lease))
