"""Writes with a lost reply: the server ran them, but the caller got an error. Each happens exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID

import pytest

from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import NotFound, StoreUnavailable, VersionMismatch
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import AGENT, ALICE, OTHER_AGENT, change, crumb, everything
from tests.store.contract.importing import foreign
from tests.store.keyspace import events
from tests.support.servers import Server


class Line:
    """A proxy in front of a server that can swallow replies and hang up."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._cut: Callable[[bytes], bool] | None = None
        self._times = 0
        self._after: Callable[[], Awaitable[object]] | None = None
        self.cuts = 0

    @property
    def url(self) -> str:
        assert self._listener is not None
        return f"redis://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def cut_after(
        self, marker: bytes, *, times: int = 1, then: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        """Let the next request that holds `marker` through, but not its answer; do something else meanwhile."""
        self._cut, self._times, self._after = (lambda request: marker in request), times, then

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(self._server.host, self._server.port)
        swallowing = False

        async def requests() -> None:
            nonlocal swallowing
            while data := await reader.read(1 << 20):
                if self._cut is not None and self._times and self._cut(data):
                    self._times -= 1
                    swallowing = True
                ours.write(data)

        async def replies() -> None:
            while data := await theirs.read(1 << 20):
                if swallowing:
                    self.cuts += 1
                    if self._after is not None:
                        await self._after()
                    return
                writer.write(data)

        tasks = [asyncio.create_task(requests()), asyncio.create_task(replies())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in (writer, ours):
                stream.close()

    async def __aenter__(self) -> Line:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        await asyncio.sleep(0.01)


@pytest.fixture
async def line(standalone_server: Server) -> AsyncIterator[Line]:
    standalone_server.flush()
    async with Line(standalone_server) as line:
        yield line


@pytest.fixture
async def store(line: Line) -> AsyncIterator[Store]:
    store = await Store.open(line.url)
    # Every script is known to the server, so that one request is one try.
    written = await store.create(ALICE, crumb("warm", ttl_config={"max_reads": 9}))
    await store.update(ALICE, written.id, change(title="warmer"))
    await store.get(ALICE, written.id)
    await store.delete(ALICE, written.id)
    await store.restore(warm := foreign("warm"), [])
    await store.delete(ALICE, warm.id)
    yield store
    await store.close()


@pytest.fixture
async def bystander(standalone_server: Server, store: Store) -> AsyncIterator[Store]:
    """A store with a good line to the same server."""
    bystander = await Store.open(standalone_server.url)
    yield bystander
    await bystander.close()


async def happened(store: Store, id: UUID) -> list[tuple[str, int]]:
    return [(event.kind, event.version) for event in await events(store) if event.id == id]


@pytest.mark.parametrize("key", ["k", None])
@pytest.mark.parametrize("session", ["s", None])
async def test_a_create_happens_once(line: Line, store: Store, key: str | None, session: str | None) -> None:
    line.cut_after(b"MARK")
    written = await store.create(ALICE, crumb("MARK", session=session), idempotency_key=key)
    assert line.cuts == 1
    assert not written.replayed, "this call wrote it"
    assert [item.id for item in await everything(store, ALICE, Query())] == [written.id]
    assert await happened(store, written.id) == [("c", 1)]


async def test_a_failed_create_can_be_repeated_with_its_key(line: Line, store: Store) -> None:
    line.cut_after(b"MARK", times=2)
    with pytest.raises(StoreUnavailable):
        await store.create(ALICE, crumb("MARK"), idempotency_key="k")
    assert line.cuts == 2
    written = await store.create(ALICE, crumb("MARK"), idempotency_key="k")
    assert written.replayed
    assert [item.id for item in await everything(store, ALICE, Query())] == [written.id]


@pytest.mark.parametrize("expected", [1, None])
async def test_an_update_happens_once(line: Line, store: Store, expected: int | None) -> None:
    id = (await store.create(ALICE, crumb("one"))).id
    line.cut_after(b"MARK")
    written = await store.update(ALICE, id, change(title="MARK"), by=AGENT, expected_version=expected)
    assert line.cuts == 1
    assert written.version == 2
    assert await happened(store, id) == [("c", 1), ("u", 2)]
    assert len(await store.history(ALICE, id)) == 2
    assert written.updated == (await store.get(ALICE, id)).updated


@pytest.mark.parametrize("expected", [1, None])
async def test_an_update_happens_once_if_another_writer_follows(
    line: Line, store: Store, bystander: Store, expected: int | None
) -> None:
    id = (await store.create(ALICE, crumb("one"))).id

    async def others() -> None:
        for title in ("three", "four"):
            await bystander.update(ALICE, id, change(title=title), by=OTHER_AGENT)

    line.cut_after(b"MARK", then=others)
    written = await store.update(ALICE, id, change(title="MARK"), by=AGENT, expected_version=expected)
    assert line.cuts == 1
    assert written.version == 2
    assert [v.title for v in await store.history(ALICE, id)] == ["four", "three", "MARK", "one"]


async def test_an_update_that_did_not_run_is_not_mistaken_for_another(
    line: Line, store: Store, bystander: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = (await store.create(ALICE, crumb("one"))).id
    run = store.connection.run
    failed = False

    async def overtaken(
        lane: int, script: object, keys: list[bytes], args: list[bytes | str | int]
    ) -> object:
        nonlocal failed
        if not failed:
            failed = True
            await bystander.update(ALICE, id, change(title="other"), by=OTHER_AGENT)
            raise StoreUnavailable("lost before it was sent")
        return await run(lane, script, keys, args)  # type: ignore[arg-type]

    monkeypatch.setattr(store.connection, "run", overtaken)
    assert (await store.update(ALICE, id, change(title="mine"), by=AGENT)).version == 3
    assert [v.title for v in await store.history(ALICE, id)] == ["mine", "other", "one"]
    failed = False
    with pytest.raises(VersionMismatch):
        await store.update(ALICE, id, change(title="mine"), by=AGENT, expected_version=3)


async def test_a_delete_happens_once_without_an_error(line: Line, store: Store) -> None:
    id = (await store.create(ALICE, crumb("MARK", session="s"))).id
    line.cut_after(b"session:s")
    await store.delete(ALICE, id)
    assert line.cuts == 1
    assert await happened(store, id) == [("c", 1), ("d", 1)]
    with pytest.raises(NotFound):
        await store.delete(ALICE, id)


async def test_reads_are_retried(line: Line, store: Store) -> None:
    id = (await store.create(ALICE, crumb("MARK", session="s"))).id
    for read in (
        lambda: store.get(ALICE, id),
        lambda: store.history(ALICE, id),
        lambda: store.get_version(ALICE, id, 1),
    ):
        cuts = line.cuts
        line.cut_after(id.bytes)
        await read()
        assert line.cuts == cuts + 1


async def test_an_import_with_a_lost_reply_reports_it_and_is_stored_once(line: Line, store: Store) -> None:
    item = foreign("MARK", session="s")
    line.cut_after(b"MARK")
    with pytest.raises(StoreUnavailable):
        await store.restore(item, [])
    assert await store.get(ALICE, item.id) == item
    assert await happened(store, item.id) == [("c", 1)]
