"""Sessions in the store: version, state, facts and deletion."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any
from uuid import UUID

import anyio
import pytest

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import InvalidCursor, InvalidInput, NotFound, SessionGone, VersionMismatch
from breadcrumbs.runtime.maintenance import export_import
from breadcrumbs.runtime.schema_names import ADK_EVENT, SESSION_RECORD, STATE_CHANGE
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store import script_calls as writes_module
from breadcrumbs.runtime.store.batched_reads import pause_of
from breadcrumbs.runtime.store.expiry import purge_expired
from breadcrumbs.runtime.store.fence import Fence
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.session_store import Belonging
from breadcrumbs.runtime.store.state import STATE_HOLDER, About
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.dead_letters import DeadLetters
from breadcrumbs.runtime.workers.leases import Leases
from tests.store.contract.base import AGENT, ALICE, ANSWER, BOB, MESSAGE, Contract, Opener, change, crumb
from tests.store.contract.importing import NOON, foreign
from tests.store.keyspace import Keyspace, events, keyspace, kind_of, without

CONTEXT = "agent.context.v1"


def delta(session: str, schema: str = STATE_CHANGE, /, **changes: Any) -> Any:
    return crumb(schema=schema, session=session, context={"state_delta": changes})


def about(session: str, schema: str = STATE_CHANGE, /, **said: Any) -> Any:
    return crumb(schema=schema, session=session, context=said)


async def ids_in(sessions: Sessions, owner: UUID = ALICE, *, limit: int = 50) -> list[str]:
    """All pages; no page but the last is short, and there is no cursor where there is no more."""
    found: list[str] = []
    cursor = None
    while True:
        page = await sessions.page(owner, limit=limit, cursor=cursor)
        found += [facts.id for facts in page.items]
        if page.next_cursor is None:
            return found
        assert len(page.items) == limit
        cursor = page.next_cursor


async def _belonging(sessions: Sessions, session: str) -> Belonging:
    found = await sessions.belonging(ALICE, session)
    assert found is not None
    return found


async def _records(store: Store, lane: int) -> set[bytes]:
    return set(await store.connection.call(lane, b"ZRANGE", store.keys.deletions(lane, ALICE), 0, -1))


async def _delete_others(store: Store, lane: int, count: int) -> None:
    """Create and delete other sessions of one lane."""
    sessions = Sessions(store)
    names = (
        name
        for number in itertools.count()
        if store.keys.session_lane(ALICE, name := f"other-{number}") == lane
    )
    for name in itertools.islice(names, count):
        await store.create(ALICE, crumb(session=name))
        await sessions.delete(ALICE, name)


class SessionLife(Contract):
    # Version

    async def test_every_write_increments_the_version_of_its_session(self, store: Store) -> None:
        sessions = Sessions(store)
        with pytest.raises(NotFound):
            await sessions.get(ALICE, "s")
        first = await store.create(ALICE, crumb("1", session="s"))
        second = await store.create(ALICE, crumb("2", session="s", schema=ANSWER))
        assert (first.session_version, second.session_version) == (1, 2)
        await store.update(ALICE, first.id, change(title="edited"))
        assert (await sessions.get(ALICE, "s")).version == 3
        await store.delete(ALICE, second.id)
        facts = await sessions.get(ALICE, "s")
        assert (facts.version, facts.counts, facts.created) == (4, {MESSAGE: 1}, first.created)
        assert (await store.create(ALICE, crumb("elsewhere", session="t"))).session_version == 1
        assert (await store.create(BOB, crumb("his", session="s"))).session_version == 1
        assert (await sessions.get(ALICE, "s")).version == 4

    async def test_a_session_ends_with_its_last_breadcrumb(self, store: Store) -> None:
        sessions = Sessions(store)
        before = without(await keyspace(store), "ec")
        written = [await store.create(ALICE, delta("s", x=number)) for number in range(3)]
        for one in written:
            await store.delete(ALICE, one.id)
        with pytest.raises(NotFound):
            await sessions.get(ALICE, "s")
        assert without(await keyspace(store), "ec") == before

    async def test_contexts_do_not_count(self, store: Store) -> None:
        sessions = Sessions(store)
        message = await store.create(ALICE, crumb(session="s"))
        lane = store.keys.session_lane(ALICE, "s")
        lease = await Leases(store, "contexts", "w", seconds=30).take(lane)
        assert lease is not None
        after: Breadcrumb | None = None
        for number in range(3):
            new = crumb(schema=CONTEXT, session="s", context={"n": number})
            after = await store.put(
                ALICE,
                UUID(int=lane << 64 | 5),
                new,
                after=after,
                slim=lambda old: old.json,
                fence=Fence(lease, since=message.created),
            )
        facts = await sessions.get(ALICE, "s")
        assert (facts.version, facts.active, facts.counts) == (1, message.created, {MESSAGE: 1, CONTEXT: 1})

    async def test_P4_one_of_many_concurrent_starts_of_a_session_succeeds(self, store: Store) -> None:
        outcomes: list[str] = []

        async def begin(number: int) -> None:
            try:
                await store.create(
                    ALICE, delta("s", SESSION_RECORD, by=number), options=CreateOptions(session_version=0)
                )
                outcomes.append("made")
            except VersionMismatch as error:
                assert (error.current, error.expected) == (1, 0)
                outcomes.append("there")

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(begin, number)
        assert sorted(outcomes) == ["made"] + ["there"] * 19
        assert (await Sessions(store).get(ALICE, "s")).version == 1

    async def test_P4_a_session_begins_with_several_breadcrumbs_or_not_at_all(self, store: Store) -> None:
        sessions = Sessions(store)
        lane = store.keys.session_lane(ALICE, "s")
        ids = [derived_id(lane, "along", str(number)) for number in range(50)]
        along = [
            (id, crumb(f"n{number}", session="s", tags=(f"n:{number % 2}",))) for number, id in enumerate(ids)
        ]
        first = crumb("first", session="s", schema=SESSION_RECORD, context={"state_delta": {"a": 1}})
        for replayed in (False, True):
            written = await store.create(
                ALICE,
                first,
                options=CreateOptions(along=along, session_version=0),
                idempotency_key="k",
                by=AGENT,
            )
            assert written.replayed is replayed
        facts = await sessions.get(ALICE, "s")
        assert facts.version == 51 and facts.state == {"a": 1} and sum(facts.counts.values()) == 51
        listed = (await store.list(ALICE, Query(session_id="s", sort="created_at"))).items
        assert [one.id for one in listed] == [written.id, *ids]
        assert all(one.created_by == AGENT for one in listed)
        assert [event.id for event in await events(store)] == [written.id, *ids]
        odd = (await store.list(ALICE, Query(all_tags=("n:1",), sort="created_at"))).items
        assert [one.id for one in odd] == ids[1::2]
        before = await keyspace(store)
        others = [(derived_id(lane, "other"), crumb("other", session="s"))]
        with pytest.raises(VersionMismatch):
            await store.create(ALICE, first, options=CreateOptions(along=others, session_version=0))
        assert await keyspace(store) == before

    async def test_a_wrong_session_version_writes_nothing(self, store: Store) -> None:
        await store.create(ALICE, delta("s", x=1))
        await store.create(ALICE, crumb(session="s"))
        before = await keyspace(store)
        for expected in (0, 1, 3, 99):
            with pytest.raises(VersionMismatch) as caught:
                await store.create(ALICE, delta("s", x=2), options=CreateOptions(session_version=expected))
            assert caught.value.current == 2
        with pytest.raises(NotFound):
            await store.create(ALICE, delta("not there", x=2), options=CreateOptions(session_version="*"))
        with pytest.raises(VersionMismatch):
            await store.create(ALICE, delta("not there", x=2), options=CreateOptions(session_version=1))
        assert await keyspace(store) == before
        assert (
            await store.create(ALICE, delta("s", x=2), options=CreateOptions(session_version=2))
        ).session_version == 3
        assert (
            await store.create(ALICE, delta("s", x=3), options=CreateOptions(session_version="*"))
        ).session_version == 4

    async def test_P3_a_replay_succeeds_after_the_version_changed(self, store: Store) -> None:
        first = await store.create(
            ALICE, crumb("x", session="s"), idempotency_key="k", options=CreateOptions(session_version=0)
        )
        await store.create(ALICE, crumb("y", session="s"))
        again = await store.create(
            ALICE, crumb("x", session="s"), idempotency_key="k", options=CreateOptions(session_version=0)
        )
        assert again.replayed and again.id == first.id
        assert (await Sessions(store).get(ALICE, "s")).version == 2

    # State

    async def test_state_is_merged_and_null_removes_a_name(self, store: Store) -> None:
        sessions = Sessions(store)
        await store.create(ALICE, delta("s", SESSION_RECORD, a=1, b={"deep": []}, gone=None))
        await store.create(ALICE, delta("s", a=None, c=9007199254740993))
        await store.create(ALICE, crumb(session="s", context={"state_delta": {"b": "not a change"}}))
        assert await sessions.state_for(Principal(ALICE, ALICE), "s") == {
            "b": {"deep": []},
            "c": 9007199254740993,
        }
        assert (await sessions.get(ALICE, "s")).state == await sessions.state_for(
            Principal(ALICE, ALICE), "s"
        )
        assert (
            await sessions.state_for(Principal(BOB, BOB), "s")
            == await sessions.state_for(Principal(ALICE, ALICE), "other")
            == {}
        )

    async def test_an_adk_event_keeps_null_as_a_value(self, store: Store) -> None:
        await store.create(ALICE, delta("s", ADK_EVENT, a=None, b=1))
        assert await Sessions(store).state_for(Principal(ALICE, ALICE), "s") == {"a": None, "b": 1}
        await store.create(ALICE, delta("s", b=None))
        assert await Sessions(store).state_for(Principal(ALICE, ALICE), "s") == {"a": None}

    async def test_concurrent_writers_lose_no_state(self, store: Store) -> None:
        async def write(number: int) -> None:
            await store.create(ALICE, delta("s", **{f"k{number}": number, "last": number}))

        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(write, number)
        state = await Sessions(store).state_for(Principal(ALICE, ALICE), "s")
        assert state.pop("last") in range(100)
        assert state == {f"k{number}": number for number in range(100)}
        assert (await Sessions(store).get(ALICE, "s")).version == 100

    @pytest.mark.parametrize("wrong", [[], "x", 7, {"\0title": "no"}])
    async def test_an_invalid_state_delta_is_refused(self, store: Store, wrong: Any) -> None:
        before = await keyspace(store)
        with pytest.raises(InvalidInput):
            await store.create(ALICE, crumb(schema=STATE_CHANGE, session="s", context={"state_delta": wrong}))
        assert await keyspace(store) == before

    async def test_title_user_and_pause_are_session_facts_and_not_state(self, store: Store) -> None:
        sessions = Sessions(store)
        await store.create(
            ALICE, about("s", SESSION_RECORD, title="T", user_id="ann", state_delta={"title": 1})
        )
        facts = await sessions.get(ALICE, "s")
        assert (facts.about, facts.state) == (About("T", "ann"), {"title": 1})
        paused = await store.create(ALICE, about("s", active=False, user_id="eve"))
        assert (await sessions.get(ALICE, "s")).about == About("T", "ann", paused.created)
        here, elsewhere = pause_of(store, ALICE, "s"), pause_of(store, ALICE, "other")
        assert await store.read_batch(here, elsewhere) == (paused.created, None)
        await store.create(ALICE, about("s", active=True, title=None))
        assert (await sessions.get(ALICE, "s")).about == About(None, "ann")
        await store.create(ALICE, about("s", title=["no title"], active="no"))
        assert (await sessions.get(ALICE, "s")).about == About(None, "ann")
        await store.create(ALICE, crumb(session="s", context={"title": "only a message", "active": False}))
        assert (await sessions.get(ALICE, "s")).about == About(None, "ann")

    async def test_P8_an_import_restores_sessions_in_any_order(self, store: Store, opener: Opener) -> None:
        sessions = Sessions(store)
        await store.create(ALICE, about("s", SESSION_RECORD, title="old", user_id="u", state_delta={"a": 1}))
        edited = await store.create(ALICE, delta("s", b=2, a=None))
        await store.update(ALICE, edited.id, change(context={"state_delta": {"b": "corrected"}}))
        await store.create(ALICE, about("s", title="new", active=False, model="big", agent="poet"))
        await store.create(ALICE, crumb("hello", session="s"))
        facts = await sessions.get(ALICE, "s", first_message=True)
        assert (facts.about.model, facts.about.agent) == ("big", "poet")
        lines = [
            export_import.encode(one, (await store.history(ALICE, one.id))[1:])
            async for one in store.walk(ALICE, Query())
        ]
        for namespace, order in (("one", 1), ("two", -1)):
            other = await opener(namespace=namespace)
            for line in lines[::order]:
                await other.restore(*export_import.decode(line))
            back = await Sessions(other).get(ALICE, "s", first_message=True)
            assert (back.state, back.about, back.counts) == (facts.state, facts.about, facts.counts)
            assert (back.created, back.active) == (facts.created, facts.active)
            assert back.first_message is not None and back.first_message.title == "hello"
            assert await ids_in(Sessions(other)) == ["s"]

    # Listing

    async def test_the_last_active_session_comes_first(self, store: Store) -> None:
        sessions = Sessions(store)
        for name in ("a", "b", "c", "a"):
            await store.create(ALICE, crumb(session=name))
        await store.create(ALICE, crumb())
        await store.create(BOB, crumb(session="z"))
        await store.create(ALICE, delta(STATE_HOLDER + "app/x", k=1))
        assert await ids_in(sessions) == ["a", "c", "b"]
        assert await ids_in(sessions, BOB) == ["z"]

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 50])
    async def test_P7_pages_reach_the_end_and_report_correctly_if_there_is_more(
        self, store: Store, limit: int
    ) -> None:
        """Also where an import brings many sessions of the very same microsecond."""
        names = [f"s{number}" for number in range(25)]
        for name in names:
            await store.create(ALICE, crumb(session=name))
        for number in range(25):
            await store.restore(foreign(session=f"old {number}", created=NOON), [])
        found = await ids_in(Sessions(store), limit=limit)
        assert found[:25] == names[::-1]
        assert sorted(found[25:]) == sorted(f"old {number}" for number in range(25))

    async def test_a_filter_with_few_matches_returns_all_of_them(self, store: Store) -> None:
        for number in range(60):
            await store.create(ALICE, crumb(session=f"s{number}", context={"n": number}))
        sessions = Sessions(store)
        page = await sessions.page(ALICE, limit=2, keep=lambda facts: facts.id in ("s3", "s40"))
        assert [facts.id for facts in page.items] == ["s40", "s3"] and page.next_cursor is None
        page = await sessions.page(ALICE, limit=1, keep=lambda facts: facts.id in ("s3", "s40"))
        assert [facts.id for facts in page.items] == ["s40"] and page.next_cursor is not None

    async def test_P7_a_page_that_ends_early_reports_more_items(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rather than looking at every session of a large store in one request."""
        monkeypatch.setattr("breadcrumbs.runtime.sessions.sessions._MAX_EXAMINED", 10)
        monkeypatch.setattr("breadcrumbs.runtime.sessions.sessions._BATCH_SIZE", 5)
        for number in range(33):
            await store.create(ALICE, crumb(session=f"s{number}"))
        found, pages, cursor = [], 0, None
        while pages == 0 or cursor is not None:
            page = await Sessions(store).page(
                ALICE, limit=2, cursor=cursor, keep=lambda facts: facts.id in ("s0", "s1", "s30")
            )
            found += [facts.id for facts in page.items]
            pages, cursor = pages + 1, page.next_cursor
        assert found == ["s30", "s1", "s0"] and pages > 2

    @pytest.mark.parametrize("cursor", ["", "x", "AAAA", "*" * 20])
    async def test_an_unknown_cursor_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(InvalidCursor):
            await Sessions(store).page(ALICE, cursor=cursor)

    # Deletion

    async def _full(self, store: Store, name: str = "s", owner: UUID = ALICE) -> list[UUID]:
        """A session with a bit of everything: updates, state, answers, a lifetime, a dead letter."""
        sessions, lane = Sessions(store), store.keys.session_lane(owner, name)
        await store.create(
            owner,
            about(name, SESSION_RECORD, title="T", state_delta={"a": 1}),
            options=CreateOptions(session_version=0),
        )
        for number in range(5):
            one = await store.create(owner, crumb(str(number), session=name, tags=("blue",)))
            await store.update(owner, one.id, change(tags=["red", f"session:{name}"], schema_name="other.v1"))
            await store.create(owner, crumb(session=name, schema=ANSWER, ttl_config={"duration": "1h"}))
        await store.create(owner, crumb(session=name), idempotency_key="once")
        leases = Leases(store, "agents", "w", seconds=30)
        await leases.register()
        lease = await leases.take(lane)
        if lease is not None:
            letter = (
                b'{"at":"2026-01-01T00:00:00Z","event":7,"kind":"agents","owner_id":"%s",'
                % str(owner).encode()
            )
            letter += b'"breadcrumb_id":"%s","version":1,"session_id":"%s","attempts":4,"error":"no"}' % (
                str(UUID(int=9)).encode(),
                name.encode(),
            )
            await leases.acknowledge(lease, 7, 7, dead_letter=letter, release=True)
            assert len(await DeadLetters(store).all(owner)) == 1
        assert (await sessions.get(owner, name)).version > 10
        return [one.id async for one in store.walk(owner, Query(session_id=name))]

    async def test_P6_a_deleted_session_is_gone_from_every_key(self, store: Store) -> None:
        neighbours = [await store.create(ALICE, crumb(session="t", tags=("blue",)))]
        neighbours.append(await store.create(ALICE, crumb(schema=ANSWER, tags=("red",))))
        before = without(await keyspace(store), "ecf")
        ids = await self._full(store)
        assert await Sessions(store).delete(ALICE, "s") == len(ids) == 12
        for one in ids:
            with pytest.raises(NotFound):
                await store.get(ALICE, one)
        assert await DeadLetters(store).all(ALICE) == []
        left = _besides(await keyspace(store), before)
        # The time of the deletion stays for running turns, and used idempotency keys stay used.
        assert {kind_of(key) for key in left} <= {"y", "i", "K", "o", "k"}
        (deletions,) = [value for key, (_, value) in left.items() if kind_of(key) == "y"]
        assert set(deletions) == {b"s"}
        for neighbour in neighbours:
            assert await store.get(ALICE, neighbour.id)

    async def test_P6_a_deleted_session_is_not_found_and_cannot_be_deleted_again(self, store: Store) -> None:
        sessions = Sessions(store)
        await self._full(store)
        await self._full(store, owner=BOB)
        await sessions.delete(ALICE, "s")
        for attempt in (sessions.get(ALICE, "s"), sessions.delete(ALICE, "s")):
            with pytest.raises(NotFound):
                await attempt
        assert await ids_in(sessions) == [] and await sessions.state_for(Principal(ALICE, ALICE), "s") == {}
        assert (await store.list(ALICE, Query(session_id="s"))).items == []
        assert len(await ids_in(sessions, BOB)) == 1
        kinds = [event.kind for event in await events(store) if event.owner == ALICE]
        assert kinds.count("s") == 1

    async def test_a_deletion_with_a_wrong_version_deletes_nothing(self, store: Store) -> None:
        await self._full(store)
        version = (await Sessions(store).get(ALICE, "s")).version
        before = await keyspace(store)
        with pytest.raises(VersionMismatch):
            await Sessions(store).delete(ALICE, "s", expected_version=version - 1)
        assert await keyspace(store) == before
        await Sessions(store).delete(ALICE, "s", expected_version=version)

    async def test_P6_a_new_session_with_a_deleted_name_is_empty(self, store: Store) -> None:
        sessions = Sessions(store)
        await self._full(store)
        await sessions.delete(ALICE, "s")
        written = await store.create(
            ALICE, crumb("new", session="s"), options=CreateOptions(session_version=0)
        )
        facts = await sessions.get(ALICE, "s")
        assert (facts.version, facts.state, facts.about, facts.counts) == (1, {}, About(), {MESSAGE: 1})
        assert facts.created == written.created
        # A key of the deleted session does not replay its result in a new session of the same name.
        again = await store.create(ALICE, crumb(session="s"), idempotency_key="once")
        assert not again.replayed and (await store.get(ALICE, again.id)).session_id == "s"
        lane = store.keys.session_lane(ALICE, "s")
        assert await store.connection.call(lane, b"TTL", store.keys.session(lane, ALICE, "s")) == -1

    async def _closed(self, store: Store) -> list[UUID]:
        """A session whose deletion was killed right after it had begun."""
        ids = await self._full(store)
        await self._begin_deletion(store)
        return ids

    async def _begin_deletion(self, store: Store) -> None:
        sessions = Sessions(store)

        async def killed(*_: Any) -> int:
            raise RuntimeError("killed")

        sessions._clear = killed  # type: ignore[method-assign, assignment]
        with pytest.raises(RuntimeError, match="killed"):
            await sessions.delete(ALICE, "s")

    async def test_P6_nothing_can_be_written_into_a_session_that_is_being_deleted(self, store: Store) -> None:
        ids = await self._closed(store)
        before = await keyspace(store)
        with pytest.raises(SessionGone):
            await store.create(ALICE, crumb(session="s"))
        with pytest.raises(SessionGone):
            await store.create(ALICE, crumb(session="s"), options=CreateOptions(session_version=0))
        with pytest.raises(SessionGone):
            await store.update(ALICE, ids[0], change(title="x"))
        with pytest.raises(SessionGone):
            await store.restore(foreign(session="s"), [])
        assert await keyspace(store) == before
        with pytest.raises(NotFound):
            await Sessions(store).get(ALICE, "s")

    @pytest.mark.parametrize("by", ["housekeeping", "asking again"])
    async def test_P6_an_interrupted_deletion_is_completed(self, store: Store, by: str) -> None:
        ids = await self._closed(store)
        for one in ids[:4]:  # it got that far
            await store.delete(ALICE, one)
        sessions = Sessions(store)
        if by == "housekeeping":
            assert sum([await sessions.finish_deletions(lane) for lane in range(store.lanes)]) == 1
        else:
            assert await sessions.delete(ALICE, "s") == len(ids) - 4
        assert (await store.list(ALICE, Query(session_id="s"))).items == []
        assert await DeadLetters(store).all(ALICE) == []
        assert (
            await store.create(ALICE, crumb(session="s"), options=CreateOptions(session_version=0))
        ).session_version == 1
        assert sum([await sessions.finish_deletions(lane) for lane in range(store.lanes)]) == 0

    async def test_P6_a_turn_from_before_a_deletion_cannot_commit_after_it(self, store: Store) -> None:
        """Neither without a session, nor after the name is used again."""
        sessions = Sessions(store)
        message = await store.create(ALICE, crumb(session="s"))
        lane = store.keys.session_lane(ALICE, "s")
        lease = await Leases(store, "agents", "w", seconds=30).take(lane)
        assert lease is not None
        stale = Fence(lease, message.created, message.created, since=message.created)
        await sessions.delete(ALICE, "s")
        answer = crumb(session="s", schema=ANSWER)
        before = await keyspace(store)
        with pytest.raises(SessionGone):
            await store.create(ALICE, answer, options=CreateOptions(fence=stale))
        assert await keyspace(store) == before
        again = await store.create(ALICE, crumb(session="s"))
        with pytest.raises(SessionGone):
            await store.create(ALICE, answer, options=CreateOptions(fence=replace(stale)))
        assert (await sessions.get(ALICE, "s")).counts == {MESSAGE: 1}
        fresh = replace(stale, event=again.created, since=again.created)
        assert (await store.create(ALICE, answer, options=CreateOptions(fence=fresh))).session_version == 2

    async def test_concurrent_deletions_of_one_session_succeed(self, store: Store) -> None:
        await self._full(store)
        gone: list[int] = []

        async def delete() -> None:
            try:
                gone.append(await Sessions(store).delete(ALICE, "s"))
            except NotFound:
                gone.append(0)

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(delete)
        assert max(gone) == 12 and (await store.list(ALICE, Query(session_id="s"))).items == []

    async def test_breadcrumbs_that_expired_in_a_deleted_session_do_not_count_in_the_next(
        self, store: Store
    ) -> None:
        """It leaves with its session, and not with a later sweep."""
        sessions = Sessions(store)
        await store.create(ALICE, crumb("short", session="s", ttl_config={"duration_seconds": 0.05}))
        await store.create(ALICE, crumb("long", session="s"))
        await anyio.sleep(0.1)
        await sessions.delete(ALICE, "s")
        new = await store.create(ALICE, delta("s", a=1))
        assert sum([await purge_expired(store, lane) for lane in range(store.lanes)]) == 0
        facts = await sessions.get(ALICE, "s")
        assert (facts.version, facts.counts, facts.state) == (1, {STATE_CHANGE: 1}, {"a": 1})
        await store.update(ALICE, new.id, change(title="x"))
        assert await ids_in(sessions) == ["s"]

    @pytest.mark.parametrize("how", ["update", "delete"])
    async def test_leftovers_without_a_session_do_not_create_one(self, store: Store, how: str) -> None:
        """A context alone is no session, and neither are changes of it."""
        sessions = Sessions(store)
        contexts = [
            await store.create(ALICE, crumb(session="s", schema=CONTEXT), options=CreateOptions(counts=False))
            for _ in range(2)
        ]
        if how == "update":
            await store.update(ALICE, contexts[0].id, change(title="x"))
        else:
            await store.delete(ALICE, contexts[0].id)
        with pytest.raises(NotFound):
            await sessions.get(ALICE, "s")
        assert await ids_in(sessions) == []

    async def test_a_session_without_a_start_time_is_listed(self, store: Store) -> None:
        """One damaged session must not take the list away from its owner."""
        sessions = Sessions(store)
        written = await store.create(ALICE, crumb(session="s"))
        lane = store.keys.session_lane(ALICE, "s")
        await store.connection.call(lane, b"HDEL", store.keys.session(lane, ALICE, "s"), "created")
        assert await ids_in(sessions) == ["s"]
        assert (await sessions.get(ALICE, "s")).created == written.created

    @pytest.mark.parametrize("by", ["housekeeping", "asking again"])
    async def test_a_superseded_deletion_keeps_newer_breadcrumbs(self, store: Store, by: str) -> None:
        sessions, first = Sessions(store), Sessions(store)
        lane = store.keys.session_lane(ALICE, "s")
        await store.create(ALICE, crumb("old", session="s"))
        listed = store.list

        async def overtaken(*args: Any, **options: Any) -> Any:
            """The first deletion stops here. Another one completes, and a new message is posted."""
            store.list = listed  # type: ignore[method-assign]
            page = await store.list(*args, **options)
            if by == "housekeeping":
                assert await sessions.finish_deletions(lane) == 1
            else:
                assert await sessions.delete(ALICE, "s") == 1
            await store.create(ALICE, crumb("new", session="s"))
            return page

        store.list = overtaken  # type: ignore[method-assign]
        assert await first.delete(ALICE, "s") == 0
        assert [one.title for one in (await store.list(ALICE, Query(session_id="s"))).items] == ["new"]
        assert (await sessions.get(ALICE, "s")).version == 1

    async def test_the_record_of_a_deleted_name_expires_after_reuse(self, store: Store) -> None:
        sessions = Sessions(store)
        await store.create(ALICE, crumb(session="s"))
        await sessions.delete(ALICE, "s")
        again = await store.create(ALICE, crumb(session="s"))
        await store.delete(ALICE, again.id)
        lane = store.keys.session_lane(ALICE, "s")
        assert await store.connection.call(lane, b"EXISTS", store.keys.session(lane, ALICE, "s")) == 0
        assert await store.connection.call(lane, b"TTL", store.keys.deletions(lane, ALICE)) > 0

    # Records of deletions

    async def test_the_number_of_keys_left_by_deleted_sessions_is_bounded(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writes_module, "MAX_DELETIONS", 5)
        sessions = Sessions(store)
        await store.create(ALICE, crumb(session="neighbour"))
        before = await keyspace(store)
        for number in range(120):
            await store.create(ALICE, crumb(session=f"s{number}"))
            await sessions.delete(ALICE, f"s{number}")
        left = _besides(await keyspace(store), before)
        assert {kind_of(key) for key in left} <= {"y", "e", "c"}
        records = [value for key, (_, value) in left.items() if kind_of(key) == "y"]
        assert 1 <= len(records) <= store.lanes
        for lane_records in records:
            names = set(lane_records) - {b""}
            assert 1 <= len(names) <= 5
            assert lane_records.get(b"", 0) < min(lane_records[name] for name in names)

    async def test_the_last_deletion_of_a_name_is_recorded(self, store: Store) -> None:
        sessions = Sessions(store)
        assert await sessions.last_deletion(ALICE, "s") is None
        first = await store.create(ALICE, crumb(session="s"))
        assert (await _belonging(sessions, "s")).deleted_before == 0
        await sessions.delete(ALICE, "s")
        deleted = await sessions.last_deletion(ALICE, "s")
        assert deleted is not None and deleted > first.created
        assert await sessions.last_deletion(BOB, "s") is None
        second = await store.create(ALICE, crumb(session="s"))
        assert (await _belonging(sessions, "s")).deleted_before == deleted < second.created
        await sessions.delete(ALICE, "s")
        assert (await sessions.last_deletion(ALICE, "s") or 0) > second.created

    async def test_a_dropped_record_still_counts_as_a_deletion(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A late commit, a repeated idempotency key and an old credential are refused without the record."""
        monkeypatch.setattr(writes_module, "MAX_DELETIONS", 2)
        sessions, lane = Sessions(store), store.keys.session_lane(ALICE, "s")
        stays = await store.create(ALICE, crumb(session="stays"), options=CreateOptions(session_version=0))
        message = await store.create(ALICE, crumb(session="s"), idempotency_key="k")
        await sessions.delete(ALICE, "s")
        deleted = await sessions.last_deletion(ALICE, "s") or 0
        await _delete_others(store, lane, 4)
        assert b"s" not in await _records(store, lane)
        assert (await sessions.last_deletion(ALICE, "s") or 0) > deleted
        lease = await Leases(store, "agents", "w", seconds=30).take(lane)
        assert lease is not None
        late = Fence(lease, message.created, message.created, since=message.created)
        with pytest.raises(SessionGone):
            await store.create(ALICE, crumb(session="s", schema=ANSWER), options=CreateOptions(fence=late))
        again = await store.create(ALICE, crumb(session="s"), idempotency_key="k")
        assert not again.replayed
        with pytest.raises(SessionGone):
            await store.create(ALICE, crumb(session="s", schema=ANSWER), options=CreateOptions(fence=late))
        new = await _belonging(sessions, "s")
        assert deleted < new.deleted_before < new.created == again.created
        assert (await _belonging(sessions, "stays")).deleted_before < stays.created

    async def test_an_existing_session_is_not_affected_by_dropped_records(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writes_module, "MAX_DELETIONS", 2)
        sessions, lane = Sessions(store), store.keys.session_lane(ALICE, "s")
        message = await store.create(ALICE, crumb(session="s"), idempotency_key="k")
        await _delete_others(store, lane, 5)
        lease = await Leases(store, "agents", "w", seconds=30).take(lane)
        assert lease is not None
        commit = Fence(lease, message.created, message.created, since=message.created)
        await store.create(ALICE, crumb(session="s", schema=ANSWER), options=CreateOptions(fence=commit))
        assert (await store.create(ALICE, crumb(session="s"), idempotency_key="k")).replayed
        assert (await _belonging(sessions, "s")).deleted_before < message.created

    @pytest.mark.parametrize("how", ["written", "imported"])
    async def test_records_dropped_after_a_session_began_do_not_count_as_its_deletion(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        """A credential from before the session began stays valid, whatever others delete."""
        monkeypatch.setattr(writes_module, "MAX_DELETIONS", 2)
        sessions, lane = Sessions(store), store.keys.session_lane(ALICE, "s")
        if how == "written":
            await store.create(ALICE, crumb(session="s"))
        else:
            await store.restore(foreign(session="s"), [])
        await _delete_others(store, lane, 5)
        assert (await _belonging(sessions, "s")).deleted_before == 0
        await sessions.delete(ALICE, "s")
        deleted = await sessions.last_deletion(ALICE, "s") or 0
        if how == "written":
            await store.create(ALICE, crumb(session="s"))
        else:
            await store.restore(foreign(session="s"), [])
        await _delete_others(store, lane, 5)
        assert b"s" not in await _records(store, lane)
        assert (await _belonging(sessions, "s")).deleted_before == deleted

    async def test_a_session_from_before_deletions_were_stored_continues(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writes_module, "MAX_DELETIONS", 2)
        sessions, lane = Sessions(store), store.keys.session_lane(ALICE, "s")
        message = await store.create(ALICE, crumb(session="s"), idempotency_key="k")
        await store.connection.call(lane, b"HDEL", store.keys.session(lane, ALICE, "s"), "after")
        await _delete_others(store, lane, 5)
        assert 0 < (await _belonging(sessions, "s")).deleted_before < message.created
        assert (await store.create(ALICE, crumb(session="s"), idempotency_key="k")).replayed

    async def test_an_imported_session_does_not_revive_deleted_data(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its breadcrumbs are older than the deletion, the session itself is not."""
        monkeypatch.setattr(writes_module, "MAX_DELETIONS", 2)
        sessions, lane = Sessions(store), store.keys.session_lane(ALICE, "s")
        message = await store.create(ALICE, crumb(session="s"))
        await sessions.delete(ALICE, "s")
        deleted = await sessions.last_deletion(ALICE, "s") or 0
        await _delete_others(store, lane, 4)
        await store.restore(foreign(session="s"), [])
        lease = await Leases(store, "agents", "w", seconds=30).take(lane)
        assert lease is not None
        late = Fence(lease, message.created, message.created, since=message.created)
        with pytest.raises(SessionGone):
            await store.create(ALICE, crumb(session="s", schema=ANSWER), options=CreateOptions(fence=late))
        found = await _belonging(sessions, "s")
        assert found.created < message.created and found.deleted_before >= deleted

    @pytest.mark.parametrize("how", ["deleted", "being deleted"])
    async def test_a_deletion_recorded_by_an_older_version_is_honoured(self, store: Store, how: str) -> None:
        """1bd9899 kept `gone` in the hash of the session."""
        sessions, lane = Sessions(store), store.keys.session_lane(ALICE, "s")
        message = await store.create(ALICE, crumb(session="s"), idempotency_key="k")
        call, key = store.connection.call, store.keys.session(lane, ALICE, "s")
        if how == "deleted":
            await sessions.delete(ALICE, "s")
        else:
            await self._begin_deletion(store)
        deleted = await sessions.last_deletion(ALICE, "s") or 0
        await call(lane, b"DEL", store.keys.deletions(lane, ALICE))
        await call(lane, b"HSET", key, "gone", deleted)
        if how == "deleted":
            await call(lane, b"EXPIRE", key, 600)
        else:
            assert await sessions.finish_deletions(lane) == 1
        assert await sessions.last_deletion(ALICE, "s") == deleted
        lease = await Leases(store, "agents", "w", seconds=30).take(lane)
        assert lease is not None
        late = Fence(lease, message.created, message.created, since=message.created)
        with pytest.raises(SessionGone):
            await store.create(ALICE, crumb(session="s", schema=ANSWER), options=CreateOptions(fence=late))
        assert not (await store.create(ALICE, crumb(session="s"), idempotency_key="k")).replayed
        assert await call(lane, b"TTL", key) == -1
        assert (await _belonging(sessions, "s")).deleted_before == deleted
        await sessions.delete(ALICE, "s")
        assert await call(lane, b"EXISTS", key) == 0

    async def test_a_session_that_begins_with_a_context_counts_it_under_a_deleted_name(
        self, store: Store
    ) -> None:
        sessions = Sessions(store)
        await store.create(ALICE, crumb(session="s"))
        await sessions.delete(ALICE, "s")
        left_over = await store.create(
            ALICE, crumb(session="s", schema=CONTEXT), options=CreateOptions(counts=False)
        )
        lane = store.keys.session_lane(ALICE, "s")
        key = store.keys.session(lane, ALICE, "s")
        # Dropping the record of a deletion does not drop the facts of the existing session.
        if await store.connection.call(lane, b"TTL", key) >= 0:
            await store.connection.call(lane, b"DEL", key)
        await store.create(ALICE, crumb("said", session="s"))
        await store.delete(ALICE, left_over.id)
        assert await ids_in(sessions) == ["s"]
        assert (await sessions.get(ALICE, "s")).counts == {MESSAGE: 1}


def _besides(space: Keyspace, before: Keyspace) -> Keyspace:
    """Return the keys that are new or changed."""
    return {
        key: value
        for key, value in without(space, "ecf").items()
        if key not in before or before[key] != value
    }
