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

    async def all(self, owner: UUID | None = None, *, lane: int | None = None) -> list[DeadLetter]:
        """Return the dead letters of an owner (None: of all owners) in all lanes or in one, the newest first."""
        store = self._store
        kinds = sorted(
            kind.decode() for kind in await store.connection.call(0, b"SMEMBERS", store.keys.worker_kinds())
        )
        lanes = range(store.lanes) if lane is None else (lane,)
        hashes = [(number, kind) for number in lanes for kind in kinds]
        replies = await store.connection.call_all(
            [(number, (b"HVALS", store.keys.dead_letters(number, kind))) for number, kind in hashes]
        )
        letters = [
            _decode_dead_letter(number, kind, raw)
            for (number, kind), found in zip(hashes, replies, strict=True)
            for raw in found
        ]
        mine = [letter for letter in letters if owner is None or letter.owner_id == owner]
        return sorted(mine, key=lambda letter: letter.event, reverse=True)

    async def get(self, owner: UUID, id: UUID) -> DeadLetter:
        for letter in await self.all(owner):
            if letter.id == id:
                return letter
        raise NotFound("no such dead letter")

    async def discard(self, letter: DeadLetter) -> None:
        key = self._store.keys.dead_letters(letter.lane, letter.kind)
        if not int(await self._store.connection.call(letter.lane, b"HDEL", key, letter.event)):
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


def _decode_dead_letter(lane: int, kind: str, raw: bytes) -> DeadLetter:
    fields = orjson.loads(raw)
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
