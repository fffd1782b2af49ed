"""Conversion of a store of format 1: index entries are removed in the background, and every listing stays complete."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import product

import orjson
import pytest

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.maintenance.checks import check_indexes, check_layout
from breadcrumbs.runtime.maintenance.hygiene import Hygiene
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store import conversion
from breadcrumbs.runtime.store.conversion import TagConversion, read_progress
from breadcrumbs.runtime.store.formats import adopt_format, raise_format, raise_if_unused, read_format
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.tag_index import CHAT_SCHEMAS, is_indexed
from breadcrumbs.runtime.store.worker_reports import WorkerReport
from tests.store.contract.base import ALICE, ANSWER, BOB, MESSAGE, change, crumb, everything

pytestmark = pytest.mark.anyio

TAGS = ("user:message", "workspace:docs", "extension:chat", "user:ann", "topic:x")
NOTE = "note.v1"
QUERIES = [
    Query(all_tags=all_tags, any_tags=any_tags, schema_name=schema)
    for all_tags, any_tags, schema in product(
        ((), ("workspace:docs",), ("user:message", "topic:x"), ("no:such",)),
        ((), ("extension:chat", "user:ann")),
        (None, MESSAGE, NOTE),
    )
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
async def old(server: EmbeddedServer) -> AsyncIterator[Store]:
    """A store of format 1, in which all tags of all breadcrumbs are indexed."""
    store = await Store.open(server.url, lanes=3)
    await store.connection.call(0, b"FLUSHALL")
    await store.connection.call(0, b"HSET", store.keys.meta, "format", "1", "lanes", 3, "secret", "00")
    await store.close()
    store = await Store.open(server.url)
    for number in range(30):
        for owner in (ALICE, BOB):
            schema = (MESSAGE, ANSWER, NOTE)[number % 3]
            tags = TAGS[number % 5 :]
            await store.create(owner, crumb(str(number), schema=schema, session=f"s{number % 4}", tags=tags))
    yield store
    await store.close()


async def entries(store: Store) -> int:
    """Count the entries in the indexes of unindexed tags, for messages and answers."""
    count = 0
    for owner, tag, lane in product((ALICE, BOB), TAGS, range(store.lanes)):
        for id in await store.connection.call(lane, b"ZRANGE", store.keys.by_tag(lane, owner, tag), 0, -1):
            found = [item async for item in store.walk(owner, Query()) if item.id.bytes == id]
            count += sum(not is_indexed(item.schema_name or "", tag) for item in found)
    return count


async def listed(store: Store) -> list[list[str]]:
    return [[item.title for item in await everything(store, ALICE, query, limit=4)] for query in QUERIES]


def expected(query: Query) -> list[str]:
    return [
        str(number)
        for number in reversed(range(30))
        if set(query.all_tags) <= set(TAGS[number % 5 :])
        and (not query.any_tags or set(query.any_tags) & set(TAGS[number % 5 :]))
        and query.schema_name in (None, (MESSAGE, ANSWER, NOTE)[number % 3])
    ]


async def test_a_store_of_format_1_keeps_all_entries_until_its_format_is_raised(old: Store) -> None:
    before = await entries(old)
    assert old.format == "1" and before > 0
    assert not await adopt_format(old)
    await Hygiene(old, Settings()).run_once()
    await old.create(ALICE, crumb("one more", tags=("workspace:docs",)))
    assert await entries(old) == before + 1
    assert await listed(old) == [
        ["one more", *expected(query)]
        if set(query.all_tags) <= {"workspace:docs"} and not query.any_tags and query.schema_name != NOTE
        else expected(query)
        for query in QUERIES
    ]


async def test_listings_are_complete_after_each_step(old: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "_PIECE", 2)
    monkeypatch.setattr(conversion, "_KEYS_PER_STEP", 10)
    await raise_format(old)
    work, runs, counts = TagConversion(old, grace=0), 0, [await entries(old)]
    while not work.progress.done:
        await work.run(0)  # one step
        runs += 1
        if runs % 5 == 0:
            assert await listed(old) == [expected(query) for query in QUERIES]
            counts.append(await entries(old))
    assert runs > 20 and len(set(counts)) > 3, "the steps are not small"
    assert await entries(old) == 0
    assert await listed(old) == [expected(query) for query in QUERIES]
    checked = await check_indexes(old)
    assert checked.status == "ok", checked


async def test_tags_that_are_indexed_keep_their_entries(old: Store) -> None:
    keys = [
        (lane, old.keys.by_tag(lane, ALICE, tag))
        for lane in range(old.lanes)
        for tag in ("topic:x", "user:ann")
    ]

    async def sizes() -> list[int]:
        return [await old.connection.call(lane, b"ZCARD", key) for lane, key in keys]

    before = await sizes()
    await raise_format(old)
    await TagConversion(old, grace=0).run(60)
    assert await sizes() == before
    # The note has the tag of its workspace in the index, because its schema is not declared.
    in_index = sum(
        [
            await old.connection.call(lane, b"ZCARD", old.keys.by_tag(lane, ALICE, "workspace:docs"))
            for lane in range(old.lanes)
        ]
    )
    assert in_index == sum(number % 3 == 2 and "workspace:docs" in TAGS[number % 5 :] for number in range(30))


async def test_a_killed_conversion_is_continued_by_another_process(old: Store) -> None:
    await raise_format(old)
    killed = TagConversion(old, grace=0)
    while not killed.progress.removed:
        await killed.run(0)
    other = TagConversion(old, grace=0)
    await other.run(60)
    assert other.progress.removed == 0, "two processes work at the same time"
    await old.connection.call(0, b"DEL", old.keys.conversion())  # it expires by itself
    left = await entries(old)
    await other.run(60)
    assert other.progress.done and other.progress.removed == left
    assert await entries(old) == 0
    assert (await read_progress(old)) == conversion.Progress(done=True)


async def test_nothing_is_removed_before_running_listings_have_ended(old: Store) -> None:
    await raise_format(old)
    before = await entries(old)
    work = TagConversion(old, grace=3_600)
    for _ in range(20):
        await work.run(0.2)
    assert work.progress.indexes > 0
    assert await entries(old) == before


async def test_updates_and_deletions_of_old_breadcrumbs_leave_no_entries(old: Store) -> None:
    await raise_format(old)
    await old.create(ALICE, crumb("new", tags=("workspace:docs",)))
    crumbs = [item async for item in old.walk(ALICE, Query())]
    for item in crumbs[:10]:
        await old.update(ALICE, item.id, change(tags=["topic:x"], schema_name=NOTE))
    assert [item.title for item in await everything(old, ALICE, Query(all_tags=("topic:x",)), limit=5)]
    late = await old.create(ALICE, crumb("late", tags=("workspace:docs",)))
    for id in [item.id for item in crumbs] + [late.id]:
        await old.delete(ALICE, id)
    for tag, lane in product(TAGS, range(old.lanes)):
        assert await old.connection.call(lane, b"ZCARD", old.keys.by_tag(lane, ALICE, tag)) == 0
    for lane in range(old.lanes):
        assert await old.connection.call(lane, b"EXISTS", old.keys.unindexed_tags(lane, ALICE)) == 0


async def test_a_running_process_adopts_the_raised_format(server: EmbeddedServer, old: Store) -> None:
    other = await Store.open(server.url)
    try:
        assert other.format == "1"
        await raise_if_unused(old)
        assert old.format == "2" and other.format == "1"
        await Hygiene(other, Settings()).run_once()
        assert other.format == "2"
        before = await entries(old)
        await other.create(ALICE, crumb("new", tags=("workspace:docs",)))
        assert await entries(old) == before
    finally:
        await other.close()


async def test_a_store_is_not_raised_while_workers_of_an_earlier_version_run(old: Store) -> None:
    lane, kind = 0, "agents"
    await old.connection.call(lane, b"SADD", old.keys.worker_kinds(), kind)
    await old.connection.call(lane, b"ZADD", old.keys.workers(kind), old.now() + 60_000_000, "old-worker")
    await raise_if_unused(old)
    assert await read_format(old) == "1"
    finding = await check_layout(old, fix=True)
    assert await read_format(old) == "1" and "old-worker" in finding.message
    # A version that reports its workers, but not the format that they read.
    report = orjson.loads(WorkerReport("named", "host", 1, "0.1", 0, 60.0).encode())
    del report["format"]
    stored = b"%d %s" % (old.now(), orjson.dumps(report))
    await old.connection.call(lane, b"HSET", old.keys.worker_reports(kind), "old-worker", stored)
    finding = await check_layout(old, fix=True)
    assert await read_format(old) == "1" and "named" in finding.message
    await old.connection.call(lane, b"DEL", old.keys.workers(kind), old.keys.worker_reports(kind))
    finding = await check_layout(old)
    assert await read_format(old) == "1" and "crumb doctor --fix" in (finding.advice or "")
    finding = await check_layout(old, fix=True)
    assert await read_format(old) == "2" and "format 2" in finding.message
    assert "not begun" in (await check_layout(old)).message
    await TagConversion(old, grace=0).run(60)
    assert (await check_layout(old)).message == "format 2, 3 lanes"


async def test_the_indexes_of_a_converted_store_can_be_repaired(old: Store) -> None:
    await raise_format(old)
    await TagConversion(old, grace=0).run(60)
    for lane in range(old.lanes):
        await old.connection.call(lane, b"DEL", old.keys.unindexed_tags(lane, ALICE))
    assert (await check_indexes(old)).status == "error"
    assert (await check_indexes(old, fix=True)).details["not_indexed"] > 0
    assert (await check_indexes(old)).status == "ok"
    assert await listed(old) == [expected(query) for query in QUERIES]


def test_the_runtime_reads_no_undeclared_schema_by_its_tags() -> None:
    """`newest_tagged` reads only the index of the tag, so its schema must not be declared."""
    assert "schema.def.v1" not in CHAT_SCHEMAS
