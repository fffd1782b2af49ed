"""GET /events/stream over real sockets: filters, resuming, back-pressure and access."""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import httpx
import orjson
import pytest

from breadcrumbs.runtime.backend import link
from breadcrumbs.runtime.backend.address import Address
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.ids import lane_for
from breadcrumbs.runtime.errors import StoreUnavailable
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.http.app import build_app
from breadcrumbs.runtime.http.server import HttpServer
from breadcrumbs.runtime.maintenance.hygiene import Hygiene
from breadcrumbs.runtime.settings.settings import DEVELOPER, Settings
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.streams.conditions import Evaluation
from breadcrumbs.runtime.streams.hub import EventHub
from breadcrumbs.runtime.streams.stream_event import StreamEvent, StreamValue
from breadcrumbs.runtime.streams.subscription import MAX_QUEUED_BYTES, Subscription
from tests.http.conftest import AGENT_A, AGENT_B, KEY, KEYS, OTHER, OTHER_KEY, OWNER
from tests.support.events import close_with_reader, reader_of


@dataclass
class Live:
    """A listening server and its parts."""

    url: str
    store: Store
    hub: EventHub
    settings: Settings

    async def post(self, session: str | None = None, owner: UUID = DEVELOPER, **fields: Any) -> str:
        tags = [*fields.pop("tags", []), *([f"session:{session}"] if session else [])]
        by = fields.pop("by", None)
        new = BreadcrumbCreate(schema_name=fields.pop("schema_name", "user.message.v1"), tags=tags, **fields)
        return str((await self.store.create(owner, new, by=by)).id)

    @asynccontextmanager
    async def stream(self, *, headers: dict[str, str] | None = None, **query: Any) -> AsyncIterator[Stream]:
        async with (
            httpx.AsyncClient(base_url=self.url, timeout=httpx.Timeout(10), trust_env=False) as client,
            client.stream("GET", "/events/stream", params=query, headers=headers) as response,
        ):
            assert response.status_code == 200, await response.aread()
            stream = Stream(response)
            resumed = "last-event-id" in (headers or {}) or "last_event_id" in query
            await stream.opened(":" if resumed else "id:")
            yield stream


