"""Dead letters: events that failed every attempt. They can be listed, retried and discarded."""

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
    """An event that failed every attempt."""

    id: UUID
    lane: int
    kind: str
    """The kind of worker that gave up: `contexts` or `agents`."""
    event: int
    owner_id: UUID
    breadcrumb_id: UUID
    version: int
    session_id: str | None
    attempts: int
    error: str
    created_at: str

    @property
    def key(self) -> LetterKey:
        return LetterKey(self.lane, self.kind, self.event)

    def shown(self) -> dict[str, Any]:
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
    """The dead letters of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self, owner: UUID, *, session: str | None = None) -> list[DeadLetter]:
        """Return the dead letters of an owner, or of one session, the newest first."""
        letters = map(_decode_dead_letter, await read_letters(self._store, owner, session))
        mine = [
            letter for letter in letters if letter.owner_id == owner and session in (None, letter.session_id)
        ]
        return sorted(mine, key=lambda letter: letter.event, reverse=True)

    async def get(self, owner: UUID, id: UUID) -> DeadLetter:
        for letter in await self.all(owner):
            if letter.id == id:
                return letter
        raise NotFound("no such dead letter")

    async def discard(self, letter: DeadLetter) -> None:
        if not await remove_letter(self._store, letter.key):
            raise NotFound("no such dead letter: somebody else has taken it")


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
