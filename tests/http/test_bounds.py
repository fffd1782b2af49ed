"""Byte limits of responses and state, over HTTP and in a separate server process."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store.quotas import Quotas
from breadcrumbs.runtime.store.store import Store
from tests.http.conftest import KEY, KEYS, OWNER, MakeSite, Site, problem, running_site
from tests.http.test_stream import _token, live
from tests.store.contract.base import change, crumb
from tests.support.process import Process
from tests.support.servers import free_port

MB = 1_000_000
BUDGET = 4 << 20
PATIENCE = 60.0


async def large(site: Site, count: int, size: int, **fields: Any) -> None:
    for number in range(count):
        new = {"title": f"{number:03}", "context": {"text": "x" * size}, **fields}
        await site.post(schema_name="note.v1", **new)


def next_page(answer: httpx.Response) -> str | None:
    return answer.links.get("next", {}).get("url")


async def all_pages(site: Site, path: str, **query: Any) -> list[httpx.Response]:
    answers = [await site.client.get(path, params=query)]
    while True:
        assert answers[-1].status_code == 200, answers[-1].text
        following = next_page(answers[-1])
        assert answers[-1].headers["x-has-more"] == ("false" if following is None else "true")
        if following is None:
            return answers
        answers.append(await site.client.get(following))


# Pages


async def test_a_list_with_contexts_ends_at_the_byte_limit_with_a_next_link(make_site: MakeSite) -> None:
    site = await make_site(max_response_bytes=100_000)
    await large(site, 20, 30_000)
    answers = await all_pages(site, "/breadcrumbs", include_context=True)
    shown = [item["title"] for answer in answers for item in answer.json()]
    assert shown == [f"{number:03}" for number in reversed(range(20))]
    assert len(answers) == 7
    assert max(len(answer.content) for answer in answers) < 100_000


async def test_a_list_without_contexts_does_not_count_their_bytes(
    make_site: MakeSite,
) -> None:
    site = await make_site(max_response_bytes=100_000)
    await large(site, 20, 30_000)
    (answer,) = await all_pages(site, "/breadcrumbs")
    assert len(answer.json()) == 20


async def test_a_history_ends_at_the_byte_limit_with_a_next_link(make_site: MakeSite) -> None:
    site = await make_site(max_response_bytes=100_000)
    created = await site.post(title="1", schema_name="note.v1", context={"text": "x" * 30_000})
    for number in range(2, 12):
        answer = await site.client.patch(f"/breadcrumbs/{created['id']}", json={"title": str(number)})
        assert answer.status_code == 200
    path = f"/breadcrumbs/{created['id']}/history"
    answers = await all_pages(site, path)
    versions = [(item["version"], item["title"]) for answer in answers for item in answer.json()]
    assert versions == [(number, str(number)) for number in range(11, 0, -1)]
    assert len(answers) == 4
    assert [len(answer.json()) for answer in await all_pages(site, path, limit=2)] == [2] * 5 + [1]
    problem(await site.client.get(path, params={"cursor": "x"}), 422, "invalid-cursor")
    problem(await site.client.get(path, params={"limit": 0}), 422, "invalid-input")


async def test_the_messages_of_a_session_end_at_the_byte_limit_with_a_cursor(make_site: MakeSite) -> None:
    site = await make_site(max_response_bytes=100_000)
    for number in range(10):
        said = {"message": f"{number} " + "x" * 30_000}
        assert (await site.client.post("/sessions/s/messages", json=said)).status_code == 201
    found: list[str] = []
    before: dict[str, str] = {}
    pages = 0
    while True:
        page = (await site.client.get("/sessions/s/messages", params=before)).json()
        found = [message["text"][0] for message in page["messages"]] + found
        pages += 1
        if not page["has_more"]:
            break
        before = {"before": page["before"]}
    assert found == [str(number) for number in range(10)]
    assert pages == 4


# State


async def test_every_way_to_change_the_state_of_a_session_is_refused_above_the_limit(site: Site) -> None:
    too_much = {"a": "x" * 600_000, "b": "y" * 500_000}
    answers = [
        await site.client.post("/sessions", json={"id": "one", "state": {**too_much, "b": "y" * 450_000}}),
        await site.client.post("/sessions", json={"id": "two", "state": {"a": "x" * 600_000}}),
    ]
    assert answers[0].status_code == 413  # the body alone is too large
    assert answers[1].status_code == 201
    more = {"b": "y" * 500_000}
    refused = problem(await site.client.patch("/sessions/two", json={"state": more}), 413, "state-too-large")
    assert (refused["size"], refused["limit"]) == (2 * (1 + 17 + 2) + 1_100_000, 1 << 20)
    for schema in ("session.v1", "session.state.v1", "adk.event.v1", "agent.response.v1"):
        document = {
            "schema_name": schema,
            "title": "",
            "tags": ["session:two"],
            "context": {"state_delta": more},
        }
        problem(await site.client.post("/breadcrumbs", json=document), 413, "state-too-large")
    facts = (await site.client.get("/sessions/two")).json()
    assert set(facts["state"]) == {"a"}
    assert facts["version"] == 1
    assert (await site.client.patch("/sessions/two", json={"state": {"a": None, **more}})).status_code == 200


# Quotas


async def test_an_exceeded_quota_is_403_with_numbers_and_is_shown_in_operations(
    embedded_server: EmbeddedServer,
) -> None:
    quotas = Quotas(breadcrumbs=3, sessions=2, bytes=20_000)
    async with running_site(embedded_server.url, store_options={"quotas": quotas}) as site:
        for session in ("a", "b"):
            await site.post(title="", tags=[f"session:{session}"])
        refused = problem(await site.client.post("/sessions", json={"id": "c"}), 403, "quota-exceeded")
        assert (refused["quota"], refused["used"], refused["limit"]) == ("sessions", 2, 2)
        large = {"title": "", "context": {"text": "x" * 20_000}}
        refused = problem(await site.client.post("/breadcrumbs", json=large), 403, "quota-exceeded")
        assert (refused["quota"], refused["limit"]) == ("bytes", 20_000)
        last = await site.post(title="")
        refused = problem(
            await site.client.post("/sessions/a/messages", json={"message": "Hello"}), 403, "quota-exceeded"
        )
        assert (refused["quota"], refused["used"], refused["limit"]) == ("breadcrumbs", 3, 3)
        shown = (await site.client.get("/operations")).json()["store"]["quotas"]
        assert [(one["quota"], one["limit"]) for one in shown] == [
            ("bytes", 20_000),
            ("breadcrumbs", 3),
            ("sessions", 2),
        ]
        assert shown[1]["used"] == 3
        assert (await site.client.delete(f"/breadcrumbs/{last['id']}")).status_code == 200
        assert (await site.client.post("/sessions/a/messages", json={"message": "Hello"})).status_code == 201


# Memory of a server process


class Server:
    """A server process and its memory."""

    def __init__(self, process: Process, store_url: str, namespace: str) -> None:
        self.url = process.url
        self.store_url = store_url
        self.namespace = namespace
        self.pid = process.pid

    async def store(self) -> Store:
        return await Store.open(self.store_url, namespace=self.namespace)

    def memory(self) -> int:
        """Return the peak memory since the last call of `watch`."""
        return _status(self.pid, "VmHWM:")

    def watch(self) -> int:
        """Reset the peak memory and return the current memory."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return _status(self.pid, "VmRSS:")


