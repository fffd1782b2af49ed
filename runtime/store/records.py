"""Small records of an owner: agents, saved selectors and tenant name. Hashes in lane 0, id → JSON.

Nothing here checks permissions. Callers do: see `access/saved_selectors.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import orjson

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.ids import new_id
from breadcrumbs.runtime.breadcrumb.selectors import Selector
from breadcrumbs.runtime.errors import InvalidInput, NotFound
from breadcrumbs.runtime.store.archive import delete_archive
from breadcrumbs.runtime.store.store import Store

MAX_SELECTORS: Final = 1_000
"""Maximum number of selectors per `SelectorSaver`."""

RecordKind = Literal["agent", "selector", "tenant"]

_LANE: Final = 0


class AgentRecord(TypedDict):
    """An agent of an owner."""

    id: str
    roles: list[str]
    created_at: str


class TenantRecord(TypedDict):
    """Name of an owner."""

    id: str
    name: str
    created_at: str


class SelectorRecord(TypedDict):
    """A selector that an agent has saved."""

    id: str
    owner_id: str
    agent_id: str
    selector: dict[str, Any]
    session_id: NotRequired[str]
    """The session that the saving token was narrowed to."""
    user_id: NotRequired[str]
    """The user that the saving token was narrowed to.

    A narrowed token sees a selector only if it has the same session and the same user.
    """


class SelectorSaver(NamedTuple):
    """The agent that saves a selector, and the narrowing of its token (None: not narrowed)."""

    agent_id: UUID
    session_id: str | None
    user_id: str | None


class Registry:
    """Reads and writes the records. Every method takes an owner. No method reads the records of all owners."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # Agents

    async def agents(self, owner: UUID) -> list[AgentRecord]:
        """Return the agents of an owner, the oldest first."""
        records: list[AgentRecord] = await self._all(self._store.keys.agents(owner))
        return sorted(records, key=lambda record: (record["created_at"], record["id"]))

    async def agent(self, owner: UUID, id: UUID) -> AgentRecord:
        """Return an agent, or raise `NotFound`."""
        record: AgentRecord | None = await self._get(self._store.keys.agents(owner), id)
        if record is None:
            raise NotFound("agent not found")
        return record

    async def put_agent(self, owner: UUID, id: UUID, roles: list[str]) -> None:
        """Create or update an agent. An existing one keeps its `created_at`."""
        key = self._store.keys.agents(owner)
        existing: AgentRecord | None = await self._get(key, id)
        record: AgentRecord = {
            "id": str(id),
            "roles": roles,
            "created_at": existing["created_at"] if existing else self._now(),
        }
        if record != existing:
            await self._put(key, id, record)

    async def delete_agent(self, owner: UUID, id: UUID) -> None:
        """Remove an agent, or raise `NotFound`."""
        if not await self._delete(self._store.keys.agents(owner), id):
            raise NotFound("agent not found")

    # Selectors

    async def selectors(self, owner: UUID) -> list[SelectorRecord]:
        """Return all saved selectors of an owner. The caller decides which of them a principal may see."""
        records: list[SelectorRecord] = await self._all(self._store.keys.selectors(owner))
        return sorted(records, key=lambda record: record["id"])

    async def selector(self, owner: UUID, id: UUID) -> SelectorRecord:
        """Return a saved selector, or raise `NotFound`."""
        record: SelectorRecord | None = await self._get(self._store.keys.selectors(owner), id)
        if record is None:
            raise NotFound("selector not found")
        return record

    async def add_selector(self, owner: UUID, saver: SelectorSaver, selector: Selector) -> SelectorRecord:
        """Save a selector. Raises `InvalidInput` above `MAX_SELECTORS` of the same saver."""
        # The limit counts per saver, so that one browser with a narrowed token cannot use up the limit of the others.
        saved = sum(saver_of(record) == saver for record in await self.selectors(owner))
        if saved >= MAX_SELECTORS:
            raise InvalidInput(
                f"you have reached the limit of {MAX_SELECTORS} selectors: delete those that you do not need"
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
        """Replace the selector in a record."""
        changed: SelectorRecord = {**record, "selector": _as_json(selector)}
        await self._put(self._store.keys.selectors(owner), record["id"], changed)

    async def delete_selector(self, owner: UUID, id: UUID) -> None:
        """Remove a saved selector, if it exists."""
        await self._delete(self._store.keys.selectors(owner), id)

    # Tenants

    async def tenant(self, owner: UUID) -> TenantRecord:
        """Return the name of an owner, or raise `NotFound`."""
        record: TenantRecord | None = await self._get(self._store.keys.tenants(), owner)
        if record is None:
            raise NotFound("this tenant has no name yet: set one with POST /tenants/{id}")
        return record

    async def put_tenant(self, owner: UUID, name: str) -> None:
        """Set the name of an owner. An existing record keeps its `created_at`."""
        key = self._store.keys.tenants()
        existing: TenantRecord | None = await self._get(key, owner)
        created_at = existing["created_at"] if existing else self._now()
        await self._put(key, owner, TenantRecord(id=str(owner), name=name, created_at=created_at))

    # Restoring

    async def restore(self, owner: UUID, kind: RecordKind, record: Mapping[str, Any]) -> bool:
        """Write an exported record, unless its id exists already. Return whether it was written."""
        key = {
            "agent": self._store.keys.agents(owner),
            "selector": self._store.keys.selectors(owner),
            "tenant": self._store.keys.tenants(),
        }[kind]
        raw = orjson.dumps(record)
        return bool(await self._store.connection.call(_LANE, b"HSETNX", key, record["id"], raw))

    async def exists(self, owner: UUID, kind: RecordKind, id: str) -> bool:
        """Return whether a record exists."""
        records: Sequence[Mapping[str, Any]]
        if kind == "agent":
            records = await self.agents(owner)
        elif kind == "selector":
            records = await self.selectors(owner)
        else:
            return await self._get(self._store.keys.tenants(), owner) is not None
        return any(record["id"] == id for record in records)

    async def forget(self, owner: UUID) -> bool:
        """Remove all records of an owner. Return whether there were any."""
        keys, connection = self._store.keys, self._store.connection
        removed = [
            await connection.call(_LANE, b"DEL", keys.agents(owner)),
            await connection.call(_LANE, b"DEL", keys.selectors(owner)),
            await self._delete(keys.tenants(), owner),
            await delete_archive(self._store, owner),
        ]
        return any(removed)

    # Access to the hashes

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
    """Return the saver of a stored selector."""
    return SelectorSaver(UUID(record["agent_id"]), record.get("session_id"), record.get("user_id"))


def _as_json(selector: Selector) -> dict[str, Any]:
    return selector.model_dump(mode="json", exclude_none=True)
