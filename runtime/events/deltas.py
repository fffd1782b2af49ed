"""Deltas: pieces of an answer that are published while it is being generated.

Deltas use Pub/Sub and can get lost. The breadcrumb of the answer is always complete.

The text so far is also saved in the store (`running_answers.py`), at most every `_SAVE_SECONDS`, for clients that join
in the middle. A delta therefore repeats the text since the last save in `before`. Each save is followed by a delta that
contains the saved text. So a client that subscribes first and reads the saved text afterwards can always continue it
with the next delta.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final
from uuid import UUID

import anyio
import orjson
import structlog

from breadcrumbs.runtime.breadcrumb.text import encodable_text
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.events.notices import Notice
from breadcrumbs.runtime.store import running_answers
from breadcrumbs.runtime.store.running_answers import NO_RUN, Run, SavedAnswer, StoredAnswer
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry.store_calls import log_store_error

DELTA: Final = "agent.response.delta"
"""Type of a delta in streams. Filters treat it as a schema name."""

_FLUSH_SECONDS: Final = 0.03  # between two deltas, so that a fast model does not cost one message per word
_RETRY_SECONDS: Final = 1.0
_SAVE_SECONDS: Final = 0.1
"""Seconds between two saves of a new answer. A shorter answer is never saved."""
_MAX_SAVE_SECONDS: Final = 1.0
MAX_SAVED_CHARACTERS: Final = 1 << 20
"""Above this length, an answer is not saved any more. No answer that can be stored is longer (1 MiB)."""
MAX_REASONING_CHARACTERS: Final = 1 << 16
"""Maximum length of the reasoning of an answer. The rest is dropped."""

_run_numbers = count(1)

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
    before: str = ""
    """Text before `offset` that is not saved yet. Clients do not get it."""
    reasoning_offset: int = 0
    """Length of the reasoning before this delta, in characters."""
    reasoning: str = ""
    reasoning_before: str = ""
    """Reasoning before `reasoning_offset` that is not saved yet. Clients do not get it."""
    run: Run = NO_RUN
    """The attempt that the delta belongs to. A later attempt begins the text anew."""
    notice: Notice | None = None
    """The last failure of the model, until the next text arrives."""

    def encode(self) -> bytes:
        return orjson.dumps(
            {
                "tags": self.tags,
                **self._identity(),
                **self._piece(),
                "before": self.before,
                "reasoning_before": self.reasoning_before,
                "run": [self.run.fence, self.run.number],
                "notice": None if self.notice is None else self.notice.encode(),
            }
        )

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
            # Workers of earlier versions do not send the fields below.
            fields.get("before", ""),
            fields.get("reasoning_offset", 0),
            fields.get("reasoning", ""),
            fields.get("reasoning_before", ""),
            Run(*fields.get("run", (0, 0))),
            Notice.decode(fields.get("notice")),
        )

    def document(self) -> dict[str, Any]:
        """Return the fields that clients get."""
        piece = self._piece() if self.notice is None else {**self._piece(), "notice": self.notice.document()}
        return {"type": DELTA, **self._identity(), **piece}

    def piece_document(self) -> dict[str, Any]:
        """Return the fields that a client of one answer gets."""
        document = {**self._piece(), "agent_id": self.agent_id}
        return document if self.notice is None else {**document, "notice": self.notice.document()}

    def _identity(self) -> dict[str, Any]:
        return {
            "owner_id": str(self.owner_id),
            "session_id": self.session_id,
            "agent_id": self.agent_id,
            "trigger_id": self.trigger_id,
            "breadcrumb_id": str(self.breadcrumb_id),
        }

    def _piece(self) -> dict[str, Any]:
        piece: dict[str, Any] = {"offset": self.offset, "text": self.text}
        if self.reasoning_offset or self.reasoning:
            piece |= {"reasoning_offset": self.reasoning_offset, "reasoning": self.reasoning}
        return piece

    # The form in the store

    def head(self) -> bytes:
        """Return the fields that all deltas of a run share, and the notice."""
        notice = None if self.notice is None else self.notice.encode()
        return orjson.dumps({"tags": self.tags, **self._identity(), "notice": notice})

    @classmethod
    def of_stored(cls, stored: StoredAnswer) -> Delta:
        """Return a running answer as one delta with the whole text so far.

        Raises LookupError, TypeError or ValueError if it is invalid.
        """
        head = orjson.loads(stored.head)
        pieces = [orjson.loads(piece) for piece in stored.pieces]
        return cls(
            UUID(head["owner_id"]),
            head["session_id"],
            tuple(head["tags"]),
            head["agent_id"],
            head["trigger_id"],
            stored.id,
            text="".join(piece["text"] for piece in pieces),
            reasoning="".join(piece["reasoning"] for piece in pieces),
            run=stored.run,
            notice=Notice.decode(head["notice"]),
        )


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
        except StoreError as error:
            log_store_error(_log, "listening for deltas failed, retrying", error)
        except Exception:
            _log.exception("listening for deltas failed, retrying")
        await anyio.sleep(_RETRY_SECONDS)


async def read_running(store: Store, owner: UUID, session: str) -> list[Delta]:
    """Return the answers of a session that are being written, each as one delta with its text so far."""
    now = store.now()
    deltas: list[Delta] = []
    for stored in await running_answers.read(store, owner, session):
        try:
            delta = Delta.of_stored(stored)
        except (LookupError, TypeError, ValueError) as error:
            _log.warning("skipped unreadable running answer", error=repr(error))
            continue
        notice = None if delta.notice is None else delta.notice.at(now)
        deltas.append(replace(delta, notice=notice))
    return deltas


def new_run_number() -> int:
    """Return a number that is greater than all earlier ones of this process."""
    return next(_run_numbers)


@dataclass(frozen=True, slots=True)
class Saving:
    """Lets a `DeltaWriter` save the text so far."""

    answer: SavedAnswer
    on_save: Callable[[], None]
    """Called before each save. The commit of the answer must then remove what was saved."""


class DeltaWriter:
    """Publishes the text of one answer as deltas, and saves it for clients that join later.

    The first delta is sent on the next iteration of the loop. Later text is buffered for up to `_FLUSH_SECONDS`.
    """

    def __init__(
        self,
        store: Store,
        event: Event,
        agent_id: str,
        trigger_id: str,
        answer_id: str,
        saving: Saving | None = None,
    ) -> None:
        self._store = store
        self._lane = event.lane
        self._saving = saving
        self._empty = Delta(
            event.owner_id,
            event.session_id,
            tuple(event.tags),
            agent_id,
            trigger_id,
            UUID(answer_id),
            run=Run(0, new_run_number()) if saving is None else saving.answer.run,
        )
        self._pending = ""
        self._pending_reasoning = ""
        self._sent = self._sent_reasoning = 0
        self._unsaved = self._unsaved_reasoning = ""
        self._saves = 0
        self._notice: Notice | None = None
        self._reasoning: list[str] = []
        self._reasoning_length = 0
        self._loop = asyncio.get_running_loop()  # anyio has no timer callbacks
        self._next_flush = 0.0
        """Earliest time of the next delta, by the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None
        self._next_save = 0.0
        """Earliest time of the next save, by the loop's clock."""
        self._save_timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> DeltaWriter:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._flush()
        self._cancel_timers()

    @property
    def reasoning(self) -> str:
        """The reasoning of the model so far."""
        return "".join(self._reasoning)

    async def write(self, text: str) -> None:
        """Add text to the answer."""
        self._pending += text
        self._flush_soon()

    async def reason(self, text: str) -> None:
        """Add text to the reasoning. It is not part of the answer."""
        text = encodable_text(text)[: MAX_REASONING_CHARACTERS - self._reasoning_length]
        if text:
            self._reasoning.append(text)
            self._reasoning_length += len(text)
            self._pending_reasoning += text
            self._flush_soon()

    def notify(self, notice: Notice) -> None:
        """Publish and save a notice at once. It stays until the next text arrives, also after the writer is closed."""
        self._cancel_timers()
        self._notice = notice
        self._send()

    def _flush_soon(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(self._next_flush, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pending or self._pending_reasoning:
            self._notice = None
            self._send()

    def _send(self) -> None:
        text, reasoning = encodable_text(self._pending), self._pending_reasoning
        self._pending = self._pending_reasoning = ""
        delta = replace(
            self._empty,
            offset=self._sent,
            text=text,
            before=self._unsaved,
            reasoning_offset=self._sent_reasoning,
            reasoning=reasoning,
            reasoning_before=self._unsaved_reasoning,
            notice=self._notice,
        )
        self._sent += len(text)
        self._sent_reasoning += len(reasoning)
        now = self._loop.time()
        self._next_flush = now + _FLUSH_SECONDS
        if self._saving is not None:
            self._unsaved += text
            self._unsaved_reasoning += reasoning
            self._save_when_due(now)
        # Not awaited, because deltas can get lost. If the store is unavailable, the commit of the answer fails.
        publish(self._store, self._lane, delta)

    def _save_when_due(self, now: float) -> None:
        if self._notice is not None or (self._next_save and now >= self._next_save):
            self._save()
        elif self._save_timer is None and (self._unsaved or self._unsaved_reasoning):
            self._next_save = self._next_save or now + _SAVE_SECONDS
            self._save_timer = self._loop.call_at(self._next_save, self._send)

    def _save(self) -> None:
        if self._save_timer is not None:
            self._save_timer.cancel()
            self._save_timer = None
        if self._saving is None:
            return
        if self._sent > MAX_SAVED_CHARACTERS:
            # Otherwise each later delta would repeat all text since the last save.
            self._saving, self._unsaved, self._unsaved_reasoning = None, "", ""
            return
        piece = orjson.dumps({"text": self._unsaved, "reasoning": self._unsaved_reasoning})
        self._unsaved = self._unsaved_reasoning = ""
        self._saving.on_save()
        head = replace(self._empty, notice=self._notice).head()
        running_answers.save(self._store, self._saving.answer, head, self._saves, piece)
        self._saves += 1
        # A long answer is saved less often, which limits the number of its pieces.
        pause = min(_MAX_SAVE_SECONDS, _SAVE_SECONDS * (1 + self._saves / 50))
        self._next_save = self._loop.time() + pause

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._save_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._save_timer = None
