"""The store against a model that is nothing but a dictionary, in any order of operations Hypothesis thinks of."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, get_args
from uuid import UUID, uuid4

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.query import Page, Query, Sort
from breadcrumbs.runtime.errors import (
    AlreadyExists,
    IdempotencyMismatch,
    NotFound,
    SessionConflict,
    VersionMismatch,
)
from breadcrumbs.runtime.store.conversion import TagConversion
from breadcrumbs.runtime.store.expiry import purge_expired
from breadcrumbs.runtime.store.formats import raise_format
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import AGENT, ALICE, BOB, everything
from tests.store.keyspace import events, keys_that_mention, keyspace, kind_of, without

_T = TypeVar("_T")

OWNERS = [ALICE, BOB]
SESSIONS = ["s", "s:1", "*"]
SCHEMAS = ["user.message.v1", "user.message.v1:x", "é"]
TAGS = ["a", "a:b", "{L00}", "workspace:w"]  # the last one is indexed, except for user.message.v1
LONG_AGO = "2001-01-01T00:00:00Z"

sessions = st.none() | st.sampled_from(SESSIONS)
schemas = st.none() | st.sampled_from(SCHEMAS)
tags = st.lists(st.sampled_from(TAGS), unique=True)
contexts: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from("xyz"), st.none() | st.integers(-9, 9) | st.just([]) | st.just({}), max_size=2
)
queries = st.builds(
    Query,
    schema_name=schemas,
    session_id=sessions,
    all_tags=st.lists(st.sampled_from([*TAGS, "session:s", "session:*"]), unique=True, max_size=2).map(tuple),
    any_tags=st.lists(
        st.sampled_from([*TAGS, "session:s", "session:s:1", "no"]), unique=True, max_size=3
    ).map(tuple),
    sort=st.none() | st.sampled_from(get_args(Sort)),
)


@dataclass
class Known:
    """The model's copy of one breadcrumb."""

    owner: UUID
    versions: list[dict[str, Any]]
    created: int
    updated: int
    first_version: int = 1
    reads_left: int | None = None
    alive: bool = True
    swept: bool = False

    @property
    def newest(self) -> dict[str, Any]:
        return self.versions[-1]

    @property
    def version(self) -> int:
        return self.first_version + len(self.versions) - 1

    @property
    def session(self) -> str | None:
        session: str | None = self.newest["context"].get("session_id")
        return session


@dataclass
class Model:
    crumbs: dict[tuple[UUID, UUID], Known] = field(default_factory=dict)
    keys: dict[tuple[UUID, str | None, str], tuple[UUID, dict[str, Any]]] = field(default_factory=dict)
    writes: int = 0

    def find(self, owner: UUID, query: Query) -> list[UUID]:
        found = [
            (id, known)
            for (of, id), known in self.crumbs.items()
            if known.alive
            and of == owner
            and (query.schema_name is None or known.newest.get("schema_name") == query.schema_name)
            and (query.session_id is None or known.session == query.session_id)
            and set(query.all_tags) <= set(known.newest["tags"])
            and (not query.any_tags or set(query.any_tags) & set(known.newest["tags"]))
            and (query.updated_since is None or known.updated >= query.updated_since)
        ]
        sort = query.sort or ("-created_at" if query.updated_since is None else "-updated_at")
        found.sort(
            key=lambda entry: (entry[1].created if "created" in sort else entry[1].updated, entry[0].bytes),
            reverse=sort.startswith("-"),
        )
        return [id for id, _ in found]


def expected_document(
    schema: str | None, session: str | None, tags: list[str], context: dict[str, Any], title: str
) -> dict[str, Any]:
    document: dict[str, Any] = {"title": title, "tags": list(tags), "context": dict(context)}
    if schema is not None:
        document["schema_name"] = schema
    if session is not None:
        document["tags"].append(f"session:{session}")
        document["context"]["session_id"] = session
    return document


