"""`BreadcrumbChatMessageHistory` with the real langchain-core, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from breadcrumbs import AsyncClient, Client
from breadcrumbs.langchain import BreadcrumbChatMessageHistory
from tests.client.support import CrumbUp


class Face:
    """The same calls on the sync or the async methods of a history."""

    def __init__(self, history: BreadcrumbChatMessageHistory, *, awaited: bool) -> None:
        self.history = history
        self._awaited = awaited

    async def read(self) -> list[BaseMessage]:
        return await self.history.aget_messages() if self._awaited else self.history.messages

    async def add(self, *messages: BaseMessage) -> None:
        if self._awaited:
            await self.history.aadd_messages(messages)
        else:
            self.history.add_messages(messages)

    async def clear(self) -> None:
        if self._awaited:
            await self.history.aclear()
        else:
            self.history.clear()


@pytest.fixture(params=["sync", "async", "in a thread"])
async def face(request: pytest.FixtureRequest, up: CrumbUp, name: str) -> AsyncIterator[Face]:
    async with AsyncClient(up.url) as async_client:
        with Client(up.url) as client:
            given = async_client if request.param == "async" else None
            history = BreadcrumbChatMessageHistory(name, client=client, async_client=given)
            yield Face(history, awaited=request.param != "sync")


CONVERSATION: list[BaseMessage] = [
    SystemMessage("Be brief."),
    HumanMessage([{"type": "text", "text": "What is 2 + 3?"}], name="ann"),
    AIMessage("", tool_calls=[{"name": "add", "args": {"a": 2, "b": 3}, "id": "call_1"}], id="run-1"),
    ToolMessage("5", tool_call_id="call_1"),
    AIMessage("Five ☕", additional_kwargs={"a": None}, response_metadata={"model": "m"}, id="run-2"),
]


async def test_messages_are_returned_unchanged_and_in_order(face: Face) -> None:
    await face.add(*CONVERSATION[:2])
    await face.add(*CONVERSATION[2:])
    assert await face.read() == CONVERSATION
    await face.clear()
    assert await face.read() == []


async def test_a_message_with_an_id_is_stored_once_and_others_each_time(face: Face) -> None:
    for _ in range(2):
        await face.add(HumanMessage("yes"), AIMessage("Hello", id="run-1"))
    assert [message.content for message in await face.read()] == ["yes", "Hello", "yes"]


def test_the_convenience_methods_work_and_sessions_are_separate(up: CrumbUp, name: str) -> None:
    with Client(up.url) as client:
        one, two = (BreadcrumbChatMessageHistory(name + end, client=client) for end in ("", ":2"))
        one.add_user_message("Hello")
        two.add_ai_message("Elsewhere")
        one.add_message(AIMessage("Hi"))
        assert str(one) == "Human: Hello\nAI: Hi"
        two.clear()
        assert [message.content for message in one.messages] == ["Hello", "Hi"]


def test_without_a_client_the_server_comes_from_the_environment(
    up: CrumbUp, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRUMB_URL", up.url)
    BreadcrumbChatMessageHistory(name).add_user_message("Hello")
    assert [message.content for message in BreadcrumbChatMessageHistory(name).messages] == ["Hello"]