def _status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


@pytest.fixture
def server(embedded_server: EmbeddedServer, tmp_path: Path) -> Iterator[Server]:
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the memory of a process cannot be measured here")
    port, namespace = free_port(), f"t{secrets.token_hex(6)}"
    serving = [sys.executable, "-m", "tests.http.serving", embedded_server.url, str(port), namespace]
    root = str(Path(__file__).parents[2])
    with Process(tmp_path, serving, port=port, ready="/ready", PYTHONPATH=root) as process:
        yield Server(process, embedded_server.url, namespace)


async def test_large_pages_and_histories_use_little_memory_and_are_complete(server: Server) -> None:
    store = await server.store()
    try:
        for number in range(60):
            await store.create(DEVELOPER, crumb(f"{number:02}", session="s", context={"text": "x" * MB}))
        often = await store.create(DEVELOPER, crumb("1", context={"text": "x" * MB}))
        for number in range(2, 61):
            await store.update(DEVELOPER, often.id, change(title=str(number)))
    finally:
        await store.close()
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, trust_env=False) as client:
        await client.get("/breadcrumbs")
        for path, wanted in (
            (
                "/breadcrumbs?session_id=s&include_context=true",
                [f"{number:02}" for number in range(59, -1, -1)],
            ),
            ("/breadcrumbs?session_id=s", [f"{number:02}" for number in range(59, -1, -1)]),
            (f"/breadcrumbs/{often.id}/history", [str(number) for number in range(60, 0, -1)]),
        ):
            before = server.watch()
            following: str | None = path
            shown: list[str] = []
            while following is not None:
                answer = await client.get(following)
                assert len(answer.content) <= BUDGET + 2 * MB
                shown += [item["title"] for item in answer.json()]
                following = next_page(answer)
            assert shown == wanted
            assert server.memory() - before < 40 * MB, path


