"""Events of ADK agents are stored as breadcrumbs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from breadcrumbs.adk import BreadcrumbSessionService
from breadcrumbs.adk.backends import (
    BackendAccess,
    DirectoryAddress,
    RedisAddress,
    ServerAddress,
    parse_address,
)
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.selectors import Selector
from breadcrumbs.runtime.maintenance.export_import import decode, export_lines
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store.store import Store
from tests.adk.support import APP, Parrot, event, runner_on, say, spoken, unique
from tests.support.conversations import ALICE, MESSAGE, config, opened, working


async def test_an_adk_session_is_a_session_of_the_store(served: str, user: str) -> None:
    async with BreadcrumbSessionService(served) as service:
        session = await service.create_session(app_name=APP, user_id=user, state={"a": 1, "user:b": 1})
        await say(runner_on(service, Parrot()), user, session.id, "hello")
    name = f"adk:{APP}:{user}:{session.id}"
    async with httpx.AsyncClient(base_url=served) as client:
        listed = (await client.get("/sessions", params={"user_id": user})).json()["sessions"]
        assert [one["id"] for one in listed] == [name]
        assert listed[0]["title"] == f"{APP} · {user}"
        assert (await client.get(f"/sessions/{name}")).json()["state"] == {"a": 1}
        tags = [f"adk:app:{APP}", f"session:{name}"]
        records = (await client.get("/breadcrumbs", params={"all_tags": tags})).json()
        assert [one["schema_name"] for one in records] == ["session.v1"]
        assert f"user:{user}" in records[0]["tags"]
        found = await client.get(
            "/breadcrumbs",
            params={"session_id": name, "schema_name": "adk.event.v1", "include_context": True},
        )
        said = [(one["context"]["author"], one["context"]["message"]) for one in found.json()[::-1]]
        assert said == [("user", "hello"), ("helper", "re: hello")]
        for one in found.json():
            assert one["context"]["session_id"] == name
            # The view of a model has no internal fields.
            view = (await client.get(f"/breadcrumbs/{one['id']}")).json()
            assert view["context"].keys() == {"author", "message"}
        assert (await client.delete(f"/sessions/{name}")).status_code == 200
    async with BreadcrumbSessionService(served) as service:
        assert await service.get_session(app_name=APP, user_id=user, session_id=session.id) is None


def test_crumb_tail_shows_an_agent_live(served: str, user: str) -> None:
    session = f"adk:{APP}:{user}:s"
    asyncio.run(BreadcrumbSessionService(served).create_session(app_name=APP, user_id=user, session_id="s"))
    argv = [sys.executable, "-m", "breadcrumbs", "tail", "--url", served, "--session", session]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tail:
        assert tail.stdout is not None
        output = tail.stdout

        async def talk() -> None:
            async with BreadcrumbSessionService(served) as service:
                for number in range(1_000):  # until the tail is connected
                    await say(runner_on(service, Parrot()), user, "s", f"hello {number}")
                    if heard.is_set():
                        return
                    await asyncio.sleep(0.2)

        async def listen() -> str:
            # Read two lines: the tail can connect between a message and its answer.
            lines = [await asyncio.to_thread(output.readline) for _ in range(2)]
            heard.set()
            return b"".join(lines).decode()

        async def both() -> str:
            heard_of, _ = await asyncio.gather(listen(), talk())
            return heard_of

        heard = asyncio.Event()
        try:
            lines = [json.loads(line) for line in asyncio.run(both()).splitlines()]
        finally:
            tail.terminate()
    assert {line["schema_name"] for line in lines} == {"adk.event.v1"}
    assert all("hello" in line["context"]["message"] for line in lines)


async def test_adk_events_trigger_no_agents_and_can_be_a_source_of_contexts(
    embedded_server: EmbeddedServer,
) -> None:
    sources = [
        {"key": "conversation", "schema_name": MESSAGE, "fetch": {"method": "recent", "limit": 10}},
        {"key": "conversation", "schema_name": "adk.event.v1", "fetch": {"method": "recent", "limit": 10}},
    ]
    async with opened(embedded_server.url) as store:
        service = BreadcrumbSessionService(store, owner=ALICE)
        async with working(store, configs=[config(sources=sources)]) as chat:
            session = await service.create_session(app_name=APP, user_id="ann", session_id="s")
            await service.append_event(session, event("from adk", state={"user:x": 1, "app:y": 1}))
            await chat.settled()
            schemas = {crumb.schema_name async for crumb in store.walk(ALICE, Query())}
            assert schemas == {"session.v1", "adk.event.v1"}
            asked = await chat.say(f"adk:{APP}:ann:s", "what was said?")
            answer = (await chat.answer_to(asked)).context["message"]
        assert "from adk" in answer and "what was said?" in answer
        assert "invocationId" not in answer


def test_the_shipped_config_reacts_to_no_event() -> None:
    raw = (Path(__file__).parents[2] / "config" / "context-builder-config.json").read_bytes()
    shipped = ContextConfig.model_validate({k: v for k, v in orjson.loads(raw).items() if k != "$schema"})
    assert shipped.update_triggers
    assert all(
        isinstance(trigger, Selector) and trigger.schema_name == MESSAGE
        for trigger in shipped.update_triggers
    )


async def test_sessions_and_all_kinds_of_state_survive_an_export_and_an_import(
    embedded_server: EmbeddedServer,
) -> None:
    async with opened(embedded_server.url) as store, opened(embedded_server.url) as copy:
        service, copied = (BreadcrumbSessionService(on, owner=ALICE) for on in (store, copy))
        session = await service.create_session(
            app_name=APP, user_id="ann", session_id="s", state={"a": None, "user:b": None, "app:c": 1}
        )
        await service.append_event(session, event("one", state={"d": 1, "user:b": 2}))
        await service.append_event(session, event("two", state={"d": None, "app:c": None}))
        lines = [line async for line in export_lines(store, ALICE, Query())]
        for line in lines[::-1]:
            await copy.restore(*decode(line))
        wanted: dict[str, Any] = {"app_name": APP, "user_id": "ann", "session_id": "s"}
        before, after = await service.get_session(**wanted), await copied.get_session(**wanted)
        assert before is not None and after is not None
        assert after == before
        assert after.state == {"a": None, "user:b": 2, "app:c": None, "d": None}


# Addresses


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("http://127.0.0.1:8081", ServerAddress("http://127.0.0.1:8081", None, None)),
        ("https://host/base/", ServerAddress("https://host/base", None, None)),
        ("crumb://host", ServerAddress("http://host:8081", None, None)),
        ("crumb://host:99", ServerAddress("http://host:99", None, None)),
        ("crumb://[::1]:99", ServerAddress("http://[::1]:99", None, None)),
        ("crumb://a%2Fkey@host", ServerAddress("http://host:8081", "a/key", None)),
        ("crumb+https://:key@host", ServerAddress("https://host", "key", None)),
        ("redis://host:1/2", RedisAddress("redis://host:1/2", DEVELOPER, "bc")),
        (f"crumb+redis://host?owner={ALICE}&namespace=n", RedisAddress("redis://host", ALICE, "n")),
        ("crumb+unix:///run/x.sock?db=1", RedisAddress("unix:///run/x.sock?db=1", DEVELOPER, "bc")),
        ("crumb+redis+cluster://host:7000", RedisAddress("redis+cluster://host:7000", DEVELOPER, "bc")),
    ],
)
def test_addresses_are_parsed(where: str, expected: ServerAddress | RedisAddress) -> None:
    assert parse_address(where) == expected


def test_invalid_addresses_are_refused_with_advice() -> None:
    for where in ("sqlite:///x", "host:8081", ""):
        with pytest.raises(ValueError, match="use http://"):
            parse_address(where)
    with pytest.raises(ValueError, match="gets the owner from the token"):
        parse_address("http://host", BackendAccess(owner=ALICE))
    with pytest.raises(ValueError, match="a store takes no token"):
        parse_address("redis://host", BackendAccess(token="x"))
    assert isinstance(parse_address("crumb://"), DirectoryAddress)


def test_no_repr_contains_a_token() -> None:
    assert "hush" not in repr(parse_address("crumb://hush@host"))
    assert "hush" not in repr(parse_address("redis://:hush@host"))


async def test_a_data_directory_uses_its_running_server_or_starts_one(
    tmp_path: Path,
) -> None:
    address = f"crumb://{tmp_path / 'data'}"
    async with BreadcrumbSessionService(address) as first, BreadcrumbSessionService(address) as second:
        session = await first.create_session(app_name=APP, user_id="ann")
        await second.append_event(session, event("hello"))
        assert await spoken(first, "ann", session.id) == [("user", "hello")]
    began = time.monotonic()
    with EmbeddedServer(tmp_path / "data"):  # the directory was released
        assert time.monotonic() - began < 30
        async with BreadcrumbSessionService(address) as again:
            assert await spoken(again, "ann", session.id) == [("user", "hello")]


async def test_a_given_store_stays_open(store: Store) -> None:
    async with BreadcrumbSessionService(store) as service:
        await service.create_session(app_name=unique("app"), user_id="ann")
    await store.ping()


async def test_an_adk_session_does_not_contain_feedback(served: str, user: str) -> None:
    async with BreadcrumbSessionService(served) as service:
        session = await service.create_session(app_name=APP, user_id=user)
        name = f"adk:{APP}:{user}:{session.id}"
        answer = {
            "schema_name": "agent.response.v1",
            "tags": [f"session:{name}"],
            "context": {"message": "Hi"},
        }
        async with httpx.AsyncClient(base_url=served) as client:
            posted = (await client.post("/breadcrumbs", json=answer)).json()
            path, body = f"/breadcrumbs/{posted['id']}/feedback", {"rating": "down", "note": "a hidden note"}
            assert (await client.put(path, json=body)).status_code == 200
            view = (await client.get(f"/apps/{APP}/users/{user}/sessions/{session.id}")).text
        read = await service.get_session(app_name=APP, user_id=user, session_id=session.id)
    assert read is not None and read.events == []
    assert "hidden note" not in view and "hidden note" not in read.model_dump_json()
