"""One look into a lane before a turn: what is there already, and what was said last. One round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from breadcrumbs.runtime.breadcrumb import Breadcrumb
from breadcrumbs.runtime.store import Store


@dataclass(frozen=True, slots=True)
class Seen:
    existing: frozenset[UUID]
    recent: dict[str, list[Breadcrumb]]
    """By schema, the newest first; empty where there is no session."""


async def look(
    store: Store,
    owner: UUID,
    lane: int,
    session_id: str | None,
    *,
    ids: tuple[UUID, ...],
    schemas: Mapping[str, int],
) -> Seen:
    """Which of these ids exist in a lane, and the last breadcrumbs of some schemas in a session."""

    async def exists(id: UUID) -> bool:
        return bool(await store.connection.call(lane, b"EXISTS", store.keys.body(lane, owner, id.bytes)))

    async def recent(schema: str, limit: int) -> list[Breadcrumb]:
        return [] if session_id is None else await store.recent(owner, session_id, schema, limit)

    there, said = await asyncio.gather(
        asyncio.gather(*(exists(id) for id in ids)),
        asyncio.gather(*(recent(schema, limit) for schema, limit in schemas.items())),
    )
    return Seen(
        frozenset(id for id, found in zip(ids, there, strict=True) if found),
        dict(zip(schemas, said, strict=True)),
    )
