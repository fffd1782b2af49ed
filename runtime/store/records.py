"""Small records of an owner: its agents, its saved selectors, its own name. Hashes in lane 0, id → JSON.

Nothing here checks permissions: callers do, see `access/saved_selectors.py`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import orjson

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.ids import new_id
from breadcrumbs.runtime.breadcrumb.selectors import Selector
from breadcrumbs.runtime.errors import InvalidInput, NotFound
from breadcrumbs.runtime.store.store import Store

MAX_SELECTORS: Final = 1_000
"""Of an agent, or of an agent in one session or for one user where its token is narrowed to that."""

_LANE: Final = 0


class AgentRecord(TypedDict):
    id: str
    roles: list[str]
    created_at: str


class TenantRecord(TypedDict):
    id: str
    name: str
    created_at: str


class SelectorRecord(TypedDict):
    id: str
    owner_id: str
    agent_id: str
    selector: dict[str, Any]
    session_id: NotRequired[str]
    """The session that the token which saved it was narrowed to; others of that kind do not see it."""
    user_id: NotRequired[str]


class SelectorSaver(NamedTuple):
    """The agent that saves a selector, and the session and the user that its token is narrowed to."""

    agent_id: UUID
    session_id: str | None
    user_id: str | None


class Registry:
    """Reads and writes these records. Every method names the owner; there is no way to ask for all owners."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # Agents

    async def agents(self, owner: UUID) -> list[AgentRecord]:
        records: list[AgentRecord] = await self._all(self._store.keys.agents(owner))
        return sorted(records, key=lambda record: (record["created_at"], record["id"]))

    async def agent(self, owner: UUID, id: UUID) -> AgentRecord:
        record: AgentRecord | None = await self._get(self._store.keys.agents(owner), id)
        if record is None:
            raise NotFound("no such agent")
        return record

    async def put_agent(self, owner: UUID, id: UUID, roles: list[str]) -> None:
        """Write an agent, new or known; a known one keeps the time it was first seen."""
        key = self._store.keys.agents(owner)
        known: AgentRecord | None = await self._get(key, id)
        record: AgentRecord = {
            "id": str(id),
            "roles": roles,
            "created_at": known["created_at"] if known else self._now(),
        }
        if record != known:
            await self._put(key, id, record)

    async def delete_agent(self, owner: UUID, id: UUID) -> None:
        if not await self._delete(self._store.keys.agents(owner), id):
            raise NotFound("no such agent")

    # Selectors

    async def selectors(self, owner: UUID) -> list[SelectorRecord]:
        """Return all saved selectors of an owner. The caller decides which of them a principal may see."""
        records: list[SelectorRecord] = await self._all(self._store.keys.selectors(owner))
        return sorted(records, key=lambda record: record["id"])

    async def selector(self, owner: UUID, id: UUID) -> SelectorRecord:
        record: SelectorRecord | None = await self._get(self._store.keys.selectors(owner), id)
        if record is None:
            raise NotFound("no such selector")
        return record

    async def add_selector(self, owner: UUID, saver: SelectorSaver, selector: Selector) -> SelectorRecord:
        # Counted per saver: one browser with a narrowed token must not use up the limit of the others.
        saved = sum(saver_of(record) == saver for record in await self.selectors(owner))
        if saved >= MAX_SELECTORS:
            raise InvalidInput(
                f"there are {MAX_SELECTORS} selectors of yours already: delete some that are not needed"
            )
        record: SelectorRecord = {
            "id": str(new_id(_LANE)),
            "owner_id": str(owner),
            "agent_id": str(saver.agent_id),
            "selector": _as_json(selector),
        }
        if saver.session_id is not None:
            record["session_id"] = saver.session_id
        if saver.user_id is not None:
            record["user_id"] = saver.user_id
        await self._put(self._store.keys.selectors(owner), record["id"], record)
        return record

    async def replace_selector(self, owner: UUID, record: SelectorRecord, selector: Selector) -> None:
        changed: SelectorRecord = {**record, "selector": _as_json(selector)}
        await self._put(self._store.keys.selectors(owner), record["id"], changed)

    async def delete_selector(self, owner: UUID, id: UUID) -> None:
        await self._delete(self._store.keys.selectors(owner), id)

    # Tenants

    async def tenant(self, owner: UUID) -> TenantRecord:
        record: TenantRecord | None = await self._get(self._store.keys.tenants(), owner)
        if record is None:
            raise NotFound("this tenant has no name yet: POST /tenants/{id} gives it one")
        return record

    async def put_tenant(self, owner: UUID, name: str) -> None:
        key = self._store.keys.tenants()
        known: TenantRecord | None = await self._get(key, owner)
        created_at = known["created_at"] if known else self._now()
        await self._put(key, owner, TenantRecord(id=str(owner), name=name, created_at=created_at))

    async def forget(self, owner: UUID) -> bool:
        """Remove every record of an owner; False where there was none."""
        keys, connection = self._store.keys, self._store.connection
        removed = [
            await connection.call(_LANE, b"DEL", keys.agents(owner)),
            await connection.call(_LANE, b"DEL", keys.selectors(owner)),
            await self._delete(keys.tenants(), owner),
        ]
        return any(removed)

    # The hashes

    def _now(self) -> str:
        return times.to_text(self._store.now())

    async def _get(self, key: bytes, id: UUID | str) -> Any:
        raw = await self._store.connection.call(_LANE, b"HGET", key, str(id))
        return None if raw is None else orjson.loads(raw)

    async def _all(self, key: bytes) -> list[Any]:
        return [orjson.loads(raw) for raw in await self._store.connection.call(_LANE, b"HVALS", key)]

    async def _put(self, key: bytes, id: UUID | str, record: Any) -> None:
        await self._store.connection.call(_LANE, b"HSET", key, str(id), orjson.dumps(record))

    async def _delete(self, key: bytes, id: UUID | str) -> bool:
        return bool(await self._store.connection.call(_LANE, b"HDEL", key, str(id)))


def saver_of(record: SelectorRecord) -> SelectorSaver:
    return SelectorSaver(UUID(record["agent_id"]), record.get("session_id"), record.get("user_id"))


def _as_json(selector: Selector) -> dict[str, Any]:
    return selector.model_dump(mode="json", exclude_none=True)
