"""Names mean themselves: no two share a key, none matches more than it says, tenants never meet."""

from __future__ import annotations

from uuid import UUID

import pytest

from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.query import Query
from breadcrumbs.runtime.store import Store
from tests.store.contract.base import ALICE, BOB, MESSAGE, Contract, change, crumb, everything, titles
from tests.store.keyspace import keyspace

NAMES = [
    "a", "aa", "ab", "a:", "a:b", ":a", "a::b", "A", "a*", "*", "?", "[a]", "[a-z]", "\\*", "a?", "^a", "{a}",
    "{L00}", "}", "{", "bc:{L00}x", "a b", "a  b", "é", "e\u0301", "漢字", "🙂", "session", "session:", "x" * 200,
    "x" * 199, "'", '"', "%s", "\\n", "a\\", "$.a", "-1", "0", "null", "None", "a,b", "a;b", "a/b", "..", "+inf", "(1",
]  # fmt: skip


class Isolation(Contract):
    async def test_session_names_never_collide_and_never_match_more_than_they_say(self, store: Store) -> None:
        for name in NAMES:
            await store.create(ALICE, crumb(name, session=name))
        for name in NAMES:
            assert await titles(store, session_id=name) == [name]
            assert await titles(store, all_tags=(f"session:{name}",)) == [name]
            assert await titles(store, any_tags=(f"session:{name}",)) == [name]
            assert [item.title for item in await store.recent(ALICE, name, MESSAGE)] == [name]

    async def test_tags_never_collide_and_never_match_more_than_they_say(self, store: Store) -> None:
        names = [name for name in NAMES if name != "session:"]
        for name in names:
            await store.create(ALICE, crumb(name, tags=(name,)))
        for name in names:
            assert await titles(store, all_tags=(name,)) == [name]
            assert await titles(store, any_tags=(name,)) == [name]
        assert len(await titles(store, any_tags=tuple(names[:20]))) == 20

    async def test_schema_names_never_collide_and_never_match_more_than_they_say(self, store: Store) -> None:
        for name in NAMES:
            await store.create(ALICE, crumb(name, schema=name, session="s"))
        await store.create(ALICE, crumb("none", schema=None, session="s"))
        for name in NAMES:
            assert await titles(store, schema_name=name) == [name]
            assert await titles(store, schema_name=name, session_id="s") == [name]
            assert [item.title for item in await store.recent(ALICE, "s", name)] == [name]
        assert len(await titles(store)) == len(await titles(store, session_id="s")) == len(NAMES) + 1

    async def test_a_session_and_a_schema_that_run_into_each_other_are_different(self, store: Store) -> None:
        pairs = [("ab", "c"), ("a", "bc"), ("abc", "d"), ("\u0161", "c"), ("a:b", "c"), ("a", "b:c")]
        for session, schema in pairs:
            await store.create(ALICE, crumb(f"{session}/{schema}", session=session, schema=schema))
        for session, schema in pairs:
            assert await titles(store, session_id=session, schema_name=schema) == [f"{session}/{schema}"]

    async def test_two_owners_with_the_same_names_never_meet(self, store: Store) -> None:
        ids: dict[UUID, list[UUID]] = {}
        for owner, title in ((ALICE, "alice's"), (BOB, "bob's")):
            for number in range(5):
                new = crumb(title, session="s", tags=("t",), context={"n": number})
                ids.setdefault(owner, []).append(
                    (await store.create(owner, new, idempotency_key=f"{number}")).id
                )
        for owner, title in ((ALICE, "alice's"), (BOB, "bob's")):
            other = BOB if owner == ALICE else ALICE
            for query in (
                Query(),
                Query(session_id="s"),
                Query(schema_name=MESSAGE),
                Query(all_tags=("t",)),
                Query(any_tags=("t", "session:s")),
                Query(updated_since=0),
                Query(sort="updated_at"),
                Query(session_id="s", schema_name=MESSAGE, all_tags=("t", "session:s")),
            ):
                found = await everything(store, owner, query)
                assert [item.title for item in found] == [title] * 5
                assert {item.owner_id for item in found} == {owner}
            assert {item.title for item in await store.recent(owner, "s", MESSAGE)} == {title}
            before = await keyspace(store)
            for id in ids[owner]:
                for attempt in (
                    store.get(other, id),
                    store.history(other, id),
                    store.get_version(other, id, 1),
                    store.update(other, id, change(title="stolen")),
                    store.delete(other, id),
                ):
                    with pytest.raises(NotFound):
                        await attempt
            assert await keyspace(store) == before

    async def test_two_sessions_with_the_same_content_never_meet(self, store: Store) -> None:
        for number in range(10):
            for session in ("one", "two", None):
                await store.create(
                    ALICE, crumb(str(session), session=session, tags=("t",), context={"n": number})
                )
        for session in ("one", "two"):
            for more in ({}, {"schema_name": MESSAGE}, {"all_tags": ("t",)}, {"any_tags": ("t", "x")}):
                assert await titles(store, session_id=session, **more) == [session] * 10
                assert await titles(store, session_id=session, sort="updated_at", **more) == [session] * 10
