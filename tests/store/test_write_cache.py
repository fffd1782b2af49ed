"""The write cache: a process reads its own writes from memory, but only while they exist in the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.store import write_cache
from breadcrumbs.runtime.store.batched_reads import newest_of, version_of
from breadcrumbs.runtime.store.store import Store
from tests.support.conversations import opened

OWNER, AGENT = UUID(int=7), UUID(int=8)


class Counting:
    """Passes on, and notes how many bytes were read."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.bytes = 0

    async def call_all(self, commands: Any) -> list[Any]:
        replies: list[Any] = await self._inner.call_all(commands)
        self.bytes += sum(len(reply) for reply in replies if isinstance(reply, bytes))
        return replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@asynccontextmanager
async def two_processes(server: EmbeddedServer) -> AsyncIterator[tuple[Store, Store]]:
    async with opened(server.url, lanes=4) as mine, opened(
        server.url, lanes=4, namespace=mine.keys.meta.partition(b":")[0].decode()
    ) as theirs:  # fmt: skip
        yield mine, theirs


def note(text: str, **fields: Any) -> BreadcrumbCreate:
    return BreadcrumbCreate.parse(
        {"tags": ["session:s"], "context": {"text": text, "padding": "x" * 5_000}, **fields}
    )


async def read(store: Store, id: UUID, version: int = 1) -> tuple[Breadcrumb | None, Breadcrumb | None]:
    one, newest = version_of(store, OWNER, id, version), newest_of(store, OWNER, id)
    return await store.read_batch(one, newest)


async def test_a_cached_version_equals_the_stored_one_and_is_not_read_again(
    embedded_server: EmbeddedServer,
) -> None:
    async with two_processes(embedded_server) as (mine, theirs):
        written = await mine.create(OWNER, note("a", sensitivity="pii"), by=AGENT)
        mine.connection, theirs.connection = Counting(mine.connection), Counting(theirs.connection)
        assert await read(mine, written.id) == await read(theirs, written.id)
        ours, others = await read(mine, written.id), await read(theirs, written.id)
        assert ours[0] is not None and others[0] is not None
        assert ours[0].document == others[0].document
        assert mine.connection.bytes < 1_000 < theirs.connection.bytes


async def test_a_newer_version_of_another_writer_is_read(embedded_server: EmbeddedServer) -> None:
    async with two_processes(embedded_server) as (mine, theirs):
        written = await mine.create(OWNER, note("a"))
        await theirs.update(OWNER, written.id, BreadcrumbUpdate(context={"text": "b"}))
        old, newest = await read(mine, written.id)
        assert old is not None and old.context["text"] == "a"
        assert newest is not None and (newest.version, newest.context["text"]) == (2, "b")


@pytest.mark.parametrize("again", [False, True])
async def test_a_deleted_version_is_gone_even_if_its_id_and_version_exist_again(
    embedded_server: EmbeddedServer, again: bool
) -> None:
    async with two_processes(embedded_server) as (mine, theirs):
        id = derived_id(1, "the", "same")
        sessionless = {"tags": [], "context": {"text": "a"}}
        await mine.create(OWNER, BreadcrumbCreate.parse(sessionless), id=id)
        await theirs.delete(OWNER, id)
        if not again:
            assert await read(mine, id) == (None, None)
            return
        await theirs.create(OWNER, BreadcrumbCreate.parse({**sessionless, "context": {"text": "b"}}), id=id)
        for found in await read(mine, id):
            assert found is not None and found.context["text"] == "b"


async def test_an_expired_version_is_not_returned_from_the_cache(
    embedded_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_processes(embedded_server) as (mine, _):
        lasting = await mine.create(OWNER, note("a"))
        brief = await mine.create(OWNER, note("b", ttl_type="duration", ttl_config={"duration_seconds": 100}))
        now = mine.now()
        monkeypatch.setattr(mine.clock, "now", lambda: now + 101_000_000)
        assert await read(mine, brief.id) == (None, None)
        assert None not in await read(mine, lasting.id)
        # Streams do not ask the server, so they get only permanent versions from the cache.
        assert mine.write_cache.get_permanent(OWNER, brief.id, 1, brief.created) is None
        assert mine.write_cache.get_permanent(OWNER, lasting.id, 1, lasting.created) is not None
        assert mine.write_cache.get_permanent(OWNER, lasting.id, 1, lasting.created + 1) is None
        assert mine.write_cache.get_permanent(OWNER, lasting.id, 2, lasting.created) is None


async def test_the_cache_keeps_only_recent_and_small_versions(
    embedded_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_cache, "_MAX_ENTRIES", 3)
    async with two_processes(embedded_server) as (mine, _):
        ids = [(await mine.create(OWNER, note(str(number)))).id for number in range(5)]
        assert [mine.write_cache.has(OWNER, id) for id in ids] == [False, False, True, True, True]
        large = await mine.create(OWNER, note("x" * 70_000))
        assert not mine.write_cache.has(OWNER, large.id)
        assert not mine.write_cache.has(AGENT, ids[-1])
        for number, id in enumerate(ids):
            found, _ = await read(mine, id)
            assert found is not None and found.context["text"] == str(number)
