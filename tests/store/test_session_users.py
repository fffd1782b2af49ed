"""The indexes of sessions by user give the same lists as a scan of all sessions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import AlreadyExists, NotFound, SessionGone
from breadcrumbs.runtime.maintenance.checks import check_sessions
from breadcrumbs.runtime.sessions.forks import ForkOptions, fork
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store import session_users
from breadcrumbs.runtime.store.expiry import purge_expired
from breadcrumbs.runtime.store.session_states import StateEntry, StoredState, restore_state
from breadcrumbs.runtime.store.session_users import update_user_indexes
from breadcrumbs.runtime.store.store import Store
from tests.store.keyspace import keyspace, kind_of
from tests.support.servers import Cluster

OWNER = UUID("0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b")
PRINCIPAL = Principal(OWNER, OWNER)
USERS = ("ann", "bob", "ann b", "session:x")


@pytest.fixture(params=["embedded_server", "cluster_server"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    server: EmbeddedServer | Cluster = request.getfixturevalue(request.param)
    store = await Store.open(server.url, lanes=4, namespace=f"u{uuid4().hex[:8]}")
    yield store
    await store.close()


def message(session: str, user: str | None = None, **more: Any) -> BreadcrumbCreate:
    tags = [f"session:{session}", "user:message", *([] if user is None else [f"user:{user}"])]
    return BreadcrumbCreate.parse(
        {"title": "t", "schema_name": "user.message.v1", "tags": tags, "context": {"message": "x"}} | more
    )


def record_of(session: str, user: str | None) -> BreadcrumbCreate:
    return BreadcrumbCreate.parse(
        {
            "title": "t",
            "schema_name": "session.v1",
            "tags": [f"session:{session}"],
            "context": {"user_id": user},
        }
    )


async def listed(store: Store, user: str, *, limit: int = 3, indexed: bool = True) -> list[str]:
    """List all pages of the sessions of a user."""
    sessions, found, cursor = Sessions(store), list[str](), None
    while True:
        page = await sessions.page(
            OWNER,
            limit=limit,
            cursor=cursor,
            keep=lambda facts: facts.user == user,
            user=user if indexed else None,
        )
        found += [facts.id for facts in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return found


async def scanned(store: Store, user: str) -> list[str]:
    return await listed(store, user, indexed=False)


async def check(store: Store) -> None:
    for user in USERS:
        assert await listed(store, user) == await scanned(store, user)


async def indexed_names(store: Store) -> set[bytes]:
    return {
        name
        for key, (_, value) in (await keyspace(store)).items()
        if kind_of(key) == "U" and key.startswith(store.keys.prefix(0).partition(b"{")[0])
        for name in value
    }


class Steps:
    """Random writes into a few sessions."""

    def __init__(self, store: Store, chance: random.Random) -> None:
        self.store = store
        self.chance = chance

    @property
    def session(self) -> str:
        return f"s{self.chance.randrange(12)}"

    @property
    def user(self) -> str | None:
        return self.chance.choice((None, *USERS))

    async def create(self) -> None:
        await self.store.create(OWNER, message(self.session, self.user))

    async def change_user(self) -> None:
        await self.store.create(OWNER, record_of(self.session, self.user))

    async def delete_session(self) -> None:
        await Sessions(self.store).delete(OWNER, self.session)

    async def delete_breadcrumbs(self) -> None:
        """Delete all breadcrumbs of a session one by one. The session ends with the last."""
        for crumb in (await self.store.list(OWNER, Query(session_id=self.session))).items:
            await self.store.delete(OWNER, crumb.id)

    async def expire(self) -> None:
        await self.store.create(OWNER, message(self.session, self.user, ttl="2001-01-01T00:00:00Z"))
        for lane in range(self.store.lanes):
            await purge_expired(self.store, lane)

    async def copy(self) -> None:
        options = ForkOptions(user_id=self.user)
        await fork(self.store, PRINCIPAL, self.session, f"f{self.chance.randrange(6)}", options)

    async def import_one(self) -> None:
        """Import a breadcrumb of any time, also into a session that exists."""
        at = self.chance.choice((1_000_000, 2_000_000, self.store.now(), self.store.now() + 10**8))
        session, user = self.session, self.user
        new = self.chance.choice((message(session, user), record_of(session, user)))
        document = orjson.dumps(
            new.model_dump(exclude_none=True) | {"context": {**new.context, "session_id": session}}
        )
        await self.store.restore(Breadcrumb(uuid4(), OWNER, 1, at, at, 0, 0, None, None, document), [])

    async def restore_state(self) -> None:
        entries = [StateEntry("\0user_id", self.store.now() + 1, orjson.dumps(self.chance.choice(USERS)))]
        await restore_state(self.store, OWNER, StoredState(self.session, 500, entries))

    async def list_some(self) -> None:
        await listed(self.store, self.chance.choice(USERS))

    async def run(self, count: int) -> None:
        steps = (
            self.create, self.create, self.change_user, self.delete_session, self.delete_breadcrumbs, self.expire,
            self.copy, self.import_one, self.restore_state, self.list_some,
        )  # fmt: skip
        for _ in range(count):
            try:
                await self.chance.choice(steps)()
            except (NotFound, AlreadyExists, SessionGone):
                pass  # another writer deletes or has written the session


@pytest.mark.parametrize("seed", range(6))
async def test_random_writes_give_the_lists_of_a_scan(store: Store, seed: int) -> None:
    steps = Steps(store, random.Random(seed))
    for _ in range(12):
        await steps.run(8)
        await check(store)


@pytest.mark.parametrize("seed", range(3))
async def test_concurrent_writes_and_lists_leave_complete_indexes(store: Store, seed: int) -> None:
    for number in range(4):
        writers = [Steps(store, random.Random(f"{seed} {number} {writer}")) for writer in range(4)]
        await asyncio.gather(*(writer.run(10) for writer in writers))
        await check(store)


async def test_a_large_store_is_indexed_in_steps_and_lists_are_always_complete(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_users, "_STEP_SESSIONS", 0)  # eight sessions of a lane per step
    monkeypatch.setattr(session_users, "_MAX_STEPS", 2)
    for number in range(120):
        await store.create(OWNER, message(f"s{number}", USERS[number % 2]))
    results = []
    for _ in range(10):
        results.append(await update_user_indexes(store, OWNER))
        assert len(await listed(store, "ann")) == 60
    assert results[0] is False and results[-1] is True
    assert len(await indexed_names(store)) == 120


async def test_sessions_of_one_time_are_indexed_together(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import can write many sessions with the same time. A step must not stop between them."""
    monkeypatch.setattr(session_users, "_STEP_SESSIONS", 0)
    for number in range(60):
        tags = [f"session:s{number}", "user:ann"]
        document = orjson.dumps({"title": "t", "tags": tags, "context": {"session_id": f"s{number}"}})
        await store.restore(Breadcrumb(uuid4(), OWNER, 1, 7, 7, 0, 0, None, None, document), [])
    assert await update_user_indexes(store, OWNER)
    assert len(await indexed_names(store)) == 60


