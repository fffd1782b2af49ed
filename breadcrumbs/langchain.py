"""A chat history of LangChain that is kept in Breadcrumbs (`pip install 'breadcrumbs[langchain]'`).

    history = BreadcrumbChatMessageHistory("demo")
    history.add_user_message("Hello")

Each message is a `langchain.message.v1` breadcrumb of the session `demo`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage, message_to_dict, messages_from_dict

from breadcrumbs.client.aio import AsyncClient
from breadcrumbs.client.core import Core
from breadcrumbs.client.effects import Operation
from breadcrumbs.client.histories import Entry, History
from breadcrumbs.client.sync import Client

__all__ = ["BreadcrumbChatMessageHistory"]

SCHEMA = "langchain.message.v1"
_MARK = "langchain:message"

T = TypeVar("T")


class BreadcrumbChatMessageHistory(BaseChatMessageHistory):
    """The messages of one session.

    `client` serves the ordinary methods, `async_client` those that begin with `a`; without one, these do the same in
    a thread. Without a `client` each call makes its own, from `CRUMB_URL` and `CRUMB_TOKEN`. Clients that are given
    are yours to close.
    """

    def __init__(
        self, session_id: str, *, client: Client | None = None, async_client: AsyncClient | None = None
    ) -> None:
        super().__init__()
        self.session_id = session_id
        self._client = client
        self._async_client = async_client

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        """All messages, the oldest first."""
        return messages_from_dict(self._do(lambda history: history.read()))

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Add messages in their order. One with an id is kept once, however often it is added."""
        self._do(lambda history: history.add(_entries(messages)))

    def clear(self) -> None:
        """Take out all messages. What else is in the session stays."""
        self._do(lambda history: history.clear())

    async def aget_messages(self) -> list[BaseMessage]:
        if (client := self._async_client) is None:
            return await super().aget_messages()
        return messages_from_dict(await client._run(self._in(client._core).read()))

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        if (client := self._async_client) is None:
            return await super().aadd_messages(messages)
        return await client._run(self._in(client._core).add(_entries(messages)))

    async def aclear(self) -> None:
        if (client := self._async_client) is None:
            return await super().aclear()
        return await client._run(self._in(client._core).clear())

    def _do(self, operation: Callable[[History], Operation[T]]) -> T:
        if self._client is not None:
            return self._client._run(operation(self._in(self._client._core)))
        with Client() as client:
            return client._run(operation(self._in(client._core)))

    def _in(self, core: Core) -> History:
        return History(core, self.session_id, SCHEMA, _MARK)


def _entries(messages: Sequence[BaseMessage]) -> list[Entry]:
    return [
        Entry(message_to_dict(message), message.id, f"{message.type}: {message.text}") for message in messages
    ]
