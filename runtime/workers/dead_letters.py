"""Dead letters: events that failed every attempt.

This module lists and discards them. `sessions/retries.py` retries them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.store.dead_letter_store import LetterKey, StoredLetter, read_letters, remove_letter
from breadcrumbs.runtime.store.store import Store


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Event that failed every attempt."""

    id: UUID
    lane: int
    kind: str
    """Kind of the worker that gave up, such as `contexts` or `agents`."""
    event: int
    """Time of the event in its lane, in microseconds."""
    owner_id: UUID
    breadcrumb_id: UUID
    version: int
    session_id: str | None
    attempts: int
    """Number of attempts that were made."""
    error: str
    """Reason of the last failure."""
    created_at: str
    """Time of the event as text."""

    @property
    def key(self) -> LetterKey:
        return LetterKey(self.lane, self.kind, self.event)

    def shown(self) -> dict[str, Any]:
        """Return the JSON form for API replies."""
        view: dict[str, Any] = {
            "id": str(self.id),
            "kind": self.kind,
            "breadcrumb_id": str(self.breadcrumb_id),
            "version": self.version,
            "attempts": self.attempts,
            "last_error": self.error,
            "created_at": self.created_at,
        }
        if self.session_id is not None:
            view["session_id"] = self.session_id
        return view


class DeadLetters:
    """Dead letters of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self, owner: UUID, *, session: str | None = None) -> list[DeadLetter]:
        """Return the dead letters of an owner, or of one of its sessions, newest first."""
        letters = map(_decode_dead_letter, await read_letters(self._store, owner, session))
        matching = [
            letter for letter in letters if letter.owner_id == owner and session in (None, letter.session_id)
        ]
        return sorted(matching, key=lambda letter: letter.event, reverse=True)

    async def get(self, owner: UUID, id: UUID) -> DeadLetter:
        """Return a dead letter of an owner.

        Raise `NotFound` if it does not exist.
        """
        for letter in await self.all(owner):
            if letter.id == id:
                return letter
        raise NotFound("dead letter not found")

    async def discard(self, letter: DeadLetter) -> None:
        """Remove a dead letter without a retry.

        Raise `NotFound` if it was already retried or discarded.
        """
        if not await remove_letter(self._store, letter.key):
            raise NotFound("dead letter not found: it was already retried or discarded")


def encode_dead_letter(event: Event, *, kind: str, attempts: int, error: str) -> bytes:
    """Return the stored form of a dead letter."""
    return orjson.dumps(
        {
            "at": times.to_text(event.at),
            "event": event.at,
            "kind": kind,
            "owner_id": str(event.owner_id),
            "breadcrumb_id": str(event.id),
            "version": event.version,
            "session_id": event.session_id,
            "attempts": attempts,
            "error": error,
        }
    )


def _decode_dead_letter(stored: StoredLetter) -> DeadLetter:
    lane, kind = stored.lane, stored.kind
    fields = orjson.loads(stored.body)
    return DeadLetter(
        derived_id(lane, "dead-letter", kind, str(fields["event"])),
        lane,
        kind,
        fields["event"],
        UUID(fields["owner_id"]),
        UUID(fields["breadcrumb_id"]),
        fields["version"],
        fields["session_id"],
        fields["attempts"],
        fields["error"],
        fields["at"],
    )
