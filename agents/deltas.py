"""Pieces of an answer while it is being made.

They go by Pub/Sub and may get lost; the breadcrumb at the end is the truth. The first piece leaves as soon as
the model pauses; the following ones are gathered for a few hundredths of a second, so that a fast model does not
cost a message per word.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

import orjson

from breadcrumbs.runtime.breadcrumb.text import writable
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.store.store import Store

_GATHER_SECONDS = 0.03


class DeltaWriter:
    """Publishes the text of one answer in pieces."""

    def __init__(self, store: Store, event: Event, agent_id: str, trigger_id: str, answer_id: str) -> None:
        self._store = store
        self._event = event
        self._note = {"agent_id": agent_id, "trigger_id": trigger_id, "breadcrumb_id": answer_id}
        self._pending = ""
        self._sent = 0
        self._loop = asyncio.get_running_loop()
        self._next = 0.0
        """When the next piece may leave, by the loop's clock."""
        self._leaving: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> DeltaWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        elif self._leaving is not None:
            self._leaving.cancel()

    async def write(self, text: str) -> None:
        self._pending += text
        if self._leaving is None:
            self._leaving = self._loop.call_at(self._next, self._flush)

    def _flush(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if not self._pending:
            return
        event = self._event
        payload = {
            "type": "agent.response.delta",
            "owner_id": str(event.owner_id),
            "session_id": event.session_id,
            "tags": event.tags,
            "offset": self._sent,
            "text": writable(self._pending),
            **self._note,
        }
        self._sent += len(self._pending)
        self._pending = ""
        self._next = self._loop.time() + _GATHER_SECONDS
        # Nobody waits for it: it may get lost, and if the store is gone, the commit will say so.
        self._store.connection.post(event.lane, b"PUBLISH", self._store.keys.deltas(), orjson.dumps(payload))
