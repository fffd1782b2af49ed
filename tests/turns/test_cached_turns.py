"""Turns whose inputs come from the memory of the worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from secrets import token_hex
from typing import Any

import pytest

from breadcrumbs.agents.models.base import ModelRequest
from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers import session_cache
from tests.support.conversations import ALICE, CONTEXT, MESSAGE, RESPONSE, Chat, compose, config, opened
from tests.turns.stepping import SteppedConnection, SteppedWorker

CATALOG = "tool.catalog.v1"
SOURCES = [
    *config()["sources"],
    {"key": "tools", "schema_name": CATALOG, "fetch": {"method": "latest"}},
]


class Room:
    """A builder and a runner of one process, and another process that writes."""

    def __init__(self, store: Store, other: Store) -> None:
        self.store, self.other = store, other
        self.chat = Chat(store)
        self.requests: list[ModelRequest] = []
        handlers = compose(store, FunctionModel(self._answer), configs=[config(sources=SOURCES)])
        self.builder = SteppedWorker(store, handlers.builder, "b")
        self.runner = SteppedWorker(store, handlers.runner, "r")

    def _answer(self, request: ModelRequest) -> str:
        self.requests.append(request)
        return f"answer {len(self.requests)}"

    async def start(self) -> None:
        for worker in (self.builder, self.runner):
            await worker.take_free_lanes(self.store.lanes)

    async def turn(self) -> list[int]:
        """Handle all events. Return the round trips of each hop."""
        trips = []
        for worker in (self.builder, self.runner):
            await worker.read()
            while worker.ready:
                trips.append(await worker.begin(0).finish(30))
        return trips

    async def catalog(self, store: Store, text: str) -> Breadcrumb:
        fields = {"schema_name": CATALOG, "title": "t", "context": {"text": text}}
        written = await store.create(ALICE, BreadcrumbCreate.parse(fields))
        return await store.get(ALICE, written.id)

    async def shown(self) -> list[str]:
        """Return the catalog texts in the newest context."""
        (context,) = await self.chat.all("s", CONTEXT)
        parts = [part for part in context.context["parts"] if part["key"] == "tools"]
        return [item["content"]["text"] for part in parts for item in part["items"]]


@pytest.fixture
async def room(embedded_server: EmbeddedServer) -> AsyncIterator[Room]:
    namespace = f"t{token_hex(6)}"
    async with opened(embedded_server.url, namespace=namespace) as store:
        store.connection = SteppedConnection(store.connection)
        async with opened(embedded_server.url, namespace=namespace) as other:
            room = Room(store, other)
            await room.start()
            for number in range(3):
                await room.chat.say("s", f"message {number}")
                await room.turn()
            yield room


async def test_a_turn_with_cached_inputs_only_commits(room: Room) -> None:
    await room.chat.say("s", "one more")
    assert await room.turn() == [1, 1]
    assert await room.chat.texts("s") == [f"answer {number}" for number in range(1, 5)]


async def test_a_message_of_another_process_is_read_with_one_round_trip(room: Room) -> None:
    await Chat(room.other).say("s", "from another process")
    assert await room.turn() == [2, 1]
    assert room.requests[-1].messages[-1].content == "from another process"


async def test_a_message_that_was_deleted_before_its_turn_is_not_answered(room: Room) -> None:
    message = await room.chat.say("s", "never mind")
    await room.builder.read()
    await room.other.delete(ALICE, message.id)
    await room.builder.handle_all()  # the event of the deletion has not arrived
    await room.turn()
    assert len(await room.chat.answers("s")) == 3
    assert await room.chat.errors("s") == []
    (context,) = await room.chat.all("s", CONTEXT)
    assert context.context["trigger_id"] != str(message.id)


async def test_a_context_that_was_deleted_before_its_turn_is_not_answered(room: Room) -> None:
    await room.chat.say("s", "never mind")
    await room.builder.read()
    await room.builder.handle_all()
    await room.runner.read()
    (context,) = await room.chat.all("s", CONTEXT)
    await room.other.delete(ALICE, context.id)
    await room.runner.handle_all()
    await room.turn()
    assert len(await room.chat.answers("s")) == 3
    assert await room.chat.errors("s") == []
    assert await room.chat.dead_letters() == []


@pytest.mark.parametrize("writer", ["this process", "another process"])
@pytest.mark.parametrize("servers", ["one", "several"])
async def test_a_shared_breadcrumb_is_visible_in_the_next_message(
    room: Room, writer: str, servers: str
) -> None:
    store = room.store if writer == "this process" else room.other
    room.store.is_one_server = (
        servers == "one"
    )  # on a cluster, the turn reads the version instead of the commit
    first = await room.catalog(store, "first")
    for change in ("first", "edited", "replaced", "edited again", None):
        match change:
            case "edited" | "edited again":
                new: Any = BreadcrumbUpdate(context={"text": change})
                await store.update(ALICE, first.id, new)
            case "replaced":
                first = await room.catalog(store, "replaced")
            case None:
                for catalog in await room.chat.all(None, CATALOG):
                    await store.delete(ALICE, catalog.id)
        await room.chat.say("s", "next")
        await room.turn()
        assert await room.shown() == ([] if change is None else [change])


async def test_a_shared_breadcrumb_that_changes_during_a_turn_makes_it_build_again(room: Room) -> None:
    await room.catalog(room.store, "first")
    for _ in range(2):
        await room.chat.say("s", "warm up")
        await room.turn()
    await room.chat.say("s", "next")
    await room.builder.read()
    actor = room.builder.begin(0)
    await actor.settle(30)
    assert len(actor.asked) == 1  # the commit
    await room.catalog(room.other, "second")
    await actor.finish(30)
    assert await room.shown() == ["second"]


async def test_the_memory_of_the_cache_is_limited(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = room.builder._lanes.sessions
    assert (
        len(cache._sessions) == 1 and cache._bytes == sum(one.bytes for one in cache._sessions.values()) > 0
    )
    monkeypatch.setattr(session_cache, "_MAX_SESSIONS", 2)
    for session in ("a", "b", "b", "b", "c", "c", "c"):
        await room.chat.say(session, "hello")
        await room.turn()
    assert [session for _, session in cache._sessions] == ["b", "c"]
    monkeypatch.setattr(session_cache, "_MAX_BYTES", cache._bytes - 1)
    await room.chat.say("c", "more")
    await room.turn()
    assert [session for _, session in cache._sessions] == ["c"]
    assert cache._bytes == cache._sessions[ALICE, "c"].bytes
    monkeypatch.setattr(session_cache, "_MAX_SESSION_BYTES", 100)
    await room.chat.say("c", "and more")
    await room.turn()
    assert not cache._sessions and cache._bytes == 0
    assert len(await room.chat.all("c", MESSAGE)) == len(await room.chat.all("c", RESPONSE)) == 5


async def test_a_lane_that_is_taken_again_starts_with_an_empty_cache(room: Room) -> None:
    await room.builder.lose_leases()
    for lane in list(room.builder._lanes.by_number.values()):
        room.builder._lanes.drop(lane)
    await room.chat.post(RESPONSE, ["session:s"], {"message": "written meanwhile"})
    await room.builder.take_free_lanes(room.store.lanes)
    await room.chat.say("s", "next")
    assert (await room.turn())[0] > 1
    (context,) = await room.chat.all("s", CONTEXT)
    texts = [item["content"].get("message") for part in context.context["parts"] for item in part["items"]]
    assert "written meanwhile" in texts