async def test_sessions_from_the_future_do_not_hide_later_writes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_users, "_STEP_SESSIONS", 0)
    for number in range(60):
        await import_at(store, f"s{number}", store.now() + 10**9)
    with monkeypatch.context() as patch:
        patch.setattr(session_users, "_MAX_STEPS", 1)
        for number in range(8):
            await update_user_indexes(store, OWNER)
            await store.create(OWNER, message(f"later{number}", "ann"))
    await check(store)


async def test_a_write_needs_no_index_and_the_next_list_adds_it(store: Store) -> None:
    await store.create(OWNER, message("a", "ann"))
    assert await indexed_names(store) == set()
    assert await listed(store, "ann") == ["a"]
    await store.create(OWNER, message("b", "ann"))
    assert await indexed_names(store) == {b"a"}
    assert await listed(store, "ann") == ["b", "a"]
    assert await indexed_names(store) == {b"a", b"b"}


async def test_the_index_alone_answers_if_it_is_complete(store: Store) -> None:
    await store.create(OWNER, message("a", "ann"))
    assert await listed(store, "ann") == ["a"]
    lane = store.keys.session_lane(OWNER, "a")
    await store.connection.call(lane, b"DEL", store.keys.sessions_of_user(lane, OWNER, "ann"))
    assert await listed(store, "ann") == [] and await scanned(store, "ann") == ["a"]


async def test_a_deleted_session_leaves_nothing_in_the_indexes(store: Store) -> None:
    for session in ("a", "b"):
        written = await store.create(OWNER, message(session, "ann"))
    assert await listed(store, "ann") == ["b", "a"]
    await Sessions(store).delete(OWNER, "a")
    await store.delete(OWNER, written.id)
    assert await indexed_names(store) == set()


async def test_a_change_of_the_user_moves_the_session(store: Store) -> None:
    await store.create(OWNER, message("a", "ann"))
    assert await listed(store, "ann") == ["a"]
    await store.create(OWNER, record_of("a", "bob"))
    assert await listed(store, "bob") == ["a"] and await listed(store, "ann") == []
    lane = store.keys.session_lane(OWNER, "a")
    left = await store.connection.call(lane, b"EXISTS", store.keys.sessions_of_user(lane, OWNER, "ann"))
    assert left == 0


async def test_a_session_that_an_earlier_version_deleted_is_not_listed(store: Store) -> None:
    """An earlier version does not know the field `user`, so it leaves the entry in the index."""
    written = await store.create(OWNER, message("a", "ann"))
    assert await listed(store, "ann") == ["a"]
    lane = store.keys.session_lane(OWNER, "a")
    await store.connection.call(lane, b"HDEL", store.keys.session(lane, OWNER, "a"), b"user")
    await store.delete(OWNER, written.id)
    assert await indexed_names(store) == {b"a"}
    assert await listed(store, "ann") == []
    await store.create(OWNER, message("a", "bob"))
    assert await listed(store, "ann") == [] and await listed(store, "bob") == ["a"]


