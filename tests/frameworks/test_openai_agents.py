"""`BreadcrumbSession` with the real OpenAI Agents SDK, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
import pytest

from breadcrumbs import AsyncClient
from breadcrumbs.client.aio.histories import AsyncHistory
from breadcrumbs.client.entries import Entry
from breadcrumbs.client.errors import InvalidInput, ServerUnreachable
from breadcrumbs.openai_agents import BreadcrumbSession
from tests.client.support import CrumbUp
from tests.frameworks.conftest import openai_sdk
from tests.frameworks.fake_openai import RecitingModel

sdk: Any = openai_sdk()


@pytest.fixture
async def client(up: CrumbUp) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(up.url) as client:
        yield client


@pytest.fixture
def session(client: AsyncClient, name: str) -> BreadcrumbSession:
    return BreadcrumbSession(name, client=client)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def model_message(id: str, text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": id, "type": "message", "role": "assistant", "status": "completed", "content": content}


@sdk.function_tool  # type: ignore[untyped-decorator]
def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


async def test_the_second_turn_of_a_runner_sees_the_first_after_a_server_restart(
    up: CrumbUp, name: str
) -> None:
    async with AsyncClient(up.url) as client:
        model = RecitingModel()
        agent = sdk.Agent(name="reciter", model=model, tools=[add])
        first = await sdk.Runner.run(agent, "Hello", session=BreadcrumbSession(name, client=client))
        assert first.final_output == "Hello"
        summed = await sdk.Runner.run(agent, "add 2 3", session=BreadcrumbSession(name, client=client))
        assert summed.final_output == "Hello | add 2 3 | = 5"

    await anyio.to_thread.run_sync(up.stop)
    await anyio.to_thread.run_sync(up.start)

    async with AsyncClient(up.url) as client:
        model = RecitingModel()
        agent = sdk.Agent(name="reciter", model=model, tools=[add])
        session = BreadcrumbSession(name, client=client)
        third = await sdk.Runner.run(agent, "Still there?", session=session)
        assert third.final_output == "Hello | add 2 3 | Still there? | = 5"
        (shown,) = model.inputs
        assert [item.get("role") or item["type"] for item in shown] == [
            "user", "assistant", "user", "function_call", "function_call_output", "assistant", "user",
        ]  # fmt: skip
        assert [item.get("role") or item["type"] for item in await session.get_items()] == [
            *(item.get("role") or item["type"] for item in shown),
            "assistant",
        ]


async def test_the_session_satisfies_the_protocol_of_the_sdk(session: BreadcrumbSession) -> None:
    assert isinstance(session, sdk.memory.Session)
    assert await session.get_items() == []
    assert await session.pop_item() is None
    await session.clear_session()


async def test_the_session_behaves_like_that_of_the_sdk(session: BreadcrumbSession) -> None:
    """Both sessions get the same calls."""
    theirs = sdk.SQLiteSession("theirs")
    items = [
        user("one"),
        model_message("msg_1", "two"),
        user("three"),
        user("three"),
        model_message("msg_2", "four"),
    ]
    try:
        for each in (session, theirs):
            await each.add_items(items[:2])
            await each.add_items([])
            await each.add_items(items[2:])
        for limit in (None, 0, 1, 3, 100):
            assert await session.get_items(limit) == await theirs.get_items(limit), limit
        for _ in range(2):
            assert await session.pop_item() == await theirs.pop_item()
        await session.add_items([user("five")])
        await theirs.add_items([user("five")])
        assert await session.get_items() == await theirs.get_items()
        for each in (session, theirs):
            await each.clear_session()
            assert await each.get_items() == []
            assert await each.pop_item() is None
    finally:
        theirs.close()


async def test_settings_limit_the_items_of_a_run(client: AsyncClient, name: str) -> None:
    for settings in (sdk.memory.SessionSettings(limit=2), {"limit": 2}):
        session = BreadcrumbSession(
            f"{name}-{type(settings).__name__}", client=client, session_settings=settings
        )
        await session.add_items([user(str(number)) for number in range(5)])
        assert [item["content"] for item in await session.get_items()] == ["3", "4"]
        assert [item["content"] for item in await session.get_items(1)] == ["4"]
        assert len(await session.get_items(100)) == 5


async def test_items_are_returned_unchanged(session: BreadcrumbSession) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "schön ☕"}], "session_id": "elsewhere"},
        {"type": "function_call_output", "call_id": "c1", "output": '{"a": [1, null, {}]}'},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
        {"type": "computer_call", "id": "cu_1", "action": {"x": 9007199254740993, "y": 0.1}, "empty": {}},
    ]
    await session.add_items(items)
    assert await session.get_items() == items


async def test_an_item_with_an_id_is_stored_once_and_others_each_time(
    session: BreadcrumbSession,
) -> None:
    fake = model_message("__fake_id__", "ok")  # the id that the SDK uses for models without ids
    call = {
        "type": "function_call_output",
        "call_id": "call_0",
        "output": "1",
    }  # some models count from 0 each time
    for _ in range(2):
        await session.add_items([user("yes"), model_message("msg_1", "Hello"), fake, call])
    contents = [
        item.get("id") or item.get("call_id") or item["content"] for item in await session.get_items()
    ]
    assert contents == ["yes", "msg_1", "__fake_id__", "call_0", "yes", "__fake_id__", "call_0"]
    await session.add_items([model_message("msg_1", "Hello again")])
    assert (await session.get_items(1))[0]["content"][0]["text"] == "Hello again"


async def test_a_removed_item_can_be_added_again(session: BreadcrumbSession) -> None:
    item = model_message("msg_1", "Hello")
    for take_out in (session.pop_item, session.clear_session):
        await session.add_items([user("Hi"), item])
        await take_out()
        await session.add_items([item])
        assert (await session.get_items())[-1] == item
        await session.clear_session()


async def test_an_item_added_again_is_stored_once(session: BreadcrumbSession) -> None:
    item = model_message("msg_1", "Hello")
    for take_out in (session.pop_item, session.clear_session):
        for _ in range(3):
            await session.add_items([item])
        await take_out()
        for _ in range(3):
            await session.add_items([item])
        assert await session.get_items() == [item]
        await session.clear_session()


async def test_an_item_is_stored_once_after_its_key_expired(
    client: AsyncClient, session: BreadcrumbSession, name: str
) -> None:
    """The server keeps idempotency keys for a day."""
    item = model_message("msg_1", "Hello")
    await session.add_items([item])
    (crumb,) = [crumb async for crumb in client.list(session=name)]
    await client.delete(crumb.id)
    # The same breadcrumb without an idempotency key.
    await client.create(crumb.schema_name, crumb.context, title=crumb.title, tags=crumb.tags)
    await session.add_items([user("Hi"), item])
    assert await session.get_items() == [item, user("Hi")]


async def test_invalid_json_is_refused_with_an_explanation(client: AsyncClient, name: str) -> None:
    history = AsyncHistory(client, name, "x.v1", "mark")
    for id in (None, "one"):
        with pytest.raises(InvalidInput, match="JSON"):
            await history.add([Entry({"a": {1, 2}}, id)])


async def test_concurrent_pops_return_different_items_newest_first(
    up: CrumbUp, session: BreadcrumbSession, name: str
) -> None:
    await session.add_items([user(str(number)) for number in range(12)])
    popped: list[str] = []

    async def pop() -> None:
        async with AsyncClient(up.url) as client:
            item = await BreadcrumbSession(name, client=client).pop_item()
            assert item is not None
            popped.append(item["content"])

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(pop)
    assert sorted(popped, key=int) == [str(number) for number in range(4, 12)]
    assert [item["content"] for item in await session.get_items()] == ["0", "1", "2", "3"]


async def test_concurrent_writers_lose_nothing_and_keep_their_order(up: CrumbUp, name: str) -> None:
    async def write(who: str) -> None:
        async with AsyncClient(up.url) as client:
            session = BreadcrumbSession(name, client=client)
            for number in range(0, 10, 2):
                await session.add_items([user(f"{who} {number}"), user(f"{who} {number + 1}")])

    async with anyio.create_task_group() as tasks:
        for who in "abc":
            tasks.start_soon(write, who)
    async with AsyncClient(up.url) as client:
        found = [item["content"] for item in await BreadcrumbSession(name, client=client).get_items()]
    assert len(found) == 30
    for who in "abc":
        assert [text for text in found if text.startswith(who)] == [f"{who} {number}" for number in range(10)]


async def test_sessions_are_separate_and_clearing_keeps_other_breadcrumbs(
    client: AsyncClient, name: str
) -> None:
    names = [name, name + ":x", name + " x", name + "*"]
    sessions = [BreadcrumbSession(each, client=client) for each in names]
    for number, session in enumerate(sessions):
        await session.add_items([user(f"in {number}")])
    await client.create("note.v1", {"text": "stays"}, session=name)
    await sessions[0].clear_session()
    assert [await session.get_items() for session in sessions] == [
        [], [user("in 1")], [user("in 2")], [user("in 3")],
    ]  # fmt: skip
    assert [crumb.schema_name async for crumb in client.list(session=name)] == ["note.v1"]


async def test_a_partly_removed_item_is_gone(
    client: AsyncClient, session: BreadcrumbSession, name: str
) -> None:
    """A client can be killed between the two steps of a pop."""
    await session.add_items([user("one"), user("two")])
    (newest,) = [crumb async for crumb in client.list(session=name, limit=1)]
    await client.update(newest.id, tags=[f"session:{name}"], expected_version=newest.version)
    assert await session.get_items() == [user("one")]
    assert await session.pop_item() == user("one")
    await session.clear_session()
    assert [crumb async for crumb in client.list(session=name)] == []


async def test_items_are_breadcrumbs_with_readable_metadata(
    client: AsyncClient, session: BreadcrumbSession, name: str
) -> None:
    await session.add_items([user("Hello"), model_message("msg_1", "Hi there")])
    crumbs = [crumb async for crumb in client.list(session=name, sort="created_at")]
    assert [(crumb.schema_name, crumb.title) for crumb in crumbs] == [
        ("openai.item.v1", "user: Hello"), ("openai.item.v1", "assistant: Hi there"),
    ]  # fmt: skip
    assert all(crumb.session_id == name for crumb in crumbs)


def test_without_a_client_it_works_from_any_event_loop(
    up: CrumbUp, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRUMB_URL", up.url)
    session = BreadcrumbSession(name)
    for number in range(2):
        anyio.run(session.add_items, [user(str(number))])
    assert [item["content"] for item in anyio.run(session.get_items)] == ["0", "1"]


async def test_an_unreachable_server_is_reported(name: str) -> None:
    async with AsyncClient("http://127.0.0.1:1", retries=0) as client:
        with pytest.raises(ServerUnreachable, match="crumb up"):
            await BreadcrumbSession(name, client=client).add_items([user("Hello")])


class LosesTheFirstAnswer(httpx.AsyncHTTPTransport):
    """Transport that loses the first reply after the server has written."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method
        self.lost = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if request.method == self.method and not self.lost:
            self.lost = True
            await response.aread()
            raise httpx.ReadError("lost on the way", request=request)
        return response


async def test_a_pop_with_a_lost_reply_loses_nothing(up: CrumbUp, name: str) -> None:
    async with AsyncClient(up.url) as client:
        await client._connection.http.aclose()
        client._connection.http = httpx.AsyncClient(base_url=up.url, transport=LosesTheFirstAnswer("PATCH"))
        session = BreadcrumbSession(name, client=client)
        await session.add_items([user("one"), user("two")])
        assert await session.pop_item() == user("two")
        assert await session.get_items() == [user("one")]


async def test_an_item_with_a_lost_reply_is_stored_once(up: CrumbUp, name: str) -> None:
    """The client retries automatically."""
    async with AsyncClient(up.url) as client:
        await client._connection.http.aclose()
        client._connection.http = httpx.AsyncClient(base_url=up.url, transport=LosesTheFirstAnswer("POST"))
        session = BreadcrumbSession(name, client=client)
        await session.add_items([user("Hello")])
        assert await session.get_items() == [user("Hello")]