class StoreMachine(RuleBasedStateMachine):
    url = ""
    known = Bundle("known")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model = Model()

    def run(self, action: Coroutine[Any, Any, _T]) -> _T:
        return self.loop.run_until_complete(action)  # a runner would handle signals at every step

    @initialize(lanes=st.sampled_from([1, 2, 5]), format=st.sampled_from(["1", "2"]))
    def open(self, lanes: int, format: str) -> None:
        async def opened() -> Store:
            namespace = f"m{uuid4().hex[:8]}"
            store = await Store.open(self.url, namespace=namespace, lanes=lanes)
            await store.connection.call(0, b"FLUSHALL")
            await store.connection.call(
                0, b"HSET", store.keys.meta, "format", format, "lanes", lanes, "secret", "00"
            )
            await store.close()
            return await Store.open(self.url, namespace=namespace)

        self.store = self.run(opened())

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                self.run(self.leave_nothing())
        finally:
            self.loop.close()

    async def leave_nothing(self) -> None:
        """Every write made one event, and when everything is deleted or swept no key is left of it."""
        try:
            assert len(await events(self.store)) == self.model.writes
            for (owner, id), known in self.model.crumbs.items():
                if known.alive:
                    await self.store.delete(owner, id)
            await self._sweep()
            left = await keyspace(self.store)
            assert {kind_of(key) for key in left} <= {"e", "c", "i", "meta", "H", "X"}
            for _, id in self.model.crumbs:
                assert keys_that_mention(without(left, "ei"), id) == []
        finally:
            await self.store.close()

    # Writing

    @rule(
        target=known,
        owner=st.sampled_from(OWNERS),
        schema=schemas,
        session=sessions,
        session_by_tag=st.booleans(),
        tags=tags,
        context=contexts,
        key=st.none() | st.sampled_from(["k", "l"]),
        title=st.sampled_from(["", "t", "🙂"]),
        limit=st.sampled_from([None, None, None, "reads", "past"]),
    )
    def create(
        self,
        owner: UUID,
        schema: str | None,
        session: str | None,
        session_by_tag: bool,
        tags: list[str],
        context: dict[str, Any],
        key: str | None,
        title: str,
        limit: str | None,
    ) -> Any:
        document = expected_document(schema, session, tags, context, title)
        sent = dict(document)
        if session is not None and not session_by_tag:
            sent["tags"] = list(tags)
        elif session is not None:
            sent["context"] = dict(context)
        if limit == "reads":
            sent |= {"ttl_type": "usage", "ttl_config": {"max_reads": 2}}
            document |= {"ttl_type": "usage", "ttl_config": {"max_reads": 2}, "ttl_source": "explicit"}
        elif limit == "past":
            sent |= {"ttl": LONG_AGO}
            document |= {"ttl": "2001-01-01T00:00:00.000000Z", "ttl_source": "explicit"}
        new = BreadcrumbCreate.parse(sent)
        used = self.model.keys.get((owner, session, key)) if key is not None else None
        if used is not None and used[1] != document:
            try:
                self.run(self.store.create(owner, new, by=AGENT, idempotency_key=key))
            except IdempotencyMismatch:
                return multiple()
            raise AssertionError("a key was used for two bodies")
        written = self.run(self.store.create(owner, new, by=AGENT, idempotency_key=key))
        assert written.version == 1
        assert written.replayed == (used is not None)
        if used is not None:
            assert written.id == used[0]
            return multiple()
        if key is not None:
            self.model.keys[owner, session, key] = (written.id, document)
        assert (owner, written.id) not in self.model.crumbs
        self.model.writes += 1
        self.model.crumbs[owner, written.id] = Known(
            owner,
            [document],
            written.created,
            written.updated,
            reads_left=2 if limit == "reads" else None,
            alive=limit != "past",
        )
        return (owner, written.id)

    @rule(
        place=known,
        changes=st.fixed_dictionaries(
            {},
            optional={
                "title": st.sampled_from(["u", "v"]),
                "schema_name": schemas,
                "tags": tags,
                "context": contexts,
                "description": st.sampled_from(["d", None]),
            },
        ).filter(bool),
        based_on=st.sampled_from(["anything", "anything", "current", "stale"]),
    )
    def update(self, place: tuple[UUID, UUID], changes: dict[str, Any], based_on: str) -> None:
        known = self.model.crumbs[place]
        change = BreadcrumbUpdate.parse(changes)
        expected = {"anything": None, "current": known.version, "stale": known.version - 1}[based_on]
        try:
            written = self.run(self.store.update(*place, change, expected_version=expected))
        except NotFound:
            assert not known.alive
            return
        except VersionMismatch as mismatch:
            assert known.alive and based_on == "stale"
            assert mismatch.current == known.version
            return
        assert known.alive and based_on != "stale"
        after = dict(known.newest)
        for name, value in changes.items():
            if value is None:
                after.pop(name, None)
            else:
                after[name] = value
        if known.session is not None:
            if "tags" in changes:
                after["tags"] = [*changes["tags"], f"session:{known.session}"]
            if "context" in changes:
                after["context"] = changes["context"] | {"session_id": known.session}
        known.versions.append(after)
        assert written.version == known.version
        assert written.created == known.created
        assert written.updated > known.updated
        known.updated = written.updated
        self.model.writes += 1

    @rule(place=known, session=st.sampled_from([*SESSIONS, "elsewhere"]))
    def move_to_another_session(self, place: tuple[UUID, UUID], session: str) -> None:
        known = self.model.crumbs[place]
        if known.session == session:
            return
        try:
            self.run(self.store.update(*place, BreadcrumbUpdate.parse({"tags": [f"session:{session}"]})))
        except NotFound:
            assert not known.alive
        except SessionConflict:
            assert known.alive
        else:
            raise AssertionError("a breadcrumb moved to another session")

    @rule(place=known)
    def delete(self, place: tuple[UUID, UUID]) -> None:
        known = self.model.crumbs[place]
        try:
            self.run(self.store.delete(*place))
        except NotFound:
            assert not known.alive
            return
        assert known.alive
        known.alive, known.swept = False, True
        self.model.writes += 1

    @rule(place=known)
    def expire(self, place: tuple[UUID, UUID]) -> None:
        known = self.model.crumbs[place]
        try:
            self.run(self.store.update(*place, BreadcrumbUpdate.parse({"ttl": LONG_AGO})))
        except NotFound:
            assert not known.alive
            return
        assert known.alive
        known.alive = False
        self.model.writes += 1

    @rule()
    def convert(self) -> None:
        """Raise the format, and remove the index entries that the new format does not need."""
        self.run(raise_format(self.store))
        self.run(TagConversion(self.store, grace=0).run(60))

    @rule()
    def sweep(self) -> None:
        self.run(self._sweep())

    async def _sweep(self) -> None:
        purged = sum([await purge_expired(self.store, lane) for lane in range(self.store.lanes)])
        due = [known for known in self.model.crumbs.values() if not known.alive and not known.swept]
        assert purged == len(due)
        self.model.writes += purged
        for known in due:
            known.swept = True

    @rule(
        target=known, place=known, other_owner=st.booleans(), keep_id=st.booleans(), keep_times=st.booleans()
    )
    def restore(self, place: tuple[UUID, UUID], other_owner: bool, keep_id: bool, keep_times: bool) -> Any:
        """Put a copy of something in: under its id or a foreign one, here or with the other owner."""
        known = self.model.crumbs[place]
        if not known.alive or known.reads_left is not None:
            return multiple()
        newest, *older = self.run(self.store.history(*place))
        owner = OWNERS[1 - OWNERS.index(place[0])] if other_owner else place[0]
        id = place[1] if keep_id else uuid4()
        shift = 0 if keep_times else 1_000

        def copied(version: Breadcrumb) -> Breadcrumb:
            return replace(
                version,
                id=id,
                owner_id=owner,
                created=version.created - shift,
                updated=version.updated - shift,
            )

        there = self.model.crumbs.get((owner, id))
        try:
            self.run(self.store.restore(copied(newest), [copied(version) for version in older]))
        except AlreadyExists:
            assert there is not None and (there.alive or not there.swept)
            return multiple()
        assert there is None or there.swept
        self.model.writes += 1
        self.model.crumbs[owner, id] = Known(
            owner,
            list(known.versions),
            known.created - shift,
            known.updated - shift,
            first_version=known.first_version,
        )
        return (owner, id)

    # Reading

    @rule(place=known)
    def get(self, place: tuple[UUID, UUID]) -> None:
        known = self.model.crumbs[place]
        try:
            found = self.run(self.store.get(*place))
        except NotFound:
            assert not known.alive
            return
        assert known.alive
        self.check(found, known)
        if known.reads_left is not None:
            assert found.max_reads == known.reads_left
            known.reads_left -= 1
            known.alive = known.reads_left > 0

    @rule(place=known)
    def history(self, place: tuple[UUID, UUID]) -> None:
        known = self.model.crumbs[place]
        try:
            found = self.run(self.store.history(*place))
        except NotFound:
            assert not known.alive
            return
        assert known.alive
        assert [version.document for version in found] == known.versions[::-1]
        numbers = list(range(known.version, known.first_version - 1, -1))
        assert [version.version for version in found] == numbers
        self.check(found[0], known)
        for version in found:
            assert self.run(self.store.get_version(*place, version.version)).json == version.json

    @rule(
        owner=st.sampled_from(OWNERS),
        query=queries,
        limit=st.integers(1, 7),
        since=st.none() | st.floats(0, 1),
        offset=st.integers(0, 3),
    )
    def list(self, owner: UUID, query: Query, limit: int, since: float | None, offset: int) -> None:
        moments = sorted(known.updated for known in self.model.crumbs.values())
        if since is not None and moments:
            query = replace(query, updated_since=moments[int(since * (len(moments) - 1))])
        found = self.run(everything(self.store, owner, replace(query, offset=offset), limit=limit))
        assert [item.id for item in found] == self.model.find(owner, query)[offset:]
        for item in found:
            self.check(item, self.model.crumbs[owner, item.id])

    @rule(
        owner=st.sampled_from(OWNERS),
        session=st.sampled_from(SESSIONS),
        schema=st.sampled_from(SCHEMAS),
        limit=st.integers(1, 4),
    )
    def recent(self, owner: UUID, session: str, schema: str, limit: int) -> None:
        found = self.run(self.store.recent(owner, session, schema, limit))
        expected = self.model.find(owner, Query(session_id=session, schema_name=schema))
        assert [item.id for item in found] == expected[:limit]

    @invariant()
    def everything_is_listed_once(self) -> None:
        if hasattr(self, "store"):
            pages = self.run(self.first_pages())
            for owner, page in zip(OWNERS, pages, strict=True):
                assert [item.id for item in page.items] == self.model.find(owner, Query())

    async def first_pages(self) -> Sequence[Page]:
        return await asyncio.gather(*(self.store.list(owner, Query()) for owner in OWNERS))

    def check(self, found: Breadcrumb, known: Known) -> None:
        assert found.document == known.newest
        assert found.owner_id == known.owner
        assert (found.version, found.created, found.updated) == (known.version, known.created, known.updated)


def test_the_store_behaves_like_a_simple_model(embedded_server: EmbeddedServer) -> None:
    class Machine(StoreMachine):
        url = embedded_server.url

    usual = settings().max_examples
    run_state_machine_as_test(Machine, settings=settings(max_examples=2 * usual, stateful_step_count=40))
