"""List, recent and walk: filters are AND, the order is one over all lanes, pages lose and repeat nothing."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from itertools import product
from typing import Any, get_args
from uuid import UUID, uuid4

import pytest

from breadcrumbs.runtime.backend.connection import to_command
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.ids import lane_for
from breadcrumbs.runtime.breadcrumb.query import MAX_LIMIT, MAX_OFFSET, Query, Sort
from breadcrumbs.runtime.errors import InvalidCursor, InvalidInput
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import (
    ALICE,
    ANSWER,
    BOB,
    MESSAGE,
    Contract,
    Opener,
    change,
    crumb,
    everything,
    titles,
)

TAGS = ("a", "b", "workspace:c")
"""The last one is not indexed for messages and answers: see tag_index.py."""


async def mixed(store: Store, count: int = 40) -> list[Breadcrumb]:
    """Breadcrumbs of some schemas, sessions and tags in all lanes, a third of them updated."""
    choice = random.Random(7)
    ids: list[UUID] = []
    for number in range(count):
        new = crumb(
            str(number),
            schema=choice.choice((MESSAGE, ANSWER, None)),
            session=choice.choice(("s1", "s2", None)),
            tags=tuple(choice.sample(TAGS, choice.randrange(4))),
        )
        ids.append((await store.create(ALICE, new)).id)
        await store.create(BOB, new)
    for id in choice.sample(ids, count // 3):
        await store.update(ALICE, id, change(context={"updated": True}, tags=choice.sample(TAGS, 2)))
    return [await store.get(ALICE, id) for id in ids]


def in_order(crumbs: list[Breadcrumb], sort: Sort) -> list[UUID]:
    def place(item: Breadcrumb) -> tuple[int, bytes]:
        return (item.created if sort.endswith("created_at") else item.updated, item.id.bytes)

    return [item.id for item in sorted(crumbs, key=place, reverse=sort.startswith("-"))]


class Listing(Contract):
    async def test_a_time_is_a_bound_in_every_order_and_on_every_page(self, store: Store) -> None:
        crumbs = await mixed(store)
        at = sorted(item.created for item in crumbs)[15]
        for sort in get_args(Sort):
            early = Query(created_until=at, sort=sort, limit=4)
            assert [item.id async for item in store.walk(ALICE, early)] == in_order(
                [item for item in crumbs if item.created <= at], sort
            )
            late = Query(created_since=at, sort=sort, limit=4)
            assert [item.id async for item in store.walk(ALICE, late)] == in_order(
                [item for item in crumbs if item.created >= at], sort
            )

    @pytest.mark.parametrize("lanes", [1, 16])
    async def test_every_combination_of_filters_and_orders_returns_the_matches(
        self, opener: Opener, lanes: int
    ) -> None:
        store = await opener(lanes=lanes)
        crumbs = await mixed(store)
        middle = sorted(item.updated for item in crumbs)[len(crumbs) // 2]
        everything_there_is = product(
            (None, MESSAGE, ANSWER, "no.such.v1"),
            (None, "s1", "nobody"),
            ((), ("a",), ("a", "b"), ("workspace:c",), ("session:s2",), ("session:s1", "a")),
            (
                (),
                ("b", "workspace:c"),
                ("session:s2", "workspace:c"),
                ("session:s1", "session:s2"),
                ("nothing",),
            ),
            (None, middle),
            (None, *get_args(Sort)),
        )
        some = random.Random(3).sample(list(everything_there_is), 120)
        for schema, session, all_tags, any_tags, since, sort in some:
            query = Query(
                schema_name=schema,
                session_id=session,
                all_tags=all_tags,
                any_tags=any_tags,
                updated_since=since,
                sort=sort,
            )
            expected = [
                item
                for item in crumbs
                if (schema is None or item.schema_name == schema)
                and (session is None or f"session:{session}" in item.tags)
                and set(all_tags) <= set(item.tags)
                and (not any_tags or set(any_tags) & set(item.tags))
                and (since is None or item.updated >= since)
            ]
            by_default: Sort = "-created_at" if since is None else "-updated_at"
            found = await everything(store, ALICE, query, limit=7)
            assert [item.id for item in found] == in_order(expected, sort or by_default), query
            assert all(item.owner_id == ALICE for item in found)

    async def test_a_tag_without_an_index_is_found_however_it_was_written(self, store: Store) -> None:
        """Each tag is written in one way only, because one record of a tag makes all breadcrumbs with it visible."""
        created = await store.create(ALICE, crumb("created", tags=("workspace:1",)))
        changed = await store.create(ALICE, crumb("changed"))
        await store.update(ALICE, changed.id, change(tags=["workspace:2"]))
        note = await store.create(ALICE, crumb("note", schema="note.v1", tags=("workspace:3",)))
        await store.update(ALICE, note.id, change(schema_name=MESSAGE))
        message = await store.create(ALICE, crumb("message", tags=("workspace:4",)))
        await store.update(ALICE, message.id, change(schema_name="note.v1"))
        exported = await store.get(ALICE, created.id)
        imported = replace(exported, id=uuid4(), json=exported.json.replace(b"workspace:1", b"workspace:5"))
        await store.restore(imported, [])
        expected = (created.id, changed.id, note.id, message.id, imported.id)
        for number, id in enumerate(expected, start=1):
            for filters in (
                {"all_tags": (f"workspace:{number}",)},
                {"any_tags": (f"workspace:{number}", "no")},
            ):
                page = await store.list(ALICE, Query(**filters))
                assert [item.id for item in page.items] == [id], number
                if id != message.id:  # it is a note now, and another message can keep the record of its tag
                    assert page.unindexed_tags == (f"workspace:{number}",)
        indexed = await store.list(ALICE, Query(all_tags=("workspace:1", "topic:x")))
        assert indexed.items == [] and indexed.unindexed_tags == (), "the smaller index was not used"
        in_session = await store.list(ALICE, Query(session_id="s", all_tags=("workspace:1",)))
        assert in_session.unindexed_tags == ()

    @pytest.mark.parametrize("sort", get_args(Sort))
    @pytest.mark.parametrize("limit", [1, 3, 40, 41])
    async def test_pages_of_any_size_omit_and_repeat_nothing(
        self, store: Store, sort: Sort, limit: int
    ) -> None:
        crumbs = await mixed(store)
        found = await everything(store, ALICE, Query(sort=sort), limit=limit)
        assert [item.id for item in found] == in_order(crumbs, sort)
        walked = [item.id async for item in store.walk(ALICE, Query(sort=sort, limit=limit))]
        assert walked == in_order(crumbs, sort)

    async def test_a_page_has_a_cursor_exactly_if_there_are_more_items(self, store: Store) -> None:
        for number in range(6):
            await store.create(ALICE, crumb(str(number), session=f"s{number}"))
        assert (await store.list(ALICE, Query(limit=6))).next_cursor is None
        assert (await store.list(ALICE, Query(limit=5))).next_cursor is not None
        assert (await store.list(ALICE, Query(limit=5, offset=1))).next_cursor is None
        assert (await store.list(ALICE, Query(limit=5, offset=50))).next_cursor is None
        assert (await store.list(BOB, Query())).next_cursor is None
        rest = await store.list(ALICE, Query(cursor=(await store.list(ALICE, Query(limit=5))).next_cursor))
        assert [item.title for item in rest.items] == ["0"] and rest.next_cursor is None

    async def test_an_offset_skips_the_first_items(self, store: Store) -> None:
        crumbs = await mixed(store, 20)
        for sort in get_args(Sort):
            order = in_order(crumbs, sort)
            for offset, limit in ((0, 5), (3, 4), (19, 5), (20, 5), (7, 1000)):
                page = await store.list(ALICE, Query(sort=sort, offset=offset, limit=limit))
                assert [item.id for item in page.items] == order[offset : offset + limit]
            page = await store.list(ALICE, Query(sort=sort, offset=3, limit=4))
            following = await store.list(ALICE, Query(sort=sort, limit=100, cursor=page.next_cursor))
            assert [item.id for item in following.items] == order[7:]

    async def test_the_newest_comes_first_across_lanes(self, store: Store) -> None:
        for number in range(30):
            await store.create(ALICE, crumb(str(number), session=f"s{number}"))
        lanes = {lane_for(ALICE, "session", f"s{number}", store.lanes) for number in range(30)}
        assert len(lanes) > 5
        assert await titles(store) == [str(number) for number in reversed(range(30))]
        assert await titles(store, sort="created_at") == [str(number) for number in range(30)]

    async def test_writes_between_pages_do_not_move_items(self, store: Store) -> None:
        for number in range(10):
            await store.create(ALICE, crumb(str(number), session=f"s{number}"))
        first = await store.list(ALICE, Query(limit=4))
        await store.create(ALICE, crumb("new", session="s1"))
        await store.delete(ALICE, first.items[-1].id)  # the cursor points at it
        await store.update(ALICE, first.items[0].id, change(title="changed"))
        rest = await store.list(ALICE, Query(limit=100, cursor=first.next_cursor))
        assert [item.title for item in rest.items] == ["5", "4", "3", "2", "1", "0"]

    async def test_a_session_tag_in_all_tags_selects_the_session(self, store: Store) -> None:
        await mixed(store)
        for more in ({}, {"schema_name": MESSAGE}, {"any_tags": ("a", "b")}):
            by_id = await everything(store, ALICE, Query(session_id="s1", **more))
            by_tag = await everything(store, ALICE, Query(all_tags=("session:s1",), **more))
            by_both = await everything(store, ALICE, Query(session_id="s1", all_tags=("session:s1",), **more))
            assert by_id and by_id == by_tag == by_both

    async def test_two_sessions_in_one_query_match_nothing(self, store: Store) -> None:
        await mixed(store)
        assert await titles(store, session_id="s1", all_tags=("session:s2",)) == []
        assert await titles(store, all_tags=("session:s1", "session:s2")) == []
        assert await titles(store, session_id="s1", any_tags=("session:s2",)) == []
        assert await titles(store, any_tags=("session:s1", "session:s2")) != []

    async def test_updated_since_returns_created_and_updated_breadcrumbs(self, store: Store) -> None:
        old = await store.create(ALICE, crumb("old", session="a"))
        changed = await store.create(ALICE, crumb("changed", session="b"))
        new = await store.create(ALICE, crumb("new", session="c"))
        update = await store.update(ALICE, changed.id, change(title="changed later"))
        assert await titles(store, updated_since=new.created) == ["changed later", "new"]
        assert await titles(store, updated_since=new.created + 1) == ["changed later"]
        assert await titles(store, updated_since=update.updated) == ["changed later"]
        assert await titles(store, updated_since=update.updated + 1) == []
        assert await titles(store, updated_since=old.created) == ["changed later", "new", "old"]
        assert await titles(store, updated_since=new.created, sort="-created_at") == ["new", "changed later"]
        assert await titles(store, updated_since=new.created, sort="created_at") == ["changed later", "new"]
        assert await titles(store, updated_since=new.created, sort="updated_at") == ["new", "changed later"]
        assert await titles(store, updated_since=new.created, session_id="b") == ["changed later"]

    async def test_keep_filters_last_and_pages_stay_full(self, store: Store) -> None:
        for number in range(30):
            await store.create(ALICE, crumb(str(number), session=f"s{number % 7}"))
        query = Query(keep=lambda item: int(item.title) % 3 == 0)
        found = await everything(store, ALICE, query, limit=4)
        assert [item.title for item in found] == [str(number) for number in range(27, -1, -3)]
        nothing = await store.list(ALICE, Query(limit=4, keep=lambda _: False))
        assert (nothing.items, nothing.next_cursor) == ([], None)

    async def test_a_filter_with_few_matches_ends_pages_early_and_omits_nothing(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("breadcrumbs.runtime.store.listing.MAX_SCANNED", 10)
        for number in range(300):
            await store.create(ALICE, crumb(str(number), session=f"s{number % 7}"))
        rare = Query(limit=2, keep=lambda item: int(item.title) % 97 == 0)
        first = await store.list(ALICE, rare)
        assert len(first.items) < 2 and first.next_cursor is not None
        assert [item.title async for item in store.walk(ALICE, rare)] == ["291", "194", "97", "0"]
        page = await store.list(ALICE, replace(rare, offset=2))
        found = [item.title for item in page.items]
        while page.next_cursor is not None:
            page = await store.list(ALICE, replace(rare, cursor=page.next_cursor))
            found += [item.title for item in page.items]
        assert found == ["97", "0"]

    async def test_a_modified_cursor_is_refused(self, store: Store) -> None:
        for number in range(4):
            await store.create(ALICE, crumb(str(number)))
        cursor = (await store.list(ALICE, Query(limit=1))).next_cursor
        assert cursor is not None
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        touched = [
            cursor[:place] + other + cursor[place + 1 :]
            for place in range(len(cursor))
            for other in (alphabet if place == len(cursor) - 1 else random.Random(place).sample(alphabet, 4))
            if other != cursor[place]
        ]
        garbage = [
            "",
            "x",
            "é",
            "🙂",
            "====",
            "../..",
            cursor + "A",
            cursor + "=",
            cursor + "==",
            " " + cursor,
            cursor[:-1],
        ]
        for bad in (*touched, *garbage, cursor + "\n", cursor.swapcase()):
            with pytest.raises(InvalidCursor):
                await store.list(ALICE, Query(cursor=bad, limit=1))
        assert len((await store.list(ALICE, Query(cursor=cursor))).items) == 3

    async def test_a_cursor_is_valid_only_for_its_query_and_owner(self, store: Store) -> None:
        for number in range(4):
            await store.create(ALICE, crumb(str(number), session="s", tags=("a", "b")))
            await store.create(BOB, crumb(str(number), session="s", tags=("a", "b")))
        queries = [
            Query(),
            Query(schema_name=MESSAGE),
            Query(session_id="s"),
            Query(all_tags=("a",)),
            Query(all_tags=("a", "b")),
            Query(any_tags=("a",)),
            Query(any_tags=("a", "b")),
            Query(updated_since=1),
            Query(updated_since=2),
            Query(sort="created_at"),
            Query(sort="updated_at"),
            Query(sort="-updated_at"),
        ]
        for query in queries:
            cursor = (await store.list(ALICE, replace(query, limit=2))).next_cursor
            assert cursor is not None
            for other in queries:
                asked = replace(other, limit=2, cursor=cursor)
                if other == query:
                    assert len((await store.list(ALICE, asked)).items) == 2
                else:
                    with pytest.raises(InvalidCursor):
                        await store.list(ALICE, asked)
            with pytest.raises(InvalidCursor):
                await store.list(BOB, replace(query, cursor=cursor))

    async def test_another_process_accepts_a_cursor(self, opener: Opener) -> None:
        first, second = await opener(), await opener()
        for number in range(4):
            await first.create(ALICE, crumb(str(number)))
        cursor = (await first.list(ALICE, Query(limit=2))).next_cursor
        assert [item.title for item in (await second.list(ALICE, Query(cursor=cursor))).items] == ["1", "0"]

    @pytest.mark.parametrize(
        "query",
        [
            {"limit": 0},
            {"limit": -1},
            {"limit": MAX_LIMIT + 1},
            {"offset": -1},
            {"offset": MAX_OFFSET + 1},
            {"offset": 1, "cursor": "x"},
        ],
    )
    async def test_an_invalid_page_size_is_refused(self, store: Store, query: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            await store.list(ALICE, Query(**query))

    async def test_recent_returns_the_last_breadcrumbs_of_a_schema_in_a_session(self, store: Store) -> None:
        for number in range(12):
            await store.create(ALICE, crumb(str(number), session="s", schema=(MESSAGE, ANSWER)[number % 2]))
            await store.create(ALICE, crumb("other", session="t"))
            await store.create(BOB, crumb("bob's", session="s"))
        assert [item.title for item in await store.recent(ALICE, "s", MESSAGE, 3)] == ["10", "8", "6"]
        assert [item.title for item in await store.recent(ALICE, "s", ANSWER, 100)] == [
            "11",
            "9",
            "7",
            "5",
            "3",
            "1",
        ]
        assert await store.recent(ALICE, "nobody", MESSAGE) == []
        assert await store.recent(ALICE, "s", "no.such.v1") == []

    @pytest.mark.parametrize("limit", [0, -1, -5, MAX_LIMIT + 1])
    async def test_recent_refuses_an_invalid_limit(self, store: Store, limit: int) -> None:
        for number in range(3):
            await store.create(ALICE, crumb(str(number), session="s"))
        with pytest.raises(InvalidInput):
            await store.recent(ALICE, "s", MESSAGE, limit)

    async def test_the_first_page_of_a_session_takes_one_round_trip(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(12):
            await store.create(ALICE, crumb(str(number), schema=(MESSAGE, ANSWER)[number % 2], session="s"))
        calls: list[str] = []
        connection = store.connection

        def count(name: str) -> None:
            method = getattr(connection, name)

            def counted(*args: Any) -> Any:
                calls.append(name)
                return method(*args)

            monkeypatch.setattr(connection, name, counted)

        for name in ("call", "call_all", "run"):
            count(name)
        for query in (Query(session_id="s", limit=10), Query(session_id="s", schema_name=MESSAGE, limit=10)):
            calls.clear()
            await store.list(ALICE, query)
            assert calls[0] == "run" and calls.count("run") == 1 and "call_all" not in calls

    async def test_a_session_with_many_schemas_is_listed_in_order(self, store: Store) -> None:
        for number in range(70):
            await store.create(ALICE, crumb(str(number), schema=f"kind{number}.v1", session="s"))
        expected = [str(number) for number in reversed(range(70))]
        listed = await everything(store, ALICE, Query(session_id="s"), limit=9)
        assert [item.title for item in listed] == expected

    async def test_a_byte_limit_ends_the_first_page_of_a_session(self, store: Store) -> None:
        for number in range(6):
            schema = (MESSAGE, ANSWER)[number % 2]
            await store.create(
                ALICE, crumb(str(number), schema=schema, session="s", context={"text": "x" * 2_000})
            )
        query = Query(session_id="s", limit=10, max_bytes=5_000)
        page = await store.list(ALICE, query)
        assert [item.title for item in page.items] == ["5", "4"] and page.next_cursor is not None
        rest = await store.list(ALICE, replace(query, cursor=page.next_cursor))
        assert [item.title for item in rest.items] == ["3", "2"]

    async def test_an_owner_with_nothing_gets_an_empty_page(self, store: Store) -> None:
        await store.create(BOB, crumb())
        for query in (
            Query(),
            Query(sort="updated_at"),
            Query(any_tags=("session:s",)),
            Query(updated_since=0),
        ):
            page = await store.list(ALICE, query)
            assert (page.items, page.next_cursor) == ([], None)

    async def test_a_list_read_during_writes_does_not_repeat_unchanged_items(self, store: Store) -> None:
        stays = {(await store.create(ALICE, crumb(f"stay {n}", session=f"s{n % 5}"))).id for n in range(30)}
        done = asyncio.Event()

        async def churn() -> None:
            while not done.is_set():
                written = await store.create(ALICE, crumb("comes and goes", session="s1"))
                await store.delete(ALICE, written.id)

        writer = asyncio.create_task(churn())
        try:
            for _ in range(4):
                found = [item.id async for item in store.walk(ALICE, Query(limit=7))]
                assert len(found) == len(set(found))
                assert stays <= set(found)
        finally:
            done.set()
            await writer

    @pytest.mark.parametrize("sort", get_args(Sort))
    @pytest.mark.parametrize("which", [0, 2, 4])
    async def test_a_breadcrumb_updated_while_a_page_is_read_is_listed_once(
        self, store: Store, sort: Sort, which: int
    ) -> None:
        ids = [(await store.create(ALICE, crumb(str(n), session=f"s{n}"))).id for n in range(5)]
        await store.update(ALICE, ids[2], change(title="2, again"))
        call_all = store.connection.call_all
        written = False

        async def call_all_with_a_writer_in_between(commands: list[Any]) -> list[Any]:
            nonlocal written
            if commands and to_command(commands[0][1])[0] == b"MGET" and not written:
                written = True
                await store.update(ALICE, ids[which], change(title="while you read"))
            return await call_all(commands)

        store.connection.call_all = call_all_with_a_writer_in_between  # type: ignore[method-assign,assignment]
        found = (await store.list(ALICE, Query(sort=sort))).items
        assert written
        assert sorted(item.id for item in found) == sorted(ids)
        assert "while you read" in {item.title for item in found}