async def test_clients_that_do_not_read_their_replies_use_little_memory(server: Server) -> None:
    store = await server.store()
    try:
        for number in range(8):
            await store.create(DEVELOPER, crumb(f"{number:02}", session="s", context={"text": "x" * MB}))
    finally:
        await store.close()
    host, port = server.url.removeprefix("http://").split(":")
    before = server.watch()
    sockets = []
    try:
        for _ in range(4):
            connection = socket.create_connection((host, int(port)))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sockets.append(connection)
            for _ in range(5):  # pipelined: a response is built only after the previous one was read
                connection.sendall(
                    b"GET /breadcrumbs?session_id=s&include_context=true HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
                )
        await asyncio.sleep(3)
        assert server.memory() - before < 4 * 12 * MB + 20 * MB
    finally:
        for connection in sockets:
            connection.close()


async def test_resuming_streams_that_do_not_read_use_little_memory(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, trust_env=False) as client:
        start = await first_position(client)
        store = await server.store()
        try:
            changed = await store.create(DEVELOPER, crumb("1", session="s", context={"text": "x" * MB}))
            for number in range(2, 21):
                await store.update(DEVELOPER, changed.id, change(title=str(number)))
            for number in range(21, 41):
                await store.create(DEVELOPER, crumb(str(number), session="s", context={"text": "x" * MB}))
        finally:
            await store.close()
        before = server.watch()
        sockets = [resuming_socket(server.url, start) for _ in range(12)]
        try:
            await asyncio.sleep(3)
            assert server.memory() - before < 60 * MB
        finally:
            for connection in sockets:
                connection.close()
        async with client.stream("GET", "/events/stream", params={"last_event_id": start}) as stream:
            titles = []
            async for line in stream.aiter_lines():
                if line.startswith("data:") and "title" in (event := orjson.loads(line[5:])):
                    titles.append(event["title"])
                if len(titles) == 40:
                    break
        assert titles == [str(number) for number in range(1, 41)]
        assert server.memory() - before < 60 * MB


async def first_position(client: httpx.AsyncClient) -> str:
    async with client.stream("GET", "/events/stream") as stream:
        async for line in stream.aiter_lines():
            if line.startswith("id:"):
                return line[3:].strip()
    raise AssertionError("the stream ended")


def resuming_socket(url: str, position: str) -> socket.socket:
    """Resume a stream without reading from it."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    connection.sendall(
        f"GET /events/stream?last_event_id={position} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    )
    return connection


async def test_forking_and_deleting_a_large_session_use_little_memory(server: Server) -> None:
    store = await server.store()
    try:
        for number in range(80):
            await store.create(DEVELOPER, crumb(f"{number:02}", session="s", context={"text": "x" * MB}))
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, trust_env=False) as client:
            await client.get("/breadcrumbs")
            before = server.watch()
            assert (await client.post("/sessions/s/fork", json={"id": "f"})).status_code == 201
            assert server.memory() - before < 50 * MB
            copies = [copy async for copy in store.walk(DEVELOPER, Query(session_id="f", sort="created_at"))]
            assert [copy.title for copy in copies[:80]] == [f"{number:02}" for number in range(80)]
            before = server.watch()
            assert (await client.delete("/sessions/f")).json()["deleted"] == 81
            assert server.memory() - before < 50 * MB
            assert not (await store.list(DEVELOPER, Query(session_id="f"))).items
    finally:
        await store.close()


async def test_a_narrowed_token_has_a_limited_number_of_large_replies_in_flight(
    standalone_server: Any,
) -> None:
    async with live(standalone_server.url, api_keys=KEYS) as site:
        for number in range(4):
            await site.post("s", owner=OWNER, title=str(number), context={"text": "x" * MB})
        token, other = await _token(site, KEY, session_id="s"), await _token(site, KEY)
        path = "/breadcrumbs?session_id=s&include_context=true"
        host, port = site.url.removeprefix("http://").split(":")
        sockets: list[socket.socket] = []
        async with httpx.AsyncClient(base_url=site.url, timeout=PATIENCE, trust_env=False) as client:
            try:
                for _ in range(12):
                    connection = socket.socket()
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    connection.connect((host, int(port)))
                    connection.sendall(
                        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
                    )
                    connection.setblocking(False)
                    sockets.append(connection)
                # The server runs in the same loop, so a blocking read could wait for ever.
                async with asyncio.timeout(PATIENCE):
                    loop = asyncio.get_running_loop()
                    started = [(await loop.sock_recv(connection, 12)).decode() for connection in sockets]
                assert sorted(started) == ["HTTP/1.1 200"] * 8 + ["HTTP/1.1 429"] * 4
                bearer = {"authorization": f"Bearer {token}"}
                refused = problem(await client.get(path, headers=bearer), 429, "rate-limited")
                assert refused["limit"] == 32 << 20
                small = await client.get("/breadcrumbs?session_id=s", headers=bearer)
                assert small.status_code == 200, "a small reply is never refused"
                unaffected = await client.get(path, headers={"authorization": f"Bearer {other}"})
                assert unaffected.status_code == 200
            finally:
                for connection in sockets:
                    connection.close()
            async with asyncio.timeout(PATIENCE):
                while (await client.get(path, headers=bearer)).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
