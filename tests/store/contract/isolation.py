"""Names mean themselves: no two share a key, none matches more than it says, tenants never meet."""

from __future__ import annotations

from uuid import UUID

import pytest

from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import ALICE, BOB, MESSAGE, Contract, Opener, change, crumb, everything, titles
from tests.store.keyspace import Keyspace, keyspace, kind_of

NAMES = [
    "a", "aa", "ab", "a:", "a:b", ":a", "a::b", "A", "a*", "*", "?", "[a]", "[a-z]", "\\*", "a?", "^a", "{a}",
    "{L00}", "}", "{", "bc:{L00}x", "a b", "a  b", "é", "e\u0301", "漢字", "🙂", "session", "session:", "x" * 200,
    "x" * 199, "'", '"', "%s", "\\n", "a\\", "$.a", "-1", "0", "null", "None", "a,b", "a;b", "a/b", "..", "+inf", "(1",
]  # fmt: skip


class Isolation(Contract):
    @pytest.fixture
    async def crowded(self, opener: Opener) -> Store:
        """A store of one lane: nothing is kept apart by chance."""
        return await opener(lanes=1)

    async def test_writes_of_one_owner_touch_no_key_of_another(self, crowded: Store) -> None:
        async def live(owner: UUID) -> UUID:
            new = crumb("it", session="s", tags=("t",), ttl_config={"duration": 600})
            written = await crowded.create(owner, new, idempotency_key="k")
            assert not written.replayed
            await crowded.update(owner, written.id, change(title="two"))
            return written.id

        def of_owners(space: Keyspace) -> Keyspace:
            return {key: value for key, value in space.items() if kind_of(key) not in ("e", "c", "q", "meta")}

        await live(ALICE)
        alices = of_owners(await keyspace(crowded))
        assert {kind_of(key) for key in alices} == set("bhxstudinN")
        id = await live(BOB)
        both = of_owners(await keyspace(crowded))
        assert {key: both[key] for key in alices} == alices
        assert len(both) == 2 * len(alices)
        await crowded.delete(BOB, id)
        after = of_owners(await keyspace(crowded))
        assert {key: value for key, value in after.items() if kind_of(key) != "i" or key in alices} == alices

    async def test_session_names_never_collide_and_match_exactly(self, crowded: Store) -> None:
        for name in NAMES:
            await crowded.create(ALICE, crumb(name, session=name))
        for name in NAMES:
            assert await titles(crowded, session_id=name) == [name]
            assert await titles(crowded, all_tags=(f"session:{name}",)) == [name]
            assert await titles(crowded, any_tags=(f"session:{name}",)) == [name]
            assert [item.title for item in await crowded.recent(ALICE, name, MESSAGE)] == [name]

    async def test_tags_never_collide_and_match_exactly(self, crowded: Store) -> None:
        names = [name for name in NAMES if name != "session:"]
        for name in names:
            await crowded.create(ALICE, crumb(name, tags=(name,)))
        for name in names:
            assert await titles(crowded, all_tags=(name,)) == [name]
            assert await titles(crowded, any_tags=(name,)) == [name]
        assert len(await titles(crowded, any_tags=tuple(names[:20]))) == 20

    async def test_schema_names_never_collide_and_match_exactly(self, crowded: Store) -> None:
        for name in NAMES:
            await crowded.create(ALICE, crumb(name, schema=name, session="s"))
        await crowded.create(ALICE, crumb("none", schema=None, session="s"))
        for name in NAMES:
            assert await titles(crowded, schema_name=name) == [name]
            assert await titles(crowded, schema_name=name, session_id="s") == [name]
            assert [item.title for item in await crowded.recent(ALICE, "s", name)] == [name]
        assert len(await titles(crowded)) == len(await titles(crowded, session_id="s")) == len(NAMES) + 1

    async def test_sessions_and_schemas_with_the_same_concatenation_are_different(
        self, crowded: Store
    ) -> None:
        pairs = [("ab", "c"), ("a", "bc"), ("abc", "d"), ("\u0161", "c"), ("a:b", "c"), ("a", "b:c")]
        for session, schema in pairs:
            await crowded.create(ALICE, crumb(f"{session}/{schema}", session=session, schema=schema))
        for session, schema in pairs:
            expected = [f"{session}/{schema}"]
            assert await titles(crowded, session_id=session, schema_name=schema) == expected
            assert [item.title for item in await crowded.recent(ALICE, session, schema)] == expected

    async def test_two_owners_with_the_same_names_stay_separate(self, crowded: Store) -> None:
        ids: dict[UUID, list[UUID]] = {}
        for owner, title in ((ALICE, "alice's"), (BOB, "bob's")):
            for number in range(5):
                new = crumb(title, session="s", tags=("t",), context={"n": number})
                ids.setdefault(owner, []).append(
                    (await crowded.create(owner, new, idempotency_key=f"{number}")).id
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
                found = await everything(crowded, owner, query)
                assert [item.title for item in found] == [title] * 5
                assert {item.owner_id for item in found} == {owner}
            assert {item.title for item in await crowded.recent(owner, "s", MESSAGE)} == {title}
            before = await keyspace(crowded)
            for id in ids[owner]:
                for attempt in (
                    crowded.get(other, id),
                    crowded.history(other, id),
                    crowded.get_version(other, id, 1),
                    crowded.update(other, id, change(title="stolen")),
                    crowded.delete(other, id),
                ):
                    with pytest.raises(NotFound):
                        await attempt
            assert await keyspace(crowded) == before

    async def test_two_sessions_with_the_same_content_stay_separate(self, crowded: Store) -> None:
        for number in range(10):
            for session in ("one", "two", None):
                await crowded.create(
                    ALICE, crumb(str(session), session=session, tags=("t",), context={"n": number})
                )
        for session in ("one", "two"):
            for more in ({}, {"schema_name": MESSAGE}, {"all_tags": ("t",)}, {"any_tags": ("t", "x")}):
                assert await titles(crowded, session_id=session, **more) == [session] * 10
                assert await titles(crowded, session_id=session, sort="updated_at", **more) == [session] * 10