async def test_a_session_without_a_stored_user_belongs_to_the_user_of_its_first_message(store: Store) -> None:
    """Stores of earlier versions: the user is only in the message."""
    await store.create(OWNER, message("a", "ann"))
    lane = store.keys.session_lane(OWNER, "a")
    await store.connection.call(lane, b"DEL", store.keys.state(lane, OWNER, "a"))
    assert await listed(store, "ann") == ["a"]
    assert await indexed_names(store) == {b"a"}


async def test_owners_have_separate_indexes(store: Store) -> None:
    await store.create(OWNER, message("a", "ann"))
    other = uuid4()
    await store.create(other, message("b", "ann"))
    assert await listed(store, "ann") == ["a"]
    assert await update_user_indexes(store, other)
    assert await listed(store, "ann") == ["a"]


@pytest.mark.parametrize("limit", [1, 5, 30, 100])
async def test_sessions_of_one_lane_are_listed_completely(store: Store, limit: int) -> None:
    """A list reads a part of each lane first. All new sessions can be in one lane, or have the same time."""
    in_lane = [f"s{n}" for n in range(400) if store.keys.session_lane(OWNER, f"s{n}") == 1][:60]
    others = [f"s{n}" for n in range(400) if store.keys.session_lane(OWNER, f"s{n}") != 1][:60]
    for session in (*others, *in_lane[:40]):
        await store.create(OWNER, message(session, "ann"))
    for session in in_lane[40:]:
        await import_at(store, session, 5)
    expected = [*reversed(in_lane[:40]), *reversed(others), *sorted(in_lane[40:], reverse=True)]
    assert await listed(store, "ann", limit=limit) == expected
    assert await listed(store, "ann", limit=limit, indexed=False) == expected


async def test_doctor_finds_and_repairs_wrong_indexes(store: Store) -> None:
    for session in ("a", "b"):
        await store.create(OWNER, message(session, "ann"))
    assert await listed(store, "ann") == ["b", "a"]
    assert (await check_sessions(store)).status == "ok"
    lane = store.keys.session_lane(OWNER, "a")
    await store.connection.call(lane, b"ZREM", store.keys.sessions_of_user(lane, OWNER, "ann"), "a")
    lane = store.keys.session_lane(OWNER, "gone")
    await store.connection.call(lane, b"ZADD", store.keys.sessions_of_user(lane, OWNER, "bob"), 5, "gone")
    finding = await check_sessions(store)
    assert finding.status == "error" and finding.details["wrong"] == 2
    await check_sessions(store, fix=True)
    assert (await check_sessions(store)).status == "ok"
    assert await listed(store, "ann") == ["b", "a"]
    assert await indexed_names(store) == {b"a", b"b"}


# Writes between the two steps of an update


def between(monkeypatch: pytest.MonkeyPatch, action: Callable[[], Awaitable[Any]]) -> None:
    """Run an action once, after sessions were read and before they are added."""
    find_users, ran = session_users._users, list[bool]()

    async def find_users_then_act(*arguments: Any) -> Any:
        users = await find_users(*arguments)
        if not ran:
            ran.append(True)
            await action()
        return users

    monkeypatch.setattr(session_users, "_users", find_users_then_act)


def of_one_lane(store: Store) -> tuple[str, str]:
    first = "a"
    lane = store.keys.session_lane(OWNER, first)
    return first, next(f"b{n}" for n in range(100) if store.keys.session_lane(OWNER, f"b{n}") == lane)


async def import_at(store: Store, session: str, at: int) -> None:
    tags = [f"session:{session}", "user:ann"]
    document = orjson.dumps({"title": "t", "tags": tags, "context": {"session_id": session}})
    await store.restore(Breadcrumb(uuid4(), OWNER, 1, at, at, 0, 0, None, None, document), [])


async def test_an_import_during_an_update_is_not_missed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = of_one_lane(store)
    await store.create(OWNER, message(first, "ann"))
    between(monkeypatch, lambda: import_at(store, second, 5))
    assert await listed(store, "ann") == [first, second]


async def test_an_import_is_not_missed_if_another_reader_restores_the_mark(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = of_one_lane(store)
    await store.create(OWNER, message(first, "ann"))

    async def import_and_begin_again() -> None:
        await import_at(store, second, 5)
        with monkeypatch.context() as patch:
            patch.setattr(session_users, "_MAX_STEPS", 1)
            assert not await update_user_indexes(store, OWNER)

    between(monkeypatch, import_and_begin_again)
    assert await listed(store, "ann") == [first, second]


async def test_a_session_that_is_deleted_during_an_update_is_not_added(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create(OWNER, message("a", "ann"))
    between(monkeypatch, lambda: Sessions(store).delete(OWNER, "a"))
    assert await listed(store, "ann") == []
    assert await indexed_names(store) == set()
    lane = store.keys.session_lane(OWNER, "a")
    assert await store.connection.call(lane, b"EXISTS", store.keys.session(lane, OWNER, "a")) == 0
