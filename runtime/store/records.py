"""Small records of an owner: its agents, its saved selectors, its own name. Hashes in lane 0, id → JSON."""

from __future__ import annotations

from typing import Any, Final, NotRequired, TypedDict
from uuid import UUID

import orjson

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.ids import new_id
from breadcrumbs.runtime.breadcrumb.selectors import Selector, parse_selector
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

    async def selectors(self, principal: Principal) -> list[SelectorRecord]:
        records: list[SelectorRecord] = await self._all(self._store.keys.selectors(principal.owner_id))
        return sorted(
            (record for record in records if policy.owns_selector(principal, *_saved_by(record))),
            key=lambda record: record["id"],
        )

    async def selector(self, principal: Principal, id: UUID) -> Selector:
        """Return a saved selector that a stream of the principal may use."""
        record: SelectorRecord | None = await self._get(self._store.keys.selectors(principal.owner_id), id)
        if record is None or not policy.may_use_selector(principal, *_saved_by(record)):
            raise NotFound("no such selector")
        return parse_selector(record["selector"])

    async def selectors_of(self, principal: Principal, agent_id: UUID) -> list[Selector]:
        """Return the selectors that an agent has saved and that a stream of the principal may use."""
        records: list[SelectorRecord] = await self._all(self._store.keys.selectors(principal.owner_id))
        return [
            parse_selector(record["selector"])
            for record in records
            if record["agent_id"] == str(agent_id) and policy.may_use_selector(principal, *_saved_by(record))
        ]

    async def add_selector(self, principal: Principal, selector: Selector) -> SelectorRecord:
        key = self._store.keys.selectors(principal.owner_id)
        records: list[SelectorRecord] = await self._all(key)
        # By who saved them: one browser with a narrowed token must not use up what the others have.
        if sum(_saved_by(record) == _saver(principal) for record in records) >= MAX_SELECTORS:
            raise InvalidInput(
                f"there are {MAX_SELECTORS} selectors of yours already: delete some that are not needed"
            )
        record: SelectorRecord = {
            "id": str(new_id(_LANE)),
            "owner_id": str(principal.owner_id),
            "agent_id": str(principal.agent_id),
            "selector": selector.model_dump(mode="json", exclude_none=True),
        }
        if principal.session_id is not None:
            record["session_id"] = principal.session_id
        if principal.user_id is not None:
            record["user_id"] = principal.user_id
        await self._put(key, record["id"], record)
        return record

    async def replace_selector(self, principal: Principal, id: UUID, selector: Selector) -> None:
        record = await self._their_selector(principal, id)
        record["selector"] = selector.model_dump(mode="json", exclude_none=True)
        await self._put(self._store.keys.selectors(principal.owner_id), id, record)

    async def delete_selector(self, principal: Principal, id: UUID) -> None:
        await self._their_selector(principal, id)
        await self._delete(self._store.keys.selectors(principal.owner_id), id)

    async def _their_selector(self, principal: Principal, id: UUID) -> SelectorRecord:
        record: SelectorRecord | None = await self._get(self._store.keys.selectors(principal.owner_id), id)
        if record is None or not policy.owns_selector(principal, *_saved_by(record)):
            raise NotFound("no such selector")
        return record

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


def _saver(principal: Principal) -> tuple[UUID, str | None, str | None]:
    return principal.agent_id, principal.session_id, principal.user_id


def _saved_by(record: SelectorRecord) -> tuple[UUID, str | None, str | None]:
    return UUID(record["agent_id"]), record.get("session_id"), record.get("user_id")
