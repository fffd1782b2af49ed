"""Session of the OpenAI Agents SDK, stored in Breadcrumbs (`pip install 'breadcrumbs[openai-agents]'`).

    session = BreadcrumbSession("demo")
    result = await Runner.run(agent, "Hello", session=session)

Each item is an `openai.item.v1` breadcrumb in the session `demo`. `crumb tail` shows new items as they arrive, and the
context builder can use them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from breadcrumbs.client.aio import AsyncClient
from breadcrumbs.client.aio.histories import AsyncHistory
from breadcrumbs.client.entries import Entry
from breadcrumbs.runtime.schema_names import OPENAI_ITEM

__all__ = ["BreadcrumbSession"]

_MARK = "openai:item"
"""Tag of all items."""
_NO_ID = "__fake_id__"
"""Id that the SDK sets if the model returns none."""


class BreadcrumbSession:
    """Implementation of the SDK's `Session` protocol on a Breadcrumbs server.

    Without a `client`, each call creates its own from `CRUMB_URL` and `CRUMB_TOKEN`, which works in any event loop. A
    given `client` is used for all calls, and the caller must close it.
    """

    def __init__(
        self, session_id: str, *, client: AsyncClient | None = None, session_settings: Any = None
    ) -> None:
        self.session_id = session_id
        self.session_settings = session_settings
        """`SessionSettings` of the SDK. Its `limit` is the number of items that a run reads."""
        self._client = client

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the last `limit` items, oldest first.

        If `limit` is None, the limit of `session_settings` applies. Without either limit, return all items.
        """
        wanted = self._settings_limit() if limit is None else limit
        async with self._history() as history:
            return await history.read(wanted)

    async def add_items(self, items: list[Any]) -> None:
        """Add items in order.

        An item with an id from the model is stored only once, even if it is added again.
        """
        entries = [Entry(item, _id_of(item), _title_of(item)) for item in items]
        async with self._history() as history:
            await history.add(entries)

    async def pop_item(self) -> Any | None:
        """Remove and return the newest item, or None.

        Concurrent calls never return the same item.
        """
        async with self._history() as history:
            return await history.pop()

    async def clear_session(self) -> None:
        """Delete all items. Other breadcrumbs of the session are kept."""
        async with self._history() as history:
            await history.clear()

    @asynccontextmanager
    async def _history(self) -> AsyncIterator[AsyncHistory]:
        if self._client is not None:
            yield AsyncHistory(self._client, self.session_id, OPENAI_ITEM, _MARK)
            return
        async with AsyncClient() as client:
            yield AsyncHistory(client, self.session_id, OPENAI_ITEM, _MARK)

    def _settings_limit(self) -> int | None:
        settings = self.session_settings
        limit = settings.get("limit") if isinstance(settings, dict) else getattr(settings, "limit", None)
        return limit if isinstance(limit, int) else None


def _id_of(item: Any) -> str | None:
    id = item.get("id") if isinstance(item, dict) else None
    return id if isinstance(id, str) and id not in ("", _NO_ID) else None


def _title_of(item: Any) -> str:
    if not isinstance(item, dict):
        return ""
    label = item.get("role") or item.get("type") or "item"
    content = item.get("content")
    if isinstance(content, list):
        content = " ".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return f"{label}: {content or item.get('name') or item.get('output') or ''}"