class Stream:
    """Reads server-sent events as EventSource would."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()
        self.last_id: str | None = None

    async def opened(self, sign: str) -> None:
        async for line in self._lines:
            if line.startswith("id:"):
                self.last_id = line[3:].strip()
            if line.startswith(sign):
                return

    async def next(self, *, kind: str = "message", within: float = 5.0) -> dict[str, Any]:
        with anyio.fail_after(within):
            event, data = "message", ""
            async for line in self._lines:
                if line.startswith("event:"):
                    event = line[6:].strip()
                elif line.startswith("id:"):
                    self.last_id = line[3:].strip()
                elif line.startswith("data:"):
                    data = line[5:].strip()
                elif not line:
                    if event == kind and data:
                        found: dict[str, Any] = orjson.loads(data)
                        return found
                    event, data = "message", ""
        raise AssertionError("the stream ended")

    async def take(self, count: int) -> list[dict[str, Any]]:
        return [await self.next() for _ in range(count)]

    async def nothing_for(self, seconds: float) -> None:
        with suppress(TimeoutError):
            unexpected = await self.next(within=seconds)
            raise AssertionError(f"nothing was expected: {unexpected}")


class Everything:
    """A filter that accepts all events of an owner."""

    owner_id = DEVELOPER
    token = "everybody"
    conditional = False
    ended = False

    def wants(self, event: Event) -> bool:
        return True

    def accepts(self, event: Event, evaluation: Evaluation | None) -> bool | None:
        return True

    def shows_context(self, crumb: Breadcrumb) -> bool:
        return True

    def redact(self, crumb: Breadcrumb) -> Breadcrumb:
        return crumb


def title_of(value: StreamValue) -> str:
    assert isinstance(value, StreamEvent) and value.breadcrumb is not None
    return value.breadcrumb.title


@asynccontextmanager
async def live(redis_url: str, namespace: str | None = None, **options: Any) -> AsyncIterator[Live]:
    settings = Settings(**options)
    store = await Store.open(redis_url, namespace=namespace or secrets.token_hex(6))
    hub = EventHub(store, reader_of(store))
    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(
        build_app(store, hub, Hygiene(store, settings), settings),
        host="",
        port=0,
        on_exit=hub.end_streams,
        loop="none",
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await anyio.sleep(0.01)
        try:
            yield Live(f"http://127.0.0.1:{listener.getsockname()[1]}", store, hub, settings)
        finally:
            hub.end_streams()
            server.should_exit = True
    await hub.close()
    await close_with_reader(store)


@pytest.fixture
async def site(standalone_server: Any) -> AsyncIterator[Live]:
    async with live(standalone_server.url) as site:
        yield site


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({}, ["a", "b", "c", "d"]),
        ({"session_id": "one"}, ["a", "b"]),
        ({"session_id": "on"}, []),
        ({"session_id": "*"}, []),
        ({"schema_name": "agent.response.v1"}, ["b"]),
        ({"tag": "red"}, ["a", "c"]),
        ({"tag": "session:two"}, ["c"]),
        ({"tags": "red", "session_id": "two"}, ["c"]),
        ({"any_tags": ["red", "blue"]}, ["a", "c", "d"]),
        ({"any_tags": '["red","blue"]'}, ["a", "c", "d"]),
        ({"all_tags": ["red", "big"]}, ["c"]),
        ({"filters": '{"context_match":[{"path":"$.size","op":"gt","value":2}]}'}, ["c", "d"]),
        ({"filters": '{"any_tags":["red"],"context_match":[{"path":"$.size","op":"lt","value":2}]}'}, ["a"]),
        ({"filters": '{"session_id":"one"}', "session_id": "two"}, []),
    ],
)
async def test_every_filter_passes_exactly_its_matches(
    site: Live, query: dict[str, Any], wanted: list[str]
) -> None:
    async with site.stream(**query) as stream:
        await site.post("one", title="a", tags=["red"], context={"size": 1})
        await site.post("one", title="b", schema_name="agent.response.v1", context={"size": 2})
        await site.post("two", title="c", tags=["red", "big"], context={"size": 3})
        await site.post(title="d", tags=["blue"], context={"size": 4})
        assert [event["title"] for event in await stream.take(len(wanted))] == wanted
        await stream.nothing_for(0.15)


async def test_a_write_is_one_event_with_the_fields_that_rcrt_clients_read(site: Live) -> None:
    async with site.stream() as stream:
        id = await site.post("abc", title="Hello", tags=["user:message"], context={"message": "Hi"})
        await site.store.update(DEVELOPER, UUID(id), BreadcrumbUpdate(title="Hello again"))
        created, updated = await stream.take(
            2
        )  # before the delete, because an event shows only a stored body
        await site.store.delete(DEVELOPER, UUID(id))
        (deleted,) = await stream.take(1)
        await stream.nothing_for(0.15)
    assert created["type"] == "breadcrumb.updated"  # the type that RCRT's clients expect
    assert created["operation"] == "created"
    assert created["breadcrumb_id"] == id
    assert created["owner_id"] == str(DEVELOPER)
    assert created["version"] == 1
    assert created["schema_name"] == "user.message.v1"
    assert created["tags"] == ["user:message", "session:abc"]
    assert created["context"] == {"message": "Hi", "session_id": "abc"}
    assert created["updated_at"].endswith("Z")
    assert (updated["type"], updated["version"], updated["title"]) == ("breadcrumb.updated", 2, "Hello again")
    assert (deleted["type"], deleted["tags"]) == ("breadcrumb.deleted", ["user:message", "session:abc"])
    assert "context" not in deleted


async def test_the_native_form_reports_a_creation_as_created(standalone_server: Any) -> None:
    async with live(standalone_server.url, rcrt_events=False) as site, site.stream() as stream:
        await site.post(title="new")
        assert (await stream.next())["type"] == "breadcrumb.created"


async def test_an_event_shows_its_own_version_even_if_a_newer_one_exists(site: Live) -> None:
    async with site.stream() as stream:
        start = stream.last_id
    id = UUID(await site.post("s", title="one"))
    for title in ("two", "three"):
        await site.store.update(DEVELOPER, id, BreadcrumbUpdate(title=title))
    async with site.stream(headers={"last-event-id": start or ""}) as stream:
        assert [event["title"] for event in await stream.take(3)] == ["one", "two", "three"]


async def test_resuming_across_all_lanes_omits_and_repeats_nothing(site: Live) -> None:
    sessions = [f"s{number}" for number in range(40)]  # spread over all lanes
    posted: list[str] = []
    seen: list[str] = []

    async def write(count: int) -> None:
        for _ in range(count):
            session = secrets.choice(sessions)
            posted.append(await site.post(session, title="x"))

    async with site.stream() as stream:
        last_id = stream.last_id
        await write(30)
        seen += [event["breadcrumb_id"] for event in await stream.take(17)]
        last_id = stream.last_id
    for _ in range(6):
        await write(25)
        async with site.stream(headers={"last-event-id": last_id or ""}) as stream:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write, 25)  # during the catch-up
                took = secrets.randbelow(len(posted) - len(seen) + 20) or 1
                seen += [event["breadcrumb_id"] for event in await stream.take(took)]
            last_id = stream.last_id
    async with site.stream(headers={"last-event-id": last_id or ""}) as stream:
        seen += [event["breadcrumb_id"] for event in await stream.take(len(posted) - len(seen))]
        await stream.nothing_for(0.2)
    assert len(seen) == len(set(seen)), "something came twice"
    assert set(seen) == set(posted), "something was lost"


async def test_a_client_disconnected_before_its_first_event_can_resume_from_its_start(site: Live) -> None:
    async with site.stream() as stream:
        start = stream.last_id
    assert start
    id = await site.post("s", title="missed")
    async with site.stream(headers={"last-event-id": start}) as stream:
        assert (await stream.next())["breadcrumb_id"] == id


async def test_a_client_that_resumes_while_the_only_other_leaves_receives_later_events(
    site: Live,
) -> None:
    """The hub reads while it has clients. A client that is still catching up counts as one."""
    leaving, returning = Subscription(Everything()), Subscription(Everything())
    start = await site.hub.log.end()
    await site.post("s", title="missed")
    await site.hub.subscribe(leaving)
    values = site.hub.catch_up(returning, start)
    assert title_of(await anext(values)) == "missed"
    site.hub.leave(leaving)
    later: list[StreamValue] = [value async for value in values]
    await site.post("s", title="after")
    with anyio.fail_after(10):
        while "after" not in map(title_of, later):
            later += await returning.take(1)
    site.hub.leave(returning)
    assert len(later) == 1


async def test_a_position_is_valid_on_every_replica(standalone_server: Any) -> None:
    namespace = secrets.token_hex(6)
    async with live(standalone_server.url, namespace) as one, live(standalone_server.url, namespace) as two:
        async with one.stream() as stream:
            first = await one.post("a", title="first")
            assert (await stream.next())["breadcrumb_id"] == first
            position = stream.last_id or ""
        second = await two.post("b", title="second")
        async with two.stream(headers={"last-event-id": position}) as stream:
            assert (await stream.next())["breadcrumb_id"] == second
            third = await one.post("c", title="third")
            assert (await stream.next())["breadcrumb_id"] == third


async def test_a_client_that_resumes_too_late_receives_a_gap(site: Live) -> None:
    async with site.stream() as stream:
        start = stream.last_id or ""
    await site.post("s", title="gone")
    hygiene = Hygiene(site.store, Settings(event_window="0.05s"))
    await anyio.sleep(0.1)
    assert (await hygiene.run_once()).trimmed == 1
    async with site.stream(headers={"last-event-id": start}) as stream:
        assert (await stream.next(kind="gap"))["type"] == "gap"
        await site.post("s", title="new")
        event = await stream.next()
        assert event["title"] == "new"
        position = stream.last_id or ""
    async with site.stream(headers={"last-event-id": position}) as stream:
        with pytest.raises(TimeoutError):
            await stream.next(kind="gap", within=0.2)


async def test_a_client_that_does_not_read_is_disconnected_and_delays_no_others(site: Live) -> None:
    host, port = site.url.removeprefix("http://").split(":")
    lazy = socket.create_connection((host, int(port)))
    lazy.sendall(b"GET /events/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    try:
        async with site.stream() as stream:
            while site.hub.clients < 2:  # noqa: ASYNC110 - the hub has no event for it
                await anyio.sleep(0.01)
            text = "x" * 200_000
            sent = 0
            while site.hub.clients == 2 and sent < 200:  # until its queue and all socket buffers are full
                await site.post("s", title=str(sent), context={"text": text})
                assert (await stream.next())["title"] == str(sent)
                sent += 1
            assert site.hub.dropped_clients == 1
        lazy.settimeout(5)
        received = 0
        with suppress(ConnectionResetError):
            while chunk := await asyncio.to_thread(lazy.recv, 1 << 20):
                received += len(chunk)
        assert received < sent * len(text), "it was not cut off"
    finally:
        lazy.close()


async def test_a_burst_does_not_disconnect_a_client_that_reads(site: Live, standalone_server: Any) -> None:
    count, text = 400, "x" * 10_000

    async def write() -> None:
        namespace = site.store.keys.meta.decode().removesuffix(":meta")
        store = await Store.open(standalone_server.url, namespace=namespace)
        for number in range(count):
            fields = BreadcrumbCreate(title=str(number), tags=["session:s"], context={"text": text})
            await store.create(DEVELOPER, fields)
        await store.close()

    async with site.stream() as stream:
        # The event loop is blocked meanwhile, so the hub reads all events at once.
        burst = threading.Thread(target=lambda: asyncio.run(write()))
        burst.start()
        burst.join()
        titles = [event["title"] for event in await stream.take(count)]
    assert titles == [str(number) for number in range(count)]
    assert site.hub.dropped_clients == 0


def stream_event(size: int) -> StreamEvent:
    """Return an event with a breadcrumb of this many bytes."""
    id = UUID(int=1)
    event = Event("created", DEVELOPER, id, 1, None, [], None, 0, 1)
    crumb = Breadcrumb(id, DEVELOPER, 1, 1, 1, 0, 0, None, None, b"x" * size)
    return StreamEvent(event, crumb, (1,), shows_context=True)


async def test_many_small_unread_events_disconnect_the_client() -> None:
    subscription, offered = Subscription(Everything()), 0
    while subscription.offer(stream_event(1)):
        offered += 1
    assert subscription.overflowed and 1_000 < offered < 4_000


async def test_one_event_can_exceed_the_size_of_the_queue() -> None:
    subscription = Subscription(Everything())
    large, small = (stream_event(size) for size in (MAX_QUEUED_BYTES + 1, 1))
    assert subscription.offer(large)
    assert await subscription.take(1) == [large]
    assert subscription.offer(large)
    assert not subscription.offer(small), "it does not read"
    assert subscription.dropped


async def test_an_unreadable_event_delays_no_clients(site: Live) -> None:
    """Covers an operation of a newer version, a damaged body and an invalid delta."""
    call, keys = site.store.connection.call, site.store.keys
    lane = lane_for(DEVELOPER, "session", "s", site.store.lanes)
    async with site.stream(filters='{"context_match":[{"path":"$.n","op":"gte","value":0}]}') as stream:
        start = stream.last_id or ""
        at = site.store.now() + 10
        payload = b"z" + DEVELOPER.bytes + UUID(int=7).bytes + b'1 ["x",["session:s"]]'
        await call(lane, b"XADD", keys.events(lane), b"%d-0" % at, b"e", payload)
        await call(lane, b"SET", keys.clock(lane), at)
        await call(0, b"PUBLISH", keys.deltas(), b"not a delta")
        await site.post("s", title="first", context={"n": 1})
        assert (await stream.next())["title"] == "first"
    damaged = UUID(await site.post("s", title="damaged", context={"n": 2}))
    await call(lane, b"SET", keys.body(lane, DEVELOPER, damaged.bytes), b"1 1 1 0 0\n" + b"?" * 40)
    await site.post("s", title="after", context={"n": 3})
    async with site.stream(last_event_id=start) as stream:
        events = await stream.take(3)
        assert [event.get("title") for event in events] == ["first", None, "after"]


async def test_a_filter_that_fails_ends_its_own_stream_only(site: Live) -> None:
    class Failing(Everything):
        def wants(self, event: Event) -> bool:
            raise RuntimeError("on purpose")

    class FailingLater(Everything):
        def accepts(self, event: Event, evaluation: Evaluation | None) -> bool | None:
            raise RuntimeError("on purpose")

    class FailingApart(FailingLater):
        conditional = True

    class FailingLast(Everything):
        def redact(self, crumb: Breadcrumb) -> Breadcrumb:
            raise RuntimeError("on purpose")

    failing, later, last = (Subscription(filter()) for filter in (Failing, FailingLater, FailingLast))
    apart = Subscription(FailingApart())
    async with site.stream() as stream:
        for client in (failing, later, last, apart):
            await site.hub.subscribe(client)
        for title in ("one", "two"):
            await site.post("s", title=title)
            assert (await stream.next())["title"] == title
        assert failing.dropped
        assert later.dropped
        assert last.dropped
        assert apart.dropped
        assert site.hub.clients == 1


async def test_a_silent_connection_of_the_reader_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SILENCE_SECONDS", 0.1)

    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    with anyio.fail_after(5), pytest.raises(link.LinkLost, match=r"no reply for 0\.1 s"):
        await link.subscribe(address, b"channel", lambda said: None)
    server.close()
    for writer in accepted:
        writer.close()
        await writer.wait_closed()


async def test_an_idle_connection_of_the_reader_is_kept(site: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SILENCE_SECONDS", 0.1)
    channel = secrets.token_bytes(8)

    async def speak() -> None:
        await anyio.sleep(0.5)
        await site.store.connection.call(0, b"PUBLISH", channel, b"here")

    heard: asyncio.Queue[bytes] = asyncio.Queue()
    listening = asyncio.create_task(site.store.connection.listen(channel, heard.put_nowait))
    with anyio.fail_after(5):
        await speak()
        assert await heard.get() == b"here"
    assert not listening.done()
    listening.cancel()
    await asyncio.wait([listening])


async def test_all_clients_share_one_reader(site: Live, standalone_server: Any) -> None:
    async with anyio.create_task_group() as tasks:
        ready = 0

        async def client() -> None:
            nonlocal ready
            async with site.stream():
                ready += 1
                await anyio.sleep(10)

        for _ in range(25):
            tasks.start_soon(client)
        with anyio.fail_after(10):
            while ready < 25:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        clients = (await site.store.connection.call(0, b"CLIENT", b"LIST")).decode()
        assert sum("ssub=" in line and "ssub=0 " not in line for line in clients.splitlines()) == 1
        tasks.cancel_scope.cancel()


async def test_pings_come_while_nothing_happens(standalone_server: Any) -> None:
    async with live(standalone_server.url, ping_interval="0.1s") as site, site.stream() as stream:
        assert (await stream.next(kind="ping"))["type"] == "ping"
        assert (await stream.next(kind="ping"))["ts"].endswith("Z")


async def test_a_stream_begins_with_its_position(site: Live) -> None:
    """The position is sent as an event with data, because scripts see only ids of such events."""
    async with (
        httpx.AsyncClient(base_url=site.url, trust_env=False) as client,
        client.stream("GET", "/events/stream") as response,
    ):
        stream = Stream(response)
        assert (await stream.next(kind="ping"))["type"] == "ping"
        start = stream.last_id or ""
    assert site.hub.decode_position(DEVELOPER, start) == await site.hub.log.end()


async def test_pings_advance_the_position_of_an_idle_client(standalone_server: Any) -> None:
    async with live(standalone_server.url, ping_interval="0.1s") as site:
        async with site.stream(session_id="quiet") as stream:
            for number in range(20):
                await site.post(f"other-{number}")
            end = await site.hub.log.end()
            with anyio.fail_after(5):
                while site.hub.decode_position(DEVELOPER, stream.last_id or "") != end:
                    await stream.next(kind="ping")
            position = stream.last_id or ""
        await anyio.sleep(0.1)
        await Hygiene(site.store, Settings(event_window="0.05s")).run_once()
        mine = await site.post("quiet", title="mine")
        async with site.stream(session_id="quiet", last_event_id=position) as stream:
            assert (await stream.next())["breadcrumb_id"] == mine
        async with site.stream(session_id="quiet", last_event_id=position) as stream:
            with pytest.raises(TimeoutError):
                await stream.next(kind="gap", within=0.3)


async def test_pings_never_move_the_position_of_a_client_back(standalone_server: Any) -> None:
    """A client that has caught up can be ahead of the hub."""
    async with live(standalone_server.url, ping_interval="0.05s") as site:
        seen = Subscription(Everything())
        ahead = [site.store.now() + 1_000_000_000] * site.store.lanes
        await site.hub.subscribe(Subscription(Everything()))
        assert not [value async for value in site.hub.catch_up(seen, ahead)]
        assert site.hub.served(seen) == ahead
        await site.post("s", title="new")
        await anyio.sleep(0.2)
        assert site.hub.served(seen) == ahead


async def test_a_stream_that_cannot_start_is_refused(tmp_path: Path) -> None:
    """If the stream were opened and then closed, clients would reconnect at once, again and again."""
    with EmbeddedServer(tmp_path, appendfsync="always") as server:
        async with live(server.url) as site:
            async with site.stream() as stream:
                start = stream.last_id or ""
            assert server.process is not None
            server.process.kill()
            server.process.wait()
            async with httpx.AsyncClient(base_url=site.url, trust_env=False, timeout=10) as client:
                for headers in ({}, {"last-event-id": start}):
                    answer = await client.get("/events/stream", headers=headers)
                    assert answer.status_code == 503, answer.text
                    assert int(answer.headers["retry-after"]) >= 1
            assert site.hub.clients == 0


async def test_stopping_the_server_ends_its_streams_at_once(site: Live) -> None:
    async with site.stream() as stream:
        site.hub.end_streams()
        with anyio.fail_after(1), pytest.raises(AssertionError, match="ended"):
            await stream.next()


@pytest.mark.parametrize(
    ("query", "headers", "where"),
    [
        ({"sesion_id": "abc"}, {}, "sesion_id"),
        ({"filters": "{"}, {}, ""),
        ({"filters": '{"any_tag":["x"]}'}, {}, "any_tag"),
        ({"session_id": "a\nb"}, {}, "session_id"),
        ({"agent_id": "me"}, {}, "agent_id"),
        ({}, {"last-event-id": "made-up"}, "Last-Event-ID"),
        ({}, {"last-event-id": "A" * 149}, "Last-Event-ID"),
    ],
)
async def test_bad_input_is_refused_with_a_problem_and_no_stream(
    site: Live, query: dict[str, str], headers: dict[str, str], where: str
) -> None:
    async with httpx.AsyncClient(base_url=site.url, trust_env=False) as client:
        answer = await client.get("/events/stream", params=query, headers=headers, timeout=5)
    assert answer.status_code in (400, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert where in answer.text


async def test_saved_selectors_filter_the_stream_of_an_agent(site: Live) -> None:
    agent = "00000000-0000-0000-0000-000000000002"
    async with httpx.AsyncClient(base_url=site.url, trust_env=False) as client:
        saved = await client.post("/subscriptions/selectors", json={"any_tags": ["red"]})
        assert saved.status_code == 200, saved.text
    for query in ({"selector_id": saved.json()["id"]}, {"agent_id": agent}):
        async with site.stream(**query) as stream:
            await site.post(title="no", tags=["blue"])
            await site.post(title="yes", tags=["red"])
            assert (await stream.next())["title"] == "yes"


async def test_a_deletion_matches_selectors_without_content_conditions(site: Live) -> None:
    agent = "00000000-0000-0000-0000-000000000002"
    async with httpx.AsyncClient(base_url=site.url, trust_env=False) as client:
        for selector in (
            {"any_tags": ["red"]},
            {"any_tags": ["blue"], "context_match": [{"path": "$.n", "op": "gt", "value": 1}]},
        ):
            assert (await client.post("/subscriptions/selectors", json=selector)).status_code == 200
    async with site.stream(agent_id=agent) as stream:
        red = UUID(await site.post(title="red", tags=["red"]))
        blue = UUID(await site.post(title="blue", tags=["blue"], context={"n": 2}))
        assert {event["title"] for event in await stream.take(2)} == {"red", "blue"}
        await site.store.delete(DEVELOPER, blue)  # its context is gone, so the condition cannot be evaluated
        await site.store.delete(DEVELOPER, red)
        deleted = await stream.next()
        assert (deleted["operation"], deleted["breadcrumb_id"]) == ("deleted", str(red))
        await stream.nothing_for(0.15)


@pytest.fixture
async def guarded(standalone_server: Any) -> AsyncIterator[Live]:
    async with live(standalone_server.url, api_keys=KEYS) as site:
        yield site


async def _token(site: Live, key: str, **wanted: Any) -> str:
    async with httpx.AsyncClient(base_url=site.url, trust_env=False) as client:
        answer = await client.post("/auth/token", json=wanted, headers={"x-api-key": key})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["token"])


async def test_R8_a_tenant_receives_only_its_own_events_with_any_filter(guarded: Live) -> None:
    token = await _token(guarded, KEY)
    queries: list[dict[str, Any]] = [{}, {"session_id": "shared"}, {"tag": "red"}]
    for query in (*queries, {"filters": f'{{"owner_id":"{OWNER}"}}'}):
        async with guarded.stream(token=token, **query) as stream:
            await guarded.post("shared", owner=OTHER, title="theirs", tags=["red"])
            await guarded.post("shared", owner=OWNER, title="mine", tags=["red"])
            assert (await stream.next())["title"] == "mine"
            await stream.nothing_for(0.1)


async def test_a_token_for_one_session_receives_only_its_events(guarded: Live) -> None:
    token = await _token(guarded, KEY, session_id="mine")
    async with guarded.stream(access_token=token) as stream:
        start = stream.last_id
        for session in ("other", None, "mine"):
            await guarded.post(session, owner=OWNER, title=str(session))
        assert (await stream.next())["title"] == "mine"
        await stream.nothing_for(0.1)
    async with guarded.stream(access_token=token, last_event_id=start) as stream:
        assert (await stream.next())["title"] == "mine"  # the catch-up uses the same filter
        await stream.nothing_for(0.1)


async def test_streams_hide_private_breadcrumbs_and_secret_contexts(guarded: Live) -> None:
    me = AGENT_A
    mine = await _token(guarded, KEY, agent_id=str(me), roles=["subscriber"])
    others = await _token(guarded, KEY, agent_id=str(AGENT_B), roles=["subscriber"])
    curators = await _token(guarded, KEY, roles=["curator"])
    seen: dict[str, list[dict[str, Any]]] = {}
    async with (
        guarded.stream(token=mine) as a,
        guarded.stream(token=others) as b,
        guarded.stream(token=curators) as c,
    ):
        await guarded.post(owner=OWNER, by=me, title="private", visibility="private", context={"x": 1})
        await guarded.post(owner=OWNER, by=me, title="secret", sensitivity="secret", context={"x": 2})
        await guarded.post(owner=OWNER, by=me, title="end", context={"x": 3})
        for name, stream in (("mine", a), ("others", b), ("curators", c)):
            seen[name] = []
            while not seen[name] or seen[name][-1]["title"] != "end":
                seen[name].append(await stream.next())
    assert [event["title"] for event in seen["mine"]] == ["private", "secret", "end"]
    assert [event["title"] for event in seen["others"]] == ["secret", "end"]
    assert [event["title"] for event in seen["curators"]] == ["private", "secret", "end"]
    assert [event["context"] for event in seen["curators"]] == [{"x": 1}, {"x": 2}, {"x": 3}]
    assert all("context" not in event for event in seen["others"] if event["title"] == "secret")


async def test_filters_do_not_reveal_the_content_of_secrets(guarded: Live) -> None:
    agent = str(AGENT_A)
    reader = await _token(guarded, KEY, agent_id=agent, roles=["subscriber"])
    curator = await _token(guarded, KEY, agent_id=agent, roles=["curator"])
    guess = {"context_match": [{"path": "$.pin", "op": "gte", "value": "m"}]}
    async with httpx.AsyncClient(base_url=guarded.url, trust_env=False) as client:
        saved = await client.post(
            "/subscriptions/selectors", json=guess, headers={"authorization": f"Bearer {reader}"}
        )
        assert saved.status_code == 200, saved.text
    queries: list[dict[str, Any]] = [{"filters": orjson.dumps(guess).decode()}, {"agent_id": agent}]
    for query in queries:
        async with (
            guarded.stream(token=reader, **query) as theirs,
            guarded.stream(token=curator, **query) as curators,
        ):
            start = theirs.last_id
            await guarded.post(owner=OWNER, title="secret", sensitivity="secret", context={"pin": "q"})
            await guarded.post(owner=OWNER, title="open", context={"pin": "q"})
            assert (await theirs.next())["title"] == "open"
            assert [event["title"] for event in await curators.take(2)] == ["secret", "open"]
        async with guarded.stream(token=reader, last_event_id=start, **query) as theirs:
            assert (await theirs.next())["title"] == "open"


async def test_a_stream_ends_with_its_token(guarded: Live) -> None:
    token = await _token(guarded, KEY, ttl_sec=2)
    async with guarded.stream(token=token) as stream:
        await guarded.post(owner=OWNER, title="in time")
        assert (await stream.next())["title"] == "in time"
        position = stream.last_id or ""
        with pytest.raises(AssertionError, match="ended"):
            await stream.next(within=5)
    missed = await guarded.post(owner=OWNER, title="missed")
    async with httpx.AsyncClient(base_url=guarded.url, trust_env=False) as client:
        answer = await client.get("/events/stream", params={"token": token, "last_event_id": position})
        assert answer.status_code == 401, answer.text
    async with guarded.stream(token=await _token(guarded, KEY), last_event_id=position) as stream:
        assert (await stream.next())["breadcrumb_id"] == missed


@pytest.mark.parametrize(
    "name", ["schema_name", "session_id", "filters", "agent_id", "last_event_id", "token", "access_token"]
)
async def test_a_stream_refuses_a_repeated_parameter_that_has_one_value(guarded: Live, name: str) -> None:
    token = await _token(guarded, KEY)
    first = token if "token" in name else "a"
    query: Any = [("token", token)] * ("token" not in name) + [(name, first), (name, first)]
    async with httpx.AsyncClient(base_url=guarded.url, trust_env=False) as client:
        answer = await client.get("/events/stream", params=query, timeout=5)
        assert answer.status_code == 422 and f"{name} must not be repeated" in answer.text, answer.text


async def test_a_stream_needs_a_valid_token(guarded: Live) -> None:
    writer = await _token(guarded, KEY, roles=["emitter"])
    async with httpx.AsyncClient(base_url=guarded.url, trust_env=False) as client:
        for query, status in (({}, 401), ({"token": "forged"}, 401), ({"token": writer}, 403)):
            answer = await client.get("/events/stream", params=query, timeout=5)
            assert answer.status_code == status, answer.text
    assert OTHER_KEY not in guarded.url


async def test_a_stream_survives_the_death_of_the_server_behind_it(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, appendfsync="always") as server:
        async with live(server.url) as site, site.stream() as stream:
            before = await site.post("s", title="before")
            assert (await stream.next())["breadcrumb_id"] == before
            assert server.process is not None
            server.process.kill()
            server.process.wait()
            with pytest.raises(StoreUnavailable):
                await site.post("s", title="nobody there")
            await asyncio.to_thread(server.start)
            after = await site.post("s", title="after")
            assert (await stream.next(within=10))["breadcrumb_id"] == after


@pytest.mark.parametrize("chance", range(8))
async def test_random_writes_of_two_tenants_never_reach_a_foreign_stream(guarded: Live, chance: int) -> None:
    dice = random.Random(chance)
    tenants = {KEY: OWNER, OTHER_KEY: OTHER}
    tokens = {
        (key, session): await _token(guarded, key, **({"session_id": session} if session else {}))
        for key in tenants
        for session in (None, "one", "two")
    }
    async with AsyncExitStack() as stack:
        streams = {
            who: await stack.enter_async_context(guarded.stream(token=token)) for who, token in tokens.items()
        }
        written: dict[UUID, list[tuple[UUID, str]]] = {owner: [] for owner in tenants.values()}
        for _ in range(50):
            owner, session = dice.choice(list(tenants.values())), dice.choice(["one", "two"])
            what = dice.choice(["create", "create", "update", "delete"])
            if what == "create" or not written[owner]:
                mark = f"{owner}/{session}"
                id = await guarded.post(session, owner=owner, title=mark, context={"mark": mark})
                written[owner].append((UUID(id), session))
            elif what == "update":
                id_, session = dice.choice(written[owner])
                change = BreadcrumbUpdate(title=f"{owner}/{session}", tags=["touched"])
                await guarded.store.update(owner, id_, change)
            else:
                id_, _ = written[owner].pop(dice.randrange(len(written[owner])))
                await guarded.store.delete(owner, id_)
        for owner in tenants.values():
            for session in ("one", "two"):
                await guarded.post(session, owner=owner, title="end")
        for (key, only), stream in streams.items():
            ends = 0
            while ends < (1 if only else 2):
                event = await stream.next()
                ends += event.get("title") == "end"
                assert event["owner_id"] == str(tenants[key])
                assert only is None or event["session_id"] == only
                assert f"session:{event['session_id']}" in event["tags"]
                if "mark" in event.get("context", {}):
                    assert event["context"]["mark"] == f"{tenants[key]}/{event['session_id']}"
            await stream.nothing_for(0.05)
