"""Limits in bytes: pages and histories end at a budget, and the state of a session has a largest size."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import StateTooLarge
from breadcrumbs.runtime.sessions.forks import ForkOptions, fork
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import AGENT, ALICE, ANSWER, Contract, Opener, change, crumb
from tests.store.keyspace import keyspace

RECORD = "session.v1"
CHANGE = "session.state.v1"
EVENT = "adk.event.v1"


def large(title: str, size: int, **fields: Any) -> Any:
    return crumb(title, context={"text": "x" * size}, **fields)


async def pages(store: Store, query: Query) -> list[list[Breadcrumb]]:
    found = []
    while True:
        page = await store.list(ALICE, query)
        found.append(page.items)
        if page.next_cursor is None:
            return found
        query = replace(query, cursor=page.next_cursor)


def size_of(crumbs: list[Breadcrumb]) -> int:
    return sum(len(crumb.json) for crumb in crumbs)


class Bounds(Contract):
    """Byte budgets."""

    @pytest.mark.parametrize("session", ["chat", None])
    @pytest.mark.parametrize("sort", ["created_at", "-created_at", "-updated_at"])
    async def test_pages_end_at_a_byte_limit_and_cover_everything_once(
        self, store: Store, session: str | None, sort: Any
    ) -> None:
        for number in range(40):
            await store.create(ALICE, large(f"{number:02}", 100 + 997 * (number % 7), session=session))
        query = Query(session_id=session, max_bytes=8_000, sort=sort)
        found = await pages(store, query)
        shown = [crumb.title for page in found for crumb in page]
        assert shown == sorted(shown, reverse=sort.startswith("-"))
        assert len(shown) == len(set(shown)) == 40
        assert len(found) > 10
        assert all(page and (size_of(page) <= 8_000 or len(page) == 1) for page in found)

    async def test_a_page_has_at_least_one_breadcrumb_however_large(self, store: Store) -> None:
        for number in range(5):
            await store.create(ALICE, large(str(number), 50_000, session="chat"))
        found = await pages(store, Query(session_id="chat", max_bytes=1_000))
        assert [len(page) for page in found] == [1] * 5

    async def test_a_page_without_contexts_counts_only_the_returned_bytes(self, store: Store) -> None:
        for number in range(5):
            await store.create(ALICE, large(str(number), 50_000, session="chat"))
        query = Query(session_id="chat", max_bytes=10_000, without_contexts=True)
        (page,) = await pages(store, query)
        assert [crumb.title for crumb in page] == ["4", "3", "2", "1", "0"]
        assert size_of(page) < 2_000

    async def test_a_page_ends_early_after_reading_too_many_bytes(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("breadcrumbs.runtime.store.listing.MAX_SCANNED_BYTES", 100_000)
        for number in range(30):
            await store.create(
                ALICE, large(str(number), 20_000, session="chat", tags=("rare",) * (not number))
            )
        query = Query(session_id="chat", max_bytes=50_000, keep=lambda crumb: "rare" in crumb.tags)
        found = await pages(store, query)
        assert len(found) > 3
        assert [crumb.title for page in found for crumb in page] == ["0"]

    async def test_an_offset_and_a_byte_limit_work_together(self, store: Store) -> None:
        for number in range(12):
            await store.create(ALICE, large(f"{number:02}", 5_000, session="chat"))
        first = await store.list(ALICE, Query(session_id="chat", offset=4, limit=5, max_bytes=12_000))
        assert [crumb.title for crumb in first.items] == ["07", "06"]
        rest = await store.list(ALICE, Query(session_id="chat", limit=5, cursor=first.next_cursor))
        assert [crumb.title for crumb in rest.items] == ["05", "04", "03", "02", "01"]

    async def test_a_history_is_paged_by_number_and_by_size(self, store: Store) -> None:
        written = await store.create(ALICE, large("1", 3_000, session="chat"))
        for number in range(2, 21):
            await store.update(ALICE, written.id, change(title=str(number)))
        for limit, budget, longest in (
            (1_000, 10_000, 3),
            (4, 1 << 20, 4),
            (1_000, 1, 1),
            (1_000, 1 << 20, 20),
        ):
            before, found, counts = None, [], []
            while True:
                page = await store.history_page(
                    ALICE, written.id, before=before, limit=limit, max_bytes=budget
                )
                assert page.newest.version == 20
                found += [(version.version, version.title) for version in page.versions]
                counts.append(len(page.versions))
                before = page.next_before
                if before is None:
                    break
            assert found == [(number, str(number)) for number in range(20, 0, -1)]
            assert max(counts) == longest

    async def test_a_history_with_gaps_is_paged(self, store: Store) -> None:
        written = await store.create(ALICE, large("1", 3_000))
        for number in range(2, 9):
            await store.update(ALICE, written.id, change(title=str(number)))
        newest, *older = await store.history(ALICE, written.id)
        await store.delete(ALICE, written.id)
        newest = replace(newest, version=2_000_000_000)
        await store.restore(newest, [version for version in older if version.version % 2])
        before, found = None, []
        while True:
            page = await store.history_page(ALICE, written.id, before=before, max_bytes=7_000)
            found.append([version.version for version in page.versions])
            before = page.next_before
            if before is None:
                break
        assert found == [[2_000_000_000, 7], [5, 3], [1]]

    # State

    async def test_the_state_of_a_session_has_a_size_limit(self, opener: Opener) -> None:
        store = await opener(max_state_bytes=10_000)
        for schema in (RECORD, CHANGE, EVENT, ANSWER):
            session = f"of {schema}"

            def delta(size: int, *names: str, schema: str = schema, session: str = session) -> Any:
                state = dict.fromkeys(names, "v" * size)
                return crumb(schema=schema, session=session, context={"state_delta": state})

            await store.create(ALICE, delta(4_000, "a", "b"))
            before = await keyspace(store)
            with pytest.raises(StateTooLarge) as refused:
                await store.create(ALICE, delta(4_000, "c"))
            assert (refused.value.size, refused.value.limit) == (3 * (1 + 17 + 4_002), 10_000)
            assert await keyspace(store) == before  # nothing was written
            await store.create(ALICE, delta(5_000, "b"))  # in place of the smaller one
            await store.create(ALICE, delta(10, "c"))
            state = await Sessions(store).state_for(Principal(ALICE, ALICE), session)
            assert {name: len(value) for name, value in state.items()} == {"a": 4_000, "b": 5_000, "c": 10}

    async def test_removing_names_frees_space_in_the_state(self, opener: Opener) -> None:
        store = await opener(max_state_bytes=2_000)
        for number in range(500):
            for value in ("x" * 20, None):
                delta = {"state_delta": {f"name-{number:09}": value}}
                await store.create(ALICE, crumb(schema=CHANGE, session="chat", context=delta))
        assert await Sessions(store).state_for(Principal(ALICE, ALICE), "chat") == {}
        await store.create(
            ALICE, crumb(schema=CHANGE, session="chat", context={"state_delta": {"a": "y" * 1_900}})
        )
        assert await Sessions(store).state_for(Principal(ALICE, ALICE), "chat") == {"a": "y" * 1_900}

    async def test_a_full_state_can_still_be_paused_and_made_smaller(self, opener: Opener) -> None:
        store = await opener(max_state_bytes=1_500)
        await store.create(
            ALICE, crumb(schema=CHANGE, session="chat", context={"state_delta": {"a": "x" * 1_400}})
        )
        await store.create(ALICE, crumb(schema=CHANGE, session="chat", context={"active": False}))
        await store.create(ALICE, crumb(schema=CHANGE, session="chat", context={"state_delta": {"a": "x"}}))
        assert (await Sessions(store).get(ALICE, "chat")).about.paused_at is not None

    async def test_an_imported_state_above_the_limit_is_kept_and_can_only_shrink(
        self, opener: Opener
    ) -> None:
        wide = await opener(max_state_bytes=1 << 20)
        written = await wide.create(
            ALICE,
            crumb(
                schema=CHANGE, session="chat", context={"state_delta": {"a": "x" * 5_000, "b": "x" * 5_000}}
            ),
        )
        exported = await wide.get(ALICE, written.id)
        await wide.delete(ALICE, written.id)
        store = await opener(max_state_bytes=2_000)
        await store.restore(exported, [])
        assert set(await Sessions(store).state_for(Principal(ALICE, ALICE), "chat")) == {"a", "b"}

        async def put(**delta: Any) -> None:
            await store.create(ALICE, crumb(schema=CHANGE, session="chat", context={"state_delta": delta}))

        with pytest.raises(StateTooLarge):
            await put(c=1)
        await put(a=None)  # smaller, if still too large
        with pytest.raises(StateTooLarge):
            await put(c=1)
        await put(b=2)
        await put(c=1)
        assert await Sessions(store).state_for(Principal(ALICE, ALICE), "chat") == {"b": 2, "c": 1}

    async def test_the_state_of_an_older_store_is_counted_at_its_first_change(self, opener: Opener) -> None:
        store = await opener(max_state_bytes=2_000)
        await store.create(
            ALICE, crumb(schema=CHANGE, session="chat", context={"state_delta": {"a": "x" * 1_800}})
        )
        lane = store.keys.session_lane(ALICE, "chat")
        await store.connection.call(lane, b"HDEL", store.keys.session(lane, ALICE, "chat"), b"state")
        with pytest.raises(StateTooLarge):
            await store.create(
                ALICE, crumb(schema=CHANGE, session="chat", context={"state_delta": {"b": "x" * 300}})
            )

    async def test_concurrent_writers_do_not_exceed_the_size_limit_of_a_state(self, opener: Opener) -> None:
        store = await opener(max_state_bytes=10_000)

        async def put(number: int) -> bool:
            delta = {"state_delta": {f"n{number:02}": "x" * 1_000}}
            try:
                await store.create(ALICE, crumb(schema=CHANGE, session="chat", context=delta))
            except StateTooLarge:
                return False
            return True

        done = await asyncio.gather(*(put(number) for number in range(30)))
        assert (
            sum(done)
            == 10_000 // (3 + 17 + 1_002)
            == len(await Sessions(store).state_for(Principal(ALICE, ALICE), "chat"))
        )

    async def test_the_state_size_follows_changes_of_readers_and_ends_with_the_session(
        self, opener: Opener
    ) -> None:
        store = await opener()
        written = await store.create(
            ALICE, crumb(schema=CHANGE, session="chat", context={"state_delta": {"a": "x" * 100, "b": 1}})
        )
        await store.update(ALICE, written.id, change(sensitivity="secret"))
        lane = store.keys.session_lane(ALICE, "chat")
        session, state = store.keys.session(lane, ALICE, "chat"), store.keys.state(lane, ALICE, "chat")
        flat = await store.connection.call(lane, b"HGETALL", state)
        assert b"!s " in flat[1]
        noted = await store.connection.call(lane, b"HGET", session, b"state")
        assert noted == b"%d 0" % sum(map(len, flat))
        await Sessions(store).delete(ALICE, "chat")
        assert b"state" not in await store.connection.call(lane, b"HKEYS", session)

    async def test_a_fork_of_a_state_that_is_too_large_is_refused_completely(self, opener: Opener) -> None:
        wide = await opener(max_state_bytes=1 << 20)
        await wide.create(
            ALICE, crumb(schema=CHANGE, session="chat", context={"state_delta": {"a": "x" * 5_000}})
        )
        store = await opener(max_state_bytes=2_000)
        who = Principal(ALICE, AGENT)
        with pytest.raises(StateTooLarge):
            await fork(store, who, "chat", "copy", ForkOptions())
        assert (await store.list(ALICE, Query(session_id="copy"))).items == []
