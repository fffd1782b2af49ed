"""Retries of turns: write the retry event, and read the time of the last retry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.dead_letter_store import LetterKey
from breadcrumbs.runtime.store.placement import lane_beside
from breadcrumbs.runtime.store.script_replies import decode_announce
from breadcrumbs.runtime.store.store import Store

_ANNOUNCE = Script("announce")

_RETRIED_BYTES: Final = 32  # an id and 16 digits: see announce.lua


@dataclass(frozen=True, slots=True)
class TurnRetry:
    """A turn to retry."""

    trigger: Breadcrumb
    """The breadcrumb to handle again."""
    message: UUID
    """The message that the turn answers."""
    letters: Sequence[LetterKey] = ()
    """The dead letters of the turn. `announce_retry` removes them."""
    only_for: str | None = None
    """The only kind of worker that retries; the letters must still exist. None: every kind."""


async def announce_retry(store: Store, retry: TurnRetry) -> int:
    """Write the event that makes workers handle a breadcrumb again, and return its time.

    A kind of worker that has already committed its result finds it and does nothing.
    """
    trigger, keys = retry.trigger, store.keys
    owner, session = trigger.owner_id, trigger.session_id
    # A dead letter is in the lane of its event, which is the lane of the trigger.
    lane = retry.letters[0].lane if retry.letters else lane_beside(store, trigger)
    private_to = trigger.created_by if trigger.visibility == "private" else None
    note = record.event_note(trigger.schema_name or "", trigger.tags, private_to, only_for=retry.only_for)
    reply = await store.connection.run(
        lane,
        _ANNOUNCE,
        [
            keys.clock(lane) if session is None else keys.session(lane, owner, session),
            keys.events(lane),
            keys.clock(lane),
            *(keys.dead_letters(lane, letter.kind) for letter in retry.letters),
        ],
        [
            owner.bytes + trigger.id.bytes + b"%d %s" % (trigger.version, note),
            b"" if session is None else retry.message.bytes,
            int(retry.only_for is not None),
            *(letter.event for letter in retry.letters),
        ],
    )
    return decode_announce(reply, session)


async def last_retry_time(store: Store, message: Breadcrumb) -> int:
    """Return the time of the last retry of a message. 0: none is recorded.

    Only the last 100 retries of a session are stored.
    """
    owner, session = message.owner_id, message.session_id or ""
    lane = store.keys.session_lane(owner, session)
    key = store.keys.session(lane, owner, session)
    retried: bytes = await store.connection.call(lane, b"HGET", key, b"retried") or b""
    for at in range(0, len(retried), _RETRIED_BYTES):
        if retried[at : at + 16] == message.id.bytes:
            return int(retried[at + 16 : at + _RETRIED_BYTES])
    return 0
