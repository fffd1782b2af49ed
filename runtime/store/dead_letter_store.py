"""Reads and removes stored dead letters. `runtime/workers/dead_letters.py` decodes them."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_records import read_worker_kinds


class LetterKey(NamedTuple):
    """Identity of a dead letter."""

    lane: int
    kind: str
    """The kind of worker that gave up."""
    event: int
    """The time of the event."""


class StoredLetter(NamedTuple):
    """A dead letter in its stored form."""

    lane: int
    kind: str
    body: bytes


async def read_letters(store: Store, owner: UUID, session: str | None = None) -> list[StoredLetter]:
    """Return the dead letters of all lanes, or of the lane of a session.

    They can belong to other owners and sessions: the caller must filter them.
    """
    lanes = range(store.lanes) if session is None else (store.keys.session_lane(owner, session),)
    kinds = await read_worker_kinds(store)
    hashes = [(lane, kind) for lane in lanes for kind in kinds]
    replies = await store.connection.call_all(
        [(lane, (b"HVALS", store.keys.dead_letters(lane, kind))) for lane, kind in hashes]
    )
    return [
        StoredLetter(lane, kind, body)
        for (lane, kind), bodies in zip(hashes, replies, strict=True)
        for body in bodies
    ]


async def remove_letter(store: Store, letter: LetterKey) -> bool:
    """Remove a dead letter. Return whether it existed."""
    key = store.keys.dead_letters(letter.lane, letter.kind)
    return bool(int(await store.connection.call(letter.lane, b"HDEL", key, letter.event)))
