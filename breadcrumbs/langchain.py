"""Chat history of LangChain, stored in Breadcrumbs (`pip install 'breadcrumbs[langchain]'`).

    history = BreadcrumbChatMessageHistory("demo")
    history.add_user_message("Hello")

Each message is a `langchain.message.v1` breadcrumb in the session `demo`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage, message_to_dict, messages_from_dict

from breadcrumbs.client.aio import AsyncClient
from breadcrumbs.client.aio.histories import AsyncHistory
from breadcrumbs.client.entries import Entry
from breadcrumbs.client.sync import Client
from breadcrumbs.client.sync.histories import History
from breadcrumbs.runtime.schema_names import LANGCHAIN_MESSAGE

__all__ = ["BreadcrumbChatMessageHistory"]

_MARK = "langchain:message"
"""Tag of all messages."""


class BreadcrumbChatMessageHistory(BaseChatMessageHistory):
    """Messages of one session.

    The synchronous methods use `client`. The methods that begin with `a` use `async_client`, or run the synchronous
    methods in a thread if there is none. Without a `client`, each call creates one from `CRUMB_URL` and `CRUMB_TOKEN`.
    The caller must close the clients that it passes.
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
        """All messages, oldest first."""
        with self._history() as history:
            return messages_from_dict(history.read())

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Add messages in order.

        A message with an id is stored only once, even if it is added again.
        """
        with self._history() as history:
            history.add(_entries(messages))

    def clear(self) -> None:
        """Delete all messages. Other breadcrumbs of the session are kept."""
        with self._history() as history:
            history.clear()

    async def aget_messages(self) -> list[BaseMessage]:
        if (history := self._async_history()) is None:
            return await super().aget_messages()
        return messages_from_dict(await history.read())

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        if (history := self._async_history()) is None:
            return await super().aadd_messages(messages)
        return await history.add(_entries(messages))

    async def aclear(self) -> None:
        if (history := self._async_history()) is None:
            return await super().aclear()
        return await history.clear()

    @contextmanager
    def _history(self) -> Iterator[History]:
        if self._client is not None:
            yield History(self._client, self.session_id, LANGCHAIN_MESSAGE, _MARK)
            return
        with Client() as client:
            yield History(client, self.session_id, LANGCHAIN_MESSAGE, _MARK)

    def _async_history(self) -> AsyncHistory | None:
        if self._async_client is None:
            return None
        return AsyncHistory(self._async_client, self.session_id, LANGCHAIN_MESSAGE, _MARK)


def _entries(messages: Sequence[BaseMessage]) -> list[Entry]:
    return [
        Entry(message_to_dict(message), message.id, f"{message.type}: {message.text}") for message in messages
    ]
