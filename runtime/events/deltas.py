"""Deltas: pieces of an answer that are published while it is being generated.

Deltas use Pub/Sub and can get lost. The breadcrumb of the answer is always complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import anyio
import orjson
import structlog

from breadcrumbs.runtime.backend.link import LinkLost, ReplyError
from breadcrumbs.runtime.breadcrumb.text import encodable_text
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.store.store import Store

DELTA: Final = "agent.response.delta"
"""Type of a delta in streams. Filters treat it as a schema name."""

_FLUSH_SECONDS: Final = 0.03  # between two deltas, so that a fast model does not cost one message per word
_RETRY_SECONDS: Final = 1.0

_log = structlog.get_logger("breadcrumbs.events")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Delta:
    """A piece of an answer."""

    owner_id: UUID
    session_id: str | None
    tags: tuple[str, ...]
    """Tags of the trigger's event. They decide which principals may see the delta."""
    agent_id: str
    trigger_id: str
    """Id of the message that is answered."""
    breadcrumb_id: UUID
    """Id that the answer will have."""
    offset: int = 0
    """Length of the answer's text before this delta, in characters."""
    text: str = ""

    def encode(self) -> bytes:
        return orjson.dumps({"tags": self.tags, **self.document()})

    @classmethod
    def decode(cls, payload: bytes) -> Delta:
        """Decode a published delta. Raises LookupError, TypeError or ValueError if the payload is invalid."""
        fields = orjson.loads(payload)
        return cls(
            UUID(fields["owner_id"]),
            fields["session_id"],
            tuple(fields["tags"]),
            fields["agent_id"],
            fields["trigger_id"],
            UUID(fields["breadcrumb_id"]),
            fields["offset"],
            fields["text"],
        )

    def document(self) -> dict[str, Any]:
        """Return the fields that clients get."""
        return {
            "type": DELTA,
            "owner_id": str(self.owner_id),
            "session_id": self.session_id,
            "offset": self.offset,
            "text": self.text,
            "agent_id": self.agent_id,
            "trigger_id": self.trigger_id,
            "breadcrumb_id": str(self.breadcrumb_id),
        }


def publish(store: Store, lane: int, delta: Delta) -> None:
    """Publish a delta without waiting. `lane` selects the cluster node that receives it."""
    store.connection.post(lane, b"PUBLISH", store.keys.deltas(), delta.encode())


async def listen(store: Store, on_delta: Callable[[Delta], None]) -> None:
    """Pass all published deltas to `on_delta` until cancelled. Deltas are lost during a reconnect."""

    def receive(payload: bytes) -> None:
        try:
            on_delta(Delta.decode(payload))
        except Exception as error:
            _log.warning("skipped unreadable delta", error=repr(error))

    while True:
        try:
            await store.connection.listen(store.keys.deltas(), receive)
        except (LinkLost, ReplyError):
            pass
        except Exception:
            _log.exception("listening for deltas failed, retrying")
        await anyio.sleep(_RETRY_SECONDS)


class DeltaWriter:
    """Publishes the text of one answer as deltas.

    The first delta is sent on the next iteration of the loop. Later text is buffered for up to `_FLUSH_SECONDS`.
    """

    def __init__(self, store: Store, event: Event, agent_id: str, trigger_id: str, answer_id: str) -> None:
        self._store = store
        self._lane = event.lane
        self._empty = Delta(
            event.owner_id, event.session_id, tuple(event.tags), agent_id, trigger_id, UUID(answer_id)
        )
        self._pending = ""
        self._sent = 0
        self._loop = asyncio.get_running_loop()  # anyio has no timer callbacks
        self._next_flush = 0.0
        """Earliest time of the next delta, by the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> DeltaWriter:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._flush()
        elif self._timer is not None:
            self._timer.cancel()

    async def write(self, text: str) -> None:
        """Add text to the answer."""
        self._pending += text
        if self._timer is None:
            self._timer = self._loop.call_at(self._next_flush, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._pending:
            return
        delta = replace(self._empty, offset=self._sent, text=encodable_text(self._pending))
        self._sent += len(self._pending)
        self._pending = ""
        self._next_flush = self._loop.time() + _FLUSH_SECONDS
        # Not awaited, because deltas can get lost. If the store is unavailable, the commit of the answer fails.
        publish(self._store, self._lane, delta)
